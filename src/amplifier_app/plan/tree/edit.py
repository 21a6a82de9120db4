"""Change one value of a YAML file and keep everything else: comments, order, quotes, line endings.

A file that cannot be parsed is never touched, and a construct that cannot safely be changed in place is
refused. The new text is parsed before it is written, and must contain the change and everything that was
there before. The write is atomic, and one process at a time changes files.
"""

from __future__ import annotations

import bisect
import copy
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.base.file_writing import write_whole
from amplifier_app.base.locks import changing_settings
from amplifier_app.plan.tree.nodes import Node, plain_data
from amplifier_app.plan.tree.problems import Problems
from amplifier_app.plan.tree.yaml_reader import plain_scalar, read_bytes, read_yaml

Kind = Literal["scalar", "mapping", "list", "alias"]


@dataclass
class Span:
    """A value: `text[start:end]`, without white space after it.

    Attributes:
        kind: What it is.
        start: Index of its first character, an anchor's `&` included.
        end: Index after its last one.
        at: Line and column of its beginning.
        flow: Whether it is a collection in brackets.
        value: The text of a scalar.
        quoted: Whether a scalar is quoted or a block scalar.
        in_list: Whether it is an entry of a list.
        after: Index after the `:` or `-` that it belongs to.
        entries: The keys of a mapping, with where they begin, and their values.
        items: The values of a list, with where their `-` is; in brackets that is where they begin.
    """

    kind: Kind
    start: int
    end: int
    at: Location
    flow: bool = False
    value: str = ""
    quoted: bool = False
    in_list: bool = False
    after: int = 0
    entries: dict[str, tuple[int, Span]] = field(default_factory=dict)
    items: list[tuple[int, Span]] = field(default_factory=list)

    def values(self) -> list[tuple[int, Span]]:
        """The values of a collection in order, each with where it or its key begins."""
        return list(self.entries.values()) if self.kind == "mapping" else self.items


def _read_spans(text: str, file: str) -> Span | None:
    """The values of a text that is a valid YAML document; None if it is empty."""
    # Without libyaml: its marks count bytes or characters, depending on how it was built.
    events = iter(list(yaml.parse(text, Loader=yaml.SafeLoader)))
    marks: dict[str, list[int]] = {"-": [], ":": []}
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        if isinstance(token, yaml.BlockEntryToken):
            marks["-"].append(token.start_mark.index)
        elif isinstance(token, yaml.ValueToken):
            marks[":"].append(token.start_mark.index)
    builder = _Builder(text, file, marks)
    for event in events:
        if isinstance(event, yaml.NodeEvent):
            return builder.node(event, events)
    return None


class _Builder:
    def __init__(self, text: str, file: str, marks: dict[str, list[int]]) -> None:
        self._text = text
        self._file = file
        self._marks = marks

    def node(self, event: Any, events: Any) -> Span:
        mark = event.start_mark
        at = Location(self._file, mark.line + 1, mark.column + 1)
        start, end = mark.index, event.end_mark.index
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(Span("mapping", start, end, at, bool(event.flow_style)), events)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._list(Span("list", start, end, at, bool(event.flow_style)), events)
        if isinstance(event, yaml.AliasEvent):
            return Span("alias", start, end, at)
        # A block scalar ends where the next line begins.
        end = max(start, len(self._text[:end].rstrip(" \t\r\n")))
        quoted = event.style is not None
        return Span("scalar", start, end, at, value=event.value, quoted=quoted)

    def _mapping(self, span: Span, events: Any) -> Span:
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key = self.node(event, events)
            value = self.node(next(events), events)
            value.after = self._after_colon(key.end)
            if value.kind == "scalar" and value.start == value.end:
                # An empty value begins where a value could be inserted.
                value.start = value.end = value.after
            span.entries[key.value] = (key.start, value)
        return self._ended(span, event)

    def _list(self, span: Span, events: Any) -> Span:
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            item = self.node(event, events)
            dash = item.start if span.flow else self._dash_before(item.start)
            item.after = item.start if span.flow else dash + 1
            item.in_list = True
            span.items.append((dash, item))
        return self._ended(span, event)

    def _ended(self, span: Span, event: Any) -> Span:
        if span.flow:
            span.end = event.end_mark.index
        else:
            # A block has no end mark: its end event is at the beginning of the next token.
            span.end = max((value.end for _, value in span.values()), default=span.end)
        return span

    def _after_colon(self, key_end: int) -> int:
        colons = self._marks[":"]
        position = bisect.bisect_left(colons, key_end)
        colon = colons[position] if position < len(colons) else key_end
        # In brackets a key may have neither a colon nor a value: `{a, b: 1}`.
        return key_end if self._text[key_end:colon].strip() else colon + 1

    def _dash_before(self, index: int) -> int:
        dashes = self._marks["-"]
        return dashes[bisect.bisect_left(dashes, index) - 1]


