"""The skips that are expected, with what they need; any other skip fails. Registered by `tests/conftest.py`.

On systems other than Linux every skip is expected: most tests of processes and files need Linux.
"""

import re
import sys
from collections.abc import Generator
from typing import TypeVar

import pytest

EXPECTED = {
    # Another system.
    "Seatbelt is part of macOS": "macOS",
    # Packages that are not in requirements.lock: a step of .ci/run runs these tests with them.
    "needs pyarrow": "pyarrow",
    "needs (fsspec|s3fs and moto)": "the extra s3, and moto",
    "could not import 'botocore'.*": "the extra bedrock",
    "ray is not installed: .ci/run has a step for it": "ray",
    # Their opposite, in that step.
    "(pyarrow|ray|fsspec|botocore|google.auth) is installed": "an environment without the package",
    # Rights of the user; .ci/thorough runs the suite as root and as another user.
    "root (may write everywhere|may write it|reads everything)": "an ordinary user",
    "needs to be root": "root",
    "only root can (become another user|take the namespaces away)": "root",
    "needs namespaces that keep the machine from harm": "root",
    "cannot mount file systems": "root, or user namespaces",
    "no interpreter that an ordinary user may start": "a Python that every user can read",
    # Programs that only some machines have, and no package can bring.
    "(a C compiler is not installed|there is no C compiler)": "cc",
    r"([\w/]+\.h|cc|gcc|npm|make|zsh|fish) is not installed": "the program or header",
    "there is no ps": "ps",
    "chromium is not installed": "chromium, or chromium-headless-shell",
    "(acpx|claude|codex|conformance|harbor) is not installed": "a program from npm or PyPI: .ci/thorough installs it",
    "needs strace": "strace",
    "strace is not allowed here": "ptrace",
    "there is no python3 in /usr/bin, or no setpriv": "Debian's own Python",
    "the sources of the locale are not installed": "the package locales",
    # Kernels.
    "the kernel is older": "Linux 6.12",
    "the kernel layer does not work here": "Landlock",
    "there is no (kernel layer|sandbox) here": "Landlock",
    # Ways to run the suite.
    "(needs the warm interpreter|interpreters are not cloned here|needs Linux, without coverage)": "no coverage",
    "not a git checkout": "a clone, not a source archive",
}
"""A pattern for the whole reason, and what the test needs to run."""

_Report = TypeVar("_Report", pytest.TestReport, pytest.CollectReport)


def is_expected(reason: str) -> bool:
    """True if a test may be skipped for this reason on this system."""
    return sys.platform != "linux" or any(re.fullmatch(p, reason, re.DOTALL) for p in EXPECTED)


def _refuse_unexpected(report: _Report) -> _Report:
    if report.skipped and isinstance(report.longrepr, tuple):
        path, line, text = report.longrepr
        reason = text.removeprefix("Skipped: ")
        if not is_expected(reason):
            report.outcome = "failed"
            report.longrepr = f"{path}:{line}: skipped, but tests/support/skips.py does not list the reason: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _refuse_unexpected((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _refuse_unexpected((yield))
