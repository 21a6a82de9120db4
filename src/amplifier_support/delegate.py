"""Stand in front of an object that belongs to another module."""

from __future__ import annotations

import copy
from typing import Any


class Delegate:
    """Has the attributes of another object, for reading and for setting, but for what a subclass defines.

    It passes `isinstance` like the other object. Copies stand in front of a copy.

    Args:
        inner: The other object.
        own: Attributes of the delegate itself.
    """

    def __init__(self, inner: Any, **own: Any) -> None:
        self.__dict__.update(_inner=inner, **own)

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.__dict__["_inner"].__class__

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_inner"], name, value)

    def __copy__(self) -> Any:
        return self._with(copy.copy(self._inner))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self._with(copy.deepcopy(self._inner, memo))

    def _with(self, inner: Any) -> Any:
        delegate = object.__new__(type(self))
        delegate.__dict__.update(self.__dict__, _inner=inner)
        return delegate
