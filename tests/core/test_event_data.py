"""A handler can read and change its data in any way without changing the original."""

import copy
import json
import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import pytest

from amplifier_core.hooks import EventData, plain
from amplifier_core.message_models import TextBlock, Usage


@dataclass
class Part:
    words: list[str]


class Client:
    """An object with behaviour; not data."""


def source() -> dict[str, Any]:
    return {
        "list": [{"deep": [1]}],
        "dict": {"deep": {"x": 1}},
        "tuple": ([1],),
        "set": {1},
        "model": TextBlock(text="t", extra=[1]),  # type: ignore[call-arg]
        "part": Part(["w"]),
        "text": "t",
        "number": 1,
    }


READERS: list[Callable[[EventData], dict[str, Any]]] = [
    lambda data: {key: data[key] for key in data},
    lambda data: {key: data.get(key) for key in data},
    lambda data: dict(data.items()),
    lambda data: dict(zip(data.keys(), data.values(), strict=True)),
    lambda data: dict(data),
    lambda data: {**data},
    lambda data: data | {},
    lambda data: data.copy(),
    copy.copy,
    copy.deepcopy,
    lambda data: {key: data.setdefault(key, None) for key in list(data)},
    lambda data: {key: data.pop(key) for key in list(data)},
    lambda data: dict(data.popitem() for _ in range(len(data))),
]


@pytest.mark.parametrize("read", READERS)
def test_values_read_are_equal_copies_of_the_original(
    read: Callable[[EventData], dict[str, Any]],
) -> None:
    original = source()
    got = read(EventData(original))
    model, part = original["model"].model_dump(), {"words": ["w"]}
    assert got == {**original, "model": model, "part": part}
    got["list"][0]["deep"].append(2)
    got["dict"]["deep"]["x"] = 2
    got["tuple"][0].append(2)
    got["set"].add(2)
    got["model"].text = "changed"
    got["model"].extra.append(2)
    got["part"].words.append("more")
    assert original == source()


def test_a_value_read_again_is_the_same_object() -> None:
    data = EventData(source())
    data["list"].append("own")
    assert data["list"][-1] == "own"
    assert data.get("list") is data["list"]
    mine = [1]
    data["mine"] = mine
    data.update(other=mine)
    data |= {"third": mine}
    assert data["mine"] is data["other"] is data["third"] is mine
    assert data.pop("mine") is mine


def test_missing_keys_behave_as_in_any_dict() -> None:
    data = EventData({"none": None})
    assert data.get("missing") is None
    assert data.get("missing", 1) == 1
    assert data.pop("missing", 1) == 1
    assert data.pop("none") is None
    assert data.setdefault("new", [1]) == [1]
    with pytest.raises(KeyError):
        data["missing"]
    with pytest.raises(KeyError):
        data.pop("missing")


def test_objects_with_behaviour_keep_their_identity() -> None:
    client = Client()
    assert EventData({"client": client, "kind": Part})["client"] is client
    assert EventData({"kind": Part})["kind"] is Part


def test_data_of_less_common_types_is_copied_too() -> None:
    class Row(NamedTuple):
        cells: list[int]

    class Messages(list[Any]):
        pass

    original = {
        "row": Row([1]),
        "messages": Messages([{"content": "x"}]),
        "ordered": OrderedDict(a=[1]),
        "bytes": bytearray(b"x"),
    }
    got = EventData(original)
    got["row"].cells.append(2)
    got["messages"][0]["content"] = "changed"
    got["messages"].append("more")
    got["ordered"]["a"].append(2)
    got["bytes"].extend(b"y")
    assert original == {
        "row": Row([1]),
        "messages": [{"content": "x"}],
        "ordered": {"a": [1]},
        "bytes": b"x",
    }


def test_a_dataclass_with_a_missing_field_is_copied() -> None:
    @dataclass
    class Later:
        known: list[int]
        found: list[int] = field(init=False)

    original = {"later": Later([1])}
    got = EventData(original)["later"]
    got.known.append(2)
    assert original["later"].known == [1]
    assert not hasattr(got, "found")


def test_event_data_is_a_dict() -> None:
    data = EventData({"a": [1], "b": {"c": None}})
    assert isinstance(data, dict)
    assert json.loads(json.dumps(data)) == {"a": [1], "b": {"c": None}}
    assert pickle.loads(pickle.dumps(data)) == {"a": [1], "b": {"c": None}}
    assert len(data) == 2
    assert "a" in data
    assert data == {"a": [1], "b": {"c": None}}


def test_numbers_and_times_without_a_json_form_arrive_as_text() -> None:
    when = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    original = {
        "cost": Decimal("1.50"),
        "nested": [{"at": when}, (when.date(), when.time())],
        "usage": Usage(cost_usd=Decimal("0.1"), input_tokens=1, output_tokens=1, total_tokens=2),
        "part": Part(Decimal(2)),  # type: ignore[arg-type]
    }
    got = EventData(original)
    assert json.dumps([got["cost"], got["nested"]]) == (
        '["1.50", [{"at": "2026-01-02 03:04:00+00:00"}, ["2026-01-02", "03:04:00"]]]'
    )
    assert original["cost"] == Decimal("1.50")
    assert original["nested"][0]["at"] is when  # type: ignore[index]
    assert got["usage"].cost_usd == "0.1"
    assert got["part"] == {"words": "2"}


def test_creating_event_data_copies_only_the_top_level() -> None:
    class Untouchable(list[Any]):
        def __iter__(self) -> Any:
            raise AssertionError("looked at")

    EventData({"messages": Untouchable([1])})


def test_data_that_refers_to_itself_is_copied_once() -> None:
    original: dict[str, Any] = {"list": [1]}
    original["list"].append(original["list"])
    original["again"] = {"self": original["list"]}
    got = EventData(original)["list"]
    assert got[1] is got
    assert got is not original["list"]
    again = EventData(original)["again"]["self"]
    assert again[1] is again


def test_data_that_is_nested_too_deeply_becomes_text() -> None:
    value: list[Any] = []
    for _ in range(5000):
        value = [value]
    assert "<list nested too deeply>" in json.dumps(plain({"deep": value}))


def test_data_that_contains_itself_more_than_once_becomes_text() -> None:
    parent: dict[str, Any] = {"name": "parent"}
    children = [{"name": name, "parent": parent} for name in "ab"]
    parent["children"] = children
    child = {"parent": "<dict nested too deeply>"}
    assert plain(parent) == {
        "name": "parent",
        "children": [{"name": "a", **child}, {"name": "b", **child}],
    }
    # The same value in two places is no circle.
    assert plain([children[:0]] * 2) == [[], []]
