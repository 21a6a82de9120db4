"""A corpus of broken modules: each gets its own finding with a fix.

The default run has one module for each check, and a thorough one all.
"""

from pathlib import Path

import pytest

from tests.kit.validation.corpus import CORPUS
from tests.kit.validation.corpus.case import MOUNTED_TOOL, Case
from tests.kit.validation.samples import named, spoiled, validated, write_module

FIRST = {case.check: case for case in reversed(CORPUS)}
"""The first module of each check."""


@pytest.mark.usefixtures("warm_checks")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case, id=str(case), marks=[] if FIRST[case.check] is case else [pytest.mark.thorough]
        )
        for case in CORPUS
    ],
)
def test_faults_are_reported_with_a_fix(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_NO_INDEX", "1")
    folder = write_module(tmp_path / "thing", spoiled(case.kind, *case.changes), case.project)
    report = validated(folder, **case.options)
    check = named(report)[case.check]
    assert (check.passed, check.severity) == (False, case.severity), report.checks
    assert case.message in check.message
    assert case.advice in (check.advice or "")
    assert report.passed == (case.severity != "error"), report.failed
    for one in report.checks:
        assert "Traceback" not in one.message
        assert one.passed or one.advice, one


@pytest.mark.usefixtures("warm_checks")
@pytest.mark.parametrize(
    ("change", "found"),
    [
        (
            MOUNTED_TOOL + "    return lambda: {}['gone']\n",
            [("cleanup", "the cleanup raised KeyError: 'gone'")],
        ),
        (
            "    return lambda: None\n",
            [("mount_succeeds", "mounted no tool and returned function: nothing to test")],
        ),
    ],
    ids=["a cleanup that raises", "nothing is mounted"],
)
def test_what_fails_around_every_test_of_the_suite_is_reported_once(
    change: str, found: list[tuple[str, str]], tmp_path: Path
) -> None:
    folder = write_module(tmp_path / "thing", spoiled("tool", (MOUNTED_TOOL, change)))
    report = validated(folder, behavioral=True)
    errors = [check for check in report.failed if check.severity == "error"]
    assert [check.name for check in errors] == [name for name, _ in found]
    for check, (_, text) in zip(errors, found, strict=True):
        assert text in check.message


def test_the_corpus_is_large_and_has_every_kind() -> None:
    assert len(CORPUS) >= 60
    assert {case.kind for case in CORPUS} == {"tool", "provider", "hook", "orchestrator", "context"}
    assert len({str(case) for case in CORPUS}) == len(CORPUS)
