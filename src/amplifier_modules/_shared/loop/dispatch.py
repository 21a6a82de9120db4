"""Runs the tool calls of one answer and adds their results to the context.

Each call is always answered exactly once, in call order: with its result, an error, or a note that
it was not run or was interrupted. The next request is therefore always valid.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from amplifier_core.models import ToolResult
from amplifier_modules._shared.loop.conversation import add_message
from amplifier_modules._shared.loop.interrupt import (
    Interrupted,
    Watch,
    finish_despite_cancellation,
    interruptible,
    stop,
)
from amplifier_modules._shared.loop.parts import TurnParts
from amplifier_modules._shared.loop.replies import Call
from amplifier_modules._shared.loop.results import failure, result_message
from amplifier_modules._shared.loop.runner import INTERRUPTED, Ready, Runner
from amplifier_modules._shared.module.spans import Span

logger = logging.getLogger(__name__)

NOT_RUN = "not run: the prompt was stopped before this call"
NOT_ALLOWED = "not run: the session's budget of tool calls is used up"


class Dispatcher:
    """Runs tool calls for one turn.

    Args:
        runner: Runs a single call.
        parts: The parts of the turn.

    Attributes:
        answers: The content of each call's result message, by call id.
    """

    def __init__(self, runner: Runner, parts: TurnParts) -> None:
        self.runner = runner
        self._context = parts.context
        self._channel = parts.channel
        self.token = parts.stop_signal
        self._parallel = parts.loop.config.parallel_tools
        self.answers: dict[str, Any] = {}

    async def run(self, calls: list[Call], parent: Span, allowed: int | None = None) -> None:
        """Run `calls`, requested by the last assistant message in the context.

        Args:
            calls: The calls, with unique ids, in order.
            parent: Span of the provider call that requested them.
            allowed: How many of the first calls the budget allows; None for all.

        Raises:
            asyncio.CancelledError: The calling task was cancelled; every call has been answered.
            Exception: The context failed, or applying a hook's result did; likewise.
        """
        batch = _Batch(self, calls, parent)
        try:
            granted = calls[:allowed]
            groups = [granted] if self._parallel else [[call] for call in granted]
            for group in groups:
                await batch.run(group)
            for call in calls[len(granted) :]:
                await batch.refuse(call, NOT_ALLOWED, "BudgetReached")
            await self.release()
        except BaseException:
            await finish_despite_cancellation(batch.abandon())
            raise

    async def release(self) -> None:
        """Apply the injections that hooks requested while the calls ran."""
        await self._channel.apply_held()

    def is_stopped(self) -> bool:
        """Return True if the session was asked to stop, at once or after the step in flight."""
        return self.token.is_cancelled

    async def answer(self, call: Call, result: ToolResult) -> None:
        """Add the result of a call to the context."""
        self.runner.results[call.id] = result
        message = result_message(call.id, call.name, result)
        self.answers[call.id] = message["content"]
        await add_message(self._context, message)


class _Batch:
    """The calls of one answer: those running and those already answered."""

    def __init__(self, dispatcher: Dispatcher, calls: list[Call], parent: Span) -> None:
        self._dispatcher = dispatcher
        self._parent = parent
        self._open = {call.id: call for call in calls}
        self._running: dict[str, tuple[Ready, asyncio.Task[ToolResult]]] = {}

    async def run(self, group: list[Call]) -> None:
        """Run the calls of `group` at the same time and answer them in order."""
        prepared = await self._prepare(group)
        for call, step in prepared:
            if isinstance(step, Ready):
                task = asyncio.create_task(self._dispatcher.runner.execute(step))
                self._running[call.id] = (step, task)
        tasks = [task for _, task in self._running.values()]
        with Watch(self._dispatcher.token, tasks) as watch:
            for call, step in prepared:
                if isinstance(step, ToolResult):
                    await self._answer(call, step)
                    continue
                ready, task = self._running[call.id]
                await watch.wait_for_end(task)
                await self._answer(call, await self._result(ready, task))

    async def _prepare(self, group: list[Call]) -> list[tuple[Call, Ready | ToolResult]]:
        """Decide on the calls one after another, so that approvals are requested in order."""
        prepared: list[tuple[Call, Ready | ToolResult]] = []

        async def decide() -> None:
            for call in group:
                if self._dispatcher.is_stopped():
                    return
                prepared.append((call, await self._dispatcher.runner.prepare(call, self._parent)))

        try:
            await interruptible(decide(), self._dispatcher.token)
        except Interrupted:
            decided, prepared = prepared, []
            for call, step in decided:
                refused = isinstance(step, ToolResult)
                prepared.append((call, step if refused else await self._not_run(call)))
        for call in group[len(prepared) :]:
            prepared.append((call, await self._not_run(call)))
        return prepared

    async def refuse(self, call: Call, message: str, kind: str) -> None:
        """Answer a call that is not run."""
        result = await self._dispatcher.runner.refuse(call, self._parent, message, kind)
        await self._answer(call, result)

    async def _not_run(self, call: Call) -> ToolResult:
        return await self._dispatcher.runner.refuse(call, self._parent, NOT_RUN, "Interrupted")

    async def abandon(self) -> None:
        """Stop running calls and answer all unanswered ones."""
        await stop(task for _, task in self._running.values())
        for call in list(self._open.values()):
            if call.id not in self._running:
                result = await self._not_run(call)
            else:
                ready, task = self._running[call.id]
                try:
                    result = await self._result(ready, task)
                # The error that ends the turn is already propagating; here each call needs an answer.
                except Exception:
                    logger.debug("Tool call %s ended with an error", call.id, exc_info=True)
                    result = failure(INTERRUPTED, "Interrupted")
            await self._answer(call, result)
        await self._dispatcher.release()

    async def _result(self, ready: Ready, task: asyncio.Task[ToolResult]) -> ToolResult:
        """The result of a call that was started.

        Raises:
            Exception: Applying a hook's result after the tool had run failed.
        """
        if not task.done():
            await self._dispatcher.runner.report(ready.data, "Interrupted", INTERRUPTED)
        if not task.done() or task.cancelled():
            return failure(INTERRUPTED, "Interrupted")
        return task.result()

    async def _answer(self, call: Call, result: ToolResult) -> None:
        # Removed first: if adding fails halfway, a second attempt would answer twice.
        del self._open[call.id]
        await self._dispatcher.answer(call, result)
