"""A module written from the contracts alone, by every way it can come, in the real program."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import zipfile
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Finished, run_amplifier
from tests.support.http_server import serving
from tests.support.module_repositories import SEED_TOOL, Repository, git, write_files
from tests.support.packages import index, sha256, tar, wheel


def plan(folder: Path, source: str | None, *, tool: str = "my-tool", **config: Any) -> Path:
    """A plan in which a scripted model calls the tool once and says what it answered."""
    calls = [{"name": "my-tool", "input": {"who": "world"}}]
    text = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": [
            {
                "module": "provider-mock",
                "config": {"replies": [{"tool_calls": calls}, "the tool was called"]},
            }
        ],
        "tools": [{"module": tool, "config": config} | ({"source": source} if source else {})],
    }
    return write_files(folder, {"plan.yaml": json.dumps(text)}) / "plan.yaml"


def run(plan_file: Path, tmp_path: Path, **options: Any) -> Finished:
    return run_amplifier(
        *("run", "--plan", plan_file, "go", "--output", "json"),
        home=tmp_path / "home",
        **options,
    )


def tool_result(done: Finished) -> str:
    """What the tool answered, from the saved conversation."""
    assert done.code == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["response"] == "the tool was called"
    transcript = done.home / "sessions" / result["session_id"] / "transcript.jsonl"
    assert transcript.is_file()
    return transcript.read_text()


def test_by_a_folder_next_to_the_plan_from_anywhere(tmp_path: Path) -> None:
    write_files(tmp_path / "plans" / "my-tool", SEED_TOOL)
    file = plan(tmp_path / "plans", "./my-tool", greeting="Good day")
    (tmp_path / "elsewhere").mkdir()
    done = run(file, tmp_path, cwd=tmp_path / "elsewhere")
    assert "Good day, world!" in tool_result(done)


def test_by_a_tag_of_a_git_repository(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "remotes" / "my-tool")
    repository.commit(SEED_TOOL, tag="v1.0", annotated=True)
    repository.commit({"my_tool/__init__.py": "raise RuntimeError('this is not the tag')\n"})
    file = plan(tmp_path / "plans", f"{repository.url}@v1.0")
    assert "Hello, world!" in tool_result(run(file, tmp_path))
    commit = git(repository.folder, "rev-parse", "v1.0^{commit}")
    assert len(list((tmp_path / "home" / "cache" / "git").glob(f"*/{commit}"))) == 1


def test_by_an_installed_package(tmp_path: Path) -> None:
    """Installed by a real installer from a real wheel, into a folder on the path."""
    wheel = tmp_path / "my_tool-1.0-py3-none-any.whl"
    info = "my_tool-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in SEED_TOOL.items():
            if name.startswith("my_tool/"):
                archive.writestr(name, text)
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: my-tool\nVersion: 1.0\nRequires-Dist: amplifier-core\n",
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(
            f"{info}/entry_points.txt", "[amplifier.modules]\nmy-tool = my_tool:mount\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "uv", "pip", "install", "--no-deps", "--no-index", "--quiet",
         "--target", site, wheel],
        check=True,
    )  # fmt: skip
    file = plan(tmp_path / "plans", None)
    env = {"PYTHONPATH": str(site)}
    assert "Hello, world!" in tool_result(run(file, tmp_path, env=env))
    file = plan(tmp_path / "plans", "my-tool")
    assert "Hello, world!" in tool_result(run(file, tmp_path, env=env))
    listed = run_amplifier("module", "list", "--output", "json", env=env)
    rows = {row["id"]: row for row in json.loads(listed.stdout)}
    assert rows["my-tool"]["source"] == "my-tool 1.0"


CODE = {name: text for name, text in SEED_TOOL.items() if name.endswith(".py")}
POINTS = {"my-tool": "my_tool:mount"}


def test_by_an_archive_on_disk_and_on_a_server(tmp_path: Path) -> None:
    file = tar(tmp_path / "site" / "my-tool-1.0.tar.gz", SEED_TOOL, top="my-tool-1.0")
    assert "Hello, world!" in tool_result(
        run(plan(tmp_path, "./site/my-tool-1.0.tar.gz"), tmp_path)
    )
    site = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "site"))
    with serving(site) as url:
        source = f"{url}/my-tool-1.0.tar.gz#sha256={sha256(file)}"
        assert "Hello, world!" in tool_result(run(plan(tmp_path, source), tmp_path))


def test_by_a_version_from_the_package_index(tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", "some-lib", "1.0")
    init = CODE["my_tool/__init__.py"].replace(
        "config=config", "config={'greeting': some_lib.VERSION}"
    )
    files = {**CODE, "my_tool/__init__.py": f"import some_lib\n{init}"}
    wheel(tmp_path / "wheels", "my-mod", "1.3", ["some-lib"], files=files, modules=POINTS)
    env = {
        "UV_DEFAULT_INDEX": index(tmp_path / "simple", tmp_path / "wheels"),
        "UV_CACHE_DIR": str(tmp_path / "uv-cache"),
    }
    done = run(plan(tmp_path, "my-mod>=1.2,<2"), tmp_path, env=env)
    assert "1.0, world!" in tool_result(done)
    again = run(plan(tmp_path, "my-mod>=1.2,<2"), tmp_path, env={"AMPLIFIER_OFFLINE": "1"})
    assert "1.0, world!" in tool_result(again)


def test_by_the_environment_before_the_plan(tmp_path: Path) -> None:
    write_files(tmp_path / "mine", SEED_TOOL)
    env = {"AMPLIFIER_MODULE_MY_TOOL": "./mine"}
    done = run(plan(tmp_path, "./gone"), tmp_path, cwd=tmp_path, env=env)
    assert "Hello, world!" in tool_result(done)


def test_by_the_workspace_of_a_trusted_project(tmp_path: Path) -> None:
    write_files(tmp_path / "project" / ".amplifier" / "modules" / "my-tool", SEED_TOOL)
    profile = json.loads(plan(tmp_path, None).read_text())
    write_files(tmp_path / "project" / ".amplifier" / "profiles", {"p.yaml": json.dumps(profile)})
    arguments = ("run", "--profile", "p", "go", "--output", "json")
    options: dict[str, Any] = {"cwd": tmp_path / "project", "home": tmp_path / "home"}
    refused = run_amplifier(*arguments, **options)
    assert refused.code == 78
    assert "Hello, world!" in tool_result(run_amplifier(*arguments, "--trust", **options))


def test_a_resumed_session_finds_its_module_from_another_folder(tmp_path: Path) -> None:
    write_files(tmp_path / "plans" / "my-tool", SEED_TOOL)
    first = run(plan(tmp_path / "plans", "./my-tool"), tmp_path, cwd=tmp_path / "plans")
    session = json.loads(first.stdout)["session_id"]
    (tmp_path / "elsewhere").mkdir()
    done = run_amplifier(
        *("run", "--resume", session, "again", "--output", "json"),
        home=tmp_path / "home",
        cwd=tmp_path / "elsewhere",
    )
    assert tool_result(done).count("Hello, world!") == 2


@pytest.mark.parametrize(
    ("source", "tool", "message"),
    [
        ("./gone", "my-tool", "gone does not exist"),
        ("./gone.zip", "my-tool", "gone.zip does not exist"),
        ("./gone", "my-tool", "plan.yaml:1:"),
        ("git+file://{tmp}/gone@v1", "my-tool", "does not appear to be a git repository"),
        ("not-installed", "my-tool", "package 'not-installed' is not installed"),
        (None, "tool-filesytem", "did you mean 'tool-filesystem'?"),
    ],
)
def test_an_unavailable_module_exits_with_3_and_the_reason(
    source: str | None, tool: str, message: str, tmp_path: Path
) -> None:
    named = source.replace("{tmp}", str(tmp_path)) if source else None
    done = run(plan(tmp_path, named, tool=tool), tmp_path)
    assert done.code == 3
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(done.stdout)["outcome"] == "module"
