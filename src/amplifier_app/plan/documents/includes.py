"""`@path/to/file` on a line of an instruction is replaced by the file's text.

The path is relative to the file that names it; `~` is the home folder. Included text is literal:
`${…}` is not expanded, but it may include other files.

In a bundle, a sentence may also mention `@namespace:path`. The sentence stays unchanged, and the
file's text is appended to the instruction, like that of files under `context.include`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.plan.documents.document import ContextFile, Origin
from amplifier_app.plan.tree.nodes import MAX_BYTES, MAX_PROBLEMS, MapNode, Scalar, read_text
from amplifier_app.plan.tree.yaml_reader import decode, read_bytes
from amplifier_support.include_lines import include_lines

if TYPE_CHECKING:
    from amplifier_app.plan.documents.document import DocumentReader, Listed
    from amplifier_app.plan.tree.problems import Problems

MAX_DEPTH = 10

_NAMESPACE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]+:[^/\\].*")
_MENTION = re.compile(r"(?<![\w@./-])@([A-Za-z][\w.-]*:[\w-][\w./-]*[\w-])")
_CODE = re.compile(r"(`+).*?\1")
_CONTEXT_FORMS = ("{}", "{}.md", "context/{}", "context/{}.md")


class Includer:
    """Expands the includes in the instructions of one document.

    Args:
        document: The document. In a published one a line `@namespace:path` without a matching
            file is kept, with a warning.
        reader: Reads it; provides its text and the namespaces, and collects the problems.

    Attributes:
        read: Every file that was read, by its name in problems.
    """

    def __init__(self, document: Origin, reader: DocumentReader) -> None:
        self.read: dict[str, Path] = {}
        self._origin = document
        self._document = Origin(document.file, Path(os.path.normpath(document.path)))
        self._reader = reader
        self._problems = reader.problems
        self._places = _Places(reader.problems)
        self._done: dict[Path, str] = {}
        self._mentioned: dict[str, Location] = {}

    def fill(self, node: Scalar) -> Scalar:
        """The instruction with its includes expanded, or unchanged if there are problems."""
        try:
            return self._expand(node)
        except _TooLarge:
            return node

    def context(self, files: Iterable[Listed]) -> Iterator[ContextFile]:
        """The files that a bundle lists for its instruction, and the files these mention."""
        for file in files:
            path = self._context_path(file.text, file.at)
            if path is None:
                continue
            try:
                self._mentioned = {}
                if path not in self._done:
                    this = Origin(self._shown(path), path)
                    self._done[path] = self._text(this, file.text, file.at, [self._document])
                yield ContextFile(file.text, path, self._done[path], file.at)
                yield from self._mentioned_files()
            except _TooLarge:
                continue

    def _expand(self, node: Scalar) -> Scalar:
        text = str(node.value)
        if "@" not in text:
            return node
        reported = len(self._problems)
        self._mentioned = {}
        places = self._places
        places.begin(node.at)
        lines = self._lines(text, [self._document], lambda _number, _line, word: places.of(word))
        # A `$` in included text must not start a variable.
        parts = [
            line.replace("$", "$$") if is_included and not node.literal else line
            for line, is_included in lines
        ]
        filled = node._replace(value=self._join_within_limit(parts, node.at))
        filled = _append_files(filled, list(self._mentioned_files()))
        self._join_within_limit([str(filled.value)], node.at)
        return node if len(self._problems) > reported else filled

    def _mentioned_files(self) -> Iterator[ContextFile]:
        """The files that sentences mention, and the files these mention."""
        done: set[str] = set()
        while waiting := [name for name in self._mentioned if name not in done]:
            for name in waiting:
                done.add(name)
                at = self._mentioned[name]
                path = self._in_namespace(name, at, self._document.path)
                if path is None or path in self._done:
                    continue
                this = Origin(self._shown(path), path)
                self._done[path] = self._text(this, name, at, [self._document])
                yield ContextFile(f"@{name}", path, self._done[path], at)

    def _context_path(self, text: str, at: Location) -> Path | None:
        if _NAMESPACE.fullmatch(text):
            match = self._reader.namespaces.find(
                self._document.path, text, _CONTEXT_FORMS, self._origin.name
            )
            if match.path is None:
                hint = match.hint(self._shown)
                self._problems.add(f"the context file {text!r} does not exist", at, hint)
            return match.path
        folder = self._document.path.parent
        forms = [form.format(os.path.expanduser(text)) for form in _CONTEXT_FORMS]
        tried = [Path(os.path.normpath(folder / form)) for form in forms]
        may_read = self._reader.namespaces.may_read
        for path in tried:
            if path.is_file() and may_read(self._document.path, path):
                return path
        hint = f"searched {', '.join(map(self._shown, tried))}"
        self._problems.add(f"the context file {text!r} does not exist", at, hint)
        return None

    def _shown(self, path: Path) -> str:
        return self._reader.namespaces.shown(path, self._origin.file, self._origin.path)

    def _join_within_limit(self, parts: list[str], at: Location) -> str:
        """Join the lines, up to the size limit."""
        size = sum(map(len, parts)) + len(parts)
        if size <= MAX_BYTES:
            return "\n".join(parts)
        message = f"larger than {MAX_BYTES // 1024} KiB with its includes"
        self._problems.add(message, at)
        raise _TooLarge

    def _include(self, target: str, at: Location, opened: list[Origin]) -> str:
        if self._problems.is_full:
            return ""
        parent = opened[-1]
        relative = os.path.expanduser(target)
        path = Path(os.path.normpath(parent.path.parent / relative))
        file = str(Path(parent.file).parent / relative)
        if _NAMESPACE.fullmatch(target):
            file_path = self._in_namespace(target, at, parent.path)
            if file_path is None:
                return f"@{target}"
            path, file = file_path, self._shown(file_path)
        elif self._origin.bundle and not self._may_include(parent, path, target, at):
            return f"@{target}"
        if path in self._done:
            return self._done[path]
        seen = [origin.path for origin in opened]
        if path in seen:
            names = [origin.file for origin in opened[seen.index(path) :]]
            self._problems.add_cycle("include", names, at)
        elif len(opened) > MAX_DEPTH:
            self._problems.add(f"includes are nested more than {MAX_DEPTH} levels deep", at)
        else:
            self._done[path] = self._text(Origin(file, path), target, at, opened)
            return self._done[path]
        return ""

    def _may_include(self, parent: Origin, path: Path, target: str, at: Location) -> bool:
        """Return True if a bundle may include a file; if not, the line is kept, with a warning."""
        why = None
        if not self._reader.namespaces.may_read(parent.path, path):
            why = "is outside the fetched files"
        elif not path.is_file():
            why = "does not exist"
        if why is not None:
            message = f"the included file {target!r} {why}; the line is kept as is"
            self._problems.note(message, at)
        return why is None

    def _in_namespace(self, target: str, at: Location, document: Path) -> Path | None:
        origin = self._origin
        namespaces = self._reader.namespaces
        message = f"'@{target}' names a file in an unknown bundle or collection"
        if not origin.published:
            self._problems.add(message, at, f"to keep the text as is, write '@@{target}'")
            return None
        match = namespaces.find(document, target, _CONTEXT_FORMS, origin.name)
        if match.path is None:
            if any(path.is_dir() for path in match.tried):
                message = f"'@{target}' is a folder, not a file"
            elif match.tried:
                message = f"'@{target}' does not exist: {match.hint(self._shown)}"
            self._problems.note(f"{message}; the line is kept as is", at)
        return match.path

    def _text(self, this: Origin, target: str, at: Location, opened: list[Origin]) -> str:
        if not this.path.is_file():
            what = "is not a file" if this.path.exists() else "does not exist"
            hint = f"to keep the text as is, write '@@{target}'"
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

        def place(number: int, line: str, word: str) -> Location:
            return Location(this.file, number, line.find(word) + 1)

        parts = [line for line, _ in self._lines(text, [*opened, this], place)]
        return self._join_within_limit(parts, Location(this.file))

    def _lines(
        self, text: str, opened: list[Origin], place: Callable[[int, str, str], Location]
    ) -> Iterator[tuple[str, bool]]:
        """The lines of `text`, includes replaced by their text, and whether each was an include.

        Args:
            text: The text.
            opened: The files that are being read, the one of `text` last.
            place: Locates a word, by the number of its line and the line; called in order.
        """
        for number, (line, include, is_literal) in enumerate(include_lines(text), 1):
            if include is not None:
                yield self._include(include, place(number, line, f"@{include}"), opened), True
                continue
            if self._origin.bundle and "@" in line and not is_literal:
                for match in _MENTION.finditer(_CODE.sub("", line)):
                    if match[1] not in self._mentioned:
                        self._mentioned[match[1]] = place(number, line, f"@{match[1]}")
            yield line, False


class _TooLarge(Exception):
    """Stops the expansion; the problem has been reported."""


def with_context(document: MapNode, files: Sequence[ContextFile]) -> MapNode:
    """A plan or an agent with files appended to its instruction, each once."""
    once: dict[Path, ContextFile] = {}
    for file in files:
        once.setdefault(file.path, file)
    files = list(once.values())
    if not files:
        return document
    node = document.items.get("instruction")
    if not isinstance(node, Scalar) or read_text(node) is None:
        node = Scalar("", files[0].at, plain=False, literal=True)
    return document.with_item("instruction", _append_files(node, files))


def _append_files(instruction: Scalar, files: Sequence[ContextFile]) -> Scalar:
    parts = [str(instruction.value)] if instruction.value else []
    for file in files:
        text = f"# Context: {file.name}\n\n{file.text}"
        parts.append(text if instruction.literal else text.replace("$", "$$"))
    return instruction._replace(value="\n\n".join(parts))


class _Places:
    """Locates the includes of texts in their files, in order.

    Args:
        problems: It has the text of each file.
    """

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._files: dict[str, list[str]] = {}
        # A word that is written with escapes is not found; each costs a look at the whole file.
        self._misses = 0

    def begin(self, start: Location) -> None:
        """Go to the start of a text."""
        if start.file not in self._files:
            self._files[start.file] = self._problems.text(start.file).splitlines()
        self._lines = self._files[start.file]
        self._start = start
        self._next = (start.line or 1) - 1

    def of(self, include: str) -> Location:
        """The location of the next one; the start of the text if it is not found."""
        if self._misses > MAX_PROBLEMS:
            return self._start
        for index in range(self._next, len(self._lines)):
            column = self._lines[index].find(include)
            if column >= 0:
                self._next = index + 1
                return Location(self._start.file, index + 1, column + 1)
        self._misses += 1
        return self._start
