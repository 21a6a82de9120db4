"""Checks a module's behaviour in the child process: the kernel's suite of its kind, then what the
contract promises beyond that."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import amplifier_core
from amplifier_kit.validation.advice import ANY_CLEANUP, SUITE
from amplifier_kit.validation.contract import import_package
from amplifier_kit.validation.promises import check_promises

if TYPE_CHECKING:
    from amplifier_kit.validation.findings import Findings, Request

_PREFIX = "test_"


def check_behaviour(findings: Findings) -> None:
    """Run the suite of the module's kind, then the checks of `promises`."""
    path = list(sys.path)
    _run_suite(findings)
    # The module may have changed it.
    sys.path[:] = path
    if not findings.failed:
        target, _, attribute = (findings.request.entry_point or "").partition(":")
        package = import_package(target or Path(findings.request.package))
        asyncio.run(check_promises(findings, getattr(package, attribute or "mount")))


def _run_suite(findings: Findings) -> None:
    # The environment's plugins must not affect the result.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    request = findings.request
    kind = str(request.kind)
    suite = Path(amplifier_core.__file__).parent / "validation" / "behavioral.py"
    recorder = _Recorder(findings)
    without = ("cacheprovider", "terminal", "faulthandler")
    code = int(
        pytest.main(
            [
                *(
                    "-p",
                    "pytest_asyncio.plugin",
                    "-p",
                    "amplifier_kit.pytest_plugins.module_fixtures",
                ),
                *(part for name in without for part in ("-p", f"no:{name}")),
                # The suite's own messages are enough, and rewriting it would take longer than running it.
                "--assert=plain",
                # Not captured: the supervisor reads the module's output, however much it is.
                *("-s", "-c", os.devnull, "--rootdir", str(Path.cwd())),
                *(
                    "-o",
                    "python_classes=*Tests",
                    "-o",
                    "asyncio_default_fixture_loop_scope=function",
                ),
                *("--module-path", str(_importable(request)), "--module-type", kind),
                *("--module-config", json.dumps(request.config)),
                f"{suite}::{kind.capitalize()}BehaviorTests",
            ],
            plugins=[recorder],
        )
    )
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        findings.bad(
            "behavior",
            f"the suite was aborted: {recorder.problem or pytest.ExitCode(code).name}",
            "do not raise KeyboardInterrupt; do not replace or close sys.stdout, the event loop or "
            "other shared objects",
        )


def _importable(request: Request) -> Path:
    """What the suite's fixtures import: the package, or a file that imports its `mount`."""
    target, _, attribute = (request.entry_point or "").partition(":")
    if "." not in target and attribute in ("", "mount"):
        return Path(request.package)
    shim = Path.cwd() / "module_under_test.py"
    shim.write_text(f"from {target} import {attribute} as mount\n", encoding="utf-8")
    return shim


class _Recorder:
    """Reports each test as a finding when it ends."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._ended: set[str] = set()
        self._around: set[tuple[str, str]] = set()
        self.problem = ""

    def pytest_configure(self, config: pytest.Config) -> None:
        # Its tracebacks are not shown, and the other styles search all modules for their sources.
        config.option.tbstyle = "native"

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._findings.say(stage=_name(nodeid))

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        name = _name(item.nodeid)
        error = None if call.excinfo is None else call.excinfo.value
        if error is None:
            if call.when == "call":
                self._findings.good(name, "follows the contract")
            return
        if name in self._ended:
            return
        self._ended.add(name)
        kind = type(error).__name__
        if kind == "Skipped":
            message = f"not checked: {error}"
            self._findings.bad(name, message, "provide what this check needs", "info")
            return
        message = _own_message(error) if kind in ("AssertionError", "Failed") else ""
        message = message or self._findings.describe(error)
        if call.when == "call":
            self._findings.bad(name, message, SUITE.get(name, SUITE["mount_succeeds"]))
        else:
            self._report_once(call.when == "setup", message)

    def _report_once(self, in_mount: bool, message: str) -> None:
        """Report what failed around a test; it fails in the same way around every other one."""
        name, advice = ("mount_succeeds", SUITE["mount_succeeds"])
        if not in_mount:
            name, advice = "cleanup", ANY_CLEANUP
            message = f"the cleanup raised {message}"
        if (name, message) not in self._around:
            self._around.add((name, message))
            self._findings.bad(name, message, advice)

    def pytest_keyboard_interrupt(self, excinfo: Any) -> None:
        self.problem = self._findings.describe(excinfo.value)

    def pytest_internalerror(self, excrepr: Any, excinfo: Any) -> bool:
        self.problem = self._findings.describe(excinfo.value)
        return True

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.problem = str(report.longrepr)


def _name(nodeid: str) -> str:
    return nodeid.rpartition("::")[2].removeprefix(_PREFIX)


def _own_message(error: BaseException) -> str:
    """The message of an assertion, without the comparison that pytest appends."""
    text = str(error)
    return text.partition("\nassert ")[0].strip()
