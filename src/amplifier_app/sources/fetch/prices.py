"""Fetch a table of model prices, and compare it with the prices in use.

The tables of two public projects are supported:

* genai-prices: a list of providers (or a mapping with `providers`), each with `models`; a model has an `id` and
  `prices` per million tokens (`input_mtok`, …), each a number or tiers by the length of
  the prompt; or a list of prices with the day from which each applies.
* models.dev: a mapping of providers, each with `models` by id; a model has `cost` per million tokens (`input`, …), with
  `tiers` by the length of the prompt, or `context_over_200k`.

Prices of other services, modalities and batches are ignored, and so are the clauses by which genai-prices
matches names: the clause of an older model also matches newer ones. A table is taken as a whole or not at all.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias
from urllib.parse import urlsplit

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.base.price_files import PROVIDERS
from amplifier_app.plan.source_spec import LOOPBACK, ArchiveSource
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.fetch.archives import download
from amplifier_support.fields import to_mapping
from amplifier_support.files import make_private_folder, write_atomically
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.price_lists import (
    MAX_BYTES,
    ModelPrices,
    PriceList,
    Prices,
    merge_lists,
    parse_fetched,
    read_price,
    write_table,
)

SourceName = Literal["genai-prices", "models.dev"]

URLS: Mapping[SourceName, str] = {
    "genai-prices": "https://raw.githubusercontent.com/pydantic/genai-prices/refs/heads/main/prices/new_data/v2/data.json",
    "models.dev": "https://models.dev/api.json",
}
URL_VARIABLE = "AMPLIFIER_PRICES_URL"
"""The environment variable with another address for the table, such as a mirror's."""

_MIN_SHARE = 0.75
"""Share of the models with a price that a new table must list; one with fewer is damaged or of something else."""

ListedModels = dict[str, dict[str, ModelPrices]]
"""Prices by the name of the provider and the id of the model."""


class Fetched(NamedTuple):
    """A table as it was fetched.

    Attributes:
        url: The address.
        sha256: Hash of its bytes, in hexadecimal.
        providers: Its prices.
    """

    url: str
    sha256: str
    providers: ListedModels


class Change(NamedTuple):
    """A difference between the prices in use and a new table.

    Attributes:
        provider: The name of the provider.
        model: The model.
        before: Its prices in use; None if it has none.
        after: Its new prices; None if the table does not list it, which keeps those in use.
    """

    provider: str
    model: str
    before: ModelPrices | None
    after: ModelPrices | None


class NewTable(NamedTuple):
    """A table that can be written.

    Attributes:
        data: Its bytes.
        changes: How it differs from the prices in use.
    """

    data: bytes
    changes: list[Change]


def fetch_prices(name: SourceName, today: str, known: Mapping[str, Iterable[str]]) -> Fetched:
    """Fetch a table of prices.

    Args:
        name: The source.
        today: The date, ISO 8601: a source may list prices that apply later.
        known: Ids of the models by provider that have a price.

    Raises:
        ConfigError: Fetching is disabled, the table cannot be fetched, or it is malformed.
    """
    if paths.is_offline():
        raise ConfigError(
            "cannot fetch prices: offline", hint=f"Unset {paths.VARIABLE} to allow it."
        )
    url = os.environ.get(URL_VARIABLE) or URLS[name]
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
        raise ConfigError(f"{URL_VARIABLE} is not an https:// address: {url!r}")
    with tempfile.TemporaryDirectory(dir=paths.temporary_dir()) as folder:
        file = Path(folder) / "table.json"
        try:
            answer = download(ArchiveSource(url, url, file.name), file, None)
        except SourceError as error:
            raise ConfigError(str(error), hint="The prices in use are unchanged.") from error
        data = file.read_bytes()
    assert answer is not None  # Without validators there is always a body.
    try:
        providers = _read_table(name, _load(data), today, known)
    except ValueError as error:
        _refuse(f"the table from {name} is malformed: {error}")
    return Fetched(url, answer.sha256, providers)


