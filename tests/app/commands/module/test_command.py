"""`amplifier module` and `amplifier profile` as real processes."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
from pathlib import Path

import pytest

from tests.support.cli import amplifier_command, child_environment, run_amplifier
from tests.support.module_repositories import SEED_TOOL, write_files

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
    done = run_amplifier("module", "validate", "./my-tool", "--type", "tool", cwd=folder)
    assert done.code == 0, done.stderr
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
        ("/nowhere/at/all", "no such folder or file: /nowhere/at/all", ""),
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


def test_an_unknown_type_is_a_usage_error(folder: Path) -> None:
    assert run_amplifier("module", "validate", "./my-tool", "--type", "tol", cwd=folder).code == 2


@pytest.mark.parametrize("limit", ["nan", "inf", "0", "soon"])
def test_an_invalid_time_limit_is_a_usage_error(limit: str, folder: Path) -> None:
    done = run_amplifier("module", "validate", "./my-tool", "--timeout", limit, cwd=folder)
    assert (done.code, done.stdout) == (2, "")
    assert "--timeout" in done.stderr


def test_a_time_limit_is_written_as_everywhere(folder: Path) -> None:
    for limit in ("50", "1.5m"):
        done = run_amplifier("module", "validate", "./my-tool", "--timeout", limit, cwd=folder)
        assert done.code == 0, done.stderr


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
    command = [*amplifier_command(), "module", "validate", "./my-tool", "--type", "tool"]
    env = child_environment(folder / "home", {"NO_COLOR": None, "TERM": "xterm-256color"})
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    output = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            part = os.read(ours, 65536)
        except OSError:
            # Linux ends a terminal without open descriptors with an error.
            break
        if not part:
            break
        output += part
    os.close(ours)
    assert process.wait() == 3
    assert b"\x1b[1;31mFAIL" in output
    assert b"[red]key[/red]" in output
    assert b"\x1b[2J" not in output


def test_list_shows_the_plans_modules_first_then_all_others(folder: Path) -> None:
    done = run_amplifier("module", "list", "--plan", "plan.yaml", "--output", "json", cwd=folder)
    assert done.code == 0, done.stderr
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


def test_list_of_a_broken_plan_is_a_configuration_error(folder: Path) -> None:
    write_files(folder, {"bad.yaml": "tolls: []\n"})
    done = run_amplifier("module", "list", "--plan", "bad.yaml", cwd=folder)
    assert (done.code, done.stdout) == (78, "")
    assert "bad.yaml:1:1: unknown key 'tolls' in the plan; did you mean 'tools'?" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_names_every_part_without_importing_what_it_checks_with() -> None:
    done = run_amplifier("module", "--help")
    assert done.code == 0
    assert "validate" in done.stdout
    assert "list" in done.stdout


# -- profile -----------------------------------------------------------------------------


def test_profiles_are_listed_the_users_own_in_front_of_the_bundled(tmp_path: Path) -> None:
    home = write_files(
        tmp_path / "home",
        {
            "profiles/default.yaml": 'extends: default\ndescription: "my [own] \\a one"\n',
            "profiles/broken.yaml": "tolls: []\n",
        },
    )
    done = run_amplifier("profile", "list", "--output", "json", home=home)
    assert done.code == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["default"]["scope"] == "user"
    assert rows["minimal"]["scope"] == "bundled"
    assert "unknown key 'tolls'" in rows["broken"]["problem"]
    text = run_amplifier("profile", "list", home=home).stdout
    assert "invalid: " in text
    assert "my [own] one" in text
    assert list(rows) == sorted(rows)


def test_a_profile_is_shown_merged_and_masked(tmp_path: Path) -> None:
    home = write_files(
        tmp_path / "home",
        {
            "profiles/mine.yaml": "extends: mock\nproviders: [{module: provider-mock,"
            " config: {api_key: '${MY_KEY}', password: abc}}]\n"
        },
    )
    done = run_amplifier("profile", "show", "mine", home=home, env={"MY_KEY": "sk-1"})
    assert done.code == 0, done.stderr
    assert "api_key: ${MY_KEY}" in done.stdout
    assert "password: '[REDACTED]'" in done.stdout
    assert "tool-bash" in done.stdout
    done = run_amplifier(
        "profile", "show", "mine", "--output", "json", home=home, env={"MY_KEY": "sk-1"}
    )
    shown = json.loads(done.stdout)
    assert shown["files"][0] == str(home / "profiles" / "mine.yaml")
    assert shown["plan"]["providers"][0]["config"]["api_key"] == "${MY_KEY}"


def test_an_unknown_profile_is_a_usage_error() -> None:
    done = run_amplifier("profile", "show", "defualt")
    assert (done.code, done.stdout) == (2, "")
    assert "unknown profile 'defualt'" in done.stderr
    assert "did you mean 'default'?" in done.stderr
