"""Lists of model prices, each with its date, source and hash.

A list ships with a provider (`models.json`); a newer table may have been fetched by the user:

    {"format": "amplifier-prices", "version": 1, "as_of": "2026-11-27", "source": "genai-prices",
     "url": "https://…", "source_sha256": "…",
     "providers": {"anthropic": {"models": [{"id": "…", "prices": {…}, "long_prompt": {…}}]}}}

Prices are US dollars per million tokens, written as strings to stay exact. `long_prompt` prices a whole
request whose prompt is longer than `above` tokens. A missing price is unknown, and then so is the cost.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, cast

from amplifier_support.fields import to_mapping
from amplifier_support.files import read_file
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import lazy_pattern

FORMAT = "amplifier-prices"
VERSION = 1
MAX_BYTES = 20_000_000

_MILLION = Decimal(1_000_000)
_MAX_PRICE = Decimal(1_000_000)
_DATE = lazy_pattern(r"\d{4}-\d{2}-\d{2}")


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
    def read(cls, raw: Any) -> Prices:
        """Return the prices in a mapping of strings or numbers.

        Raises:
            ValueError: A price is unknown by name, not a number, negative or above a million.
        """
        if not isinstance(raw, Mapping):
            raise ValueError(f"expected a mapping of prices, got {type(raw).__name__}")
        prices: dict[str, Decimal] = {}
        for name, value in cast("Mapping[Any, Any]", raw).items():
            if name not in cls._fields:
                raise ValueError(f"unknown price {name!r}")
            prices[name] = read_price(value)
        return cls(**prices)

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

    def filled(self) -> Prices:
        """The same, with the price of input for the caches' that are unknown."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        long = write if self.cache_write_1h is None else self.cache_write_1h
        return Prices(self.input, self.output, read, write, long)

    def as_dict(self) -> dict[str, str]:
        """The known prices, as files have them."""
        prices = self._asdict().items()
        return {name: f"{price.normalize():f}" for name, price in prices if price is not None}


def read_price(value: Any) -> Decimal:
    """Return a price in US dollars.

    Raises:
        ValueError: It is not a number, negative or above a million.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, float, Decimal)):
        raise ValueError(f"expected a price, got {value!r}")
    try:
        price = Decimal(str(value))
    except InvalidOperation:
        raise ValueError(f"expected a price, got {value!r}") from None
    # Not a number is neither smaller nor larger.
    if not (price.is_finite() and 0 <= price <= _MAX_PRICE):
        raise ValueError(f"expected a price from 0 to {_MAX_PRICE}, got {value!r}")
    return price


class ModelPrices(NamedTuple):
    """The prices of a model.

    Attributes:
        usual: The usual prices.
        long: The prices of a whole request with a prompt of more than `above` tokens; None if they are
            the same.
        above: In tokens.
    """

    usual: Prices = Prices()
    long: Prices | None = None
    above: int = 0

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> ModelPrices:
        """Return the prices in the entry of a model.

        Raises:
            ValueError: They are invalid.
        """
        usual = Prices.read(entry.get("prices", {}))
        if not (long := entry.get("long_prompt")):
            return cls(usual)
        above = to_mapping(long).get("above")
        if not isinstance(above, int) or isinstance(above, bool) or above < 1:
            raise ValueError(f"expected a number of tokens in long_prompt.above, got {above!r}")
        return cls(usual, Prices.read(long.get("prices")), above)

    def of(self, tokens: Tokens) -> Prices:
        """The prices that apply to a call."""
        return self.long if self.long is not None and tokens.prompt > self.above else self.usual

    def cost(self, tokens: Tokens) -> Decimal | None:
        """The cost of a call in US dollars; None if a required price is unknown."""
        return self.of(tokens).cost(tokens)

    def filled(self) -> ModelPrices:
        """The same, with each price that is unknown filled in; see `Prices.filled`."""
        long = None if self.long is None else self.long.filled()
        return ModelPrices(self.usual.filled(), long, self.above)

    def as_dict(self) -> dict[str, Any]:
        """The prices as the entry of a model has them."""
        entry: dict[str, Any] = {"prices": self.usual.as_dict()}
        if self.long is not None:
            entry["long_prompt"] = {"above": self.above, "prices": self.long.as_dict()}
        return entry


class PriceFile(NamedTuple):
    """The file that prices come from.

    Attributes:
        as_of: The date of the prices, ISO 8601.
        source: Where they were read.
        sha256: Hash of the file, in hexadecimal.
    """

    as_of: str
    source: str
    sha256: str


class PriceList(NamedTuple):
    """The prices of a provider's models by id, and the file they come from."""

    file: PriceFile
    models: Mapping[str, ModelPrices]


