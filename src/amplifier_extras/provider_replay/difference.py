"""Describe how two requests differ, in a few lines for people."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from typing import Any

from amplifier_extras.provider_replay.requests import Plain
from amplifier_support.printable import cut_text

_WIDTH = 160
_DIFF_LINES = 12


def difference(recorded: Plain, asked: Plain) -> list[str]:
    """Lines on what changed; ``-`` is the recorded request, ``+`` the current one."""
    lines = [*_options(recorded, asked), *_tools(recorded, asked), *_messages(recorded, asked)]
    return [cut_text(line, _WIDTH) for line in lines]


def _options(recorded: Plain, asked: Plain) -> Iterator[str]:
    for name in sorted((recorded.keys() | asked.keys()) - {"messages", "tools"}):
        if recorded.get(name) != asked.get(name):
            yield f"  {name}: {_short(recorded.get(name))} → {_short(asked.get(name))}"


def _tools(recorded: Plain, asked: Plain) -> Iterator[str]:
    before = {tool["name"]: tool for tool in recorded.get("tools", ())}
    after = {tool["name"]: tool for tool in asked.get("tools", ())}
    for name in before.keys() - after.keys():
        yield f"  tools: {name} is no longer offered"
    for name in after.keys() - before.keys():
        yield f"  tools: {name} is new"
    for name in (name for name in before if name in after):
        for field in sorted(before[name].keys() | after[name].keys()):
            if before[name].get(field) != after[name].get(field):
                yield f"  tools.{name}.{field}:"
                yield from _changed(before[name].get(field), after[name].get(field))
    if list(before) != list(after) and before.keys() == after.keys():
        yield "  tools: offered in a different order"


def _messages(recorded: Plain, asked: Plain) -> Iterator[str]:
    before, after = recorded["messages"], asked["messages"]
    at = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b),
        min(len(before), len(after)),
    )
    if at < min(len(before), len(after)):
        yield from _message(at, before[at], after[at])
    more = len(after) - len(before)
    if more:
        word = "message" if abs(more) == 1 else "messages"
        yield f"  messages: {abs(more)} {word} {'more' if more > 0 else 'fewer'}"
        longer = after if more > 0 else before
        if at == min(len(before), len(after)):
            yield f"    {'+' if more > 0 else '-'} {_summary(longer[at])}"


def _message(at: int, before: Plain, after: Plain) -> Iterator[str]:
    where = f"  messages[{at}]"
    if before.get("role") != after.get("role"):
        yield f"{where}:"
        yield f"    - {_summary(before)}"
        yield f"    + {_summary(after)}"
        return
    where += f" ({before.get('role')})"
    for field in sorted((before.keys() | after.keys()) - {"role", "content"}):
        if before.get(field) != after.get(field):
            yield f"{where}.{field}: {_short(before.get(field))} → {_short(after.get(field))}"
    blocks = _blocks(before), _blocks(after)
    for index, (a, b) in enumerate(zip(*blocks, strict=False)):
        if a != b:
            yield from _block(f"{where}.content[{index}]", a, b)
            return
    if len(blocks[0]) != len(blocks[1]):
        yield f"{where}.content: {len(blocks[0])} → {len(blocks[1])} blocks"


def _block(where: str, before: Any, after: Any) -> Iterator[str]:
    alike = isinstance(before, dict) and isinstance(after, dict)
    if not alike or before.get("type") != after.get("type"):
        yield f"{where}:"
        yield f"    - {_short(before)}"
        yield f"    + {_short(after)}"
        return
    for field in sorted(before.keys() | after.keys()):
        if before.get(field) != after.get(field):
            name = before.get("name")
            yield f"{where}.{field}{f' of {name}' if name else ''}:"
            yield from _changed(before.get(field), after.get(field))


def _changed(before: Any, after: Any) -> Iterator[str]:
    """A diff of two values by lines, without their common start and end."""
    diff = difflib.unified_diff(
        _text(before).split("\n"), _text(after).split("\n"), n=0, lineterm=""
    )
    lines = [line for line in diff if line[:3] not in ("---", "+++") and line[:2] != "@@"]
    for line in lines[:_DIFF_LINES]:
        yield f"    {line[0]} {line[1:]}"
    if len(lines) > _DIFF_LINES:
        yield f"    … {len(lines) - _DIFF_LINES} more"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)


def _blocks(message: Plain) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else [content]


def _summary(message: Plain) -> str:
    texts = [str(b.get("text") or b.get("name") or b.get("type")) for b in _blocks(message) if b]
    return f"{message.get('role')}: {' '.join(' '.join(texts).split())}"


def _short(value: Any) -> str:
    return "none" if value is None else json.dumps(value, ensure_ascii=False)
