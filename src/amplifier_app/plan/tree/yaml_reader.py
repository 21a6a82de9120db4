"""YAML text → a tree of nodes, by the rules of PyYAML's safe loader and a few stricter ones.

The document is built from libyaml's *events*, not by its recursive composer, so deep nesting is an
error instead of a crash, and the size of expanded aliases is known before they are expanded.
Stricter: keys are unique, only YAML's own scalar tags are allowed, keys are always strings (`on:` is
the key "on"), and dates stay strings, because a plan contains only JSON types.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, cast

from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.base.paths import bundled_profiles_dir
from amplifier_app.plan.tree.nodes import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_NUMBER_LENGTH,
    MAX_REPEATED,
    MAX_TOTAL_BYTES,
    MAX_VALUES,
    ListNode,
    MapNode,
    Node,
    Scalar,
    ScalarValue,
)
from amplifier_app.plan.tree.problems import Problems
from amplifier_support.files import read_file, read_file_or_stream
from amplifier_support.named_tuple import NamedTuple

_TAG = "tag:yaml.org,2002:"
_MISPLACED = ("mapping values are not", "did not find expected key", "did not find expected '-'")
_SCALAR_TAGS = {_TAG + kind for kind in ("null", "bool", "int", "float", "str", "timestamp")}
_MERGE = "<<"
_NO_KEY = "\0"

STORED = "trees.json"
"""File next to the bundled profiles with their text, number of values and tree, so that a start imports no
YAML: `tests/meta/profile_trees.py` writes it."""

_MAX_DIRECTIVES = 100
"""Lines such as `%TAG`, which libyaml compares with each other."""


class _Weight(NamedTuple):
    """The cost of repeating a node for an alias: values, and characters of scalars and keys."""

    values: int
    characters: int


class _Open:
    """A container being read; `weight` counts it and everything in it."""

    def __init__(self, at: Location, is_map: bool, anchor: str | None) -> None:
        self.at = at
        self.is_map = is_map
        self.anchor = anchor
        self.items: list[Node] = []
        self.entries: dict[str, Node] = {}
        self.keys: dict[str, Location] = {}
        self.merged: list[MapNode] = []
        self.key: str | None = None
        self.key_at: Location | None = None
        self.weight = _Weight(1, 0)

    def grow(self, values: int, characters: int) -> None:
        self.weight = _Weight(self.weight.values + values, self.weight.characters + characters)


class _Stop(Exception):
    """Stops reading; the reason has been added to the problems."""


def read_bytes(path: Path, file: str, what: str, *, may_be_stream: bool = False) -> bytes:
    """The content of a file, at most one byte more than the size limit.

    Args:
        path: The file.
        file: Its name in problems and origins.
        what: What it is, for the message.
        may_be_stream: Also read a pipe or a device that the user names, such as `/dev/fd/63`.

    Raises:
        ConfigError: It cannot be read, or nothing comes for too long.
    """
    read = read_file_or_stream if may_be_stream else read_file
    try:
        return read(path, MAX_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"cannot read {what}: {reason}", location=Location(file)) from error


def read_yaml(data: bytes, file: str, problems: Problems) -> Node | None:
    """The document in `data`.

    Args:
        data: The bytes of the file, UTF-8 with or without a byte order mark, at most 1 MiB.
        file: The name of the file in problems and origins.
        problems: Collects the problems.

    Returns:
        The tree, or None if the text is empty or cannot be parsed. If problems were added, the
        tree is only good for finding more of them.
    """
    text = decode(data, file, problems)
    if text is None:
        return None
    problems.add_text(file, text)
    if (stored := _read_stored(text, file, problems)) is not None:
        return stored
    directives = [match.start() for match in re.finditer(r"(?m)^%", text)]
    if len(directives) > _MAX_DIRECTIVES:
        line = text.count("\n", 0, directives[_MAX_DIRECTIVES]) + 1
        problems.add(f"more than {_MAX_DIRECTIVES} directives", Location(file, line))
        return None
    try:
        return _Reader(text, file, problems).read()
    except _Stop:
        return None


def _read_stored(text: str, file: str, problems: Problems) -> Node | None:
    """The tree of a bundled profile, if it is stored for this text."""
    folder, name = os.path.split(file)
    if folder != str(bundled_profiles_dir()):
        return None
    try:
        stored = json.loads(read_file(Path(folder, STORED), MAX_BYTES))[name]
    except (OSError, ValueError, KeyError):  # missing from another way to install: YAML has it all
        return None
    if stored["text"] != text or not problems.budget.spend("values", stored["values"]):
        return None
    return _restore(stored["tree"], file)


def _restore(stored: list[Any], file: str) -> Node:
    """A node from its line, column and content, and for a scalar whether it is plain."""
    line, column, content, *plain = stored
    at = Location(file, line, column)
    if plain:
        return Scalar(content, at, plain=plain[0])
    if isinstance(content, list):
        return ListNode([_restore(item, file) for item in cast("list[Any]", content)], at)
    keys = {key: Location(file, *place) for key, (_, *place) in content.items()}
    return MapNode({key: _restore(node, file) for key, (node, *_) in content.items()}, at, keys)


def decode(data: bytes, file: str, problems: Problems) -> str | None:
    """The text of a file, without a byte order mark; None if it is not valid."""
    if len(data) > MAX_BYTES:
        problems.add(f"larger than {MAX_BYTES // 1024} KiB", Location(file))
        return None
    if not problems.budget.spend("bytes", len(data)):
        most = MAX_TOTAL_BYTES // 1024 // 1024
        problems.add(f"the documents of the plan are larger than {most} MiB", Location(file))
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problems.add(
            f"byte 0x{data[error.start]:02x} is not UTF-8 text",
            Location(file, line),
            "save the file as UTF-8",
        )
        return None


def plain_scalar(text: str) -> ScalarValue:
    """Parse `text` as one unquoted YAML scalar."""
    import yaml

    loader = yaml.SafeLoader("")
    tag = str(loader.resolve(yaml.ScalarNode, text, (True, False)))
    if tag not in _SCALAR_TAGS or tag in (_TAG + "str", _TAG + "timestamp"):
        return text
    if len(text) > MAX_NUMBER_LENGTH:
        return text
    value: ScalarValue = loader.construct_object(yaml.ScalarNode(tag, text))
    return value


class _Reader:
    def __init__(self, text: str, file: str, problems: Problems) -> None:
        import yaml

        self._yaml = yaml
        self._file = file
        self._text = text
        self._problems = problems
        self._anchors: dict[str, Node] = {}
        self._weights: dict[int, _Weight] = {}
        self._open: list[_Open] = []
        self._root: Node | None = None

    def read(self) -> Node | None:
        yaml = self._yaml
        loader_class: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            loader = loader_class(self._text)
            try:
                documents = 0
                while loader.check_event():
                    event = loader.get_event()
                    if isinstance(event, yaml.DocumentStartEvent):
                        documents += 1
                        if documents > 1:
                            self._fail("a second document starts here", event, "remove the '---'")
                    self._take(event, loader)
            finally:
                loader.dispose()
        except yaml.reader.ReaderError as error:
            self._unreadable(error)
        except yaml.MarkedYAMLError as error:
            self._syntax_error(error)
        return self._root

    def _take(self, event: Any, loader: Any) -> None:
        yaml = self._yaml
        if isinstance(event, yaml.ScalarEvent):
            self._spend(1, event)
            weight = _Weight(1, len(event.value))
            self._add(self._scalar(event, loader), event, weight)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            self._start(event, isinstance(event, yaml.MappingStartEvent))
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._end(event)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event)

    def _start(self, event: Any, is_map: bool) -> None:
        if len(self._open) >= MAX_DEPTH:
            self._fail(f"nested more than {MAX_DEPTH} levels deep", event)
        self._spend(1, event)
        expected = _TAG + ("map" if is_map else "seq")
        if event.tag not in (None, "!", expected):
            self._bad_tag(event)
        parent = self._open[-1] if self._open else None
        # The location of a block is that of its key.
        at = parent.key_at if parent and parent.key is not None and parent.key_at else None
        self._open.append(_Open(at or self._at(event), is_map, event.anchor))

    def _end(self, event: Any) -> None:
        done = self._open.pop()
        if done.is_map:
            entries, keys = done.entries, done.keys
            for source in done.merged:
                for key, value in source.items.items():
                    if key not in entries:
                        entries[key] = value
                        keys[key] = source.key_at(key)
            node: Node = MapNode(entries, done.at, keys)
        else:
            node = ListNode(done.items, done.at)
        if done.anchor:
            self._anchors[done.anchor] = node
            self._weights[id(node)] = done.weight
        self._add(node, event, done.weight)

    def _alias(self, event: Any) -> None:
        node = self._anchors.get(event.anchor)
        if node is None:
            if any(container.anchor == event.anchor for container in self._open):
                self._fail(f"*{event.anchor} contains itself", event)
            self._fail(f"*{event.anchor} is not defined before this line", event)
            return
        weight = self._weights[id(node)]
        self._spend(weight.values, event)
        if not self._problems.budget.spend("repeated", weight.characters):
            most = MAX_REPEATED // 1024
            self._fail(f"aliases repeat more than {most} KiB of text", event)
        self._add(node, event, weight)

    def _spend(self, count: int, event: Any) -> None:
        if not self._problems.budget.spend("values", count):
            message = f"the plan has more than {MAX_VALUES} values, counting what aliases repeat"
            self._fail(message, event)

    def _add(self, node: Node, event: Any, weight: _Weight) -> None:
        anchor = getattr(event, "anchor", None)
        if anchor and isinstance(node, Scalar):
            self._anchors[anchor] = node
            self._weights[id(node)] = weight
        if not self._open:
            self._root = node
            return
        parent = self._open[-1]
        parent.grow(*weight)
        if not parent.is_map:
            parent.items.append(node)
        elif parent.key is None:
            self._take_key(parent, node, event)
        else:
            self._take_value(parent, node, event)

    def _take_key(self, parent: _Open, node: Node, event: Any) -> None:
        if isinstance(node, Scalar):
            parent.key_at = self._at(event)
            # The text as written: YAML 1.1 would parse an unquoted `on` as a boolean.
            parent.key = event.value if hasattr(event, "value") else str(node.value)
            return
        self._problems.add("a key must be a string", node.at)
        parent.key_at, parent.key = node.at, _NO_KEY

    def _take_value(self, parent: _Open, node: Node, event: Any) -> None:
        key, parent.key = parent.key, None
        at = parent.key_at or self._at(event)
        assert key is not None
        if key == _MERGE:
            self._merge(parent, node, at, event)
        elif key == _NO_KEY:
            return
        elif key in parent.entries:
            first = parent.keys[key].line
            self._problems.add(
                f"duplicate key {key!r}: first on line {first}", at, "keep one of them"
            )
        else:
            parent.entries[key] = node
            parent.keys[key] = at

    def _merge(self, parent: _Open, node: Node, at: Location, event: Any) -> None:
        sources = node.items if isinstance(node, ListNode) else [node]
        for source in sources:
            if isinstance(source, MapNode):
                self._spend(len(source.items), event)
                parent.grow(len(source.items), 0)
                parent.merged.append(source)
            else:
                self._problems.add("'<<' merges mappings only", at, "use an *alias of a mapping")

    def _scalar(self, event: Any, loader: Any) -> Scalar:
        yaml = self._yaml
        at = self._at(event)
        plain = event.style in (None, "")
        tag = event.tag
        if tag in (None, "!"):
            tag = loader.resolve(yaml.ScalarNode, event.value, event.implicit)
            if tag not in _SCALAR_TAGS:
                tag = _TAG + "str"
        elif tag not in _SCALAR_TAGS:
            self._bad_tag(event)
            tag = _TAG + "str"
        value = self._construct(loader, tag, event)
        return Scalar(value, at, plain=plain)

    def _construct(self, loader: Any, tag: str, event: Any) -> ScalarValue:
        if tag in (_TAG + "str", _TAG + "timestamp"):
            return event.value
        if len(event.value) > MAX_NUMBER_LENGTH:
            kind = tag.removeprefix(_TAG)
            message = f"a YAML {kind} of {len(event.value)} characters"
            hint = f"numbers have at most {MAX_NUMBER_LENGTH}; put quotes around other text"
            self._problems.add(message, self._at(event), hint)
            return None
        try:
            node = self._yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark)
            return loader.construct_object(node)
        except (ValueError, KeyError, OverflowError):
            kind = tag.removeprefix(_TAG)
            self._problems.add(f"{event.value!r} is not a YAML {kind}", self._at(event))
            return None

    def _bad_tag(self, event: Any) -> None:
        shown = event.tag.replace(_TAG, "!!")
        self._problems.add(f"the tag {shown} is not allowed", self._at(event), "remove it")

    def _at(self, event: Any) -> Location:
        mark = event.start_mark
        return Location(self._file, mark.line + 1, mark.column + 1)

    def _fail(self, message: str, event: Any, hint: str | None = None) -> None:
        self._problems.add(message, self._at(event), hint)
        raise _Stop

    def _syntax_error(self, error: Any) -> None:
        mark = error.problem_mark or error.context_mark
        message = f"not valid YAML: {error.problem or error.context}"
        if error.context and error.problem:
            message += f" {error.context}"
        if "nesting depth" in (error.problem or ""):
            # Scanners of newer PyYAML have a limit of their own, and look ahead to it.
            message = f"nested more than {MAX_DEPTH} levels deep"
        elif error.context_mark and mark and error.context_mark.line != mark.line:
            message += f" that starts on line {error.context_mark.line + 1}"
        at = Location(self._file, mark.line + 1, mark.column + 1) if mark else Location(self._file)
        self._problems.add(message, at, self._syntax_hint(at, error.problem or ""))
        raise _Stop

    def _syntax_hint(self, at: Location, problem: str) -> str | None:
        lines = self._text.splitlines()
        line = lines[at.line - 1] if at.line and at.line <= len(lines) else ""
        if re.match(r"\s*\t", line):
            return "indent with spaces, not tabs"
        if re.match(r"\s*(- )?[\w.-]+:\S", line):
            return "a ':' needs a space after it"
        if re.match(r"[^'\"#]*:\s+[^'\"#\[{]*:\s", line):
            return "put quotes around a value that contains ': '"
        if re.match(r".*:\s+[@`%]", line):
            return "put quotes around a value that starts with @, ` or %"
        if "expected ':'" in problem:
            return "put ':' and a space after the key"
        if problem.startswith(_MISPLACED):
            return "keys of one mapping, and entries of one list, start in the same column"
        return None

    def _unreadable(self, error: Any) -> None:
        position = int(error.position)
        line = self._text.count("\n", 0, position) + 1
        column = position - (self._text.rfind("\n", 0, position) + 1) + 1
        character = error.character
        code = character if isinstance(character, int) else ord(str(character)[:1] or "\0")
        self._problems.add(
            f"the control character U+{code:04X} is not allowed in YAML",
            Location(self._file, line, column),
            "remove it",
        )
        raise _Stop