class Listed(NamedTuple):
    """The prices of a model, and the file they come from."""

    prices: ModelPrices
    file: PriceFile


def merge_lists(lists: Sequence[PriceList]) -> dict[str, Listed]:
    """The prices of each model in the first list that has it."""
    merged: dict[str, Listed] = {}
    for prices in lists:
        for model, entry in prices.models.items():
            merged.setdefault(model, Listed(entry, prices.file))
    return merged


def in_order(shipped: PriceList, fetched: PriceList | None) -> list[PriceList]:
    """Both lists of a provider, the newer one first; of the same date the fetched one."""
    lists = [shipped] if fetched is None else [fetched, shipped]
    return sorted(lists, key=lambda prices: prices.file.as_of, reverse=True)


def read_shipped(path: Path) -> PriceList:
    """The list that ships with a provider.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not a valid list.
    """
    data = path.read_bytes()
    raw = json.loads(data)
    file = PriceFile(raw["as_of"], raw["source"], hashlib.sha256(data).hexdigest())
    return PriceList(file, {entry["id"]: ModelPrices.read(entry) for entry in raw["models"]})


def read_fetched(path: Path) -> dict[str, PriceList]:
    """The table that the user has fetched, by the name of the provider; empty if there is none.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not a valid table.
    """
    try:
        data = read_file(path, MAX_BYTES + 1)
    except FileNotFoundError:
        return {}
    return parse_fetched(data)


def parse_fetched(data: bytes) -> dict[str, PriceList]:
    """The lists in the bytes of a fetched table, by the name of the provider.

    Raises:
        ValueError: It is not a valid table.
    """
    if len(data) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES // 1_000_000} MB")
    try:
        raw = to_mapping(json.loads(data))
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if raw.get("format") != FORMAT or raw.get("version") != VERSION:
        raise ValueError(f"it is not a table of prices of version {VERSION}")
    as_of, source = raw.get("as_of"), raw.get("source")
    if not isinstance(as_of, str) or not _DATE.fullmatch(as_of) or not isinstance(source, str):
        raise ValueError("it has no date or no source")
    file = PriceFile(as_of, source, hashlib.sha256(data).hexdigest())
    lists: dict[str, PriceList] = {}
    for provider, entry in to_mapping(raw.get("providers")).items():
        models: dict[str, ModelPrices] = {}
        entries = to_mapping(entry).get("models")
        if not isinstance(entries, list):
            raise ValueError(f"{provider}: its models are not a list")
        for model in cast("list[Any]", entries):
            values = to_mapping(model)
            if not isinstance(id := values.get("id"), str):
                raise ValueError(f"{provider}: a model has no id")
            models[id] = ModelPrices.read(values)
        lists[provider] = PriceList(file, models)
    return lists


def write_table(
    as_of: str,
    source: str,
    url: str,
    source_sha256: str,
    providers: Mapping[str, Mapping[str, ModelPrices]],
) -> bytes:
    """The bytes of a fetched table; see `parse_fetched`.

    Args:
        as_of: The date of the prices, ISO 8601.
        source: The name of the source.
        url: The address it was fetched from.
        source_sha256: Hash of what was fetched, in hexadecimal.
        providers: Prices by the name of the provider and the id of the model.
    """
    table = {
        "format": FORMAT,
        "version": VERSION,
        **{"as_of": as_of, "source": source, "url": url, "source_sha256": source_sha256},
        "providers": {
            name: {"models": [{"id": id, **prices.as_dict()} for id, prices in models.items()]}
            for name, models in providers.items()
        },
    }
    return (json.dumps(table, indent=1) + "\n").encode()
