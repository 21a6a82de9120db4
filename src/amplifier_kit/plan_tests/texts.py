"""Compare texts with expectations, and describe the differences."""

from __future__ import annotations

import difflib
import json
import re
import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, cast

from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node, text_of
from amplifier_app.runtime import describe
from amplifier_support.printable import cut_text

_LONGEST = 20
"""How many lines of a difference are shown."""
_WIDTH = 200
_COMPARED_LINES = 200
"""How many lines are compared, from the first one that differs."""

_SEARCH_SECONDS = 2.0
"""CPU time for one regular expression: some take hours for a text that almost matches."""


def differences(node: Node, got: str, *, exact: bool = False) -> Iterator[tuple[str, ...]]:
    """Describe how a text differs from an expectation.

    Args:
        node: The text, or conditions.
        got: The text.
        exact: Whether spaces and line ends around it count.
    """
    whole = text_of(node)
    if whole is not None:
        same = whole == got if exact else whole.strip() == got.strip()
        if not same:
            yield _difference(whole, got)
        return
    for text in _texts(node, "contains"):
        if text not in got:
            yield f"does not contain {short(text)}", *excerpt(got)
    for text in _texts(node, "excludes"):
        if text in got:
            yield f"contains {short(text)}", *excerpt(got)
    for pattern in _texts(node, "matches"):
        try:
            with _time_limit(_SEARCH_SECONDS):
                found = re.search(pattern, got, re.MULTILINE)
        except TimeoutError:
            yield (
                f"cannot be compared with {short(pattern)} within {_SEARCH_SECONDS:g} s",
                *excerpt(got),
            )
            continue
        if not found:
            yield f"does not match {short(pattern)}", *excerpt(got)


@contextmanager
def _time_limit(seconds: float) -> Generator[None]:
    """Raise TimeoutError after so much CPU time; in the main thread only, where signals arrive."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "setitimer"
    ):
        yield
        return

    def expire(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    handler = signal.signal(signal.SIGVTALRM, expire)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, handler)


def _texts(node: Node, key: str) -> list[str]:
    found = node.items.get(key) if isinstance(node, MapNode) else None
    return [text for one in items(found) if (text := text_of(one)) is not None]


def items(node: Node | None) -> Sequence[Node]:
    """The items of a list; any other value counts as a list of one."""
    if isinstance(node, ListNode):
        return node.items
    return [] if node is None else [node]


def _difference(wanted: str, got: str) -> tuple[str, ...]:
    if "\n" not in wanted.strip() and "\n" not in got.strip():
        return f"expected {short(wanted)}", f"got      {short(got)}"
    lines = _diff(wanted.splitlines(), got.splitlines())
    if not lines:
        return ("differs in line ends only",)
    return "differs (- expected, + got)", *cut(lines)


def _diff(wanted: list[str], got: list[str]) -> list[str]:
    """The first lines that differ, from the line before them."""
    same = 0
    for one, other in zip(wanted, got, strict=False):
        if one != other:
            break
        same += 1
    # Comparing takes quadratic time.
    part = slice(max(same - 1, 0), same + _COMPARED_LINES)
    diff = difflib.unified_diff(wanted[part], got[part], n=1, lineterm="")
    return [line for line in list(diff)[2:] if line[:2] != "@@"]


def excerpt(text: str) -> tuple[str, ...]:
    """The first lines of a text that differs from its expectation."""
    lines = text.splitlines() or ["(empty)"]
    return "got:", *indented(cut(lines))


def cut(lines: Sequence[str]) -> list[str]:
    """The first lines, none of them very long, and how many follow."""
    shown = [cut_text(line, _WIDTH) for line in lines[:_LONGEST]]
    more = len(lines) - _LONGEST
    return [*shown, f"… {describe.count(more, 'more line')}"] if more > 0 else shown


def indented(lines: Sequence[str]) -> list[str]:
    """The lines as details of the one above them."""
    return [f"  {line}" for line in lines]


def short(value: Any) -> str:
    """A value as JSON, cut if it is long."""
    return cut_text(json.dumps(value, ensure_ascii=False, default=str), _WIDTH)


def is_same(wanted: Any, got: Any) -> bool:
    """Whether two values are the same in JSON, where true is not 1."""
    if isinstance(wanted, dict) and isinstance(got, dict):
        pairs = cast("dict[Any, Any]", wanted), cast("dict[Any, Any]", got)
        return pairs[0].keys() == pairs[1].keys() and all(
            is_same(one, pairs[1][key]) for key, one in pairs[0].items()
        )
    if isinstance(wanted, list) and isinstance(got, list):
        lists = cast("list[Any]", wanted), cast("list[Any]", got)
        return len(lists[0]) == len(lists[1]) and all(map(is_same, *lists))
    return wanted == got and isinstance(wanted, bool) == isinstance(got, bool)
