"""A turn of loop-events: a plan, and the runs of its steps.

plan:start → plan:end → [ step:start → [ provider:resolve → tools:offer → provider:request → …
→ tools → loop:next ]* → step:end ]*
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, Field, model_validator

from amplifier_core.llm_errors import ConfigurationError
from amplifier_core.models import ToolResult
from amplifier_modules._shared.loop.budget import BudgetReached
from amplifier_modules._shared.loop.channel import (
    CUT_SHORT,
    EMPTY,
    OUT_OF_BUDGET,
    Channel,
    TurnDenied,
    TurnOutcome,
    error_data,
)
from amplifier_modules._shared.loop.config import LoopConfig
from amplifier_modules._shared.loop.exchange import Exchanges, Reply
from amplifier_modules._shared.loop.interrupt import Interrupted, finish_despite_cancellation
from amplifier_modules._shared.loop.parts import TurnParts
from amplifier_modules._shared.loop.replies import Call, join_text
from amplifier_modules._shared.loop.runner import Runner
from amplifier_modules._shared.loop.schema import input_schema
from amplifier_modules._shared.loop.streaming import STREAM_EVENTS
from amplifier_modules._shared.loop.turn import LoopOrchestrator, Turn
from amplifier_modules._shared.module.config import ModuleConfig, parse_config
from amplifier_modules._shared.module.spans import Span
from amplifier_support.provider_order import find_model

logger = logging.getLogger(__name__)


# -- settings of loop-events, including the steps ----------------------------------------


MODULE_ID = "loop-events"

CONTINUE = "continue"
END = "end"


def _free_name(name: str) -> str:
    if not name.strip():
        raise ValueError("a step requires a name")
    if name in (CONTINUE, END):
        raise ValueError(f"'{name}' is reserved for 'next' and cannot be the name of a step")
    return name


class Step(ModuleConfig):
    """One step of a workflow: a run of the loop until an answer without tool calls.

    Attributes:
        name: Identifies it in events and in other steps.
        prompt: The user message it begins with. Without one, the first step uses only the prompt
            of the turn, and a later one sends its name.
        provider: Name of the provider to use in this step.
        model: Model to use in this step.
        tools: Names of the tools to offer in this step; all by default.
        next: Name of the step that follows, or `end`; by default the next one in the list.
        max_iterations: Provider calls allowed in this step.
    """

    name: Annotated[str, AfterValidator(_free_name)]
    prompt: str | None = None
    provider: str | None = None
    model: str | None = None
    tools: list[str] | None = None
    next: str | None = None
    max_iterations: int | None = Field(default=None, ge=1)


class EventsConfig(LoopConfig):
    """Settings of loop-events: the settings of every loop, and the steps of a turn.

    Attributes:
        steps: The steps of every turn; by default a single step, the prompt itself.
        planning: `model` asks the model for the steps before the work begins, if neither `steps`
            nor a handler of `plan:start` provides any; `off` does not.
        max_steps: Step runs allowed per turn; a repeated step counts each time.
    """

    steps: list[Step] = Field(default=[])
    planning: Literal["off", "model"] = "off"
    max_steps: int = Field(default=50, ge=1)

    @model_validator(mode="after")
    def _names_fit(self) -> EventsConfig:
        names = [step.name for step in self.steps]
        for step in self.steps:
            if names.count(step.name) > 1:
                raise ValueError(f"two steps are named '{step.name}'")
        for step in self.steps:
            if step.next not in (None, END, *names):
                text = f"'next' of step '{step.name}' is '{step.next}', which is not a step"
                raise ValueError(text)
        return self


# -- a turn of loop-events: a plan, and the runs of its steps ----------------------------


STEP_START = "step:start"
STEP_END = "step:end"
LOOP_NEXT = "loop:next"
STEP_EVENTS = (STEP_START, STEP_END, LOOP_NEXT)
"""Events of steps in addition to `plan:start` and `plan:end`, which the kernel defines."""

MAX_STEPS_REACHED = "Max steps reached"
MAX_PLANNED = 10

PLAN_INSTRUCTION = f"""\
Before doing any work, divide the task above into steps. Do not start working yet.
Answer only with a JSON array of at most {MAX_PLANNED} objects in the order of the work, each
{{"name": a short unique name, "prompt": what to do in this step}}.
If the task does not need to be divided, return an array of one step."""


def _step_data(steps: list[Step]) -> list[dict[str, Any]]:
    """Steps as event data, without unset keys."""
    return [{key: value for key, value in step if value is not None} for step in steps]


def _only_prompt() -> list[Step]:
    """The steps of a turn without a plan: the prompt itself."""
    return [Step.model_construct(name="prompt")]


def _steps_from(value: Any, event: str) -> list[Step]:
    """Steps returned by a handler of `event`.

    Raises:
        ConfigurationError: They are not valid steps, or their names are inconsistent.
    """
    try:
        return parse_config(EventsConfig, {"steps": value}, f"a handler of {event}").steps
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def _steps_in(text: str) -> list[Step]:
    """The steps in a model's answer.

    Raises:
        ValueError: The answer contains no valid steps.
    """
    begin, end = text.find("["), text.rfind("]")
    try:
        items: Any = json.loads(text[begin : end + 1]) if 0 <= begin < end else None
    except RecursionError:
        raise ValueError("the answer is nested too deeply") from None
    if not isinstance(items, list):
        raise ValueError("the answer contains no JSON array")
    steps = [
        {key: item.get(key) for key in ("name", "prompt")}
        for item in cast("list[Any]", items)[:MAX_PLANNED]
        if isinstance(item, dict)
    ]
    if not steps or not all(step["prompt"] for step in steps):
        raise ValueError("a step has no prompt")
    return parse_config(EventsConfig, {"steps": steps}, "the model's plan").steps


def _follower(step: Step, steps: list[Step]) -> str | None:
    """Name of the step after `step` in the plan; None at the end."""
    if step.next is not None:
        return None if step.next == END else step.next
    names = [other.name for other in steps]
    place = names.index(step.name) + 1 if step.name in names else len(names)
    return names[place] if place < len(names) else None


def _step_named(name: str, steps: list[Step], event: str) -> Step:
    """The step that a handler of `event` chose.

    Raises:
        ConfigurationError: There is no step of that name.
    """
    for step in steps:
        if step.name == name:
            return step
    names = ", ".join(step.name for step in steps)
    raise ConfigurationError(
        f"a handler of {event} chose '{name}', which is not a step; "
        f"'next' must be {CONTINUE}, {END} or one of: {names}"
    )


PROVIDER_RESOLVE = "provider:resolve"
TOOLS_OFFER = "tools:offer"
TOOL_SELECTING = "tool:selecting"
TOOL_SELECTED = "tool:selected"
CHOICE_EVENTS = (TOOLS_OFFER, TOOL_SELECTING, TOOL_SELECTED)
"""Events of choices in addition to `provider:resolve`, which the kernel defines."""


class RewrittenTool:
    """A mounted tool as a handler presents it to the model.

    Attributes:
        mounted: Name of the tool that runs.
    """

    def __init__(
        self, name: str, mounted: str, tool: Any, description: str, parameters: dict[str, Any]
    ) -> None:
        self.name = name
        self.mounted = mounted
        self.description = description
        self.input_schema = parameters
        self.execute = tool.execute


class ChosenExchanges(Exchanges):
    """Provider calls for which handlers choose the provider, the model and the tools.

    Attributes:
        step: The current step.
        runner: Runs only the tools that are offered.
    """

    step: Step
    runner: Runner
    _planning = False

    async def plan(self, instruction: str, span: Span) -> Reply:
        """Request steps without tools; the answer is neither shown nor stored."""
        ask = self._ask
        self._planning, self._ask = True, _quietly
        self._channel.append_note(instruction)
        try:
            return await self.make(span)
        finally:
            self._planning, self._ask = False, ask

    def _form(
        self, name: str, provider: Any, model: str | None, *, has_tools: bool
    ) -> dict[str, Any]:
        # The answer of a step need not have the form of the last one.
        return {}

    async def _choose(self, span: Span) -> tuple[str, str | None]:
        name, preference = await super()._choose(span)
        step = self.step
        if step.provider is not None:
            self._check_provider(step.provider, f"step '{step.name}'")
            name, preference = step.provider, preference if step.provider == name else None
        preference = step.model or preference
        model = preference or find_model(self._providers[name])
        data = {"provider": name, "model": model, "providers": list(self._providers)}
        final = await self._channel.emit_or_raise(
            PROVIDER_RESOLVE, {**data, "step": step.name, **span.fields}
        )
        chosen, asked = final.get("provider", name), final.get("model", model)
        if chosen != name:
            self._check_provider(chosen, f"a handler of {PROVIDER_RESOLVE}")
            # The model belongs to the original provider, unless the handler chose it.
            preference = None
        if isinstance(asked, str) and asked != model:
            preference = asked
        return chosen, preference

    def _check_provider(self, name: Any, who: str) -> None:
        if not isinstance(name, str) or name not in self._providers:
            mounted = ", ".join(self._providers)
            raise ConfigurationError(
                f"{who} chose the provider '{name}', which is not mounted; "
                f"mounted providers: {mounted}"
            )

    async def _offer_tools(self, name: str, span: Span) -> Mapping[str, Any]:
        if self._planning:
            return {}
        tools = await super()._offer_tools(name, span)
        step = self.step
        if step.tools is not None:
            for tool_name in step.tools:
                _check_tool(tool_name, tools, f"step '{step.name}'")
            tools = {name: tool for name, tool in tools.items() if name in step.tools}
        tools = {
            name: t for name, t in tools.items() if self._loop.checker.schema(t, name) is not None
        }
        offer = [_described(name, tool) for name, tool in tools.items()]
        final = await self._channel.emit_or_raise(
            TOOLS_OFFER, {"tools": offer, "provider": name, "step": step.name, **span.fields}
        )
        changed = final.get("tools")
        if isinstance(changed, list) and changed != offer:
            tools = self._rewritten(cast("list[Any]", changed))
        self.runner.tools = tools
        return tools

    def _rewritten(self, offer: list[Any]) -> dict[str, Any]:
        """The tools of an offer that a handler has changed, by the name the model sees."""
        who = f"a handler of {TOOLS_OFFER}"
        tools: dict[str, Any] = {}
        for entry in offer:
            entry = {"name": entry} if isinstance(entry, str) else entry
            if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
                raise ConfigurationError(f"{who} left a tool without a name: {str(entry)[:200]}")
            entry = cast("Mapping[str, Any]", entry)
            name, mounted = entry["name"], entry.get("tool", entry["name"])
            _check_tool(mounted, self._tools, who)
            tool = self._tools[mounted]
            plain = _described(mounted, tool)
            offered = {key: entry.get(key, plain[key]) for key in plain}
            if offered == plain:
                tools[name] = tool
                continue
            before = self.runner.tools.get(name)
            again = RewrittenTool(
                name, mounted, tool, offered["description"], offered["parameters"]
            )
            # Reuse the tool of the last request if unchanged: its schema is already compiled.
            tools[name] = before if _same(before, again) else again
        return tools


class ChoosingRunner(Runner):
    """Tool calls that handlers may block or redirect to another tool."""

    async def _tool_for(self, call: Call, data: dict[str, Any]) -> Any:
        tool = await super()._tool_for(call, data)
        if isinstance(tool, ToolResult):
            return tool
        offered = list(self.tools)
        about = {**data, "available_tools": offered}
        denied, final = await self._channel.emit_and_apply(TOOL_SELECTING, about, hold_results=True)
        if denied is not None:
            return await self._refuse(data, "Denied", f"denied: {denied}")
        called = data["tool_name"]
        names = (final.get("tool"), final.get("tool_name"), called)
        selected = next(name for name in names if isinstance(name, str))
        if selected != called:
            tool = self.tools.get(selected)
        if tool is None:
            message = f"a handler chose the tool '{selected}', which is not offered: {offered}"
            return await self._refuse(data, "UnknownTool", message)
        # Policies use the name of the tool that runs, whatever name the model used.
        mounted = tool.mounted if isinstance(tool, RewrittenTool) else selected
        data |= {"tool_name": mounted, "called_as": call.name}
        by_handler = selected != called
        selection = {
            "tool": mounted,
            "source": "scheduler" if by_handler else "llm",
            "original_tool": call.name if by_handler else None,
        }
        await self._channel.emit_and_apply(TOOL_SELECTED, {**data, **selection}, hold_results=True)
        return tool


async def _quietly(provider: Any, request: Any, channel: Channel, span: Span) -> Any:
    return await provider.complete(request)


def _described(name: str, tool: Any) -> dict[str, Any]:
    return {
        "name": name,
        "description": str(getattr(tool, "description", "") or ""),
        "parameters": input_schema(tool) or {"type": "object", "properties": {}},
    }


def _check_tool(name: Any, tools: Mapping[str, Any], who: str) -> None:
    if not isinstance(name, str) or name not in tools:
        mounted = ", ".join(tools) or "none"
        raise ConfigurationError(f"{who} names the tool '{name}', which is not mounted: {mounted}")


def _same(before: Any, again: RewrittenTool) -> bool:
    return isinstance(before, RewrittenTool) and all(
        getattr(before, field) == getattr(again, field)
        for field in ("mounted", "description", "input_schema", "execute")
    )


PLAN_START = "plan:start"
PLAN_END = "plan:end"

REDIRECTABLE = (None, "max_iterations", "no_progress", EMPTY, *CUT_SHORT)
"""Outcomes of a step after which a handler may continue with another step."""


class EventsTurn(Turn):
    """A turn whose decisions are events."""

    exchanges_type = ChosenExchanges
    runner_type = ChoosingRunner

    def __init__(self, parts: TurnParts) -> None:
        super().__init__(parts)
        config, exchanges = self._config, self._exchanges
        assert isinstance(config, EventsConfig)
        assert isinstance(exchanges, ChosenExchanges)
        self._settings = config
        self._tools = parts.tools
        exchanges.runner = self._dispatcher.runner
        self._choices = exchanges
        self._choices.step = _only_prompt()[0]
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
        declared = _step_data(self._settings.steps)
        data: dict[str, Any] = {
            "prompt": prompt,
            "steps": declared,
            "planning": self._settings.planning,
            "providers": list(self._parts.providers),
            "tools": list(self._tools),
            **ids,
        }
        try:
            final = await self._channel.emit_or_raise(PLAN_START, data)
            planned, source = await self._make_plan(final, declared)
        except BaseException as error:
            failed = {"prompt": prompt, "steps": [], "source": None, **_failure_data(error)}
            await finish_despite_cancellation(self._report(PLAN_END, {**failed, **ids}))
            raise
        steps = _step_data(planned)
        ended = await self._channel.emit_or_raise(
            PLAN_END, {"prompt": prompt, "steps": steps, "source": source, **ids}
        )
        if ended.get("steps", steps) == steps:
            return planned
        return _steps_from(ended["steps"], PLAN_END) or _only_prompt()

    async def _make_plan(
        self, final: Mapping[str, Any], declared: list[dict[str, Any]]
    ) -> tuple[list[Step], str]:
        """The steps of the turn, and their source: `config`, `handler`, `model` or `prompt`."""
        plan: Any = final.get("steps", declared)
        if plan != declared:
            steps = _steps_from(plan, PLAN_START)
            return (steps, "handler") if steps else (_only_prompt(), "prompt")
        if declared:
            return self._settings.steps, "config"
        if self._settings.planning == "model" and self._has_room():
            steps = await self._ask_for_steps()
            if steps:
                return steps, "model"
        return _only_prompt(), "prompt"

    async def _ask_for_steps(self) -> list[Step]:
        """The steps the model plans for the task; none if it returns no valid plan."""
        span = self.span.child(iteration=self._cycles + 1)
        try:
            reply = self._count(await self._choices.plan(PLAN_INSTRUCTION, span))
        finally:
            self._count_lost()
        text = join_text(reply.blocks)
        try:
            return _steps_in(text)
        except ValueError as error:
            logger.warning("The model returned no plan (%s); continuing without one", error)
            return []

    # Steps

    async def _run_step(self, step: Step, run: int) -> tuple[Step | None, TurnOutcome]:
        """Run a step to its end; returns the next step and the outcome."""
        ids = self.span.child().fields
        about = {"step": _step_data([step])[0], "run": run, "count": len(self._steps), **ids}
        self._step_began, self._jump = self._cycles, None
        try:
            final = await self._channel.emit_or_raise(STEP_START, about)
            if final.get("step", about["step"]) != about["step"]:
                step = _steps_from([final["step"]], STEP_START)[0]
                about["step"] = _step_data([step])[0]
            self._choices.step = step
            text = step.prompt or (None if run == 1 else f"Next step: {step.name}")
            if text is not None:
                await self._add({"role": "user", "content": text})
            outcome = await super()._work(text or "")
        except BaseException as error:
            failed = {"response": "", "next": None, **_failure_data(error)}
            await finish_despite_cancellation(self._report(STEP_END, {**about, **failed}))
            raise
        return await self._follow(step, outcome, about)

    async def _is_kept_going(self) -> bool:
        """Only the last step ends the turn."""
        following = self._jump or _follower(self._choices.step, self._steps)
        return following in (None, END) and await super()._is_kept_going()

    async def _report(self, event: str, data: dict[str, Any]) -> None:
        """Emit the end event of something that failed; handlers cannot change it."""
        await self._channel.emit_and_apply(event, data)

    async def _follow(
        self, step: Step, outcome: TurnOutcome, about: dict[str, Any]
    ) -> tuple[Step | None, TurnOutcome]:
        """Emit a step's end and determine the next step."""
        following = self._jump
        if following is None and outcome.status == "success":
            following = _follower(step, self._steps)
        data = {
            "status": outcome.status,
            "reason": outcome.reason,
            "response": outcome.response,
            "next": following,
        }
        final = await self._channel.emit_or_raise(STEP_END, {**about, **data})
        target = final.get("next", following)
        if target in (None, END) or outcome.reason not in REDIRECTABLE:
            return None, outcome
        return _step_named(str(target), self._steps, STEP_END), outcome

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
        final = await self._channel.emit_or_raise(LOOP_NEXT, data)
        target, prompt = final.get("next", planned), final.get("prompt")
        response = final.get("response", text)
        if target == CONTINUE:
            if isinstance(prompt, str) and prompt.strip():
                await self._add({"role": "user", "content": prompt})
            elif outcome is not None:
                # After an answer, a request needs a user message to answer.
                await self._add({"role": "user", "content": "Continue."})
            return None
        if target in (None, END):
            changed = isinstance(response, str) and response != text
            if outcome is None or changed:
                return TurnOutcome("success", cast("str", response) if changed else text)
            return outcome
        self._jump = _step_named(str(target), self._steps, LOOP_NEXT).name
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


class EventsOrchestrator(LoopOrchestrator):
    """The loop of loop-streaming with its decisions as events and multi-step turns."""

    name = MODULE_ID
    events = (*LoopOrchestrator.events, *STREAM_EVENTS, *STEP_EVENTS, *CHOICE_EVENTS)
    turn_type = EventsTurn

    def __init__(self, config: EventsConfig | None = None) -> None:
        super().__init__(config or EventsConfig())


async def mount(coordinator: Any, settings: EventsConfig) -> None:
    """Mount the orchestrator; settings as in `EventsConfig`."""
    await EventsOrchestrator(settings).mount(coordinator)
