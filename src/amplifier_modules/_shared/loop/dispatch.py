"""Runs the tool calls of one answer and puts their results into the context.

Whatever happens, each call is answered exactly once and in call order: by its result, by an error,
or by a note that it was not run or was interrupted. So the next request is always valid.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from amplifier_core.models import ToolResult
from amplifier_modules._shared.loop.calls import Call
from amplifier_modules._shared.loop.channel import Channel
from amplifier_modules._shared.loop.interrupt import (
    Interrupted,
    Watch,
    interruptible,
    stop,
    uninterrupted,
)
from amplifier_modules._shared.loop.results import as_result, failure, recalled, result_message
from amplifier_modules._shared.loop.schema import InputChecker
from amplifier_modules._shared.loop.spans import Span

logger = logging.getLogger(__name__)

INTERRUPTED = "interrupted, effects unknown"
NOT_RUN = "not run: the turn was stopped before this call"


class _Ready(NamedTuple):
    """A call that may run, with its final input and the event data that goes with it."""

    call: Call
    tool: Any
    arguments: dict[str, Any]
    data: dict[str, Any]
    span: Span


class Dispatcher:
    """Runs tool calls for one turn.

    Args:
        tools: Tools by the name the model calls them by.
        context: Where results are added.
        channel: The turn's hooks.
        token: The session's cancellation token, or None.
        checker: Checks inputs against the tools' schemas.
        parallel: Run the calls of one answer at the same time.
    """

    def __init__(
        self,
        *,
        tools: Mapping[str, Any],
        context: Any,
        channel: Channel,
        token: Any,
        checker: InputChecker,
        parallel: bool,
    ) -> None:
        self._tools = tools
        self._context = context
        self._channel = channel
        self.token = token
        self._checker = checker
        self._parallel = parallel
        self._results: dict[str, ToolResult] = {}

    async def run(self, calls: list[Call], parent: Span) -> None:
        """Run `calls`, which an assistant message in the context has just asked for.

        Args:
            calls: The calls, with ids of their own, in order.
            parent: Span of the provider call that asked.

        Raises:
            asyncio.CancelledError: The calling task was cancelled; every call has been answered.
            Exception: The context or a hook's consequences failed; likewise.
        """
        batch = _Batch(self, calls, parent)
        try:
            groups = [calls] if self._parallel else [[call] for call in calls]
            for group in groups:
                await batch.run(group)
            await self.release()
        except BaseException:
            await uninterrupted(batch.abandon())
            raise

    async def release(self) -> None:
        """Carry out the injections hooks asked for while the calls ran."""
        await self._channel.release()

    def stopped(self) -> bool:
        """Whether the session was asked to stop, at once or after the step in flight."""
        return self.token is not None and self.token.is_cancelled

    async def prepare(self, call: Call, parent: Span) -> _Ready | ToolResult:
        """Decide whether and with what input `call` runs; the result of a call that does not."""
        span = parent.child()
        data: dict[str, Any] = {
            "tool_name": call.name,
            "tool_call_id": call.id,
            "tool_input": call.arguments,
            "input": call.arguments,
            **span.fields,
        }
        if call.repeats is not None:
            await self.report(data, "RepeatedCall", f"not run again: {call.repeats} ran before")
            return recalled(self._results.get(call.repeats))
        tool = self._tools.get(call.name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            return await self._refuse(
                data, "UnknownTool", f"unknown tool '{call.name}'; available tools: {known}"
            )
        problem = call.problem or self._checker.problem(tool, call.name, call.arguments)
        if problem is None:
            denied, final = await self._channel.ask("tool:pre", data, hold=True)
            if denied is not None:
                return await self._refuse(data, "Denied", f"denied: {denied}")
            arguments = _changed(final, ("tool_input", "input"), call.arguments)
            if arguments is call.arguments:
                return _Ready(call, tool, arguments, data, span)
            data = {**data, "tool_input": arguments, "input": arguments}
            problem = _not_an_object(arguments)
            problem = problem or self._checker.problem(tool, call.name, arguments)
            if problem is None:
                return _Ready(call, tool, arguments, data, span)
        return await self._refuse(
            data, "InvalidArguments", f"invalid arguments for tool '{call.name}': {problem}"
        )

    async def execute(self, ready: _Ready) -> ToolResult:
        """Run a call that may run; what the tool raises becomes its result."""
        call, data = ready.call, ready.data
        ready.span.enter()
        token = self.token
        if token is not None:
            token.register_tool_start(call.id, call.name)
        started = time.perf_counter()
        try:
            # A copy: what a tool does to its input must not change what is remembered of it.
            value: Any = ready.tool.execute(copy.deepcopy(ready.arguments))
            if inspect.isawaitable(value):
                value = await value
            result = as_result(value)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                await self.report(data, "Interrupted", INTERRUPTED)
                raise
            # Nobody cancelled the call: the tool failed by an inner cancellation of its own.
            return await self._refuse(data, "CancelledError", f"tool '{call.name}' failed: {error}")
        # Tools are foreign code: one that raises is an answer to the model, not the turn's end.
        except Exception as error:
            logger.debug("Tool %r raised", call.name, exc_info=True)
            kind = type(error).__name__
            return await self._refuse(data, kind, f"tool '{call.name}' failed: {kind}: {error}")
        finally:
            if token is not None:
                token.register_tool_complete(call.id)
        return await self._review(data, result, (time.perf_counter() - started) * 1000)

    async def answer(self, call: Call, result: ToolResult) -> None:
        """Add the result of a call to the context."""
        self._results[call.id] = result
        added = self._context.add_message(result_message(call.id, call.name, result))
        if inspect.isawaitable(added):
            await added

    async def _review(
        self, data: dict[str, Any], result: ToolResult, milliseconds: float
    ) -> ToolResult:
        """What hooks make of the result of a tool that ran."""
        denied, final = await self._channel.ask(
            "tool:post",
            {
                **data,
                "tool_result": result,
                "result": result,
                "duration_ms": round(milliseconds, 1),
            },
            hold=True,
        )
        if denied is not None:
            return failure(f"denied: {denied}", "Denied")
        changed = _changed(final, ("tool_result", "result"), result)
        return result if changed is result else as_result(changed)

    async def _refuse(self, data: dict[str, Any], kind: str, message: str) -> ToolResult:
        await self.report(data, kind, message)
        return failure(message, kind)

    async def report(self, data: dict[str, Any], kind: str, message: str) -> None:
        error = {"type": kind, "message": message}
        await self._channel.ask("tool:error", {**data, "error": error}, hold=True)


class _Batch:
    """The calls of one answer: which are under way and which have been answered."""

    def __init__(self, dispatcher: Dispatcher, calls: list[Call], parent: Span) -> None:
        self._dispatcher = dispatcher
        self._parent = parent
        self._open = {call.id: call for call in calls}
        self._running: dict[str, tuple[_Ready, asyncio.Task[ToolResult]]] = {}

    async def run(self, group: list[Call]) -> None:
        """Run the calls of `group` at the same time and answer them in order."""
        prepared = await self._prepare(group)
        for call, step in prepared:
            if isinstance(step, _Ready):
                task = asyncio.create_task(self._dispatcher.execute(step))
                self._running[call.id] = (step, task)
        tasks = [task for _, task in self._running.values()]
        with Watch(self._dispatcher.token, tasks) as watch:
            for call, step in prepared:
                if isinstance(step, ToolResult):
                    await self._answer(call, step)
                    continue
                ready, task = self._running[call.id]
                await watch.ended(task)
                await self._answer(call, await self._result(ready, task))

    async def _prepare(self, group: list[Call]) -> list[tuple[Call, _Ready | ToolResult]]:
        """Decide on the calls one after the other, so that approvals are asked in order."""
        prepared: list[tuple[Call, _Ready | ToolResult]] = []

        async def decide() -> None:
            for call in group:
                if self._dispatcher.stopped():
                    return
                prepared.append((call, await self._dispatcher.prepare(call, self._parent)))

        try:
            await interruptible(decide(), self._dispatcher.token)
        except Interrupted:
            prepared = []
        rest = group[len(prepared) :]
        return [*prepared, *((call, failure(NOT_RUN, "Interrupted")) for call in rest)]

    async def abandon(self) -> None:
        """Stop what runs and answer what is open."""
        await stop(task for _, task in self._running.values())
        for call in list(self._open.values()):
            if call.id not in self._running:
                result = failure(NOT_RUN, "Interrupted")
            else:
                ready, task = self._running[call.id]
                try:
                    result = await self._result(ready, task)
                # Why the turn ends is on its way up already; what matters here is an answer.
                except Exception:
                    logger.debug("Tool call %s ended with an error", call.id, exc_info=True)
                    result = failure(INTERRUPTED, "Interrupted")
            await self._answer(call, result)
        await self._dispatcher.release()

    async def _result(self, ready: _Ready, task: asyncio.Task[ToolResult]) -> ToolResult:
        """The result of a call that was started.

        Raises:
            Exception: What a hook wanted done after the tool had run failed.
        """
        if not task.done():
            await self._dispatcher.report(ready.data, "Interrupted", INTERRUPTED)
        if not task.done() or task.cancelled():
            return failure(INTERRUPTED, "Interrupted")
        return task.result()

    async def _answer(self, call: Call, result: ToolResult) -> None:
        # Closed first: if adding fails half-way, answering again would answer twice.
        del self._open[call.id]
        await self._dispatcher.answer(call, result)


def _changed(final: Mapping[str, Any], keys: tuple[str, str], original: Any) -> Any:
    """The value hooks left under either of two names for the same thing."""
    for key in keys:
        value = final.get(key, original)
        if value is not original and value != original:
            return value
    return original


def _not_an_object(arguments: Any) -> str | None:
    if isinstance(arguments, dict):
        return None
    return f"a hook replaced the input by {type(arguments).__name__}, not an object"
