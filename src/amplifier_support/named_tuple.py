"""`typing.NamedTuple`, created in a sixth of the time.

typing compiles the annotation of every field, and collections compiles source for every class. With
160 such classes that is a tenth of the CPU time of a short run. The classes made here share their
methods, and the code of `__new__` with every class that has as many fields.
"""

from __future__ import annotations

import typing
from collections import _tuplegetter, namedtuple  # pyright: ignore
from functools import cache
from types import CodeType, FunctionType, new_class
from typing import TYPE_CHECKING

__all__ = ["NamedTuple"]

if TYPE_CHECKING:
    from typing import NamedTuple
else:

    class _Named(namedtuple("_Named", ())):
        """The methods of every named tuple."""

        @classmethod
        def _make(cls, iterable):
            made = tuple.__new__(cls, iterable)
            if len(made) != len(cls._fields):
                raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
            return made

        def _replace(self, /, **changes):
            made = self._make(map(changes.pop, self._fields, self))
            if changes:
                raise TypeError(f"Got unexpected field names: {list(changes)!r}")
            return made

        def __repr__(self):
            fields = (f"{name}={value!r}" for name, value in self._asdict().items())
            return f"{type(self).__name__}({', '.join(fields)})"

        __slots__, __replace__ = (), _replace

    @cache
    def _compile_new(count: int) -> CodeType:
        names = "".join(f", _{index}" for index in range(count))
        return eval(f"lambda _cls{names}: _new(_cls, ({names[2:]},))").__code__

    class _Meta(type):
        """Makes a class with annotations a named tuple of these fields."""

        def __new__(cls, name, bases, body):
            if not bases:
                return super().__new__(cls, name, bases, body)
            if "__annotations__" not in body:
                # Python 3.14 evaluates them later, unless the file asks for strings.
                return new_class(name, (typing.NamedTuple,), {}, lambda made: made.update(body))
            fields = tuple(body["__annotations__"])
            defaults = {field: body[field] for field in fields if field in body}
            names = {"co_name": "__new__", "co_qualname": f"{name}.__new__"}
            code = _compile_new(len(fields)).replace(co_varnames=("_cls", *fields), **names)
            make = FunctionType(code, {"_new": tuple.__new__}, "__new__", tuple(defaults.values()))
            body.setdefault("__doc__", f"{name}({', '.join(fields)})")
            body |= {field: _tuplegetter(index, None) for index, field in enumerate(fields)}
            body |= {"__new__": make, "__slots__": (), "__match_args__": fields}
            return type(name, (_Named,), {**body, "_fields": fields, "_field_defaults": defaults})

    class NamedTuple(metaclass=_Meta):
        """Base of classes whose annotated names are the fields of a tuple."""
