"""Conditions for a text."""

from pathlib import Path

import pytest

from amplifier_kit.plan_tests import expectations
from tests.kit.plan_tests.support import only, run_tests, write_tests


def test_a_pattern_that_takes_too_long_fails_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expectations, "_SEARCH_SECONDS", 0.1)
    answer = "a" * 40 + "b"
    path = write_tests(tmp_path, {"script": [answer], "expect": {"answer": {"matches": "^(a+)+$"}}})
    (failure,) = only(run_tests(path))
    assert failure.startswith('answer: cannot be compared with "^(a+)+$" within 0.1 s')
