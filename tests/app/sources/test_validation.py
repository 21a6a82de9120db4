"""Validating modules in real child processes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.render.report import report_lines
from amplifier_app.sources.validation import Check, Report, validate_module
from tests.app.sources.conftest import SEED_TOOL, Files, write_files
from tests.app.sources.test_git import is_running

TOOL = SEED_TOOL["my_tool/__init__.py"]
GREETER = SEED_TOOL["my_tool/greeter.py"]


def module(folder: Path, **changes: str) -> Path:
    """The seed's tool with some of its files written differently."""
    names = {"init": "my_tool/__init__.py", "greeter": "my_tool/greeter.py",
             "project": "pyproject.toml"}  # fmt: skip
    return write_files(folder, {**SEED_TOOL, **{names[key]: text for key, text in changes.items()}})


def named(report: Report) -> dict[str, Check]:
    return {check.name: check for check in report.checks}


def test_the_seeds_tool_is_valid_in_every_respect(seed_tool: Path) -> None:
    report = validate_module(seed_tool, kind="tool", behavioral=True)
    assert report.passed, report.failed
    checks = named(report)
    assert all(check.passed for check in checks.values())
    for name in ("structure", "entry_point", "dependencies", "mount_exists", "protocol_compliance",
                 "tool_execute", "schema", "cleanup", "execute_returns_tool_result"):  # fmt: skip
        assert name in checks
    assert (report.kind, report.entry_point) == ("tool", "my_tool:mount")


def test_a_module_is_checked_as_what_it_says_it_is(tmp_path: Path) -> None:
    text = f'__amplifier_module_type__ = "tool"\n{TOOL}'
    report = validate_module(module(tmp_path / "thing", init=text))
    assert (report.passed, report.kind) == (True, "tool")
    report = validate_module(tmp_path / "thing", kind="provider")
    assert not report.passed
    assert "it says it is a tool, and is checked as a provider" in named(report)["module_type"][2]


def test_the_config_reaches_mount(tmp_path: Path) -> None:
    text = TOOL.replace("    tool = ", "    assert config == {'a': {'b': 1}}, config\n    tool = ")
    folder = module(tmp_path / "m", init=text)
    assert not validate_module(folder, kind="tool").passed
    assert validate_module(folder, kind="tool", config={"a": {"b": 1}}, behavioral=True).passed


def test_nothing_of_it_happens_in_our_process(tmp_path: Path) -> None:
    text = f"import os\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n{TOOL}"
    assert validate_module(module(tmp_path / "m", init=text), kind="tool").passed
    assert (tmp_path / "pid").read_text() != str(os.getpid())


