"""A module written from the contracts alone, by every way it can come, in the real program."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from tests.support.cli import Finished, run_amplifier
from tests.support.module_repositories import SEED_TOOL, write_files


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


def test_an_unavailable_module_exits_with_3_and_the_reason(tmp_path: Path) -> None:
    for source, tool, message in (
        ("./gone", "my-tool", "gone does not exist"),
        ("./gone", "my-tool", "plan.yaml:1:"),
        ("./gone.zip", "my-tool", "gone.zip does not exist"),
        (f"git+file://{tmp_path}/gone@v1", "my-tool", "does not appear to be a git repository"),
        ("not-installed", "my-tool", "package 'not-installed' is not installed"),
        (None, "tool-filesytem", "did you mean 'tool-filesystem'?"),
    ):
        done = run(plan(tmp_path, source, tool=tool), tmp_path)
        assert done.code == 3
        assert message in done.stderr
        assert "Traceback" not in done.stderr
        assert json.loads(done.stdout)["outcome"] == "module"
