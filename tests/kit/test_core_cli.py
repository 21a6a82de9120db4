"""The command amplifier-core: exit codes and output."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import amplifier_core
from amplifier_core.cli import main
from tests.core.module_folders import SAMPLES, TOOL, ModuleFolders


def run(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    assert isinstance(left.value.code, int)
    return left.value.code


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_valid_module_of_each_kind_exits_0(
    kind: str, module_folders: ModuleFolders, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("validate", kind, module_folders.package(SAMPLES[kind])) == 0
    out, err = capsys.readouterr()
    assert "ok      protocol_compliance: " in out
    assert out.splitlines()[-1].startswith("PASSED: ")
    assert err == ""


def test_an_invalid_module_exits_1_and_lists_the_faults(
    module_folders: ModuleFolders, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = module_folders.package(TOOL.replace('"Gives its text back in capitals."', '""'))
    assert run("validate", "provider", folder) == 1
    out = capsys.readouterr().out
    assert "error   protocol_compliance: mount() mounted no provider" in out
    assert out.splitlines()[-1].startswith("FAILED: 3/4 checks passed (1 errors")


def test_warnings_alone_exit_0(
    module_folders: ModuleFolders, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = module_folders.package(TOOL.replace('"Gives its text back in capitals."', '""'))
    assert run("validate", "tool", folder) == 0
    assert "warning tool_description: " in capsys.readouterr().out


def test_quiet_prints_failed_checks_only(
    module_folders: ModuleFolders, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = module_folders.package(TOOL)
    assert run("validate", "tool", folder, "-q") == 0
    assert capsys.readouterr().out == ""
    assert run("validate", "--quiet", "provider", folder) == 1
    assert capsys.readouterr().out.startswith("error   protocol_compliance")


def test_another_mount_function_can_be_named(module_folders: ModuleFolders) -> None:
    folder = module_folders.package(TOOL.replace("def mount(", "def setup("))
    assert run("validate", "tool", folder, "-e", "setup") == 0
    assert run("validate", "tool", folder) == 1


def test_the_kinds_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list-types") == 0
    assert capsys.readouterr().out.split() == list(SAMPLES)


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"amplifier-core {amplifier_core.__version__}\n"


@pytest.mark.parametrize(
    "arguments", [[], ["validate"], ["validate", "spaceship", "x"], ["validate", "tool"], ["fly"]]
)
def test_a_usage_error_exits_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    assert "usage: amplifier-core" in capsys.readouterr().err


def test_it_runs_as_a_program(module_folders: ModuleFolders) -> None:
    program = Path(sys.executable).with_name("amplifier-core")
    command = [str(program), "validate", "tool", str(module_folders.package(TOOL))]
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "PASSED: 8/8 checks passed (0 errors, 0 warnings)"
    assert done.stderr == ""
