"""A vendor's models with limits, features and prices, read from a JSON file.

    {"as_of": "2026-11-12", "source": "…",
     "models": [{"id": "…", "display_name": "…", "context_window": 1000000,
                 "max_output_tokens": 128000, "capabilities": ["tools"], "features": {…},
                 "prices": {"input": "2", "output": "10", "cache_read": "0.10",
                            "cache_write": "2.50", "cache_write_1h": "4"},
                 "long_prompt": {"above": 100000, "prices": {…}}}]}

Prices are US dollars per million tokens, written as strings to stay exact. `long_prompt` prices a
whole request whose prompt is longer than `above` tokens. A price that is not there is not known,
and then neither is the cost. The file says as of when its prices are and where they were read.

The cost of a call to a provider's service, and the source of its prices.

The vendor's list applies at the vendor's own address. Other addresses bill differently: the cost there
is unknown unless the plan sets `prices`, or enables the vendor's with `list_prices`. An unknown cost is
None, never zero.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from pydantic import Field

from amplifier_core.llm_errors import ProviderUnavailableError
from amplifier_core.models import ModelInfo, Pricing
from amplifier_modules._shared.module.config import ModuleConfig
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.usage import token_count

_MILLION = Decimal(1_000_000)


class Tokens(NamedTuple):
    """The tokens of one call by what they cost; `input` without what came from or went to a cache."""

    input: int
    output: int
    cache_read: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0

    @property
    def prompt(self) -> int:
        """All input tokens."""
        return self.input + self.cache_read + self.cache_write + self.cache_write_1h


class Prices(NamedTuple):
    """US dollars per million tokens; None where unknown."""

    input: Decimal | None = None
    output: Decimal | None = None
    cache_read: Decimal | None = None
    cache_write: Decimal | None = None
    cache_write_1h: Decimal | None = None

    @classmethod
    def read(cls, raw: dict[str, str]) -> Prices:
        return cls(**{name: Decimal(value) for name, value in raw.items()})

    def cost(self, tokens: Tokens) -> Decimal | None:
        """The cost of `tokens` in US dollars; None if a required price is unknown."""
        total = Decimal(0)
        for name in self._fields:
            if count := getattr(tokens, name):
                price = getattr(self, name)
                if price is None:
                    return None
                total += price * count
        return total / _MILLION

    def pricing(self) -> Pricing | None:
        """The same as lists of models give it; None without those of input and output."""
        if self.input is None or self.output is None:
            return None
        return Pricing(
            input_per_million=float(self.input),
            output_per_million=float(self.output),
            cache_read_per_million=_float(self.cache_read),
            cache_write_per_million=_float(self.cache_write),
        )


class Model(NamedTuple):
    """One model. `features` holds what only its own provider understands."""

    id: str
    display_name: str
    context_window: int
    max_output_tokens: int
    capabilities: list[str]
    features: dict[str, Any]
    prices: Prices = Prices()
    long_prompt: Prices | None = None
    long_prompt_above: int = 0

    def cost(self, tokens: Tokens) -> Decimal | None:
        """Return the cost of a call in US dollars; None if a price that is needed is unknown."""
        is_long = self.long_prompt is not None and tokens.prompt > self.long_prompt_above
        prices = self.long_prompt if is_long and self.long_prompt is not None else self.prices
        return prices.cost(tokens)

    def info(self) -> ModelInfo:
        """The model as the Provider Contract's `list_models` gives it."""
        return ModelInfo(
            id=self.id,
            display_name=self.display_name,
            context_window=self.context_window,
            max_output_tokens=self.max_output_tokens,
            capabilities=list(self.capabilities),
            pricing=self.prices.pricing(),
        )


class Catalogue:
    """The models of one file, in its order.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not a valid catalogue.
    """

    def __init__(self, path: Path) -> None:
        raw = json.loads(path.read_text(encoding="utf-8"))
        self.as_of: str = raw["as_of"]
        self.source: str = raw["source"]
        self._models = {entry["id"]: _model(entry) for entry in raw["models"]}

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def get(self, model_id: str) -> Model | None:
        """The model of exactly this id."""
        return self._models.get(model_id)


def _model(entry: dict[str, Any]) -> Model:
    values: dict[str, Any] = {"capabilities": [], "features": {}, **entry}
    values["prices"] = Prices.read(entry.get("prices", {}))
    if long_prompt := entry.get("long_prompt"):
        values["long_prompt"] = Prices.read(long_prompt["prices"])
        values["long_prompt_above"] = long_prompt["above"]
    return Model(**values)


def _float(price: Decimal | None) -> float | None:
    return None if price is None else float(price)


class PricesConfig(ModuleConfig):
    """US dollars per million tokens, for every model of the provider.

    Attributes:
        input: Price of input.
        output: Price of output, including thinking.
        cache_read: Price of a cache read; by default the price of input.
        cache_write: Price of a cache write; by default the price of input.
        cache_write_1h: Price of a one-hour cache write; by default that of `cache_write`.
    """

    input: Decimal = Field(ge=0)
    output: Decimal = Field(ge=0)
    cache_read: Decimal | None = Field(default=None, ge=0)
    cache_write: Decimal | None = Field(default=None, ge=0)
    cache_write_1h: Decimal | None = Field(default=None, ge=0)

    def as_prices(self) -> Prices:
        """The same with what is not given filled in."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        long = write if self.cache_write_1h is None else self.cache_write_1h
        return Prices(self.input, self.output, read, write, long)


class PriceSource:
    """The source of a provider's prices.

    Args:
        given: The plan's own prices, which count before any list.
        use_list: Whether the vendor's list counts; None to decide by `at_vendor`.
        at_vendor: The service is the vendor's own.
    """

    __slots__ = ("_given", "uses_list")

    def __init__(
        self, given: PricesConfig | None, use_list: bool | None, *, at_vendor: bool
    ) -> None:
        self._given = given.as_prices() if given is not None else None
        self.uses_list = at_vendor if use_list is None else use_list

    def cost(
        self, model: Model | None, tokens: Tokens, *, listed_tier: bool = True
    ) -> Decimal | None:
        """Return the cost of a call in US dollars; None if unknown.

        Args:
            model: The model in the vendor's list; None if it is not there.
            tokens: What the service counted.
            listed_tier: The call was billed as what the list has prices for.
        """
        if self._given is not None:
            return self._given.cost(tokens)
        if model is None or not (self.uses_list and listed_tier):
            return None
        return model.cost(tokens)

    def pricing(self, model: Model | None) -> Pricing | None:
        """The prices of a model for lists of models; None where they are not known."""
        if self._given is not None:
            return self._given.pricing()
        return model.prices.pricing() if model is not None and self.uses_list else None


def entries_in(answer: Mapping[str, Any], provider: str) -> list[dict[str, Any]]:
    """The entries of a list of models that have an id.

    Raises:
        ProviderUnavailableError: The answer has no list; the service is probably another one.
    """
    data = answer.get("data")
    if data is None and "data" in answer:
        return []  # how some servers say that they have none
    if not isinstance(data, list):
        raise ProviderUnavailableError(
            f"{provider} answered the request for its models without a list; check base_url",
            provider=provider,
            retryable=False,
        )
    found = [cast("dict[str, Any]", entry) for entry in data if isinstance(entry, dict)]
    return [entry for entry in found if isinstance(entry.get("id"), str) and entry["id"]]


def limit_in(entry: Mapping[str, Any], *names: str) -> int:
    """The first valid limit in tokens under these names; 0 if there is none."""
    return next((count for name in names if (count := token_count(entry.get(name)))), 0)