def make_table(
    name: SourceName, today: str, fetched: Fetched, in_use: Mapping[str, Sequence[PriceList]]
) -> NewTable:
    """Make the table to keep: the fetched prices, and those in use of models that it does not list.

    A price that the source does not have, such as for one-hour cache writes, is kept while the price of the
    model's input is the same.

    Args:
        name: The source.
        today: The date of the table, ISO 8601.
        fetched: What was fetched.
        in_use: The lists in use by module id.

    Raises:
        ConfigError: The table lacks too many of the models that have a price.
    """
    tables: ListedModels = {}
    changes: list[Change] = []
    for module, provider in PROVIDERS.items():
        before = {id: each.prices for id, each in merge_lists(in_use[module]).items()}
        listed = fetched.providers.get(provider, {})
        missing = [model for model in before if model not in listed]
        if len(missing) > (1 - _MIN_SHARE) * len(before):
            _refuse(
                f"the table from {name} lacks {len(missing)} of the {len(before)} models of {provider} "
                "that have a price"
            )
        after = {model: _completed(prices, before.get(model)) for model, prices in listed.items()}
        changes += [
            Change(provider, model, before.get(model), prices)
            for model, prices in after.items()
            if prices != before.get(model)
        ]
        changes += [Change(provider, model, before[model], None) for model in missing]
        tables[provider] = {model: after.get(model, before[model]) for model in before} | after
    data = write_table(today, name, fetched.url, fetched.sha256, tables)
    parse_fetched(data)
    return NewTable(data, changes)


def write_prices(data: bytes) -> Path:
    """Write the user's table of prices atomically; returns its path.

    Raises:
        ConfigError: It cannot be written; the old one is unchanged.
    """
    path = paths.prices_file()
    try:
        make_private_folder(path.parent)
        write_atomically(path, data)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"cannot write: {reason}", location=Location(str(path))) from error
    return path


def _completed(new: ModelPrices, old: ModelPrices | None) -> ModelPrices:
    if old is None:
        return new
    long = new.long
    if long is not None and old.long is not None and new.above == old.above:
        long = _filled(long, old.long)
    return ModelPrices(_filled(new.usual, old.usual), long, new.above)


def _filled(new: Prices, old: Prices) -> Prices:
    if new.input != old.input:
        return new
    pairs = zip(new, old, strict=True)
    return Prices(*(kept if price is None else price for price, kept in pairs))


def _refuse(problem: str) -> NoReturn:
    raise ConfigError(problem, hint="The prices in use are unchanged.")


# -- reading -----------------------------------------------------------------------------


