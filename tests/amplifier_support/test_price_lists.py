"""Lists of model prices: what is read, and which list counts."""

import json
from decimal import Decimal
from typing import Any

import pytest

from amplifier_support.price_lists import (
    ModelPrices,
    PriceFile,
    PriceList,
    Prices,
    Tokens,
    in_order,
    merge_lists,
    parse_fetched,
    write_table,
)


def price_list(as_of: str, **models: int) -> PriceList:
    prices = {id: ModelPrices(Prices(Decimal(price))) for id, price in models.items()}
    return PriceList(PriceFile(as_of, "here", as_of), prices)


def used(shipped: PriceList, fetched: PriceList) -> dict[str, tuple[Decimal | None, str]]:
    merged = merge_lists(in_order(shipped, fetched))
    return {id: (each.prices.usual.input, each.file.as_of) for id, each in merged.items()}


def test_the_newer_list_counts_and_the_other_fills_in() -> None:
    old, new = price_list("2026-11-12", a=1, b=1), price_list("2026-11-27", a=2, c=2)
    merged = {"a": (2, "2026-11-27"), "b": (1, "2026-11-12"), "c": (2, "2026-11-27")}
    assert used(old, new) == used(new, old) == merged


def test_of_the_same_date_the_fetched_list_counts() -> None:
    shipped, fetched = price_list("2026-11-12", a=1), price_list("2026-11-12", a=2)
    assert used(shipped, fetched)["a"][0] == 2


def test_a_written_table_is_read_back_exactly() -> None:
    usual = Prices(Decimal("0.10"), Decimal(5), cache_write_1h=Decimal("1e-7"))
    prices = ModelPrices(usual, Prices(Decimal("0.3"), Decimal(6)), 200_000)
    data = write_table("2026-11-27", "genai-prices", "https://…", "0" * 64, {"x": {"m": prices}})
    table = parse_fetched(data)["x"]
    assert table.models == {"m": prices}
    assert (table.file.as_of, table.file.source) == ("2026-11-27", "genai-prices")
    assert len(table.file.sha256) == 64
    assert table.models["m"].cost(Tokens(200_000, 0)) == Decimal("0.02")
    assert table.models["m"].cost(Tokens(200_001, 0)) == Decimal("0.0600003")


VALID: dict[str, Any] = {
    "format": "amplifier-prices",
    "version": 1,
    "as_of": "2026-11-27",
    "source": "s",
    "providers": {"x": {"models": [{"id": "m", "prices": {"input": "1"}}]}},
}


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"version": 2},
        {"as_of": "yesterday"},
        {"source": None},
        {"providers": {"x": {"models": [{"prices": {}}]}}},
        {"providers": {"x": {"models": [{"id": "m", "prices": {"input": "NaN"}}]}}},
        {"providers": {"x": {"models": [{"id": "m", "prices": {"input": "-1"}}]}}},
        {"providers": {"x": {"models": [{"id": "m", "prices": {"input": True}}]}}},
        {"providers": {"x": {"models": [{"id": "m", "prices": {"inputs": "1"}}]}}},
        {"providers": {"x": {"models": [{"id": "m", "prices": [1]}]}}},
        {"providers": {"x": {"models": [{"id": "m", "long_prompt": {"above": 0, "prices": {}}}]}}},
        {"providers": {"x": {"models": 7}}},
    ],
    ids=str,
)
def test_an_invalid_table_is_refused(change: dict[str, Any]) -> None:
    assert parse_fetched(json.dumps(VALID).encode())["x"].models["m"].usual.input == 1
    with pytest.raises(ValueError, match=r"."):
        parse_fetched(json.dumps({**VALID, **change}).encode())
