"""Run a coroutine to its end in an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from amplifier_app.base.errors import ModuleError

_Result = TypeVar("_Result")


def run_loop(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Run `main` in a new event loop, without waiting for stuck threads at the end.

    `asyncio.run` joins its executor's threads; a tool that blocks in one would keep an
    interrupted program alive.

    Raises:
        ModuleError: A module wanted to end the program, in a task of its own.
    """
    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    except SystemExit as error:
        raise ModuleError(f"a module raised SystemExit: {error.code}") from error
    finally:
        try:
            _cancel_all(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
