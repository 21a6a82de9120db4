"""Cooperative cancellation: a token that moves from none to graceful to immediate.

Graceful lets the current step finish; immediate abandons it. A request is passed on to
child tokens (sub-agents). The token only records the request; the code that runs the
work checks it and stops.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import nullcontext
from enum import Enum
from functools import partial
from typing import Any, Literal, TypeVar

from amplifier_core._foreign import (
    Owner,
    code_name,
    current_owner,
    describe_owner,
    log_failure,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

CancelCallback = Callable[[], Awaitable[Any] | Any]


def task_cancel_count() -> int:
    """Return the number of cancellation requests delivered to the running task.

    A `CancelledError` raised by foreign code is a cancellation of the caller only if this
    number has increased; otherwise the foreign code has merely failed. A request made while
    the task is running is delivered, and counted, at its next await.
    """
    task = asyncio.current_task()
    # Private to asyncio: requested but not delivered. Without it a request would count too early.
    return task.cancelling() - bool(getattr(task, "_must_cancel", False)) if task else 0


def is_failure(error: BaseException, cancels: int) -> bool:
    """Return True if an exception of foreign code is a failure of that code and must not end its caller.

    It is, unless it is an interrupt or a cancellation of the running task. `SystemExit` is one, too:
    asyncio would let it through to the end of the program, with an exit code that a module chose.

    Args:
        error: The exception.
        cancels: `task_cancel_count` before the code was called.
    """
    if isinstance(error, asyncio.CancelledError):
        return task_cancel_count() <= cancels
    return not isinstance(error, (KeyboardInterrupt, GeneratorExit))


async def await_result(value: Any) -> Any:
    """The result of a module's function that may be sync or async, from what calling it returned."""
    return await value if inspect.isawaitable(value) else value


async def leave_late(
    work: Coroutine[Any, Any, T], seconds: float = 5.0, *, timer: asyncio.Timeout | None = None
) -> T:
    """Await `work` in this task, but leave it unfinished if it goes on after a cancellation.

    A task of its own could be abandoned too, but a module may need the task in which it was mounted, for
    example to leave a cancel scope of anyio. So the steps of `work` are made here, as a task makes them.

    Args:
        work: A coroutine of a module.
        seconds: What it has to end once the running task is cancelled.
        timer: Entered if `work` waits for something, which most modules do not.

    Raises:
        asyncio.CancelledError: The task was cancelled, and `work` let the cancellation through or was left.
    """
    try:
        first = work.send(None)
    except StopIteration as end:
        return end.value
    async with timer or nullcontext():
        loop, cancels = asyncio.get_running_loop(), task_cancel_count()
        deadline, step = None, lambda: first
        while True:
            try:
                waits_for = step()
            except StopIteration as end:
                return end.value
            if task_cancel_count() <= cancels:
                deadline = None  # The request was taken back, as `asyncio.timeout` does.
            awaited = asyncio.ensure_future(asyncio.sleep(0)) if waits_for is None else waits_for
            # As a task does: nothing would ever wake it.
            is_own = asyncio.isfuture(awaited) and awaited.get_loop() is loop
            if not is_own or awaited is asyncio.current_task():
                step = partial(work.throw, RuntimeError(f"cannot await in this task: {awaited!r}"))
                continue
            awaited._asyncio_future_blocking = False
            step = partial(work.send, None)
            while not awaited.done():
                try:
                    await asyncio.wait([awaited], timeout=deadline and deadline - loop.time())
                except asyncio.CancelledError as error:
                    deadline = deadline or loop.time() + seconds
                    # Scopes of anyio know their cancellations by the message.
                    if waits_for is None or not awaited.cancel(*error.args):
                        step = partial(work.throw, error)
                if deadline and loop.time() >= deadline:
                    raise asyncio.CancelledError


