"""Settings of loop-events, including the steps."""

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
    """Settings of loop-events: those of every loop, and the steps of a turn.

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
        problem = find_problem(self.steps)
        if problem:
            raise ValueError(problem)
        return self


def find_problem(steps: list[Step]) -> str | None:
    """Describe an invalid name in `steps`; None if all are valid."""
    names = [step.name for step in steps]
    for name in names:
        if names.count(name) > 1:
            return f"two steps are named '{name}'"
    for step in steps:
        if step.next not in (None, END, *names):
            return f"'next' of step '{step.name}' is '{step.next}', which is not a step"
    return None
