"""`@path/to/file` as a line of an instruction: the file's text in its place.

The path starts from the file that names it, `~` is the home folder. What is included is text as
it is: `${…}` means nothing in it, but it may include files itself. `@@` at the beginning of such
a line stands for one `@`, and lines of code between ``` or ~~~ are left alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from amplifier_app.errors import ConfigError, Location
from amplifier_app.plan.nodes import Scalar
from amplifier_app.plan.places import in_collection
from amplifier_app.plan.problems import Problems
from amplifier_app.plan.reading import Origin
from amplifier_app.plan.yaml_reader import decode, read_bytes

MAX_DEPTH = 10
MAX_BYTES = 1024 * 1024

_LINE = re.compile(r"[ \t]*@(@*)([^\s@]\S*)[ \t]*")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_NAMESPACE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]+:[^/\\].*")


class _Open(NamedTuple):
    """A file that is being read; `file` is how it is called."""

    file: str
    path: Path


class Includer:
    """Fills in what the instructions of one document include.

    Args:
        document: The document. In a published one a line `@collection:path` stays, with a note,
            if there is no such file.
        problems: Gets everything that is wrong; knows the document's text.

    Attributes:
        read: Every file that was read, as problems call it.
    """

    def __init__(self, document: Origin, problems: Problems) -> None:
        self.read: dict[str, Path] = {}
        self._origin = document
        self._document = _Open(document.file, Path(os.path.normpath(document.path)))
        self._problems = problems
        self._done: dict[Path, str] = {}

    def fill(self, node: Scalar) -> Scalar:
        """The instruction with its includes in place, or as it is if something is wrong."""
        try:
            return self._filled(node)
        except _TooLarge:
            return node

    def _filled(self, node: Scalar) -> Scalar:
        text = str(node.value)
        if "@" not in text:
            return node
        told = len(self._problems)
        places = _Places(self._problems.text(node.at.file), node.at)
        parts: list[str] = []
        for line, include in _lines(text):
            if include is None:
                parts.append(line)
                continue
            found = self._included(include, places.of(f"@{include}"), [self._document])
            # A `$` of what is included must not be taken for a variable.
            parts.append(found if node.literal else found.replace("$", "$$"))
        filled = self._limited(parts, node.at)
        return node if len(self._problems) > told else node._replace(value=filled)

    def _limited(self, parts: list[str], at: Location) -> str:
        """The lines in one, if they are not too many."""
        size = sum(map(len, parts)) + len(parts)
        if size <= MAX_BYTES:
            return "\n".join(parts)
        message = f"larger than {MAX_BYTES // 1024} KiB with its includes"
        self._problems.add(message, at)
        raise _TooLarge

    def _included(self, target: str, at: Location, opened: list[_Open]) -> str:
        parent = opened[-1]
        relative = os.path.expanduser(target)
        path = Path(os.path.normpath(parent.path.parent / relative))
        file = str(Path(parent.file).parent / relative)
        if _NAMESPACE.fullmatch(target):
            found = self._in_collection(target, at)
            if found is None:
                return f"@{target}"
            path, file = found, str(found)
        if path in self._done:
            return self._done[path]
        seen = [one.path for one in opened]
        if path in seen:
            names = [one.file for one in opened[seen.index(path) :]]
            cycle = " → ".join([*names, names[0]])
            self._problems.add(f"the include goes in a circle: {cycle}", at, "remove one of them")
        elif len(opened) > MAX_DEPTH:
            self._problems.add(f"includes are nested more than {MAX_DEPTH} deep", at)
        else:
            self._done[path] = self._text(_Open(file, path), target, at, opened)
            return self._done[path]
        return ""

    def _in_collection(self, target: str, at: Location) -> Path | None:
        origin = self._origin
        found = in_collection(origin.path, target, own=origin.name) if origin.published else None
        if found is None:
            message = f"'@{target}' names a file of a collection, which is not known here"
            if origin.published:
                self._problems.note(f"{message}; the line stays as it is", at)
            else:
                self._problems.add(message, at, f"for the text itself write '@@{target}'")
        return found

    def _text(self, this: _Open, target: str, at: Location, opened: list[_Open]) -> str:
        if not this.path.is_file():
            what = "is not a file" if this.path.exists() else "does not exist"
            hint = f"for the text itself write '@@{target}'"
            self._problems.add(f"the included file {target!r} {what}", at, hint)
            return ""
        try:
            data = read_bytes(this.path, this.file, "the included file")
        except ConfigError as error:
            self._problems.add(f"{error.message}: {target!r}", at)
            return ""
        self.read[this.file] = this.path
        text = decode(data, this.file, self._problems)
        if text is None:
            return ""
        self._problems.add_text(this.file, text)
        text = text.replace("\r\n", "\n").rstrip()
        parts: list[str] = []
        for number, (line, include) in enumerate(_lines(text), 1):
            if include is None:
                parts.append(line)
            else:
                column = line.index("@") + 1
                place = Location(this.file, number, column)
                parts.append(self._included(include, place, [*opened, this]))
        return self._limited(parts, Location(this.file))


class _TooLarge(Exception):
    """The problem has been told; going on would only make it larger."""


def escaped(text: str) -> str:
    """The text written so that it means itself: no line of it includes anything."""
    return "\n".join(
        re.sub("@", "@@", line, count=1) if _LINE.fullmatch(line) and not fenced else line
        for line, fenced in _fenced_lines(text)
    )


def _lines(text: str) -> Iterator[tuple[str, str | None]]:
    """The lines as they are to be, and for each that is an include what it names."""
    for line, fenced in _fenced_lines(text):
        match = None if fenced else _LINE.fullmatch(line)
        if match is None:
            yield line, None
        elif match[1]:
            yield line.replace("@@", "@", 1), None
        else:
            yield line, match[2]


def _fenced_lines(text: str) -> Iterator[tuple[str, bool]]:
    """The lines, and whether each is code between fences."""
    fence = ""
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if fence:
            yield line, True
            if match and match[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        else:
            fence = match[1] if match else ""
            yield line, bool(fence)


class _Places:
    """Where the includes of a text stand in the file, looked for from its beginning on."""

    def __init__(self, text: str, start: Location) -> None:
        self._lines = text.splitlines()
        self._start = start
        self._next = (start.line or 1) - 1

    def of(self, include: str) -> Location:
        for index in range(self._next, len(self._lines)):
            column = self._lines[index].find(include)
            if column >= 0:
                self._next = index + 1
                return Location(self._start.file, index + 1, column + 1)
        return self._start
