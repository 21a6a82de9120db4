"""Make one change in a YAML text in place; every other character stays.

Constructs that cannot safely be changed in place are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from amplifier_app.base.errors import Location
from amplifier_app.plan.tree.spans import Span, read_spans
from amplifier_app.plan.tree.yaml_reader import plain_scalar

_LINE_BREAKS = "\n\r\x85\u2028\u2029"


class NotEditable(Exception):
    """The text cannot be changed in place at `at`."""

    def __init__(self, reason: str, at: Location) -> None:
        super().__init__(reason)
        self.reason = reason
        self.at = at


def with_set(text: str, file: str, keys: Sequence[str], value: Any) -> str:
    """The text with `value` at an address; missing mappings are created.

    Raises:
        NotEditable: The address passes through a scalar or an alias.
    """
    return _Editor(text, file).set(keys, value)


def with_appended(text: str, file: str, keys: Sequence[str], value: Any) -> str:
    """The text with `value` appended to the list at an address.

    Raises:
        NotEditable: The value at the address is not a list.
    """
    editor = _Editor(text, file)
    span = editor.find(keys)
    if span is None or _is_empty(span) or (span.kind == "list" and not span.items):
        return editor.set(keys, [value])
    if span.kind != "list":
        raise NotEditable("it is not a list", span.at)
    return editor.append(span, value)


def with_removed(text: str, file: str, keys: Sequence[str]) -> str:
    """The text without the value at an address.

    Raises:
        NotEditable: The value is missing, or cannot be removed in place.
    """
    editor = _Editor(text, file)
    parent = editor.find(keys[:-1])
    if parent is None:
        raise NotEditable("it does not exist", Location(file))
    return editor.remove(parent, keys[-1])


def entry_index(names: Sequence[tuple[str | None, str | None]], key: str) -> int | None:
    """The position of a list entry.

    Args:
        names: Instance id and module id of each entry.
        key: One of these, or the position.
    """
    ids = [instance or module for instance, module in names]
    if key in ids:
        return ids.index(key)
    return int(key) if key.isdecimal() and int(key) < len(ids) else None


class _Editor:
    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._newline = "\r\n" if "\r\n" in text else "\n"
        self._root = read_spans(text, file)
        self._file = file

    def find(self, keys: Sequence[str]) -> Span | None:
        """The value at an address."""
        span = self._root
        for key in keys:
            found = _child(span, key) if span is not None else None
            span = found[1] if found is not None else None
        return span

    def set(self, keys: Sequence[str], value: Any) -> str:
        if self._root is None or _is_empty(self._root):
            return self._at_the_end(_nest(keys, value))
        begin, span, in_flow = 0, self._root, False
        for depth, key in enumerate(keys):
            if span.kind == "alias":
                raise NotEditable("it is a YAML alias of another value", span.at)
            if span.kind == "scalar":
                return self._replace(begin, span, _as_mapping(span, keys[depth:], value), in_flow)
            in_flow = in_flow or span.flow
            found = _child(span, key)
            if found is None:
                if span.kind == "list":
                    raise NotEditable(f"the list has no {key!r}", span.at)
                return self._insert(span, {key: _nest(keys[depth + 1 :], value)}, in_flow)
            begin, span = found
        return self._replace(begin, span, value, in_flow)

    def append(self, span: Span, value: Any) -> str:
        return self._insert(span, [value], span.flow)

    def remove(self, parent: Span, key: str) -> str:
        found = _child(parent, key)
        if found is None:
            raise NotEditable(f"there is no {key!r}", parent.at)
        values = parent.values()
        index = values.index(found)
        begin, span = found
        following = values[index + 1][0] if index + 1 < len(values) else None
        if parent.flow:
            if following is None:
                begin = values[index - 1][1].end if index else begin
            return self._text[:begin] + self._text[following or span.end :]
        line = self._line_start(begin)
        if not self._text[line:begin].strip():
            return self._text[:line] + self._text[self._next_line(span.end) :]
        if following is None:
            raise NotEditable("it shares a line with its parent", span.at)
        return self._text[:begin] + self._text[following:]

    def _at_the_end(self, value: Any) -> str:
        gap = "" if not self._text or self._text.endswith("\n") else self._newline
        return self._text + gap + self._newline.join(_block(value, 0)) + self._newline

    def _insert(self, span: Span, value: Any, in_flow: bool) -> str:
        """The text with the one entry of `value` as the last one of a collection."""
        values = span.values()
        if in_flow:
            entry = _inline(value)[1:-1]
            if values:
                place = values[-1][1].end
                return f"{self._text[:place]}, {entry}{self._text[place:]}"
            bracket = "{" if span.kind == "mapping" else "["
            place = self._text.index(bracket, span.start) + 1
            return self._text[:place] + entry + self._text[place:]
        first = values[0][0]
        lines = _block(value, first - self._line_start(first))
        return self._with_lines_at(self._line_end(span.end), lines)

    def _replace(self, begin: int, span: Span, value: Any, in_flow: bool) -> str:
        text = self._text
        below = "\n" in text[span.after : span.start]
        first_line = self._line_end(span.after)
        if in_flow or not isinstance(value, (dict, list)) or not value:
            new = _inline(value)
            if below:
                rest = text[span.after : first_line] + text[self._line_end(span.end) :]
                return f"{text[: span.after]} {new}{rest}"
            gap = " " if span.start == span.end else ""
            return text[: span.start] + gap + new + text[span.end :]
        column = begin - self._line_start(begin)
        lines = _block(value, column + 2)
        if span.in_list:
            # A list entry begins on the line of its dash.
            lines[0] = " " + lines[0].lstrip()
            return text[: span.after] + self._newline.join(lines) + text[span.end :]
        if below:
            return text[:first_line] + self._joined(lines) + text[self._line_end(span.end) :]
        end = self._line_end(span.end)
        return text[: span.after] + text[span.end : end] + self._joined(lines) + text[end:]

    def _with_lines_at(self, place: int, lines: list[str]) -> str:
        return self._text[:place] + self._joined(lines) + self._text[place:]

    def _joined(self, lines: list[str]) -> str:
        return "".join(self._newline + line for line in lines)

    # -- lines -------------------------------------------------------------------------

    def _line_start(self, index: int) -> int:
        return self._text.rfind("\n", 0, index) + 1

    def _line_end(self, index: int) -> int:
        """Where the line ends, its line break not included."""
        end = self._text.find("\n", index)
        if end < 0:
            return len(self._text)
        return end - 1 if end > index and self._text[end - 1] == "\r" else end

    def _next_line(self, index: int) -> int:
        end = self._text.find("\n", index)
        return len(self._text) if end < 0 else end + 1


def _child(span: Span, key: str) -> tuple[int, Span] | None:
    if span.kind == "mapping":
        return span.entries.get(key)
    if span.kind != "list":
        return None
    index = entry_index([_names(item) for _, item in span.items], key)
    return None if index is None else span.items[index]


def _names(item: Span) -> tuple[str | None, str | None]:
    if item.kind == "scalar":
        return None, item.value
    instance, module = item.entries.get("instance_id"), item.entries.get("module")
    return instance and instance[1].value, module and module[1].value


def _is_empty(span: Span) -> bool:
    return span.kind == "scalar" and not span.quoted and span.value in ("", "~", "null")


def _as_mapping(span: Span, keys: Sequence[str], value: Any) -> Any:
    """The replacement for a scalar that needs to become a mapping."""
    if _is_empty(span):
        return _nest(keys, value)
    # A text in a list is the short form of a module entry.
    if span.in_list and (span.quoted or isinstance(plain_scalar(span.value), str)):
        return {"module": span.value, **_nest(keys, value)}
    raise NotEditable("it is inside a value that is not a mapping", span.at)


def _nest(keys: Sequence[str], value: Any) -> Any:
    for key in reversed(keys):
        value = {key: value}
    return value


# -- writing -----------------------------------------------------------------------------


def _inline(value: Any) -> str:
    """YAML for a value on one line, also valid in flow style."""
    if _has_line_break(value):
        # JSON escapes \n and \r, but leaves the other line breaks of YAML as they are.
        dumped = json.dumps(value, ensure_ascii=False)
        return re.sub(r"[\x7f-\x9f\u2028\u2029]", lambda m: f"\\u{ord(m[0]):04x}", dumped)
    dumped = yaml.safe_dump(
        [value], default_flow_style=True, allow_unicode=True, sort_keys=False, width=10**9
    )
    return dumped.strip()[1:-1]


def _block(value: Any, column: int) -> list[str]:
    """The lines of a collection, each entry on lines of its own."""
    indent = " " * column
    lines: list[str] = []
    if isinstance(value, Mapping):
        for key, below in value.items():
            head = f"{indent}{_inline(str(key))}:"
            if isinstance(below, (dict, list)) and below:
                lines += [head, *_block(below, column + 2)]
            else:
                lines.append(f"{head} {_inline(below)}")
        return lines
    for item in value:
        if isinstance(item, (dict, list)) and item:
            first, *rest = _block(item, column + 2)
            lines += [f"{indent}- {first.lstrip()}", *rest]
        else:
            lines.append(f"{indent}- {_inline(item)}")
    return lines


def _has_line_break(value: Any) -> bool:
    if isinstance(value, str):
        return any(character in value for character in _LINE_BREAKS)
    if isinstance(value, Mapping):
        return any(_has_line_break(each) for pair in value.items() for each in pair)
    return isinstance(value, list) and any(_has_line_break(each) for each in value)
