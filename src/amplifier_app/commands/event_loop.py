"""Run a coroutine to its end in an event loop of its own, which no module ends before."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Coroutine, Generator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from amplifier_app.base.errors import ModuleError, Terminated
from amplifier_app.base.signals import wake_on_signals
from amplifier_core._foreign import describe_exception

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

_END_SECONDS = 10.0
"""Seconds that cancelled tasks may take to end."""


def run_loop(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Run `main` in a new event loop, without waiting for stuck threads at the end.

    `asyncio.run` joins its executor's threads; a tool that blocks in one would keep an
    interrupted program alive.

    Raises:
        ModuleError: A module wanted to end the program in a task of its own, cancelled the run's task
            or stopped its loop.
    """
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(_report)
    task = loop.create_task(main)
    try:
        asyncio.set_event_loop(loop)
        with _without_sudden_end(), wake_on_signals(loop):
            return loop.run_until_complete(task)
    except asyncio.CancelledError as error:
        raise ModuleError("a module cancelled the task of the run") from error
    except RuntimeError as error:
        if task.done():
            raise
        raise ModuleError("a module stopped the event loop") from error
    except SystemExit as error:
        reported = error  # `error` is unset after this block.
        _ignore(loop, lambda context: context.get("exception") is reported)
        raise ModuleError(f"a module raised SystemExit: {error.code}") from error
    except (KeyboardInterrupt, Terminated):
        # What a signal has interrupted may fail to end.
        _ignore(loop, lambda context: "asyncgen" in context)
        raise
    finally:
        if task.done() and not task.cancelled():
            task.exception()  # Otherwise it is reported when the task is removed.
        try:
            _cancel_all(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


@contextlib.contextmanager
def _without_sudden_end() -> Generator[None]:
    """Have `os._exit` raise SystemExit in this process, but not in its forks.

    With an exit code of 0, the program would otherwise seem to have succeeded.
    """
    end, process = os._exit, os.getpid()

    def raise_instead(status: int) -> NoReturn:
        if os.getpid() != process:
            end(status)
        raise SystemExit(status)

    os._exit = raise_instead
    try:
        yield
    finally:
        os._exit = end


def _ignore(loop: asyncio.AbstractEventLoop, is_known: Callable[[Mapping[str, Any]], bool]) -> None:
    """Keep tasks and generators from reporting what is known when they are removed."""

    def handle(loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        if not is_known(context):
            _report(loop, context)

    loop.set_exception_handler(handle)


def _report(loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
    """Log in one line that a task failed which no one waits for; anything else as asyncio does."""
    error, task = context.get("exception"), context.get("future")
    code = getattr(task.get_coro(), "cr_code", None) if isinstance(task, asyncio.Task) else None
    if error is None or code is None:
        loop.default_exception_handler(dict(context))
        return
    described = describe_exception(error, Path(code.co_filename).resolve().parent)
    logger.error("The background task '%s' failed: %s", code.co_qualname, described)
    logger.debug("Traceback of the failure of %s", code.co_qualname, exc_info=error)


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        # Tasks of modules may ignore that they are cancelled.
        ended, _ = loop.run_until_complete(asyncio.wait(tasks, timeout=_END_SECONDS))
        for task in ended:
            if not task.cancelled():
                task.exception()  # Otherwise it is reported when the task is removed.
