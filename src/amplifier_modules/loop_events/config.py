"""Settings of loop-events, and what a step is."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from amplifier_modules._shared.loop.config import LoopConfig
from amplifier_modules._shared.module.config import ModuleConfig

MODULE_ID = "loop-events"

CONTINUE = "continue"
END = "end"


def _free_name(name: str) -> str:
    if not name.strip():
        raise ValueError("a step needs a name")
    if name in (CONTINUE, END):
        raise ValueError(f"'{name}' says what comes next and cannot be the name of a step")
    return name


class Step(ModuleConfig):
    """One step of a workflow: a run of the loop until an answer without tool calls.

    Attributes:
        name: What events, and other steps, call it by.
        prompt: The user message it begins with. Without one the first step goes by the prompt of
            the turn alone, and a later one is told its name.
        provider: Name of the provider to ask in this step.
        model: Model to ask for in this step.
        tools: Names of the tools to offer in this step; all by default.
        next: Name of the step that comes after it, or `end`; by default the next one of the list.
        max_iterations: Provider calls the step may make.
    """

    name: Annotated[str, AfterValidator(_free_name)]
    prompt: str | None = None
    provider: str | None = None
    model: str | None = None
    tools: list[str] | None = None
    next: str | None = None
    max_iterations: int | None = Field(default=None, ge=1)


class EventsConfig(LoopConfig):
    """Settings of loop-events: those of every loop, and the steps of a turn.

    Attributes:
        steps: The steps of every turn; by default one, the prompt itself.
        planning: `model` asks the model for the steps before the work begins, where neither
            `steps` nor a handler of `plan:start` gives any; `off` does not.
        max_steps: Runs of steps a turn may take, each step counted as often as it runs.
    """

    steps: list[Step] = Field(default=[])
    planning: Literal["off", "model"] = "off"
    max_steps: int = Field(default=50, ge=1)

    @model_validator(mode="after")
    def _names_fit(self) -> EventsConfig:
        problem = problem_of(self.steps)
        if problem:
            raise ValueError(problem)
        return self


def problem_of(steps: list[Step]) -> str | None:
    """What is wrong with the names in `steps`, or None."""
    names = [step.name for step in steps]
    for name in names:
        if names.count(name) > 1:
            return f"two steps are called '{name}'"
    for step in steps:
        if step.next not in (None, END, *names):
            return f"step '{step.name}' goes on with '{step.next}', which is no step"
    return None
