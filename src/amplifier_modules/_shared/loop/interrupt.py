"""Stops a running step without leaving tasks behind.

A step stops in two cases. Either the session's cancellation token turns immediate; the token only
records the request, so it is polled while a step runs. Or the task that runs the turn is cancelled
from outside. In both cases the step's tasks end before anything else happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.05
"""Seconds until a running step polls the token first; a faster step never polls it."""

MAX_POLL_SECONDS = 0.5
"""Seconds between two polls of a step that has run for long, such as one that waits for hours."""

GRACE_SECONDS = 5.0
"""Seconds that a cancelled task may take to end before it is abandoned."""


class Interrupted(Exception):
    """The cancellation token turned immediate while a step ran."""


class Watch:
    """While entered, cancels `tasks` as soon as `token` turns immediate.

    Args:
        token: The session's cancellation token.
        tasks: The tasks of the running step.
    """

    def __init__(self, token: Any, tasks: Iterable[asyncio.Task[Any]]) -> None:
        self._token = token
        self._tasks = list(tasks)
        self._pause = POLL_SECONDS
        self._fired: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __enter__(self) -> Watch:
        self._timer = self._fired.get_loop().call_later(self._pause, self._look)
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    @property
    def fired(self) -> bool:
        return self._fired.done()

    def _look(self) -> None:
        if self._token.is_immediate:
            self._fired.set_result(None)
            for task in self._tasks:
                task.cancel()
        else:
            self._pause = min(self._pause * 1.1, MAX_POLL_SECONDS)
            self._timer = self._fired.get_loop().call_later(self._pause, self._look)

    async def wait_for_end(self, task: asyncio.Task[Any]) -> bool:
        """Wait for `task`. False if it was cancelled and did not end within the grace period."""
        await asyncio.wait({task, self._fired}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            await stop([task])
        return task.done()


async def stop(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel `tasks` and wait until they have ended, at most for the grace period."""
    running: list[asyncio.Task[Any]] = []
    for task in tasks:
        if task.done():
            _retrieve(task)
        else:
            task.cancel()
            task.add_done_callback(_retrieve)
            running.append(task)
    if running:
        await asyncio.wait(running, timeout=GRACE_SECONDS)


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Retrieve the result of an abandoned task, so that asyncio does not report it as lost."""
    if not task.cancelled():
        task.exception()


async def interruptible(step: Coroutine[Any, Any, T], token: Any) -> T:
    """Run `step` in its own task, which ends before this returns or raises.

    Raises:
        Interrupted: The token turned immediate first.
        asyncio.CancelledError: The calling task was cancelled.
    """
    task = asyncio.create_task(step)
    with Watch(token, [task]) as watch:
        try:
            await watch.wait_for_end(task)
        except asyncio.CancelledError:
            await finish_despite_cancellation(stop([task]))
            raise
        if watch.fired and (not task.done() or task.cancelled()):
            raise Interrupted
    return task.result()


async def finish_despite_cancellation(closing: Coroutine[Any, Any, T]) -> T:
    """Finish `closing` even if the calling task is cancelled in the meantime.

    The cancellation is raised afterwards. After the first one `closing` has only the grace period,
    so that a handler that hangs cannot keep the process alive.

    Raises:
        asyncio.CancelledError: The calling task was cancelled while this ran.
    """
    task = asyncio.create_task(closing)
    cancelled: asyncio.CancelledError | None = None
    deadline: float | None = None
    while not task.done():
        now = asyncio.get_running_loop().time()
        if deadline is not None and now >= deadline:
            task.cancel()
            task.add_done_callback(_retrieve)
            break
        try:
            await asyncio.wait([task], timeout=None if deadline is None else deadline - now)
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
            deadline = deadline or asyncio.get_running_loop().time() + GRACE_SECONDS
    if cancelled is not None:
        if task.done():
            _retrieve(task)
        raise cancelled
    return task.result()