def test_files_of_the_current_folder_are_not_imported(
    seed_tool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = "raise SystemExit('imported from the current folder')\n"
    write_files(tmp_path / "cwd", {"json.py": trap, "my_tool.py": trap, "conftest.py": trap,
                                   "pytest.ini": "[pytest]\naddopts = --nonsense\n"})  # fmt: skip
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--more-nonsense")
    report = validate_module(seed_tool, kind="tool", behavioral=True)
    assert report.passed, (report.failed, report.output)


BROKEN: list[tuple[str, dict[str, str], str, str]] = [
    ("import", {"init": "import not_there\n"}, "module_importable", "No module named 'not_there'"),
    ("syntax", {"init": "def mount(:\n"}, "module_importable", "SyntaxError"),
    ("no mount", {"init": "x = 1\n"}, "mount_exists", "is missing; write `async def mount("),
    (
        "sync mount",
        {"init": "def mount(coordinator, config):\n    return None\n"},
        "mount_signature",
        "is not async",
    ),
    (
        "mount raises",
        {"init": "async def mount(coordinator, config):\n    raise ValueError('no [red]key')\n"},
        "protocol_compliance",
        "mount() raised ValueError: no [red]key",
    ),
    (
        "mounts nothing",
        {"init": "async def mount(coordinator, config):\n    return None\n"},
        "protocol_compliance",
        "mounted no tool",
    ),
    ("exits", {"init": "import sys\nsys.exit(0)\n"}, "module_importable", "SystemExit"),
    ("dies", {"init": "import os\nos._exit(7)\n"}, "isolation", "with exit code 7"),
    (
        "second mount",
        {
            "init": TOOL.replace(
                "    tool = ",
                "    import builtins\n    n = getattr(builtins, 'n', 0)\n    builtins.n = n + 1\n"
                "    if n: raise RuntimeError('port in use')\n    tool = ",
            )
        },
        "second_mount",
        "RuntimeError: port in use",
    ),
    (
        "bad schema",
        {"greeter": GREETER.replace('"type": "string"', '"type": "strng"')},
        "schema",
        "is no JSON Schema: 'strng' is not valid",
    ),
    (
        "cleanup raises",
        {
            "init": TOOL.replace(
                "    return tool\n",
                "    calls = []\n    async def cleanup():\n        calls.append(1)\n"
                "        raise OSError('gone')\n    return cleanup\n",
            )
        },
        "cleanup",
        "OSError: gone",
    ),
    ("no pyproject entry", {"project": "[project.entry-points]\n"}, "entry_point", "no pyproject"),
    (
        "wrong entry point",
        {"project": SEED_TOOL["pyproject.toml"].replace("my_tool:mount", "my_tol:mount")},
        "structure",
        "there is no my_tol/",
    ),
    (
        "dependency nowhere",
        {"project": SEED_TOOL["pyproject.toml"].replace("amplifier-core>=1.6", "not-anywhere")},
        "dependencies",
        "not-anywhere was not found",
    ),
]


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case[0])
def test_what_is_wrong_is_found_and_told(
    case: tuple[str, Files, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_NO_INDEX", "1")
    _, changes, name, message = case
    report = validate_module(module(tmp_path / "my-tool", **changes), kind="tool")
    check = named(report)[name]
    assert not check.passed
    assert message in check.message
    assert report.passed == (check.severity == "warning")


def test_a_tool_without_a_schema_and_a_task_left_behind_are_warnings(tmp_path: Path) -> None:
    greeter = GREETER.replace("def get_schema", "def other")
    init = TOOL.replace(
        "    return tool\n",
        "    import asyncio\n"
        "    task = asyncio.create_task(asyncio.sleep(600), name='my-poller')\n"
        "    tool.task = task\n    return tool\n",
    )
    report = validate_module(module(tmp_path / "my-tool", greeter=greeter, init=init), kind="tool")
    checks = named(report)
    assert report.passed
    assert "there is no schema of 'my-tool'" in checks["schema"].message
    assert "my-poller" in checks["cleanup"].message
    assert "cancels and awaits" in (checks["cleanup"].advice or "")


def test_bad_behaviour_is_found_by_the_suite(tmp_path: Path) -> None:
    greeter = GREETER.replace('input.get("who")', 'input["who"]')
    folder = module(tmp_path / "my-tool", greeter=greeter)
    assert validate_module(folder, kind="tool").passed
    report = validate_module(folder, kind="tool", behavioral=True)
    failed = {check.name: check.message for check in report.failed}
    assert "empty input is not handled: KeyError" in failed["invalid_input_returns_error_result"]
    assert "KeyError: 'who'" in failed["execute_returns_tool_result"]


def test_a_module_that_hangs_is_stopped_with_all_it_started(tmp_path: Path) -> None:
    init = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    before = time.monotonic()
    report = validate_module(module(tmp_path / "my-tool", init=init), kind="tool", seconds=5)
    assert time.monotonic() - before < 60
    assert "did not end within 5 s" in named(report)["isolation"].message
    assert not is_running(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    ("kind", "package"),
    [
        ("provider", "provider_mock"),
        ("orchestrator", "loop_basic"),
        ("context", "context_simple"),
        ("hook", "hooks_logging"),
    ],
)
def test_every_kind_has_its_contract_and_its_suite(kind: str, package: str) -> None:
    import amplifier_modules

    folder = Path(next(iter(amplifier_modules.__path__))) / package
    report = validate_module(folder, behavioral=True)
    assert report.passed, (report.failed, report.output)
    assert report.kind == kind
    assert sum(check.message == "as the contract has it" for check in report.checks) >= 5


def test_a_report_is_json(seed_tool: Path) -> None:
    data = json.loads(json.dumps(validate_module(seed_tool, kind="tool").as_json()))
    assert data["schema_version"] == 1
    assert data["passed"] is True
    assert data["checks"][0] == {
        "name": "structure",
        "passed": True,
        "message": "the package is my_tool",
        "severity": "error",
        "advice": None,
    }


def test_a_report_for_people_wraps_and_is_clean() -> None:
    checks = (
        Check("one", True, "fine"),
        Check(
            "two", False, "bad \x1b[2J[bold]word[/] " + "and more " * 20, "error", "mend it " * 20
        ),
        Check("three", False, "so so", "warning", "better"),
    )
    report = Report(Path("/m"), "tool", "m:mount", checks, "last \x1b]0;title\x07words\n")
    lines = ["".join(span.text for span in line) for line in report_lines(report, width=60)]
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 60
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[bold]word[/]" in text
    assert "  last words" in text
    assert lines[-1] == "not valid: 1 of 3 checks passed, 1 failed, 1 with warnings"


def styles(report: Report) -> list[tuple[str, Any]]:
    return [(line[0].text, line[0].style) for line in report_lines(report, width=80) if line]


def test_a_report_marks_what_is_bad() -> None:
    checks = (Check("a", True, ""), Check("b", False, ""), Check("c", False, "", "warning"))
    marks = styles(Report(Path("/m"), None, None, checks))
    assert [mark for mark in marks if mark[0] in ("ok  ", "FAIL", "warn")] == [
        ("ok  ", "good"),
        ("FAIL", "bad"),
        ("warn", "warn"),
    ]
