"""One turn, from a prompt through provider and tool cycles to its end, and the base of the loops that run turns.

    prompt:submit → execution:start → [ provider:request → … → provider:response → tools ]*
    → execution:end → prompt:complete → message.end → orchestrator:complete

(Orchestrator Contract, Execution Flow and Events.) Every start event gets its end event, even on errors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, ClassVar

from amplifier_core.events import MESSAGE_END
from amplifier_modules._shared.loop.answered import PROVIDER_FALLBACK, PROVIDER_SWITCHED
from amplifier_modules._shared.loop.budget import (
    BUDGET_REACHED,
    BudgetReached,
    Reached,
    open_budget,
)
from amplifier_modules._shared.loop.channel import (
    CUT_SHORT,
    EMPTY,
    MAX_ITERATIONS_REACHED,
    OUT_OF_BUDGET,
    TurnDenied,
    TurnOutcome,
    error_data,
)
from amplifier_modules._shared.loop.config import LoopConfig
from amplifier_modules._shared.loop.conversation import add_message, stored_messages
from amplifier_modules._shared.loop.dispatch import Dispatcher
from amplifier_modules._shared.loop.exchange import CONTEXT_OVERFLOW, Exchanges, Reply
from amplifier_modules._shared.loop.interrupt import Interrupted, finish_despite_cancellation
from amplifier_modules._shared.loop.parts import LoopState, TurnParts
from amplifier_modules._shared.loop.replies import (
    Call,
    CallLedger,
    UsageTotal,
    assistant_message,
    join_text,
    lost_usage,
)
from amplifier_modules._shared.loop.runner import Runner
from amplifier_modules._shared.loop.steering import STEER_EVENTS, TURN_ENDING
from amplifier_modules._shared.loop.streaming import complete, stream
from amplifier_modules._shared.module.spans import Span
from amplifier_support.fields import read_field
from amplifier_support.session_capabilities import STEER

logger = logging.getLogger(__name__)


class Turn:
    """One turn of an orchestrator."""

    exchanges_type: ClassVar[type[Exchanges]] = Exchanges
    runner_type: ClassVar[type[Runner]] = Runner

    def __init__(self, parts: TurnParts) -> None:
        self._parts = parts
        self._config = parts.loop.config
        self._budget = parts.budget
        self._stop_signal = parts.stop_signal
        self._channel = parts.channel
        self._dispatcher = Dispatcher(self.runner_type(parts), parts)
        self._exchanges = self.exchanges_type(parts)
        parts.loop.answer_format.begin(parts.coordinator)
        session_id = getattr(parts.coordinator, "session_id", None)
        self.span = Span.turn(session_id if isinstance(session_id, str) else None)
        self._ledger = CallLedger()
        self._last_done: list[tuple[str, dict[str, Any], Any]] = []
        self._repeats = 0
        self._usage = UsageTotal()
        self._cycles = 0
        self._most_cycles = self._config.max_iterations
        self._submitted = False
        self._started = False
        self._is_continued = False

    async def play(self, prompt: str) -> TurnOutcome:
        """Run the turn to its end.

        Raises:
            ValueError: The prompt is empty or there is no provider.
            Exception: A provider, the context or the processing of a hook's answer failed.
        """
        try:
            with self._budget.clock():
                outcome, prompt = await self._begin(prompt)
                return outcome or await self._work(prompt)
        except TurnDenied as denial:
            logger.debug("Turn denied on %s: %s", denial.event, denial.reason)
            return TurnOutcome("incomplete", f"Denied: {denial.reason}", "denied")
        except BudgetReached as stop:
            return _out_of_budget(stop.reached, stop.details)
        except Interrupted:
            return await self._stop_turn()

    async def close(self, outcome: TurnOutcome) -> str:
        """Emit the remaining events of the turn and return its final text."""
        response = outcome.response
        error = {} if outcome.error is None else {"error": error_data(outcome.error)}
        ids = self.span.fields
        if self._started:
            await self._channel.emit_and_apply(
                "execution:end", {"status": outcome.status, "response": response, **error, **ids}
            )
        if self._submitted:
            _, final = await self._channel.emit_and_apply(
                "prompt:complete", {"response": response, **error, **ids}
            )
            changed = final.get("response")
            response = changed if isinstance(changed, str) else response
            # "Ends at `message.end` event (or terminal error)": Turn & Iteration Semantics.
            if outcome.status != "error":
                ended = {"response": response, "status": outcome.status}
                await self._channel.emit_and_apply(MESSAGE_END, {**ended, **ids})
        summary: dict[str, Any] = {
            "orchestrator": self._parts.loop.name,
            "turn_count": self._cycles,
            "status": outcome.status,
            "usage": self._usage.as_dict(),
            **ids,
        }
        if outcome.reason is not None:
            summary |= {"reason": outcome.reason, **outcome.details}
        if outcome.error is not None:
            summary["error"] = error_data(outcome.error)["message"]
        await self._channel.emit_and_apply("orchestrator:complete", summary)
        return response

    async def _begin(self, prompt: str) -> tuple[TurnOutcome | None, str]:
        """Submit the prompt and add it to the context.

        Returns:
            The outcome, if the turn ends at once, and the prompt after hooks.
        """
        if not self._parts.providers:
            raise ValueError("At least one provider required: no provider is mounted")
        _require_text(prompt)
        self._submitted = True
        submitted = {"prompt": prompt, **self.span.fields}
        changed = (await self._channel.emit_or_raise("prompt:submit", submitted)).get("prompt")
        prompt = changed if isinstance(changed, str) else prompt
        _require_text(prompt)
        self._started = True
        await self._channel.emit_or_raise("execution:start", {"prompt": prompt, **self.span.fields})
        reached = await self._parts.limits.find_reached(self.span.fields, tools=True)
        if reached is not None:
            return _out_of_budget(reached), prompt
        await self._add({"role": "user", "content": prompt})
        return None, prompt

    async def _work(self, prompt: str) -> TurnOutcome:
        """Work on the prompt, which is in the context and accepted by the hooks.

        Calls the provider and runs tools until an answer requests none.
        """
        while self._has_room() or await self._gets_room():
            if self._stop_signal.is_cancelled:
                return await self._stop_turn()
            outcome = await self._cycle()
            if outcome is None:
                continue
            if outcome.reason == OUT_OF_BUDGET:
                return outcome
            # Messages queued while the answer was generated are answered in this turn too.
            if self._parts.loop.steering.waiting() and self._can_go_on():
                continue
            if outcome.status != "success" or not await self._is_kept_going():
                return outcome
        return TurnOutcome("incomplete", MAX_ITERATIONS_REACHED, "max_iterations")

    def _can_go_on(self) -> bool:
        return self._has_room() and self._budget.reached() is None

    async def _is_kept_going(self) -> bool:
        """Announce the end of the turn; return True if a hook has added a message, and the turn can go on with it."""
        ending = {"goes_on": False, "is_continued": self._is_continued, **self.span.fields}
        verdict = await self._channel.emit_and_apply(TURN_ENDING, ending)
        if verdict.data.get("goes_on") is not True or self._stop_signal.is_cancelled:
            return False
        # The message may have been dropped, at a limit of the session for what hooks add.
        messages = await stored_messages(self._parts.context)
        if not self._can_go_on() or not messages or messages[-1].get("role") != "user":
            return False
        self._is_continued = True
        return True

    def _has_room(self) -> bool:
        return self._most_cycles <= 0 or self._cycles < self._most_cycles

    async def _gets_room(self) -> bool:
        """Return True if a hook raises the turn's limit of model calls, which is reached."""
        if Turn._has_room(self):
            return False  # The limit of a step of the turn is reached.
        reached = Reached("max_iterations", self._most_cycles, self._cycles)
        allowed = await self._parts.limits.more(reached, self.span.fields)
        if allowed is not None:
            self._most_cycles = int(allowed)
        return allowed is not None

    async def _cycle(self) -> TurnOutcome | None:
        """One provider call and the tool calls it requests; the outcome if the turn ends."""
        span = self.span.child(iteration=self._cycles + 1)
        about = {**self.span.fields, "iteration": self._cycles + 1}
        await self._parts.loop.steering.deliver(self._channel, self._add, about)
        try:
            reply = self._count(await self._exchanges.make(span))
        finally:
            self._count_lost()
        calls, blocks = self._ledger.settle(reply.calls, reply.blocks)
        await self._add(
            assistant_message(reply.response, blocks, calls, reply.answered.as_metadata())
        )
        if calls and (outcome := await self._run_calls(calls, reply.span)) is not None:
            return outcome
        return await self._conclude(
            calls, join_text(blocks), read_field(reply.response, "finish_reason")
        )

    def _count(self, reply: Reply) -> Reply:
        """Count an answer in the turn's usage."""
        self._cycles += 1
        self._usage.add(reply.usage)
        return reply

    def _count_lost(self) -> None:
        """Count the attempts of the last exchange that ended without an answer."""
        self._usage.add(lost_usage(self._exchanges.lost))

    async def _run_calls(self, calls: list[Call], span: Span) -> TurnOutcome | None:
        """Run the tool calls of an answer; the outcome if the turn cannot continue after them."""
        allowed = self._budget.take_tool_calls(len(calls))
        await self._dispatcher.run(calls, span, allowed)
        if allowed < len(calls) and (reached := self._budget.reached(tools=True)) is not None:
            return _out_of_budget(reached)
        # The calls of an answer count together: as long as one of them, or one result, is new, the
        # turn makes progress.
        answers = self._dispatcher.answers
        done = [(call.name, call.arguments, answers.get(call.id)) for call in calls]
        self._repeats = self._repeats + 1 if done == self._last_done else 1
        self._last_done = done
        return self._judge_progress(calls, self._repeats)

    def _judge_progress(self, calls: list[Call], times: int) -> TurnOutcome | None:
        """Warn the model of calls that had the same results several times in a row, then end the turn."""
        most = self._config.max_repeats
        if not most or times < most:
            return None
        names = list(dict.fromkeys(call.name for call in calls))
        named = " and ".join(f"'{name}'" for name in names)
        if times < 2 * most:
            self._channel.append_note(
                f"[{named} was called {times} times in a row with the same input and the same "
                f"result; the turn ends after {2 * most - times} more. Do something else: change the "
                "input, wait longer, use another tool, or report what is missing.]"
            )
            return None
        text = f"No progress: {named} had the same result {times} times in a row"
        details = {"repeated": {"tools": names, "times": times}}
        return TurnOutcome("incomplete", text, "no_progress", details=details)

    async def _conclude(
        self, calls: list[Call], text: str, finish_reason: str | None
    ) -> TurnOutcome | None:
        """The outcome of the turn after an answer whose calls have run; None to continue."""
        if calls:
            return None
        if finish_reason in CUT_SHORT:
            return TurnOutcome("incomplete", text, finish_reason)
        if not text.strip():
            return TurnOutcome("incomplete", text, EMPTY)
        return TurnOutcome("success", text)

    async def _add(self, message: dict[str, Any]) -> None:
        await add_message(self._parts.context, message)

    async def _stop_turn(self) -> TurnOutcome:
        """The outcome of a stopped turn, after running the cancellation callbacks."""
        reached = None if self._stop_signal.is_requested else self._budget.reached()
        if reached is not None:
            return _out_of_budget(reached)
        await self.keep_partial_answer()
        await self._stop_signal.trigger_callbacks()
        return TurnOutcome("incomplete", "", "cancelled")

    async def keep_partial_answer(self) -> None:
        """Add what a stopped answer has said to the conversation, so that it can be continued."""
        text, self._channel.partial_text = self._channel.partial_text.rstrip(), ""
        if text:
            await self._add({"role": "assistant", "content": text})


