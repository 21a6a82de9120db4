"""Stand in front of an object that belongs to another module."""

from __future__ import annotations

from typing import Any


class Delegate:
    """Has the attributes of another object, for reading and for setting, but for what a subclass defines.

    Args:
        inner: The other object.
        own: Attributes of the delegate itself.
    """

    def __init__(self, inner: Any, **own: Any) -> None:
        self.__dict__.update(_inner=inner, **own)

    def __getattr__(self, name: str) -> Any:
        if "_inner" not in self.__dict__:  # a copy that is not filled yet
            raise AttributeError(name)
        return getattr(self.__dict__["_inner"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_inner"], name, value)