_LINE_BREAKS = "\n\r\x85\u2028\u2029"


class NotEditable(Exception):
    """The text cannot be changed in place at `at`."""

    def __init__(self, reason: str, at: Location) -> None:
        super().__init__(reason)
        self.reason = reason
        self.at = at


def _entry_index(names: Sequence[tuple[str | None, str | None]], key: str) -> int | None:
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
        self._root = _read_spans(text, file)
        self._file = file

    def _find(self, keys: Sequence[str]) -> Span | None:
        """The value at an address."""
        span = self._root
        for key in keys:
            child = _child(span, key) if span is not None else None
            span = child[1] if child is not None else None
        return span

    def set(self, keys: Sequence[str], value: Any) -> str:
        """The text with `value` at an address; missing mappings are created.

        Raises:
            NotEditable: The address passes through a scalar or an alias.
        """
        if self._root is None or _is_empty(self._root):
            return self._at_the_end(_nest(keys, value))
        begin, span, in_flow = 0, self._root, False
        for depth, key in enumerate(keys):
            if span.kind == "alias":
                raise NotEditable("it is a YAML alias of another value", span.at)
            if span.kind == "scalar":
                return self._replace(begin, span, _as_mapping(span, keys[depth:], value), in_flow)
            in_flow = in_flow or span.flow
            child = _child(span, key)
            if child is None:
                if span.kind == "list":
                    raise NotEditable(f"the list has no {key!r}", span.at)
                return self._insert(span, {key: _nest(keys[depth + 1 :], value)}, in_flow)
            begin, span = child
        return self._replace(begin, span, value, in_flow)

    def append(self, keys: Sequence[str], value: Any) -> str:
        """The text with `value` appended to the list at an address.

        Raises:
            NotEditable: The value at the address is not a list.
        """
        span = self._find(keys)
        if span is None or _is_empty(span) or (span.kind == "list" and not span.items):
            return self.set(keys, [value])
        if span.kind != "list":
            raise NotEditable("it is not a list", span.at)
        return self._insert(span, [value], span.flow)

    def remove(self, keys: Sequence[str]) -> str:
        """The text without the value at an address.

        Raises:
            NotEditable: The value is missing, or cannot be removed in place.
        """
        parent, key = self._find(keys[:-1]), keys[-1]
        if parent is None:
            raise NotEditable("it does not exist", Location(self._file))
        child = _child(parent, key)
        if child is None:
            raise NotEditable(f"there is no {key!r}", parent.at)
        values = parent.values()
        index = values.index(child)
        begin, span = child
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
        end = self._line_end(span.end)
        return self._text[:end] + self._joined(lines) + self._text[end:]

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

    def _joined(self, lines: list[str]) -> str:
        return "".join(self._newline + line for line in lines)

    # -- lines -------------------------------------------------------------------------

    def _line_start(self, index: int) -> int:
        return self._text.rfind("\n", 0, index) + 1

    def _line_end(self, index: int) -> int:
        """Return the end of the line, its line break not included."""
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
    index = _entry_index([_names(item) for _, item in span.items], key)
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


_MARK = "\ufeff"


def set_value(file: Path, keys: Sequence[str], value: Any) -> bool:
    """Put a value at an address: `("tools", "tool-bash", "config", "timeout")`.

    Missing mappings are created, and so is the file. A list entry is found by its instance id, its
    module id or its position.

    Args:
        file: The file; links are followed. A new file in the user's config folder gets mode 0600.
        keys: The address.
        value: Plain data: str, int, float, bool, None, lists and dicts of these.

    Returns:
        Whether anything changed.

    Raises:
        PlanError: The file is not valid YAML.
        ConfigError: The address does not exist, or the file cannot be read, edited or written.
    """
    return set_values(file, [(keys, value)])


def set_values(file: Path, values: Sequence[tuple[Sequence[str], Any]]) -> bool:
    """Set several values; if one fails, none is written.

    Args:
        file: See `set_value`.
        values: Addresses and values, in order.

    Returns:
        Whether anything changed.

    Raises:
        PlanError: See `set_value`.
        ConfigError: See `set_value`.
    """

    def edit(text: str, name: str) -> str:
        for keys, value in values:
            text = _Editor(text, name).set(keys, value)
        return text

    def apply(data: Any) -> None:
        for keys, value in values:
            _set(data, keys, value)

    return _change(file, values[0][0] if values else (), edit, apply)


