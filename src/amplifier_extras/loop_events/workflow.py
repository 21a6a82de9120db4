"""The steps of a turn: where they come from, and validation of the changes by handlers."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, cast

from amplifier_core.llm_errors import ConfigurationError
from amplifier_extras.loop_events.config import CONTINUE, END, EventsConfig, Step
from amplifier_modules._shared.module.config import parse_config

STEP_START = "step:start"
STEP_END = "step:end"
LOOP_NEXT = "loop:next"
STEP_EVENTS = (STEP_START, STEP_END, LOOP_NEXT)
"""Events of steps in addition to `plan:start` and `plan:end`, which the kernel defines."""

MAX_STEPS_REACHED = "Max steps reached"
MOST_PLANNED = 10

PLAN_INSTRUCTION = f"""\
Before doing any work, divide the task above into steps. Do not start working yet.
Answer only with a JSON array of at most {MOST_PLANNED} objects in the order of the work, each
{{"name": a short unique name, "prompt": what to do in this step}}.
If the task does not need to be divided, return an array of one step."""


class Plan(NamedTuple):
    """The steps of a turn and their source: `config`, `handler`, `model` or `prompt`."""

    steps: list[Step]
    source: str


def step_data(steps: list[Step]) -> list[dict[str, Any]]:
    """Steps as event data, without unset keys."""
    return [{key: value for key, value in step if value is not None} for step in steps]


def only_prompt() -> list[Step]:
    """The steps of a turn without a plan: the prompt itself."""
    return [Step.model_construct(name="prompt")]


def step_from(value: Any, event: str) -> Step:
    """A step returned by a handler of `event`.

    Raises:
        ConfigurationError: It is not a valid step.
    """
    return steps_from([value], event)[0]


def steps_from(value: Any, event: str) -> list[Step]:
    """Steps returned by a handler of `event`.

    Raises:
        ConfigurationError: They are not valid steps, or their names are inconsistent.
    """
    try:
        return parse_config(EventsConfig, {"steps": value}, f"a handler of {event}").steps
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def steps_in(text: str) -> list[Step]:
    """The steps in a model's answer.

    Raises:
        ValueError: The answer contains no valid steps.
    """
    begin, end = text.find("["), text.rfind("]")
    try:
        found: Any = json.loads(text[begin : end + 1]) if 0 <= begin < end else None
    except RecursionError:
        raise ValueError("the answer is nested too deeply") from None
    if not isinstance(found, list):
        raise ValueError("the answer contains no JSON array")
    steps = [
        {key: item.get(key) for key in ("name", "prompt")}
        for item in cast("list[Any]", found)[:MOST_PLANNED]
        if isinstance(item, dict)
    ]
    if not steps or not all(step["prompt"] for step in steps):
        raise ValueError("a step has no prompt")
    return parse_config(EventsConfig, {"steps": steps}, "the model's plan").steps


def follower(step: Step, steps: list[Step]) -> str | None:
    """Name of the step after `step` in the plan; None at the end."""
    if step.next is not None:
        return None if step.next == END else step.next
    names = [other.name for other in steps]
    place = names.index(step.name) + 1 if step.name in names else len(names)
    return names[place] if place < len(names) else None


def step_named(name: str, steps: list[Step], event: str) -> Step:
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