def _load(data: bytes) -> Any:
    if len(data) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES // 1_000_000} MB")

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not a price")

    try:
        return json.loads(data, parse_float=Decimal, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: line {error.lineno}, column {error.colno}") from None
    except (UnicodeDecodeError, RecursionError):
        raise ValueError("not JSON") from None


_GENAI_PRICES = {
    "input_mtok": "input",
    "output_mtok": "output",
    "cache_read_mtok": "cache_read",
    "cache_write_mtok": "cache_write",
    "cache_write_5m_mtok": "cache_write",
    "cache_write_1h_mtok": "cache_write_1h",
}

_OTHER_KINDS = ("audio", "image", "video")
"""Kinds of tokens with prices of their own: a model that has them is not added."""


def _read_table(
    name: SourceName, raw: Any, today: str, known: Mapping[str, Iterable[str]]
) -> ListedModels:
    list_models, read = {
        "genai-prices": (_genai_models, _genai_model),
        "models.dev": (_models_dev_models, _models_dev_model),
    }[name]
    tables: ListedModels = {}
    for provider in PROVIDERS.values():
        models, ids = list_models(raw, provider), set(known.get(provider, ()))
        if models is None:
            continue
        tables[provider] = {}
        for id, prices in models:
            try:
                priced = read(prices, today, id in ids)
            except ValueError as error:
                raise ValueError(f"{id!r}: {error}") from None
            if priced is not None:
                tables[provider][id] = priced
    return tables


_Models: TypeAlias = list[tuple[str, Any]]
"""The ids of a provider's models, each with its prices as the table has them."""


def _genai_models(raw: Any, provider: str) -> _Models | None:
    entries = raw.get("providers") if isinstance(raw, dict) else raw
    if not isinstance(entries, list):
        raise ValueError("it is not a list of providers")
    own = (entry for entry in map(to_mapping, entries) if entry.get("id") == provider)
    if (entry := next(own, None)) is None:
        return None
    if not isinstance(listed := entry.get("models"), list):
        raise ValueError(f"{provider}: its models are not a list")
    models = [to_mapping(model) for model in listed]
    if not all(isinstance(model.get("id"), str) for model in models):
        raise ValueError(f"{provider}: a model has no id")
    return [(model["id"], model.get("prices")) for model in models]


def _genai_model(raw: Any, today: str, is_known: bool) -> ModelPrices | None:
    """The prices of a model that apply today; None if they are not for text, or differ by the hour of day."""
    if isinstance(raw, list):
        applies: Any = None
        for each in map(to_mapping, raw):
            constraint = to_mapping(each.get("constraint"))
            if constraint.keys() - {"start_date"}:
                return None
            if str(constraint.get("start_date", "")) <= today:
                applies = each.get("prices")
        raw = applies
    if not isinstance(raw, dict):
        raise ValueError("it has no prices")
    if not is_known and any(kind in key for key in raw for kind in _OTHER_KINDS):
        return None
    usual: dict[str, Any] = {}
    tiers: dict[int, dict[str, Any]] = {}
    for key, value in raw.items():
        name = _GENAI_PRICES.get(key)
        if name is None:
            continue
        usual[name] = value.get("base") if isinstance(value, dict) else value
        for tier in map(to_mapping, value.get("tiers", ()) if isinstance(value, dict) else ()):
            tiers.setdefault(_count(tier.get("start")), {})[name] = tier.get("price")
    return _model_prices(usual, tiers)


def _models_dev_models(raw: Any, provider: str) -> _Models | None:
    if not isinstance(raw, dict):
        raise ValueError("it is not a mapping of providers")
    models = to_mapping(raw.get(provider)).get("models")
    if models is None:
        return None
    if not isinstance(models, dict):
        raise ValueError(f"{provider}: its models are not a mapping")
    costs = ((id, to_mapping(model).get("cost")) for id, model in models.items())
    return [(id, cost) for id, cost in costs if cost is not None]


def _models_dev_model(cost: Any, today: str, is_known: bool) -> ModelPrices | None:
    if not isinstance(cost, dict):
        raise ValueError("its cost is not a mapping")

    def named(raw: Mapping[str, Any]) -> dict[str, Any]:
        return {name: raw[name] for name in Prices._fields if name in raw}

    tiers: dict[int, dict[str, Any]] = {}
    for tier in map(to_mapping, cost.get("tiers") or ()):
        about = to_mapping(tier.get("tier"))
        if about.get("type", "context") != "context":
            return None
        tiers[_count(about.get("size"))] = named(tier)
    if not tiers and cost.get("context_over_200k") is not None:
        tiers[200_000] = named(to_mapping(cost["context_over_200k"]))
    return _model_prices(named(cost), tiers)


def _model_prices(
    usual: Mapping[str, Any], tiers: Mapping[int, Mapping[str, Any]]
) -> ModelPrices | None:
    """The prices of a model; None if it is not billed by tokens, or has more than one price for long prompts."""
    if "input" not in usual or "output" not in usual or len(tiers) > 1:
        return None
    prices = {name: read_price(value) for name, value in usual.items()}
    for above, more in tiers.items():
        long = {**prices, **{name: read_price(value) for name, value in more.items()}}
        return ModelPrices(Prices(**prices), Prices(**long), above)
    return ModelPrices(Prices(**prices))


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"expected a number of tokens, got {value!r}")
    return value
