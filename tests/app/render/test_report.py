"""Reports of checks as text."""

from pathlib import Path

import pytest

from amplifier_app.base.checks import Check, Report
from amplifier_app.plan.tree.nodes import NOWHERE
from amplifier_app.render.report import plan_module_lines, report_lines
from amplifier_app.runtime.plan_check import CheckedModule, CheckReport
from amplifier_app.sources.resolved import ResolvedSource

CHECKS = (
    Check("one", True, "fine"),
    Check("two", False, "bad \x1b[2J[bold]word[/] " + "and more " * 20, "error", "fix it " * 20),
    Check("three", False, "so so", "warning", "better"),
    Check("four", False, "not there", "info", "add it"),
)
REPORT = Report("/m", "tool", "m:mount", CHECKS, "last \x1b]0;title\x07words\n")


def lines_of(report: Report, width: int) -> list[str]:
    return ["".join(span.text for span in line) for line in report_lines(report, width=width)]


@pytest.mark.parametrize("width", [30, 45, 60, 120])
def test_a_report_fits_any_width_without_control_characters(width: int) -> None:
    lines = lines_of(REPORT, width)
    text = "\n".join(lines[:-1])
    assert max(len(line) for line in lines[:-1]) <= width
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[bold]word[/]" in text
    assert "  last words" in text
    assert lines[-1] == (
        "not valid: 1 of 4 checks passed, 1 failed, 1 with warnings, 1 informational"
    )


def test_messages_are_next_to_the_names_if_they_fit_and_below_otherwise() -> None:
    wide = lines_of(REPORT, 80)
    assert "ok    one    fine" in wide
    assert "warn  three  so so" in wide
    narrow = lines_of(REPORT, 40)
    assert narrow[narrow.index("ok    one") + 1] == "      fine"
    assert narrow[narrow.index("note  four") + 1 :][:2] == ["      not there", "      → add it"]


def test_paths_are_not_broken() -> None:
    path = "/a/very/long/path/that/does/not/fit/into/the/width/of/the/terminal"
    report = Report("/m", None, None, (Check("structure", False, f"there is no {path} here"),))
    assert any(path in line for line in lines_of(report, 40))


def test_a_report_marks_failures() -> None:
    marks = [(line[0].text, line[0].style) for line in report_lines(REPORT, width=80) if line]
    expected = [("ok  ", "good"), ("FAIL", "bad"), ("warn", "warn"), ("note", "dim")]
    assert [mark for mark in marks if mark in expected] == expected


def test_the_modules_of_a_plan_fit_a_terminal_and_are_whole_in_a_pipe() -> None:
    address = "git+https://example.com/kit@main#subdirectory=modules/tool-far"
    found = ResolvedSource(
        "git", address, folder=Path("/m"), commit="0123456789abcdef", place="plan"
    )
    agent = "kit:a-reviewer-of-everything"
    modules = (
        CheckedModule("tool", "tool-far", "tool-far", NOWHERE, "ok", found=found),
        CheckedModule("tool", "tool-far", "tool-far", NOWHERE, "ok", agent=agent, found=found),
        CheckedModule("hook", "h", "h", NOWHERE, "skipped", "none of A_KEY, A_BASE_URL is set"),
    )
    report = CheckReport("mine", modules)
    lines = plan_module_lines(report, 80)
    assert max(map(len, lines)) <= 80 + len("\x1b[1m\x1b[0m")
    assert f"{agent}:" in "\n".join(lines)
    whole = plan_module_lines(report, None)
    assert [address in line for line in whole] == [False, True, True, False]
    assert whole[2].startswith(f"{agent}: tool-far  tool  ")
