"""Rules of the whole suite: loopback only, an isolated environment, shared fixtures."""

import gc
import os
import signal
import sys
from collections.abc import Generator
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.support.collected_session import import_share

pytest_plugins = ["tests.support.fixtures", "tests.support.thorough"]

# Containers often forbid byte code. The suite would compile itself in each worker and the program in
# each of the interpreters it starts: twice the time of collection, and four times that of a start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


# The process that started the suite may ignore signals: nohup does SIGHUP, a shell in its background SIGINT.
# Processes under test must not inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """More workers than cores: a third of a test's time is spent waiting for processes and servers.

    In a run of the whole suite, one more costs little (see `pytest_xdist_setupnodes`).
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return cores + (5 if _is_whole_suite(config) else 3)


def _is_whole_suite(config: pytest.Config) -> bool:
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Clone the workers of a run of the whole suite; parts of it may need no warm interpreter."""
    if _is_whole_suite(config):
        # pytest has to import what it imports, which includes the fixtures, itself.
        from tests.support.warm_interpreter import is_available
        from tests.support.warm_workers import ClonedWorkers

        if is_available():
            config.pluginmanager.register(ClonedWorkers(config))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, Any, Any]:
    """Do not look for garbage among a million objects that live as long as the process."""
    gc.disable()
    try:
        worker: dict[str, Any] | None = getattr(session.config, "workerinput", None)
        if worker is not None:
            number = int(worker["workerid"].removeprefix("gw"))
            import_share(session.config, number, worker["workercount"])
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Send one report of a test that passes from its worker instead of five messages.

    Unless an option shows the others: each costs both processes as much as an empty test.
    """
    options = item.config.option
    shown = options.verbose > 0 or options.xmlpath or options.durations is not None
    if shown or not hasattr(item.config, "workerinput"):
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True
