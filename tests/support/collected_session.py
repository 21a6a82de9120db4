"""A session of pytest that collects once and then runs its tests in each of the workers cloned from it.

xdist sends this file to the workers.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pytest
from _pytest import tmpdir
from _pytest.config import _prepareconfig  # pyright: ignore[reportPrivateUsage]

from tests.support.warm_interpreter import WarmInterpreter

VARIABLE = "AMPLIFIER_TESTS_INTERPRETER"
"""The environment variable with the environment and the address of the interpreter to use, as JSON."""

_ERRORS = (Exception, SystemExit, pytest.fail.Exception, pytest.skip.Exception)
"""What test files may raise when they are imported."""

_session: pytest.Session | None = None


def collect(arguments: list[str]) -> None:
    """Collect the tests in the interpreter that workers are then cloned from.

    A worker repeats a collection that fails, and reports what is wrong.
    """
    global _session
    config = cast("Any", _prepareconfig(arguments, None))
    # Imported late, since pytest has to import its plugins itself.
    remote = cast("Any", import_module("xdist.remote"))
    remote.setup_config(config, None)
    config.workerinput = {"workerid": "gw0", "workercount": 2}
    config._do_configure()
    session = pytest.Session.from_config(config)
    config.hook.pytest_sessionstart(session=session)
    helper = os.fork()
    if helper == 0:
        import_share(config, 1, 2)
        os._exit(0)
    try:
        config.hook.pytest_collection(session=session)
    except _ERRORS:
        # A worker raises it again.
        return
    finally:
        os.waitpid(helper, 0)
        # Clones would share its files.
        config.pluginmanager.getplugin("capturemanager").stop_global_capturing()
    if not session.testsfailed:
        _session = session


def import_share(config: pytest.Config, number: int, count: int) -> None:
    """Import one of `count` parts of the test files, before this process imports all of them.

    If `count` processes do so after a fresh clone, they compile every file once, all at the same time.
    """
    folders = [Path(argument) for argument in config.args]
    files = sorted(file for folder in folders for file in folder.rglob("test_*.py"))
    for file in islice(files, number, None, count):
        name = ".".join(file.resolve().relative_to(config.rootpath).with_suffix("").parts)
        # Collection imports it again, and reports what is wrong with it.
        with contextlib.suppress(*_ERRORS):
            import_module(name)


def run_collected(channel: Any) -> None:
    """Be a worker of xdist that has collected its tests."""
    remote = cast("Any", import_module("xdist.remote"))
    WarmInterpreter.connect(*json.loads(os.environ.pop(VARIABLE)))
    if _session is None:
        source = inspect.getsource(remote)
        exec(
            compile(source, remote.__file__, "exec"),
            {"__name__": "__channelexec__", "channel": channel},
        )
        return
    workerinput, _, options, _ = channel.receive()
    os.environ["PYTEST_XDIST_TESTRUNUID"] = workerinput["testrunuid"]
    os.environ["PYTEST_XDIST_WORKER"] = workerinput["workerid"]
    os.environ["PYTEST_XDIST_WORKER_COUNT"] = str(workerinput["workercount"])
    config = cast("Any", _session.config)
    config.option.basetemp = options.get("basetemp")
    tmpdir.pytest_configure(config)
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.start_global_capturing()
    capture.suspend_global_capture()
    config.workerinput, config.workeroutput = workerinput, {}
    remote.interactor = worker = remote.WorkerInteractor(config, channel)
    worker.pytest_sessionstart(_session)
    worker.pytest_collection()
    worker.pytest_collection_finish(_session)
    _run(_session)


def _run(session: pytest.Session) -> None:
    config = cast("Any", session.config)
    session.exitstatus = pytest.ExitCode.OK
    try:
        config.hook.pytest_runtestloop(session=session)
    except (KeyboardInterrupt, pytest.exit.Exception):
        session.exitstatus = pytest.ExitCode.INTERRUPTED
    except BaseException:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        config.notify_exception(pytest.ExceptionInfo.from_current(), config.option)
    finally:
        os.chdir(session.startpath)
        config.hook.pytest_sessionfinish(session=session, exitstatus=session.exitstatus)
        config._ensure_unconfigure()


if __name__ == "__channelexec__":
    from tests.support import collected_session

    collected_session.run_collected(channel)  # noqa: F821 # pyright: ignore[reportUndefinedVariable]
