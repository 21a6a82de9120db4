"""Settings of provider-replay."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import AliasChoices, Field, field_validator, model_validator

from amplifier_modules._shared.module.config import ModuleConfig

MODULE_ID = "provider-replay"


class ReplayConfig(ModuleConfig):
    """Settings of provider-replay: one of `record` and `replay`.

    Attributes:
        record: File to record the other providers' requests and responses to; new or empty.
        replay: File of such a recording, to answer from without contacting any provider.
        provider: Recorded provider to replace; by default all, and others are removed.
        speed: Replay speed: 1 as recorded, 2 twice as fast, 0 without delays.
        ignore: Regular expressions for text to ignore when comparing requests.
        match: Which parts of a request must be as recorded: `all`, or its `structure`, which is the model's own
            turns, the tools and the options, but not the texts of prompts and tool results.
        model: The provider's current model, if it is to be compared with the recorded one (also
            `default_model`).
        priority: Replaces the recorded priorities.
    """

    record: str | None = None
    replay: str | None = None
    provider: str | None = None
    speed: float = Field(default=0, ge=0)
    ignore: list[str] = Field(default_factory=list[str])
    match: Literal["all", "structure"] = "all"
    model: str | None = Field(default=None, validation_alias=AliasChoices("model", "default_model"))
    priority: int | None = None

    @field_validator("ignore")
    @classmethod
    def _are_patterns(cls, value: list[str]) -> list[str]:
        for pattern in value:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(
                    f"{pattern!r} is not a valid regular expression: {error}"
                ) from error
        return value

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.record and self.replay:
            raise ValueError("'record' and 'replay' are mutually exclusive")
        return self