async def call_each(
    functions: Iterable[tuple[Callable[[], Any], Owner | None]],
    what: str,
    *,
    late_seconds: float | None = None,
) -> None:
    """Call functions of modules (sync or async) in order, even if some fail.

    Args:
        functions: The functions with their owners.
        what: What they are, for messages.
        late_seconds: What each of those left has after a cancellation or interrupt; None for no limit.

    Raises:
        BaseException: The first cancellation or interrupt, after all functions have run.
    """
    fatal: BaseException | None = None
    cancels = task_cancel_count()
    for function, owner in list(functions):
        name = f"{what} '{code_name(function, owner)}'"
        try:
            pending = function()
            timer = asyncio.timeout(late_seconds) if fatal else None
            await leave_late(await_result(pending), timer=timer)
        # Foreign code: one that fails must not keep the others from running. It may also await a task
        # that it has cancelled, which is not a request to this task.
        except BaseException as error:
            if is_failure(error, cancels):
                log_failure(logger, name, function, owner, error, "the others still run")
            else:
                whose = describe_owner(function, owner)
                logger.warning("%s of %s was stopped before it ended", name, whose)
                fatal, cancels = fatal or error, task_cancel_count()
    if fatal is not None:
        raise fatal


class CancellationState(Enum):
    """States of a token; `CancellationToken.state` holds the plain value."""

    NONE = "none"
    GRACEFUL = "graceful"
    IMMEDIATE = "immediate"


class CancellationToken:
    """One session's cancellation state and the tools that run under it."""

    def __init__(self) -> None:
        self._state = CancellationState.NONE
        self._running_tools: dict[str, str] = {}
        self._children: list[CancellationToken] = []
        self._callbacks: list[tuple[CancelCallback, Owner | None]] = []

    @property
    def state(self) -> str:
        """``"none"``, ``"graceful"`` or ``"immediate"``."""
        return self._state.value

    @property
    def is_cancelled(self) -> bool:
        return self._state is not CancellationState.NONE

    @property
    def is_graceful(self) -> bool:
        return self._state is CancellationState.GRACEFUL

    @property
    def is_immediate(self) -> bool:
        return self._state is CancellationState.IMMEDIATE

    def request_graceful(self) -> bool:
        """Request a stop after the current step. True if this call changed the state."""
        return not self.is_cancelled and self._move(CancellationState.GRACEFUL)

    def request_immediate(self) -> bool:
        """Request an immediate stop. True if this call changed the state."""
        return not self.is_immediate and self._move(CancellationState.IMMEDIATE)

    def request_cancellation(self) -> None:
        """Like `request_graceful`, without a return value."""
        self.request_graceful()

    def _move(self, state: CancellationState) -> Literal[True]:
        self._state = state
        for child in list(self._children):
            self._pass_on(child)
        return True

    def _pass_on(self, child: "CancellationToken") -> None:
        if self.is_immediate:
            child.request_immediate()
        elif self.is_graceful:
            child.request_graceful()

    def reset(self) -> None:
        """Set the state to none and clear the running tools. Children and callbacks are kept."""
        self._state = CancellationState.NONE
        self._running_tools.clear()

    def register_tool_start(self, tool_call_id: str, tool_name: str) -> None:
        self._running_tools[tool_call_id] = tool_name

    def register_tool_complete(self, tool_call_id: str) -> None:
        self._running_tools.pop(tool_call_id, None)

    @property
    def running_tools(self) -> set[str]:
        """Ids of the running tool calls (a copy)."""
        return set(self._running_tools)

    @property
    def running_tool_names(self) -> list[str]:
        """Names of the running tools, one for each call (a copy)."""
        return list(self._running_tools.values())

    def register_child(self, token: "CancellationToken") -> None:
        """Pass requests on to `token`, starting with the current state."""
        self._children.append(token)
        self._pass_on(token)

    def unregister_child(self, token: "CancellationToken") -> None:
        if token in self._children:
            self._children.remove(token)

    def on_cancel(self, callback: CancelCallback) -> None:
        """Register a sync or async callback without arguments for `trigger_callbacks`."""
        self._callbacks.append((callback, current_owner()))

    async def trigger_callbacks(self) -> None:
        """Run all callbacks in order, even if some fail. Requests do not run them.

        Raises:
            BaseException: The first cancellation or interrupt, after all callbacks have run.
        """
        await call_each(self._callbacks, "Cancellation callback")
