"""`amplifier module show`, as a real process."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cli import Finished, run_amplifier, succeed
from tests.support.module_repositories import SEED_TOOL, Repository, write_files
from tests.support.packages import wheel
from tests.support.plans import mock_plan

SCHEMA = """
def config_schema():
    return {
        "type": "object",
        "properties": {
            "greeting": {"type": "string", "default": "Hello", "description": "What it says."},
            "times": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        },
        "required": ["times"],
    }
"""


def tool(folder: Path, code: str = SCHEMA) -> Path:
    init = f'"""my-tool: greets.\\n\\nMore."""\n{code}\n{SEED_TOOL["my_tool/__init__.py"]}'
    return write_files(folder, {**SEED_TOOL, "my_tool/__init__.py": init})


def plan(tmp_path: Path, source: str | None, **more: Any) -> Path:
    entry = {"module": "my-tool"} | ({"source": source} if source else {})
    return mock_plan(tmp_path, ["ok"], tools=[entry], **more)


def show(tmp_path: Path, file: Path, *more: str, **options: Any) -> dict[str, Any]:
    done = succeed(
        *("module", "show", "my-tool", "--plan", file, "--output", "json", *more),
        cwd=tmp_path,
        **options,
    )
    return json.loads(done.stdout)


def text(tmp_path: Path, file: Path, **options: Any) -> Finished:
    return run_amplifier("module", "show", "my-tool", "--plan", file, cwd=tmp_path, **options)


def test_a_module_of_the_plan_with_all_that_is_known_of_it(tmp_path: Path) -> None:
    folder = tool(tmp_path / "my-tool")
    file = plan(tmp_path, "./my-tool")
    line = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if "./my-tool" in text)
    shown = show(tmp_path, file)
    assert (shown["id"], shown["type"], shown["summary"]) == ("my-tool", "tool", "greets.")
    assert (shown["place"], shown["kind"], shown["source"]) == ("plan", "folder", str(folder))
    assert shown["entry_point"] == "my_tool:mount"
    assert [entry["left_out"] for entry in shown["entries"]] == [False]
    assert shown["entries"][0]["at"].startswith(f"{file}:{line}:")
    assert shown["content"].startswith("sha256:")
    assert [one["place"] for one in shown["considered"] if one["chosen"]] == ["plan"]
    assert shown["config_schema"]["properties"]["greeting"]["default"] == "Hello"
    assert shown["error"] is None
    lines = text(tmp_path, file).stdout.splitlines()
    assert lines[0] == "my-tool  greets."
    assert f"  from         {folder} (folder)" in lines
    assert f"> plan         {folder}: first match" in lines
    assert '  greeting  string, default "Hello". What it says.' in lines
    assert "  times     integer, required" in lines


def test_overrides_of_the_plan_are_shown(tmp_path: Path) -> None:
    planned, other = tool(tmp_path / "planned"), tool(tmp_path / "other")
    file = plan(tmp_path, "./planned")
    home = tmp_path / "home"
    settings = {"sources": {"my-tool": str(other)}}
    write_files(home, {"settings.yaml": yaml.safe_dump(settings)})
    shown = show(tmp_path, file, home=home)
    assert (shown["place"], shown["source"]) == ("settings", str(other))
    reasons = {one["place"]: one["reason"] for one in shown["considered"] if one["found"]}
    assert reasons == {"settings": "first match", "plan": "settings takes precedence"}
    env = {"AMPLIFIER_MODULE_MY_TOOL": str(planned)}
    assert show(tmp_path, file, home=home, env=env)["place"] == "environment"


def test_commit_and_version_are_shown(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "remotes" / "my-tool")
    commit = repository.commit(SEED_TOOL, tag="v1")
    shown = show(tmp_path, plan(tmp_path, f"{repository.url}@v1"))
    assert (shown["kind"], shown["commit"]) == ("git", commit)
    files = {name: text for name, text in SEED_TOOL.items() if name.endswith(".py")}
    built = wheel(tmp_path, "my-mod", "1.2", files=files, modules={"my-tool": "my_tool:mount"})
    shown = show(tmp_path, plan(tmp_path, str(built)))
    assert (shown["kind"], shown["version"]) == ("archive", "1.2")
    assert shown["archive"].startswith("sha256:")


def test_a_bundled_module_outside_of_the_plan(tmp_path: Path) -> None:
    file = mock_plan(tmp_path, ["ok"])
    done = succeed("module", "show", "tool-bash", "--plan", file)
    assert "  in the plan  test: not used" in done.stdout.splitlines()
    assert "timeout" in done.stdout


def test_a_provider_skipped_by_a_condition_is_marked() -> None:
    done = run_amplifier("module", "show", "provider-openai", "--output", "json")
    assert [one["left_out"] for one in json.loads(done.stdout)["entries"]] == [True]


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("raise RuntimeError('broken')", "cannot be imported: RuntimeError: broken"),
        ("import os; os._exit(7)", "importing it ended the process with code 7"),
        ("def config_schema(): return 3", "cannot be used: TypeError: it returned int"),
    ],
)
def test_a_module_that_cannot_be_asked_is_shown_all_the_same(
    code: str, problem: str, tmp_path: Path
) -> None:
    tool(tmp_path / "my-tool", code)
    shown = show(tmp_path, plan(tmp_path, "./my-tool"))
    assert problem in shown["problem"]
    assert (shown["kind"], shown["config_schema"]) == ("folder", None)


def test_a_module_that_prints_does_not_disturb_the_answer(tmp_path: Path) -> None:
    tool(tmp_path / "my-tool", "print('noise')\nimport sys\nsys.stderr.write('more noise')\n")
    file = plan(tmp_path, "./my-tool")
    assert show(tmp_path, file)["type"] == "tool"
    assert "noise" not in text(tmp_path, file).stdout


def test_an_unavailable_module_exits_with_3_and_shows_the_search_order(tmp_path: Path) -> None:
    file = plan(tmp_path, "./gone")
    done = text(tmp_path, file)
    assert done.code == 3
    assert f"> plan         {tmp_path}/gone: first match" in done.stdout.splitlines()
    assert f"folder {tmp_path}/gone does not exist" in done.stderr
    assert "Traceback" not in done.stderr
    done = run_amplifier("module", "show", "tool-bahs", "--output", "json")
    assert done.code == 3
    assert "did you mean 'tool-bash'" in json.loads(done.stdout)["error"]


def test_two_sources_for_one_module_are_an_error(tmp_path: Path) -> None:
    for name in ("one", "two"):
        tool(tmp_path / name)
    tools = [
        {"module": "my-tool", "source": "./one"},
        {"module": "my-tool", "instance_id": "b", "source": "./two"},
    ]
    done = text(tmp_path, mock_plan(tmp_path, ["ok"], tools=tools))
    assert done.code == 78
    assert "my-tool has several sources in the plan test: ./one" in done.stderr


def test_offline_nothing_is_fetched(tmp_path: Path) -> None:
    file = plan(tmp_path, "git+https://127.0.0.1:1/my-tool")
    done = run_amplifier("module", "show", "my-tool", "--plan", file, "--offline")
    assert done.code == 3
    assert "is not in the cache and cannot be downloaded offline" in done.stderr


def test_no_control_characters_of_a_module_reach_the_terminal(tmp_path: Path) -> None:
    folder = tool(tmp_path / "my-tool")
    init = folder / "my_tool" / "__init__.py"
    init.write_text(init.read_text().replace("greets.", "\\x1b[31mred"))
    done = text(tmp_path, plan(tmp_path, "./my-tool"))
    assert "\x1b" not in done.stdout
