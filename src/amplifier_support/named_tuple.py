"""`typing.NamedTuple`, created in a third of the time.

typing compiles the annotation of every field. With a hundred such classes that is a twentieth of the
CPU time of a short run, and nothing evaluates these annotations.
"""

from __future__ import annotations

import typing
from collections import namedtuple
from types import new_class
from typing import TYPE_CHECKING, Any

__all__ = ["NamedTuple"]

_OWN = ("__module__", "__qualname__", "__annotations__", "__classcell__")

if TYPE_CHECKING:
    from typing import NamedTuple
else:

    class _Meta(type):
        """Makes a class with annotations a named tuple of these fields."""

        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            if not bases:
                return super().__new__(cls, name, bases, body)
            if "__classcell__" in body:
                raise TypeError(f"{name}: methods of a named tuple cannot use super()")
            if "__annotations__" not in body:
                # Python 3.14 evaluates them later, unless the file asks for strings.
                return new_class(
                    name, (typing.NamedTuple,), exec_body=lambda made: made.update(body)
                )
            fields = body["__annotations__"]
            defaults = [body[field] for field in fields if field in body]
            made = namedtuple(name, fields, defaults=defaults, module=body["__module__"])
            made.__annotations__ = fields
            made.__qualname__ = body["__qualname__"]
            for key, value in body.items():
                if key not in _OWN and key not in fields:
                    setattr(made, key, value)
            return made

    class NamedTuple(metaclass=_Meta):
        """Base of classes whose annotated names are the fields of a tuple."""
