"""Where each value of a YAML text begins and ends, for editing one of them in place."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml

from amplifier_app.base.errors import Location

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


def read_spans(text: str, file: str) -> Span | None:
    """The values of a text that is a valid YAML document; None if it is empty."""
    # Without libyaml: its marks count bytes or characters, depending on how it was built.
    events = iter(list(yaml.parse(text, Loader=yaml.SafeLoader)))
    marks: dict[str, list[int]] = {"-": [], ":": []}
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        if isinstance(token, yaml.BlockEntryToken):
            marks["-"].append(token.start_mark.index)
        elif isinstance(token, yaml.ValueToken):
            marks[":"].append(token.start_mark.index)
    builder = _Builder(yaml, text, file, marks)
    for event in events:
        if isinstance(event, yaml.NodeEvent):
            return builder.node(event, events)
    return None


class _Builder:
    def __init__(self, yaml: Any, text: str, file: str, marks: dict[str, list[int]]) -> None:
        self._yaml = yaml
        self._text = text
        self._file = file
        self._marks = marks

    def node(self, event: Any, events: Any) -> Span:
        yaml = self._yaml
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
        yaml = self._yaml
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
        yaml = self._yaml
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
