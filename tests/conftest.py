"""Rules of the whole suite: loopback only, an isolated environment, shared fixtures."""

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

pytest_plugins = ["tests.support.fixtures", "tests.support.skips", "tests.support.thorough"]

# Containers often forbid byte code. The suite would compile itself in each worker and the program in
# each of the interpreters it starts: twice the time of collection, and four times that of a start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

_INTERPRETER = pytest.StashKey[tuple[dict[str, str], str]]()
"""The environment and the address of the interpreter that processes under test are cloned from."""

# The process that started the suite may ignore signals: nohup does SIGHUP, a shell in its background SIGINT.
# Processes under test must not inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """More workers than cores: more than half of a test's time is spent waiting for processes and servers."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return cores + 4


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Start the interpreter that the workers clone processes under test from."""
    # pytest has to import what it imports, which includes the fixtures, itself.
    from tests.support.cli import child_environment
    from tests.support.compiled import compile_all
    from tests.support.warm_interpreter import WarmInterpreter, is_available

    compile_all(config)
    if is_available():
        environment = child_environment(Path(os.devnull))
        interpreter = WarmInterpreter.start(environment)
        config.add_cleanup(interpreter.close)
        config.stash[_INTERPRETER] = environment, interpreter.address


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker where that interpreter is."""
    node.workerinput["interpreter"] = node.config.stash.get(_INTERPRETER, None)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Connect a worker to that interpreter."""
    from tests.support.warm_interpreter import WarmInterpreter

    if interpreter := getattr(session.config, "workerinput", {}).get("interpreter"):
        WarmInterpreter.connect(*interpreter)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Do not look for garbage among a million objects that live as long as the process, and seldom later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Send one report of a test that passes from its worker instead of five messages.

    Unless an option shows the others: each costs both processes as much as an empty test. The
    duration it reports covers setup and teardown as well.
    """
    options = item.config.option
    if options.verbose > 0 or options.xmlpath or not hasattr(item.config, "workerinput"):
        return None
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        if report.when == "call" or not report.passed:
            report.duration = sum(each.duration for each in reports)
            item.ihook.pytest_runtest_logreport(report=report)
    return True


_SECONDS: Counter[str] = Counter()
"""Seconds that the tests of each part have taken, by its folder."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count the time of a test for its part."""
    _SECONDS[report.nodeid.split("/")[1] if "/" in report.nodeid else report.nodeid] += (
        report.duration
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the time of each part next to the slowest tests."""
    if terminalreporter.config.option.durations is not None:
        terminalreporter.section("seconds of the tests of each part, all workers together")
        for part, seconds in _SECONDS.most_common():
            terminalreporter.write_line(f"{seconds:8.1f} s  {part}")
