"""`amplifier module validate|list` as real processes."""

import json
from pathlib import Path

import pytest

from tests.support.cli import run_amplifier, succeed
from tests.support.module_repositories import SEED_TOOL, write_files
from tests.support.terminal import Terminal

PLAN = """
session: {orchestrator: loop-basic, context: context-simple}
providers:
  - module: provider-mock
  - module: provider-anthropic
    when: {env: ANTHROPIC_API_KEY}
tools:
  - module: my-tool
    source: ./my-tool
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path / "my-tool", SEED_TOOL)
    return write_files(tmp_path, {"plan.yaml": PLAN})


def test_a_valid_module_ends_with_0_and_its_report_on_stdout(folder: Path) -> None:
    done = succeed("module", "validate", "./my-tool", "--type", "tool", cwd=folder)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == f"tool: {folder / 'my-tool'}"
    assert any(line.startswith("ok    protocol_compliance") for line in lines)
    assert lines[-1].startswith("valid: ")


def test_an_invalid_module_ends_with_3(folder: Path) -> None:
    write_files(folder, {"my-tool/my_tool/__init__.py": "x = 1\n"})
    done = run_amplifier("module", "validate", "./my-tool", "--type", "tool", cwd=folder)
    assert done.code == 3
    assert "FAIL  mount_exists" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("not valid: ")
    done = run_amplifier("module", "validate", "./my-tool", "--output", "json", cwd=folder)
    assert done.code == 3
    assert json.loads(done.stdout)["passed"] is False


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("./my-tol", "no such folder or file", "did you mean 'my-tool'?"),
        ("tool-bsh", "nor a known module id", "did you mean 'tool-bash'?"),
        ("qwertz", "nor a known module id", "'amplifier module list'"),
    ],
)
def test_a_module_that_is_not_there_is_a_usage_error(
    name: str, message: str, hint: str, folder: Path
) -> None:
    done = run_amplifier("module", "validate", name, cwd=folder)
    assert (done.code, done.stdout) == (2, "")
    assert message in done.stderr
    assert hint in done.stderr


@pytest.mark.parametrize(("option", "value"), [("--type", "tol"), ("--timeout", "soon")])
def test_an_invalid_type_or_time_limit_is_a_usage_error(
    option: str, value: str, folder: Path
) -> None:
    done = run_amplifier("module", "validate", "./my-tool", option, value, cwd=folder)
    assert (done.code, done.stdout) == (2, "")
    assert option in done.stderr


def test_a_time_limit_is_written_as_everywhere(folder: Path) -> None:
    succeed("module", "validate", "./my-tool", "--timeout", "1.5m", cwd=folder)


def test_config_comes_from_files_and_values(folder: Path) -> None:
    text = SEED_TOOL["my_tool/__init__.py"].replace(
        "    tool = ",
        "    print('CONFIG', config)\n    raise RuntimeError(str(config))\n    tool = ",
    )
    write_files(folder, {"my-tool/my_tool/__init__.py": text, "c.yaml": "a: {b: 1, c: 2}\nd: x\n"})
    done = run_amplifier(
        *("module", "validate", "./my-tool", "-c", "c.yaml", "-c", "a.b=5", "-c", "e=true"),
        *("--output", "json"),
        cwd=folder,
    )
    report = json.loads(done.stdout)
    expected = "{'a': {'b': 5, 'c': 2}, 'd': 'x', 'e': True}"
    assert expected in report["checks"][-1]["message"]
    assert f"CONFIG {expected}" in report["output"]


@pytest.mark.parametrize(
    ("config", "code", "message"),
    [
        ("gone.yaml", 2, "cannot read the config gone.yaml: no such file"),
        ("list.yaml", 2, "the config list.yaml is not a mapping"),
        ("broken.yaml", 78, "broken.yaml:1:4: not valid YAML"),
        ("a..b=1", 2, "--config 'a..b=1' is not an assignment"),
    ],
)
def test_an_invalid_config_is_an_error(config: str, code: int, message: str, folder: Path) -> None:
    write_files(folder, {"list.yaml": "- 1\n", "broken.yaml": "a: @\n"})
    done = run_amplifier("module", "validate", "./my-tool", "-c", config, cwd=folder)
    assert (done.code, done.stdout) == (code, "")
    assert message in done.stderr


def test_on_a_terminal_the_report_has_colours_and_no_markup_is_read(folder: Path) -> None:
    text = "async def mount(coordinator, config):\n    raise ValueError('[red]\\x1b[2Jkey[/red]')\n"
    write_files(folder, {"my-tool/my_tool/__init__.py": text})
    command = ("module", "validate", "./my-tool", "--type", "tool")
    with Terminal(*command, cwd=folder, env={"NO_COLOR": None}) as terminal:
        assert terminal.finish() == 3
    assert "\x1b[1;31mFAIL" in terminal.raw
    assert "[red]key[/red]" in terminal.raw
    assert "\x1b[2J" not in terminal.raw


def test_list_shows_the_plans_modules_first_then_all_others(folder: Path) -> None:
    done = succeed("module", "list", "--plan", "plan.yaml", "--output", "json", cwd=folder)
    rows = json.loads(done.stdout)
    assert [row["id"] for row in rows[:5]] == [
        "loop-basic",
        "context-simple",
        "provider-mock",
        "my-tool",
        "provider-anthropic",
    ]
    mine = rows[3]
    assert mine["type"] == "tool"
    assert mine["source"] == str(folder / "my-tool")
    assert mine["origin"] == "plan.yaml:8:5"
    assert rows[4]["plan"] == "no: ANTHROPIC_API_KEY is not set"
    bundled = next(row for row in rows if row["id"] == "tool-bash")
    assert bundled["plan"] == ""
    assert bundled["entry_point"] == "amplifier_modules.tool_bash:mount"
    assert bundled["source"].startswith("amplifier ")
    text = run_amplifier("module", "list", "-f", "plan.yaml", cwd=folder).stdout.splitlines()
    assert text[0].split() == ["MODULE", "TYPE", "PLAN", "DESCRIPTION", "FROM"]
    assert text.index("") == len(rows) + 1
    assert "provider-anthropic skipped: ANTHROPIC_API_KEY is not set" in text
