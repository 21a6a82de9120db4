"""The vendors' price lists that ship with the providers, read as data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from importlib.resources import files
from typing import Any, NamedTuple

from amplifier_app.base.errors import UsageError
from amplifier_support.did_you_mean import did_you_mean

_LISTS = ("provider_anthropic", "provider_openai")
_MILLION = 1_000_000


class Tokens(NamedTuple):
    """The tokens of one model call; `input` without what came from or went to a cache."""

    input: int
    cache_read: int
    cache_write: int
    output: int

    @property
    def prompt(self) -> int:
        """The whole input."""
        return self.input + self.cache_read + self.cache_write


class Prices(NamedTuple):
    """US dollars per token."""

    input: Decimal
    cache_read: Decimal
    cache_write: Decimal
    output: Decimal

    def cost(self, tokens: Tokens) -> Decimal:
        """US dollars of a call."""
        pairs = zip(self, tokens, strict=True)
        return sum((price * count for price, count in pairs), Decimal(0))


class ModelPrices(NamedTuple):
    """The prices of a model, which may differ for long requests.

    Attributes:
        usual: The usual prices.
        long: The prices of requests with more than `above` input tokens; None if they are the same.
    """

    usual: Prices
    long: Prices | None = None
    above: int = 0

    def of(self, tokens: Tokens) -> Prices:
        """The prices that apply to a call."""
        is_long = tokens.prompt > self.above
        return self.long if self.long is not None and is_long else self.usual


def model_prices() -> dict[str, ModelPrices]:
    """The prices of all listed models, by model id."""
    found: dict[str, ModelPrices] = {}
    for package in _LISTS:
        text = (files("amplifier_modules") / package / "models.json").read_text(encoding="utf-8")
        for model in json.loads(text)["models"]:
            usual = _prices(model.get("prices") or {})
            if usual is not None:
                long = model.get("long_prompt") or {}
                above = int(long.get("above", 0))
                found[model["id"]] = ModelPrices(usual, _prices(long.get("prices") or {}), above)
    return found


def prices_of(model: str) -> ModelPrices:
    """The prices of a model.

    Raises:
        UsageError: No list has it.
    """
    listed = model_prices()
    if model not in listed:
        hint = did_you_mean(model, set(listed)) or f"Known models: {', '.join(sorted(listed))}"
        raise UsageError(f"no price list has the model {model!r}", hint=hint)
    return listed[model]


def _prices(raw: Mapping[str, Any]) -> Prices | None:
    if "input" not in raw or "output" not in raw:
        return None
    usual = raw["input"]
    values = (usual, raw.get("cache_read", usual), raw.get("cache_write", usual), raw["output"])
    return Prices(*(Decimal(value) / _MILLION for value in values))