def _out_of_budget(reached: Reached, about: dict[str, Any] | None = None) -> TurnOutcome:
    details = {"budget": about or reached._asdict()}
    return TurnOutcome("incomplete", str(reached), OUT_OF_BUDGET, details=details)


def _require_text(prompt: str) -> None:
    if not prompt or not prompt.strip():
        raise ValueError("Prompt cannot be empty")


class LoopOrchestrator:
    """Runs turns: provider call, tool calls, and so on, until an answer without tool calls.

    Attributes:
        name: Module id; `orchestrator:complete` names it.
        streams: Whether it streams answers unless its settings say otherwise.
        config: The settings.
        state: The parts that outlive its turns.
        events: Names of the events it emits in addition to those that the kernel defines.
        steer: Queues a text for the running turn; see `Steering`.
    """

    name: ClassVar[str]
    streams: ClassVar[bool] = True
    events: ClassVar[tuple[str, ...]] = (
        *STEER_EVENTS,
        PROVIDER_FALLBACK,
        PROVIDER_SWITCHED,
        CONTEXT_OVERFLOW,
        BUDGET_REACHED,
    )
    turn_type: ClassVar[type[Turn]] = Turn

    def __init__(self, config: LoopConfig | None = None) -> None:
        self.config = config or LoopConfig()
        streams = self.streams and self.config.streaming
        self.state = LoopState(self.name, self.config, stream if streams else complete)
        self.steer = self.state.steering
        if self.config.debug:
            logging.getLogger("amplifier_modules._shared.loop").setLevel(logging.DEBUG)

    async def mount(self, coordinator: Any) -> None:
        """Mount as the session's orchestrator, with its capabilities and contributions.

        Raises:
            ValueError: `session.budget` of the plan is not valid.
        """
        coordinator.register_contributor(
            "observability.events", self.name, lambda: list(self.events)
        )
        budget = open_budget(coordinator)
        coordinator.register_contributor("session.stats", self.name, budget.stats)
        STEER.register(coordinator, self.steer)
        await coordinator.mount("orchestrator", self)

    async def execute(
        self,
        prompt: str,
        context: Any,
        providers: Mapping[str, Any],
        tools: Mapping[str, Any],
        hooks: Any,
        coordinator: Any = None,
        **kwargs: Any,
    ) -> str:
        """Run one turn (Orchestrator Contract).

        Args:
            prompt: The user's prompt.
            context: See `amplifier_core.interfaces.ContextManager`.
            providers: Providers by name.
            tools: Tools by the name the model uses.
            hooks: Hook registry, or anything with `async emit(event, data)`.
            coordinator: The session's coordinator. Without it the loop applies hook results
                itself, approval cannot be requested, and only the task can be cancelled.
            **kwargs: Ignored; for callers written for other orchestrators.

        Returns:
            The text of the last answer. If there is none, `orchestrator:complete` has the
            status ``incomplete`` and a ``reason``, and the text is ``"Max iterations reached"``,
            ``"Budget reached: …"``, ``"No progress: …"``, ``"Denied: …"`` by a hook, or nothing
            when the turn was cancelled.

        Raises:
            ValueError: The prompt is empty or there is no provider.
            amplifier_core.llm_errors.LLMError: The provider failed; any other exception of a
                provider or the context is raised unchanged, too.
            asyncio.CancelledError: The calling task was cancelled.
        """
        reset_turn = getattr(coordinator, "reset_turn", None)
        if callable(reset_turn):
            reset_turn()
        parts = TurnParts(self.state, context, providers, tools, hooks, coordinator)
        turn = self.turn_type(parts)
        entered = turn.span.enter()
        try:
            try:
                outcome = await turn.play(prompt)
            except asyncio.CancelledError as error:
                await finish_despite_cancellation(turn.keep_partial_answer())
                await finish_despite_cancellation(
                    turn.close(TurnOutcome("incomplete", "", "cancelled", error))
                )
                raise
            except BaseException as error:
                await finish_despite_cancellation(turn.close(TurnOutcome("error", "", None, error)))
                raise
            return await finish_despite_cancellation(turn.close(outcome))
        finally:
            Span.leave(entered)
