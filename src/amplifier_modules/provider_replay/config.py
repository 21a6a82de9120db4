"""Settings of provider-replay."""

from __future__ import annotations

import re
from typing import Self

from pydantic import AliasChoices, Field, field_validator, model_validator

from amplifier_modules._shared.module.config import ModuleConfig

MODULE_ID = "provider-replay"


class ReplayConfig(ModuleConfig):
    """What a mount plan may say to provider-replay: one of `record` and `replay`.

    Attributes:
        record: File to write what the other providers are asked and answer; a new or empty one.
        replay: File of such a recording, to answer from instead of asking anybody.
        provider: Which of the recorded providers to stand in for; by default all, and none but them.
        speed: How fast a recording is played: 1 as it was, 2 twice as fast, 0 at once.
        ignore: Regular expressions of texts that do not count when requests are compared.
        model: The model the provider is set to, where it is to be compared with the one it was set
            to (also `default_model`).
        priority: Instead of the priorities that were recorded.
    """

    record: str | None = None
    replay: str | None = None
    provider: str | None = None
    speed: float = Field(default=0, ge=0)
    ignore: list[str] = Field(default_factory=list[str])
    model: str | None = Field(default=None, validation_alias=AliasChoices("model", "default_model"))
    priority: int | None = None

    @field_validator("ignore")
    @classmethod
    def _are_patterns(cls, value: list[str]) -> list[str]:
        for pattern in value:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
        return value

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.record and self.replay:
            raise ValueError("give either 'record' or 'replay', not both")
        return self
