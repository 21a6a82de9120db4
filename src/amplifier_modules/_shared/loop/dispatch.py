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

    _parent: Span

    def __init__(self, runner: Runner, parts: TurnParts) -> None:
        self.runner = runner
        self._context = parts.context
        self._channel = parts.channel
        self._token = parts.stop_signal
        self._parallel = parts.loop.config.parallel_tools
        self._open: dict[str, Call] = {}
        self._running: dict[str, tuple[Ready, asyncio.Task[ToolResult]]] = {}
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
        self._parent = parent
        self._open, self._running = {call.id: call for call in calls}, {}
        try:
            granted = calls[:allowed]
            groups = [granted] if self._parallel else [[call] for call in granted]
            for group in groups:
                await self._run_group(group)
            for call in calls[len(granted) :]:
                await self._answer(call, await self._refuse(call, NOT_ALLOWED, "BudgetReached"))
            await self._channel.apply_held()
        except BaseException:
            await finish_despite_cancellation(self._abandon())
            raise

    async def _run_group(self, group: list[Call]) -> None:
        """Run the calls of `group` at the same time and answer them in order."""
        prepared = await self._prepare(group)
        for call, step in prepared:
            if isinstance(step, Ready):
                self._running[call.id] = step, asyncio.create_task(self.runner.execute(step))
        tasks = [task for _, task in self._running.values()]
        with Watch(self._token, tasks) as watch:
            for call, step in prepared:
                if isinstance(step, Ready):
                    _, task = self._running[call.id]
                    await watch.wait_for_end(task)
                    step = await self._result(step, task)
                await self._answer(call, step)

    async def _prepare(self, group: list[Call]) -> list[tuple[Call, Ready | ToolResult]]:
        """Decide on the calls one after another, so that approvals are requested in order."""
        prepared: list[tuple[Call, Ready | ToolResult]] = []

        async def decide() -> None:
            for call in group:
                if self._token.is_cancelled:
                    return
                prepared.append((call, await self.runner.prepare(call, self._parent)))

        try:
            await interruptible(decide(), self._token)
        except Interrupted:
            for at, (call, step) in enumerate(prepared):
                if isinstance(step, Ready):
                    prepared[at] = call, await self._refuse(call)
        left = group[len(prepared) :]
        return [*prepared, *[(call, await self._refuse(call)) for call in left]]

    async def _refuse(
        self, call: Call, message: str = NOT_RUN, kind: str = "Interrupted"
    ) -> ToolResult:
        """The result of a call that is not run."""
        return await self.runner.refuse(call, self._parent, message, kind)

    async def _abandon(self) -> None:
        """Stop running calls and answer all unanswered ones."""
        await stop(task for _, task in self._running.values())
        for call in list(self._open.values()):
            if call.id not in self._running:
                result = await self._refuse(call)
            else:
                try:
                    result = await self._result(*self._running[call.id])
                # The error that ends the turn is already propagating; here each call needs an answer.
                except Exception:
                    logger.debug("Tool call %s ended with an error", call.id, exc_info=True)
                    result = failure(INTERRUPTED, "Interrupted")
            await self._answer(call, result)
        await self._channel.apply_held()

    async def _result(self, ready: Ready, task: asyncio.Task[ToolResult]) -> ToolResult:
        """The result of a call that was started.

        Raises:
            Exception: Applying a hook's result after the tool had run failed.
        """
        if not task.done():
            await self.runner.report(ready.data, "Interrupted", INTERRUPTED)
        if not task.done() or task.cancelled():
            return failure(INTERRUPTED, "Interrupted")
        return task.result()

    async def _answer(self, call: Call, result: ToolResult) -> None:
        """Add the result of a call to the context."""
        # Removed first: if adding fails halfway, a second attempt would answer twice.
        del self._open[call.id]
        self.runner.results[call.id] = result
        message = result_message(call.id, call.name, result)
        self.answers[call.id] = message["content"]
        await add_message(self._context, message)