def append_value(file: Path, keys: Sequence[str], value: Any) -> bool:
    """Append a value to the list at an address; a missing list is created.

    Raises:
        PlanError: See `set_value`.
        ConfigError: See `set_value`; also if the value at the address is not a list.
    """
    return _change(
        file,
        keys,
        lambda text, name: _Editor(text, name).append(keys, value),
        lambda data: _append(data, keys, value),
    )


@changing_settings()
def remove_value(file: Path, keys: Sequence[str]) -> bool:
    """Remove the value at an address, and the collections that this would leave empty.

    Returns:
        Whether the address existed.

    Raises:
        PlanError: See `set_value`.
        ConfigError: See `set_value`.
    """
    emptied = _outermost_emptied(_data(_read(file), file), keys)
    if emptied is None:
        return False
    return _change(
        file,
        emptied,
        lambda text, name: _Editor(text, name).remove(emptied),
        lambda data: _remove(data, emptied),
    )


@changing_settings()
def _change(
    file: Path, keys: Sequence[str], edit: Callable[[str, str], str], apply: Callable[[Any], None]
) -> bool:
    text = _read(file)
    before = _data(text, file)
    mark = _MARK if text.startswith(_MARK) else ""
    address = ".".join(keys)
    by_hand = "change the file by hand"
    try:
        changed = mark + edit(text.removeprefix(_MARK), str(file))
    except NotEditable as error:
        message = f"cannot change {address!r}: {error.reason}"
        raise ConfigError(message, location=error.at, hint=by_hand) from None
    expected = copy.deepcopy(before)
    apply(expected)
    if _same(before, expected):
        return False
    problems = Problems()
    root = read_yaml(changed.encode(), str(file), problems)
    if problems or not _same(_plain(root), expected):
        message = f"cannot change {address!r} without changing something else"
        raise ConfigError(message, location=Location(str(file)), hint=by_hand)
    write_whole(file, changed)
    return True


# -- data --------------------------------------------------------------------------------


def _data(text: str, file: Path) -> dict[str, Any]:
    problems = Problems()
    root = read_yaml(text.encode(), str(file), problems)
    data = _plain(root)
    if root is not None and not isinstance(data, dict):
        problems.add("the file is not a mapping", root.at)
    problems.raise_if_any()
    return data


def _plain(root: Node | None) -> Any:
    data = plain_data(root) if root is not None else None
    return {} if data is None else data


def _same(left: Any, right: Any) -> bool:
    """Return True if the data are equal; 1, 1.0 and true are not."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def _place(data: Any, key: str) -> Any:
    """The index of `key` in `data`; None if it is missing."""
    if isinstance(data, dict):
        return key if key in data else None
    if not isinstance(data, list):
        return None
    names = [
        (entry.get("instance_id"), entry.get("module"))
        if isinstance(entry, dict)
        else (None, entry)
        for entry in data
    ]
    return _entry_index(names, key)


def _set(data: Any, keys: Sequence[str], value: Any) -> None:
    key, *rest = keys
    place = _place(data, key)
    if rest:
        below = None if place is None else data[place]
        if isinstance(data, list) and isinstance(below, str):
            below = {"module": below}
        below = {} if below is None else below
        _set(below, rest, value)
        value = below
    index: Any = key if place is None else place
    data[index] = value


def _append(data: Any, keys: Sequence[str], value: Any) -> None:
    existing: Any = data
    for key in keys:
        place = _place(existing, key)
        existing = None if place is None else existing[place]
    _set(data, keys, [*(existing or ()), value])


def _remove(data: Any, keys: Sequence[str]) -> None:
    for key in keys[:-1]:
        data = data[_place(data, key)]
    del data[_place(data, keys[-1])]


def _outermost_emptied(data: Any, keys: Sequence[str]) -> Sequence[str] | None:
    """The address of the outermost value that contains nothing else than the value at `keys`."""
    outermost = 0
    for depth, key in enumerate(keys):
        place = _place(data, key)
        if place is None:
            return None
        outermost = outermost if len(data) == 1 else depth
        data = data[place]
    return keys[: outermost + 1]


# -- files -------------------------------------------------------------------------------


def _read(file: Path) -> str:
    if not os.path.lexists(file):
        return ""
    data = read_bytes(file, str(file), "the file")
    problems = Problems()
    read_yaml(data, str(file), problems)
    problems.raise_if_any()
    return data.decode()
