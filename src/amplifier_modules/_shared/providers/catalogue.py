"""A vendor's models with limits, features and prices, read from a JSON file, and the cost of a call.

    {"as_of": "2026-11-12", "source": "…",
     "models": [{"id": "…", "display_name": "…", "context_window": 1000000,
                 "max_output_tokens": 128000, "capabilities": ["tools"], "features": {…},
                 "prices": {"input": "2", "output": "10", "cache_read": "0.10",
                            "cache_write": "2.50", "cache_write_1h": "4"},
                 "long_prompt": {"above": 100000, "prices": {…}}}]}

Prices are read as `amplifier_support.price_lists` describes. The vendor's list, or the newer one that the
user has fetched, applies at the vendor's own address. Other addresses bill differently: the cost is unknown
unless the plan sets `prices`, or enables the vendor's with `list_prices`. An unknown cost is None, never zero.
"""

import json
import logging
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from pydantic import Field

from amplifier_core.models import ModelInfo, Pricing
from amplifier_modules._shared.http.errors import unexpected_answer
from amplifier_modules._shared.module.config import ModuleConfig
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.price_lists import (
    Listed,
    PriceList,
    Prices,
    Tokens,
    in_order,
    merge_lists,
    read_fetched,
    read_shipped,
)
from amplifier_support.session_capabilities import PRICES_FILE
from amplifier_support.usage import token_count

logger = logging.getLogger(__name__)


class Model(NamedTuple):
    """One model. `features` holds what only its own provider understands."""

    id: str
    display_name: str
    context_window: int
    max_output_tokens: int
    capabilities: list[str]
    features: dict[str, Any]

    def info(self) -> ModelInfo:
        """The model as the Provider Contract's `list_models` gives it."""
        return ModelInfo(
            id=self.id,
            display_name=self.display_name,
            context_window=self.context_window,
            max_output_tokens=self.max_output_tokens,
            capabilities=list(self.capabilities),
        )


class Catalogue:
    """The models of one file, in its order.

    Attributes:
        price_list: Their prices.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not a valid catalogue.
    """

    def __init__(self, path: Path) -> None:
        raw = json.loads(path.read_text(encoding="utf-8"))
        self.price_list = read_shipped(path)
        unset: dict[str, Any] = {"capabilities": [], "features": {}}
        entries = ({**unset, **entry} for entry in raw["models"])
        models = (Model(*(entry[name] for name in Model._fields)) for entry in entries)
        self._models = {model.id: model for model in models}

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def find(self, names: Iterable[str]) -> Model | None:
        """The model with the first of these ids that is in the catalogue."""
        return next(filter(None, map(self._models.get, names)), None)


def find_price_lists(coordinator: Any, provider: str, shipped: PriceList) -> list[PriceList]:
    """The price lists of a provider in the order in which they are searched.

    Args:
        coordinator: Its capability `prices.file` has the path of the table that the user has fetched.
        provider: The name of the provider in that table.
        shipped: The list that ships with the provider.
    """
    path = PRICES_FILE.of(coordinator) if hasattr(coordinator, "get_capability") else None
    if not path:
        return [shipped]
    try:
        fetched = read_fetched(Path(path))
    except (OSError, ValueError) as error:
        logger.warning(
            "ignoring the prices in %s: %s; fetch them again: amplifier provider prices --update",
            path,
            error,
        )
        return [shipped]
    return in_order(shipped, fetched.get(provider))


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
        names = Prices._fields
        return Prices(*(getattr(self, name) for name in names)).filled()


class PriceSource:
    """The source of a provider's prices.

    Args:
        given: The plan's own prices, which count before any list.
        use_list: Whether the vendor's list counts; None to decide by `at_vendor`.
        at_vendor: The service is the vendor's own.
        lists: The vendor's lists in the order in which they are searched.
        names: Returns the ids under which a list may have a model, best first.
    """

    __slots__ = ("_given", "_listed", "_names", "uses_list")

    def __init__(
        self,
        prices: PricesConfig | None,
        use_list: bool | None,
        *,
        at_vendor: bool,
        lists: Sequence[PriceList] = (),
        names: Callable[[str], Iterable[str]],
    ) -> None:
        self._given = prices.as_prices() if prices is not None else None
        self.uses_list = at_vendor if use_list is None else use_list
        self._listed = merge_lists(lists)
        self._names = names

    def _find(self, model: str) -> Listed | None:
        if not self.uses_list:
            return None
        return next(filter(None, map(self._listed.get, self._names(model))), None)

    def cost(self, model: str, tokens: Tokens, *, listed_tier: bool = True) -> Decimal | None:
        """Return the cost of a call in US dollars; None if unknown.

        Args:
            model: The model that answered.
            tokens: What the service counted.
            listed_tier: The call was billed as what the list has prices for.
        """
        if self._given is not None:
            return self._given.cost(tokens)
        listed = self._find(model) if listed_tier else None
        return None if listed is None else listed.prices.cost(tokens)

    def pricing(self, model: str) -> Pricing | None:
        """The prices of a model for lists of models; None if the prices of input and output are unknown."""
        listed = None if self._given is not None else self._find(model)
        prices = self._given if listed is None else listed.prices.usual
        if prices is None or prices.input is None or prices.output is None:
            return None
        return Pricing(
            input_per_million=float(prices.input),
            output_per_million=float(prices.output),
            cache_read_per_million=_float(prices.cache_read),
            cache_write_per_million=_float(prices.cache_write),
        )

    def price_file(self, model: str) -> dict[str, str] | None:
        """The file that the prices of a model come from: `as_of`, `source` and `sha256`.

        Only a `source` for the plan's own prices; None if they are unknown.
        """
        if self._given is not None:
            return {"source": "plan"}
        listed = self._find(model)
        return None if listed is None else listed.file._asdict()


def _float(price: Decimal | None) -> float | None:
    return None if price is None else float(price)


def entries_in(answer: Mapping[str, Any], provider: str) -> list[dict[str, Any]]:
    """The entries of a list of models that have an id.

    Raises:
        ProviderUnavailableError: The answer has no list; the service is probably another one.
    """
    data = answer.get("data")
    if data is None and "data" in answer:
        return []  # how some servers say that they have none
    if not isinstance(data, list):
        what = "answered the request for its models without a list"
        raise unexpected_answer(what, provider=provider)
    entries = [cast("dict[str, Any]", entry) for entry in data if isinstance(entry, dict)]
    return [entry for entry in entries if isinstance(entry.get("id"), str) and entry["id"]]


async def read_pages(
    get: Callable[[dict[str, str | int]], Awaitable[Mapping[str, Any]]],
    size: int,
    provider: str,
    cursor: str = "after_id",
) -> AsyncGenerator[list[dict[str, Any]]]:
    """Yield the entries of each page of a list.

    Args:
        get: Reads the page with these parameters.
        size: Entries in a page.
        provider: Name of the provider, for errors.
        cursor: The parameter that names the last entry of the page before.
    """
    params: dict[str, str | int] = {"limit": size}
    while True:
        page = await get(params)
        entries = entries_in(page, provider)
        yield entries
        if not page.get("has_more") or not entries:
            return
        # Services that are only compatible with OpenAI's need not repeat the id of the last entry.
        last = str(page.get("last_id", entries[-1].get("id")) or "")
        # A page without another last entry would come for ever.
        if last in ("", params.get(cursor)):
            return
        params = {**params, cursor: last}


def limit_in(entry: Mapping[str, Any], *names: str) -> int:
    """The first valid limit in tokens under these names; 0 if there is none."""
    return next((count for name in names if (count := token_count(entry.get(name)))), 0)
