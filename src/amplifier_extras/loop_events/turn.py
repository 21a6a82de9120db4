"""A turn of loop-events: a plan, and the runs of its steps.

plan:start → plan:end → [ step:start → [ provider:resolve → tools:offer → provider:request → …
→ tools → loop:next ]* → step:end ]*
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, cast

from amplifier_extras.loop_events.choices import ChoosingRunner, ChosenExchanges
from amplifier_extras.loop_events.config import CONTINUE, END, EventsConfig, Step
from amplifier_extras.loop_events.workflow import (
    LOOP_NEXT,
    MAX_STEPS_REACHED,
    PLAN_INSTRUCTION,
    STEP_END,
    STEP_START,
    Plan,
    follower,
    only_prompt,
    step_data,
    step_from,
    step_named,
    steps_from,
    steps_in,
)
from amplifier_modules._shared.loop.budget import BudgetReached
from amplifier_modules._shared.loop.calls import Call
from amplifier_modules._shared.loop.channel import TurnDenied
from amplifier_modules._shared.loop.interrupt import Interrupted, finish_despite_cancellation
from amplifier_modules._shared.loop.replies import text_of
from amplifier_modules._shared.loop.turn import Turn
from amplifier_modules._shared.loop.turn_end import (
    CUT_SHORT,
    EMPTY,
    OUT_OF_BUDGET,
    TurnOutcome,
    error_data,
)

logger = logging.getLogger(__name__)

PLAN_START = "plan:start"
PLAN_END = "plan:end"

REDIRECTABLE = (None, "max_iterations", "no_progress", EMPTY, *CUT_SHORT)
"""Outcomes of a step after which a handler may continue with another step."""


class EventsTurn(Turn):
    """A turn whose decisions are events."""

    exchanges_type = ChosenExchanges
    runner_type = ChoosingRunner

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        config, exchanges = self._config, self._exchanges
        assert isinstance(config, EventsConfig)
        assert isinstance(exchanges, ChosenExchanges)
        self._settings = config
        self._tools: Mapping[str, Any] = parts["tools"]
        exchanges.runner = self._dispatcher.runner
        self._choices = exchanges
        self._choices.step = only_prompt()[0]
        self._steps: list[Step] = []
        self._step_began = 0  # provider calls before it
        self._jump: str | None = None

    async def _work(self, prompt: str) -> TurnOutcome:
        self._steps = await self._plan(prompt)
        step: Step | None = self._steps[0]
        outcome = TurnOutcome("success")
        for run in range(1, self._settings.max_steps + 1):
            step, outcome = await self._run_step(step, run)
            if step is None:
                return outcome
        return TurnOutcome("incomplete", outcome.response or MAX_STEPS_REACHED, "max_steps")

    # Planning

    async def _plan(self, prompt: str) -> list[Step]:
        ids = self.span.child().fields
        declared = step_data(self._settings.steps)
        data: dict[str, Any] = {
            "prompt": prompt,
            "steps": declared,
            "planning": self._settings.planning,
            "providers": list(self._providers),
            "tools": list(self._tools),
            **ids,
        }
        try:
            final = await self._channel.step(PLAN_START, data)
            plan = await self._make_plan(final, declared)
        except BaseException as error:
            failed = {"prompt": prompt, "steps": [], "source": None, **_failure_data(error)}
            await finish_despite_cancellation(self._report(PLAN_END, {**failed, **ids}))
            raise
        steps = step_data(plan.steps)
        ended = await self._channel.step(
            PLAN_END, {"prompt": prompt, "steps": steps, "source": plan.source, **ids}
        )
        if ended.get("steps", steps) == steps:
            return plan.steps
        return steps_from(ended["steps"], PLAN_END) or only_prompt()

    async def _make_plan(self, final: Mapping[str, Any], declared: list[dict[str, Any]]) -> Plan:
        given: Any = final.get("steps", declared)
        if given != declared:
            steps = steps_from(given, PLAN_START)
            return Plan(steps, "handler") if steps else Plan(only_prompt(), "prompt")
        if declared:
            return Plan(self._settings.steps, "config")
        if self._settings.planning == "model" and self._has_room():
            steps = await self._ask_for_steps()
            if steps:
                return Plan(steps, "model")
        return Plan(only_prompt(), "prompt")

    async def _ask_for_steps(self) -> list[Step]:
        """The steps the model plans for the task; none if it returns no valid plan."""
        span = self.span.child(iteration=self._cycles + 1)
        reply = await self._finish_exchange(self._choices.plan(PLAN_INSTRUCTION, span))
        text = text_of(reply.blocks)
        try:
            return steps_in(text)
        except ValueError as error:
            logger.warning("The model returned no plan (%s); continuing without one", error)
            return []

    # Steps

    async def _run_step(self, step: Step, run: int) -> tuple[Step | None, TurnOutcome]:
        """Run a step to its end; returns the next step and the outcome."""
        ids = self.span.child().fields
        about = {"step": step_data([step])[0], "run": run, "count": len(self._steps), **ids}
        self._step_began, self._jump = self._cycles, None
        try:
            final = await self._channel.step(STEP_START, about)
            if final.get("step", about["step"]) != about["step"]:
                step = step_from(final["step"], STEP_START)
                about["step"] = step_data([step])[0]
            self._choices.step = step
            text = step.prompt or (None if run == 1 else f"Next step: {step.name}")
            if text is not None:
                await self._add({"role": "user", "content": text})
            outcome = await self._cycles_to_end()
        except BaseException as error:
            failed = {"response": "", "next": None, **_failure_data(error)}
            await finish_despite_cancellation(self._report(STEP_END, {**about, **failed}))
            raise
        return await self._follow(step, outcome, about)

    async def _report(self, event: str, data: dict[str, Any]) -> None:
        """Emit the end event of something that failed; handlers cannot change it."""
        await self._channel.ask(event, data)

    async def _follow(
        self, step: Step, outcome: TurnOutcome, about: dict[str, Any]
    ) -> tuple[Step | None, TurnOutcome]:
        """Emit a step's end and determine the next step."""
        following = self._jump
        if following is None and outcome.status == "success":
            following = follower(step, self._steps)
        data = {
            "status": outcome.status,
            "reason": outcome.reason,
            "response": outcome.response,
            "next": following,
        }
        final = await self._channel.step(STEP_END, {**about, **data})
        wanted = final.get("next", following)
        if wanted in (None, END) or outcome.reason not in REDIRECTABLE:
            return None, outcome
        return step_named(str(wanted), self._steps, STEP_END), outcome

    def _has_room(self) -> bool:
        limit = self._choices.step.max_iterations
        room = limit is None or self._cycles - self._step_began < limit
        return room and super()._has_room()

    # Within a step

    async def _conclude(
        self, calls: list[Call], text: str, finish_reason: str | None
    ) -> TurnOutcome | None:
        self._jump = None
        outcome = await super()._conclude(calls, text, finish_reason)
        planned = CONTINUE if outcome is None else END
        data: dict[str, Any] = {
            "next": planned,
            "prompt": None,
            "response": text,
            "tool_calls": [call.name for call in calls],
            "finish_reason": finish_reason,
            "step": self._choices.step.name,
            "steps": [step.name for step in self._steps],
            **self.span.fields,
            "iteration": self._cycles,
        }
        final = await self._channel.step(LOOP_NEXT, data)
        wanted, prompt = final.get("next", planned), final.get("prompt")
        response = final.get("response", text)
        if wanted == CONTINUE:
            if isinstance(prompt, str) and prompt.strip():
                await self._add({"role": "user", "content": prompt})
            elif outcome is not None:
                # After an answer, a request needs a user message to answer.
                await self._add({"role": "user", "content": "Continue."})
            return None
        if wanted in (None, END):
            changed = isinstance(response, str) and response != text
            if outcome is None or changed:
                return TurnOutcome("success", cast("str", response) if changed else text)
            return outcome
        self._jump = step_named(str(wanted), self._steps, LOOP_NEXT).name
        return TurnOutcome("success", text)


def _failure_data(error: BaseException) -> dict[str, Any]:
    """The outcome of a failed step, as event data."""
    if isinstance(error, TurnDenied):
        return {"status": "incomplete", "reason": "denied"}
    if isinstance(error, BudgetReached):
        return {"status": "incomplete", "reason": OUT_OF_BUDGET}
    if isinstance(error, (Interrupted, asyncio.CancelledError)):
        return {"status": "incomplete", "reason": "cancelled"}
    return {"status": "error", "reason": None, "error": error_data(error)}
