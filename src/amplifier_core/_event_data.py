"""Event data as a handler sees it: a dict whose nested values are copied on first access.

A handler may change its data without affecting other handlers. Copying everything up
front would make each event as expensive as the conversation it refers to; here an event
costs only its top-level keys, and a nested value is copied when a handler accesses it.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, Self, cast

from pydantic import BaseModel

from amplifier_core._tool_results import ToolResult

_ATOMIC = frozenset({str, int, float, bool, bytes, type(None), complex, range, frozenset})
_AS_TEXT = frozenset({Decimal, datetime, date, time})
"""Types without a JSON form. Handlers receive them as text, so that they can serialize their data."""
_MISSING = object()
_MAX_DEPTH = 100
"""Nesting depth beyond which a value becomes text; a value may refer to itself."""


class PlainData(dict[str, Any]):
    """JSON-compatible data with attribute access: ``data["output"]`` and ``data.output``.

    Serves both handlers that expect typed objects and handlers that expect or serialize a dict.
    """

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """The data as a plain dict."""
        return dict(self)

    def model_copy(self, *, update: dict[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with updated values, as for a pydantic model."""
        return type(self)({**(copy.deepcopy(self) if deep else self), **(update or {})})


class ToolResultData(PlainData):
    """A tool's result in events: ``success``, ``output``, ``error`` and, if present, ``content``."""

    @classmethod
    def of(cls, result: ToolResult) -> "ToolResultData":
        content = {"content": plain(result.content)} if result.content else {}
        shown = cls(success=result.success, output=plain(result.output), error=plain(result.error))
        return cls({**shown, **content})

    def __getattr__(self, name: str) -> Any:
        return self.get("content") if name == "content" else super().__getattr__(name)

    @property
    def is_error(self) -> bool:
        return not self["success"]

    def get_serialized_output(self) -> str:
        """See `ToolResult.get_serialized_output`."""
        return ToolResult.model_validate(dict(self)).get_serialized_output()

    def __str__(self) -> str:
        return str(ToolResult.model_validate(dict(self)))


def plain(value: Any, depth: int = 0) -> Any:
    """Convert `value` for JSON: mappings, models and dataclasses become `PlainData`, other objects text."""
    if value is None or (isinstance(value, (str, int, float)) and not isinstance(value, Enum)):
        return value
    if depth < _MAX_DEPTH:
        fields_of = _fields_of(value)
        if fields_of is not None:
            return PlainData({str(key): plain(item, depth + 1) for key, item in fields_of.items()})
        if isinstance(value, (list, tuple, set, frozenset)):
            return [plain(item, depth + 1) for item in cast("Iterable[Any]", value)]
        if isinstance(value, Enum):
            return plain(value.value, depth + 1)
    elif isinstance(value, (Mapping, list, tuple, set, frozenset, BaseModel)):
        # Its text would be nested as deep.
        return f"<{type(value).__name__} nested too deeply>"
    return str(value)


def _fields_of(value: Any) -> Mapping[Any, Any] | None:
    if isinstance(value, Mapping):
        return cast("Mapping[Any, Any]", value)
    if isinstance(value, BaseModel):
        return {**value.__dict__, **(value.model_extra or {})}
    if is_dataclass(value) and not isinstance(value, type):
        to_dict = getattr(value, "to_dict", None)
        if callable(to_dict):
            return cast("Mapping[Any, Any]", to_dict())
        names = [field.name for field in fields(value) if hasattr(value, field.name)]
        return {name: getattr(value, name) for name in names}
    return None


def _isolated(value: Any, copies: dict[int, Any]) -> Any:
    """`value`, or a copy of it if it is mutable data.

    Containers, pydantic models and dataclasses are data; models and dataclasses become `PlainData`,
    subclasses of list and dict plain lists and dicts. Other objects, such as a provider or a client,
    have behaviour and identity and are shared.
    `copies` maps the ids of values already copied to their copies, so that data may refer to itself.
    """
    kind = type(value)
    if kind in _ATOMIC:
        return value
    if kind in _AS_TEXT:
        return str(value)
    known = copies.get(id(value))
    if known is not None:
        return known
    if isinstance(value, list):
        twin: Any = []
        copies[id(value)] = twin
        twin.extend([_isolated(item, copies) for item in cast("list[Any]", value)])
    elif isinstance(value, dict):
        twin = kind() if issubclass(kind, PlainData) else {}
        copies[id(value)] = twin
        for key, item in cast("dict[Any, Any]", value).items():
            twin[key] = _isolated(item, copies)
    elif kind is tuple or kind is set:
        twin = kind([_isolated(item, copies) for item in value])
    elif isinstance(value, tuple) and hasattr(kind, "_make"):
        twin = kind._make([_isolated(item, copies) for item in cast("tuple[Any, ...]", value)])
    elif kind is bytearray:
        twin = value[:]
    elif isinstance(value, ToolResult):
        twin = ToolResultData.of(value)
    elif isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type)):
        twin = plain(value)
    else:
        return value
    return twin


class EventData(dict[str, Any]):
    """The data of one event for one handler.

    Every read access returns isolated values: subscripting, `get`, iteration over values
    and items, and `copy`. Overriding `__iter__` turns off CPython's shortcut for exact
    dicts, so ``dict(data)`` and ``{**data}`` are isolated as well.
    """

    __slots__ = ("_isolated_keys",)

    def __init__(self, source: dict[str, Any]) -> None:
        dict.__init__(self, source)
        self._isolated_keys: set[str] = set()

    def _touch(self, key: str, value: Any) -> Any:
        if type(value) in _ATOMIC or key in self._isolated_keys:
            return value
        own = _isolated(value, {})
        dict.__setitem__(self, key, own)
        self._isolated_keys.add(key)
        return own

    def __getitem__(self, key: str) -> Any:
        return self._touch(key, dict.__getitem__(self, key))

    def __setitem__(self, key: str, value: Any) -> None:
        dict.__setitem__(self, key, value)
        # A value set by the handler is its own and must stay the same object.
        self._isolated_keys.add(key)

    def get(self, key: str, default: Any = None) -> Any:
        value = dict.get(self, key, _MISSING)
        return default if value is _MISSING else self._touch(key, value)

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: str, *default: Any) -> Any:
        own = self._touch(key, dict.__getitem__(self, key)) if key in self else None
        result = dict.pop(self, key, *default)
        return own if own is not None else result

    def popitem(self) -> tuple[str, Any]:
        key = next(reversed(list(self)))
        return key, self.pop(key)

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def __ior__(self, other: Any) -> "EventData":  # type: ignore[override]
        self.update(other)
        return self

    def __iter__(self) -> Iterator[str]:
        return dict.__iter__(self)

    def values(self) -> Any:
        self._touch_all()
        return dict.values(self)

    def items(self) -> Any:
        self._touch_all()
        return dict.items(self)

    def _touch_all(self) -> None:
        for key in list(dict.keys(self)):
            self._touch(key, dict.__getitem__(self, key))

    def copy(self) -> dict[str, Any]:
        return dict(self)

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return copy.deepcopy(dict(self), memo)

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return dict, (dict(self),)
