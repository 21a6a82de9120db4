"""Our NamedTuple makes the same classes as typing's."""

from __future__ import annotations

import builtins
import pickle
import typing

import pytest

from amplifier_support.named_tuple import NamedTuple


class Ours(NamedTuple):
    """A point."""

    x: int
    y: int | None = None
    labels: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """The sum of both."""
        return self.x + (self.y or 0)

    @classmethod
    def origin(cls) -> Ours:
        return cls(0, 0)


class Theirs(typing.NamedTuple):
    """A point."""

    x: int
    y: int | None = None
    labels: tuple[str, ...] = ()


def test_a_value_has_fields_defaults_and_methods() -> None:
    point = Ours(1, labels=("a",))
    assert point == (1, None, ("a",)) == Theirs(1, None, ("a",))
    assert (point.total, Ours.origin()) == (1, Ours(0, 0))
    assert point._replace(y=2).total == 3
    assert point._asdict() == {"x": 1, "y": None, "labels": ("a",)}
    assert repr(point) == "Ours(x=1, y=None, labels=('a',))"
    assert pickle.loads(pickle.dumps(point)) == point
    with pytest.raises(TypeError):
        Ours()  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        point.x = 2  # type: ignore[misc]


def test_a_class_describes_itself_as_one_of_typing() -> None:
    for name in ("_fields", "_field_defaults", "__doc__", "__module__", "__match_args__"):
        assert getattr(Ours, name) == getattr(Theirs, name)
    assert typing.get_type_hints(Ours) == typing.get_type_hints(Theirs)
    assert Ours.__qualname__ == "Ours"
    assert [hasattr(value, "__dict__") for value in (Ours(1), Theirs(1))] == [False, False]


def test_a_class_without_annotations_in_its_body_is_left_to_typing() -> None:
    """As of Python 3.14, where annotations are evaluated later."""

    class Empty(NamedTuple):
        """No fields."""

        def describe(self) -> str:
            return "empty"

    class Other(typing.NamedTuple):
        """No fields."""

    assert (Empty().describe(), Empty._fields, Empty.__doc__) == ("empty", (), Other.__doc__)
    assert Empty.__mro__[1:] == Other.__mro__[1:]


def test_a_class_is_made_without_compiling_source(monkeypatch: pytest.MonkeyPatch) -> None:
    class First(NamedTuple):
        one: int
        two: int

    with monkeypatch.context() as patch:
        for name in ("compile", "eval", "exec"):
            patch.delattr(builtins, name)

        class Second(NamedTuple):
            left: int
            right: int = 2

    assert (First(1, 2), Second(left=1)) == ((1, 2), (1, 2))


def test_wrong_fields_are_errors() -> None:
    with pytest.raises(TypeError, match=r"Ours\.__new__\(\) .*'z'"):
        Ours(1, z=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'z'"):
        Ours(1)._replace(z=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="Expected 3 arguments, got 2"):
        Ours._make([1, 2])
