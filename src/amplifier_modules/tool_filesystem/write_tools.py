"""The tools that change files: `write_file` and `edit_file`."""

from __future__ import annotations

import contextlib
import re
from abc import abstractmethod
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import accumulate
from typing import Any, ClassVar

from amplifier_core.events import ARTIFACT_WRITE
from amplifier_core.models import ToolResult
from amplifier_modules._shared.files import Location, exists, off_loop, read_whole
from amplifier_modules._shared.module.spans import event_ids
from amplifier_modules._shared.module.tools import InvalidInput, object_schema, parameter
from amplifier_modules.tool_filesystem.read_tools import ListDirectory, ReadFile
from amplifier_modules.tool_filesystem.workspace import (
    FILE_ALIASES,
    PATH,
    WHOLE,
    Coding,
    FileProblem,
    FilesystemConfig,
    FilesystemTool,
    NothingToChange,
    TextNotFound,
    TextNotUnique,
    Workspace,
    all_crlf,
    decode,
    for_model,
    line_end,
    with_line_end,
)
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.session_capabilities import tool_check

_MAX_LINES = 50_000
"""Lines searched: a message is not worth more time."""

_MAX_COMPARISONS = 500
_MAX_COMPARED = 300
_LEAST_ALIKE = 0.6
_OFTEN = 20
_SHOWN_LINES = 20
_SHOWN_CHARACTERS = 2_000


class Near(NamedTuple):
    """Lines `at` to `end` (from 0, without `end`), and how they differ from the wanted text."""

    at: int
    end: int
    difference: str


def missing(text: str, old: str) -> str:
    """The message for missing `old`: the nearest text, with its lines."""
    lines = text.split("\n")
    near = _near([line.strip() for line in lines[:_MAX_LINES]], old)
    if near is None:
        return (
            "old_string is not in the file, and no similar text was found; "
            "read the file again and copy the text exactly"
        )
    excerpt, cut = _shown(lines[near.at : near.end])
    where = f"line {near.at + 1}" if near.end == near.at + 1 else f"lines {near.at + 1}-{near.end}"
    more = " (cut here; read the file from there)" if cut else ""
    return (
        f"old_string is not in the file; the text at {where} {near.difference}. "
        f"Copy it exactly:\n{excerpt}{more}"
    )


def _near(lines: Sequence[str], old: str) -> Near | None:
    """The nearest place in `lines`, which have no surrounding white space."""
    old_lines = [line.strip() for line in old.strip().splitlines()]
    if not any(old_lines):
        return None
    for at in range(len(lines) - len(old_lines) + 1):
        # Most lines differ: compared first, so that no others are copied.
        if lines[at] == old_lines[0] and lines[at : at + len(old_lines)] == old_lines:
            return Near(at, at + len(old_lines), "differs only in white space")
    return _most_lines_alike(lines, old_lines) or _most_alike_line(lines, old_lines)


def _most_lines_alike(lines: Sequence[str], old_lines: Sequence[str]) -> Near | None:
    """The place where most of the wanted lines are at the same distance from each other."""
    if len(old_lines) < 2:
        return None
    offsets: dict[str, list[int]] = {}
    for offset, line in enumerate(old_lines):
        offsets.setdefault(line, []).append(offset)
    votes: Counter[int] = Counter()
    for number, line in enumerate(lines):
        of = offsets.get(line)
        # Braces and blank lines are everywhere and say nothing.
        if of is not None and len(line) > 2 and len(of) <= _OFTEN:
            for offset in of:
                votes[number - offset] += len(line)
    if not votes:
        return None
    first = max(votes, key=lambda at: (votes[at], -at))
    at, end = max(0, first), min(len(lines), first + len(old_lines))
    same = sum(lines[n] == old_lines[n - first] for n in range(at, end))
    return Near(at, end, f"is the nearest, with {same} of {len(old_lines)} lines the same")


def _most_alike_line(lines: Sequence[str], old_lines: Sequence[str]) -> Near | None:
    """The line most like the longest wanted line."""
    offset, key = max(enumerate(old_lines), key=lambda item: len(item[1]))
    key = key[:_MAX_COMPARED]
    # The sequence that takes longest to prepare is the second.
    matcher = SequenceMatcher(None, "", key, autojunk=False)
    best, index, compared = _LEAST_ALIKE, None, 0
    for number, line in enumerate(lines):
        if not len(key) / 3 <= len(line) <= len(key) * 3 + 20:
            continue
        matcher.set_seq1(line[:_MAX_COMPARED])
        if matcher.real_quick_ratio() <= best or matcher.quick_ratio() <= best:
            continue
        compared += 1
        ratio = matcher.ratio()
        if ratio > best:
            best, index = ratio, number
        if compared >= _MAX_COMPARISONS:
            break
    if index is None:
        return None
    at = max(0, index - offset)
    end = min(len(lines), at + len(old_lines))
    return Near(at, end, "is the nearest")


def _shown(lines: Sequence[str]) -> tuple[str, bool]:
    text = "\n".join(line.removesuffix("\r") for line in lines[:_SHOWN_LINES])
    cut = len(lines) > _SHOWN_LINES or len(text) > _SHOWN_CHARACTERS
    return text[:_SHOWN_CHARACTERS], cut


_SHOWN_PLACES = 10


class Edit(NamedTuple):
    """Text to replace, its replacement, and whether to replace every occurrence."""

    old: str
    new: str
    everywhere: bool = False


class Change(NamedTuple):
    """`text[start:end]` becomes `new`."""

    start: int
    end: int
    new: str


class Edited(NamedTuple):
    """A text after its edits, the changes in order, and the number of places changed."""

    text: str
    changes: list[Change]
    places: int


def apply_edits(text: str, edits: Sequence[Edit]) -> Edited:
    """Apply all of `edits` to `text`, each to the result of the one before.

    Raises:
        FileProblem: An edit cannot be made; if there are several, the message says which.
    """
    combined: list[Change] = []
    places = 0
    outcome = text
    for number, edit in enumerate(edits, 1):
        try:
            step = changes(outcome, edit)
        except FileProblem as error:
            if len(edits) == 1:
                raise
            which = f"edit {number} of {len(edits)}"
            raise type(error)(f"{which}: {error}\nNo edit was made.") from None
        combined = _combine_changes(combined, step, outcome)
        outcome = apply(outcome, step)
        places += len(step)
    if outcome == text:
        raise NothingToChange("the edits cancel each other out: nothing would change")
    return Edited(outcome, combined, places)


def changes(text: str, edit: Edit) -> list[Change]:
    """Return the places of the edit's old text in `text` with their replacements.

    A line end in it matches LF and CR LF; a replacement gets the line ends of what it replaces.

    Raises:
        TextNotFound: It is missing; the message shows the nearest text.
        TextNotUnique: It occurs more than once and `replace_all` is not set.
        NothingToChange: The old and the new text are the same.
    """
    old, new, everywhere = edit
    if not old:
        raise TextNotFound("old_string is empty; use write_file to replace the whole file")
    if with_line_end(old, "\n") == with_line_end(new, "\n"):
        raise NothingToChange("old_string and new_string are the same")
    spans = list(_matches(text, old, overlapping=not everywhere))
    if not spans:
        raise TextNotFound(missing(text, old))
    if len(spans) > 1 and not everywhere:
        places = [str(text.count("\n", 0, start) + 1) for start, _ in spans[:_SHOWN_PLACES]]
        more = ", …" if len(spans) > _SHOWN_PLACES else ""
        raise TextNotUnique(
            f"old_string occurs {len(spans)} times, at lines {', '.join(places)}{more}; "
            "include more of the surrounding text, or set replace_all"
        )
    usual = line_end(text)
    return [Change(start, end, _fitted(text[start:end], new, usual)) for start, end in spans]


def apply(text: str, changes: Sequence[Change]) -> str:
    """`text` with the changes, which are in order and do not overlap."""
    parts: list[str] = []
    at = 0
    for change in changes:
        parts += (text[at : change.start], change.new)
        at = change.end
    return "".join([*parts, text[at:]])


def _combine_changes(
    first: Sequence[Change], second: Sequence[Change], between: str
) -> list[Change]:
    """The changes equal to `first` followed by `second` on its result, `between`.

    All are in order; changes of the two that touch become one.
    """
    if not first:
        return list(second)
    result: list[Change] = []
    later = deque(second)
    shift = 0  # how far text after the changes of `first` so far has moved
    earlier = deque(_moved(first))
    while earlier or later:
        start = min(waiting[0].start for waiting in (earlier, later) if waiting)
        end, moved = start, shift
        inner: list[Change] = []
        while True:
            if earlier and earlier[0].start <= end:
                change = earlier.popleft()
                moved += change.grown
                end = max(end, change.end)
            elif later and later[0].start <= end:
                inner.append(later.popleft())
                end = max(end, inner[-1].end)
            else:
                break
        within = [Change(c.start - start, c.end - start, c.new) for c in inner]
        result.append(Change(start - shift, end - moved, apply(between[start:end], within)))
        shift = moved
    return result


class _Moved(NamedTuple):
    """The position of a change's new text, and how much longer it is than the old text."""

    start: int
    end: int
    grown: int


def _moved(changes: Sequence[Change]) -> list[_Moved]:
    moved: list[_Moved] = []
    shift = 0
    for change in changes:
        start = change.start + shift
        grown = len(change.new) - (change.end - change.start)
        moved.append(_Moved(start, start + len(change.new), grown))
        shift += grown
    return moved


def _matches(text: str, old: str, *, overlapping: bool) -> Iterator[tuple[int, int]]:
    plain = with_line_end(old, "\n")
    if "\r" in text and "\n" in plain:
        pattern = "\r?\n".join(map(re.escape, plain.split("\n")))
        if not overlapping:
            yield from (match.span() for match in re.finditer(pattern, text))
            return
        for match in re.finditer(f"(?=({pattern}))", text):
            yield match.span(1)
        return
    at = text.find(plain)
    while at >= 0:
        yield at, at + len(plain)
        at = text.find(plain, at + (1 if overlapping else len(plain)))


def _fitted(replaced: str, new: str, usual: str) -> str:
    return with_line_end(new, line_end(replaced) if "\n" in replaced else usual)


CONTEXT = 3
"""Unchanged lines around a change in a diff."""


def unified_diff(path: str, text: str, changes: Sequence[Change]) -> str:
    """The changes as a unified diff; takes time proportional to the changes, not the file."""
    lines = _lines(text)
    starts = [0, *accumulate(map(len, lines))]
    output = [f"--- a/{path}\n", f"+++ b/{path}\n"]
    shift = 0
    for first, last, group in _windows(changes, starts, len(lines)):
        before = lines[first:last]
        within = [Change(c.start - starts[first], c.end - starts[first], c.new) for c in group]
        after = _lines(apply("".join(before), within))
        output += _hunks(before, after, first, first + shift)
        shift += len(after) - len(before)
    return "".join(output)


def _lines(text: str) -> list[str]:
    # Not splitlines, which also splits at characters that do not end a line in a file.
    lines = text.split("\n")
    kept = [line + "\n" for line in lines[:-1]]
    return [*kept, lines[-1]] if lines[-1] else kept


def _windows(
    changes: Sequence[Change], starts: Sequence[int], count: int
) -> Iterator[tuple[int, int, list[Change]]]:
    """(first line, line after the last, changes) of ranges whose context lines do not touch."""
    first, last, group = 0, 0, list[Change]()
    for change in changes:
        begin = max(0, bisect_right(starts, change.start) - 1 - CONTEXT)
        end = min(count, bisect_right(starts, change.end) + CONTEXT)
        if group and begin > last:
            yield first, last, group
            group = []
        first = begin if not group else first
        last = end
        group.append(change)
    if group:
        yield first, last, group


def _hunks(before: list[str], after: list[str], old_at: int, new_at: int) -> Iterator[str]:
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    for group in matcher.get_grouped_opcodes(CONTEXT):
        (_, i1, _, j1, _), (_, _, i2, _, j2) = group[0], group[-1]
        old = _range(old_at + i1, i2 - i1)
        yield f"@@ -{old} +{_range(new_at + j1, j2 - j1)} @@\n"
        for tag, a1, a2, b1, b2 in group:
            if tag == "equal":
                yield from (_marked(" ", line) for line in before[a1:a2])
                continue
            yield from (_marked("-", line) for line in before[a1:a2])
            yield from (_marked("+", line) for line in after[b1:b2])


def _range(start: int, length: int) -> str:
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"


def _marked(mark: str, line: str) -> str:
    if line.endswith("\n"):
        return mark + line.removesuffix("\n").removesuffix("\r") + "\n"
    return f"{mark}{line}\n\\ No newline at end of file\n"


LARGEST_EDIT = 64 * 1024 * 1024
"""Bytes of the largest file that can be edited: it is held in memory several times."""

_MAX_DIFF = 20_000

_EDIT: dict[str, Any] = {
    "old_string": parameter("string", "Text to replace, exactly as in the file", minLength=1),
    "new_string": parameter("string", "Replacement text"),
    "replace_all": parameter("boolean", "Replace every occurrence; default: false"),
}


class ChangingTool(FilesystemTool):
    """A tool that changes a file, and can tell before that a call will fail."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self._failed: dict[str, ToolResult] = {}

    @abstractmethod
    async def rehearse(self, values: dict[str, Any]) -> ToolResult:
        """Do what `run` does without changing anything."""

    async def check(self, input: Mapping[str, Any], span: str | None = None) -> bool:
        """The capability `*.check`: true if a call cannot succeed."""
        # Hooks get aliases, too.
        known = {
            name: value for name, value in input.items() if name in self.input_schema["properties"]
        }
        result = await self.run_checked(self.rehearse, known)
        if span is not None and not result.success:
            self._failed[span] = result
        return not result.success

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        failed = self._failed.pop(str(event_ids().get("span_id")), None)
        return await super().execute(input) if failed is None else failed


class WriteFile(ChangingTool):
    name = "write_file"
    description = (
        "Write a whole text file: create it, with its folders, or replace it. Use "
        "edit_file to change part of a file."
    )
    input_aliases: ClassVar[Mapping[str, str]] = FILE_ALIASES
    input_schema: ClassVar[dict[str, Any]] = object_schema(
        "file_path",
        "content",
        file_path=PATH,
        content=parameter("string", "The complete new content"),
    )

    async def rehearse(self, values: dict[str, Any]) -> ToolResult:
        locate = self._workspace.locate_for_writing
        # Missing folders are created.
        with contextlib.suppress(FileNotFoundError), locate(values["file_path"]) as location:
            _like_the_old_file(location, values["content"])
            await self._workspace.read_unsaved(location, to_change=True)  # for the question
        return ToolResult()

    async def run(self, values: dict[str, Any]) -> ToolResult:
        locate = self._workspace.locate_for_writing
        async with self._workspace.changing:
            with locate(values["file_path"], create_parents=True) as location:
                data, kept = _like_the_old_file(location, values["content"])
                unsaved = (
                    None
                    if kept is None
                    else await self._workspace.read_unsaved(location, to_change=True)
                )
                await self._workspace.write(location, data, values["content"], unsaved)
                path = location.path
        await self._workspace.report(ARTIFACT_WRITE, path, len(data))
        note = f"; kept its {kept}" if kept else ""
        done = "created" if kept is None else "replaced"
        return ToolResult(output=f"{done} {values['file_path']} ({len(data)} bytes{note})")


class EditFile(ChangingTool):
    name = "edit_file"
    description = (
        "Replace old_string with new_string in a file. old_string must occur "
        "exactly once unless replace_all is true. Use edits for several changes to one file: each "
        "applies to the result of the one before; all are made or none. Returns a diff."
    )
    input_aliases: ClassVar[Mapping[str, str]] = FILE_ALIASES
    input_schema: ClassVar[dict[str, Any]] = object_schema(
        "file_path",
        file_path=PATH,
        **_EDIT,
        edits={
            "type": "array",
            "minItems": 1,
            "description": "Several edits, instead of old_string and new_string",
            "items": object_schema("old_string", "new_string", **_EDIT),
        },
    )

    async def rehearse(self, values: dict[str, Any]) -> ToolResult:
        edits = _edits(values)
        with self._workspace.locate_for_writing(values["file_path"]) as location:
            size, unsaved = (
                location.stat().st_size,
                await self._workspace.read_unsaved(location, to_change=True),
            )
            await off_loop(size, lambda: _edit(location, edits, unsaved))
        return ToolResult()

    async def run(self, values: dict[str, Any]) -> ToolResult:
        edits = _edits(values)
        async with self._workspace.changing:
            with self._workspace.locate_for_writing(values["file_path"]) as location:
                unsaved = await self._workspace.read_unsaved(location, to_change=True)
                size = location.stat().st_size
                before, after, data = await off_loop(size, lambda: _edit(location, edits, unsaved))
                await self._workspace.write(location, data, after.text, unsaved)
                path = location.path
        await self._workspace.report(ARTIFACT_WRITE, path, len(data))
        return ToolResult(output=_describe_edit(values["file_path"], before, after))


def _edits(values: dict[str, Any]) -> list[Edit]:
    single = [key for key in _EDIT if key in values]
    if "edits" not in values:
        for key in ("old_string", "new_string"):
            if key not in values:
                raise InvalidInput(f"the parameter {key!r} is required, unless 'edits' is given")
        return [_one(values)]
    if single:
        raise InvalidInput(f"'edits' and {single[0]!r} are mutually exclusive")
    return [_one(edit) for edit in values["edits"]]


def _one(values: dict[str, Any]) -> Edit:
    return Edit(values["old_string"], values["new_string"], values.get("replace_all", False))


def _like_the_old_file(location: Location, content: str) -> tuple[bytes, str | None]:
    """`content` as bytes in the encoding and line ends of the file it replaces.

    Second: None for a new file, otherwise what was preserved, for the model.
    """
    if not exists(location):
        return Coding().encode(content), None
    try:
        text, coding = decode(read_whole(location, WHOLE))
    except FileProblem:
        return Coding().encode(content), ""
    kept: list[str] = []
    if all_crlf(text) and "\r" not in content and "\n" in content:
        content = with_line_end(content, "\r\n")
        kept.append("CRLF line endings")
    try:
        data = coding.encode(content)
    except FileProblem:
        return Coding().encode(content), ", ".join(kept)
    if coding.encoding != "utf-8" and not content.isascii():
        kept.append(f"encoding {coding.encoding}")
    return data, ", ".join(kept)


def _edit(location: Location, edits: list[Edit], unsaved: str | None) -> tuple[str, Edited, bytes]:
    """Return the text of a file, or the unsaved one, the outcome of the edits, and that as bytes."""
    if unsaved is None:
        text, coding = decode(read_whole(location, LARGEST_EDIT))
    else:
        text, coding = unsaved, Coding()
    outcome = apply_edits(text, edits)
    return text, outcome, coding.encode(outcome.text)


def _describe_edit(path: str, text: str, edited: Edited) -> str:
    """The number of places and the diff, for the model."""
    diff = for_model(unified_diff(path, text, edited.changes))
    if len(diff) > _MAX_DIFF:
        head = diff[: diff.rfind("\n", 0, _MAX_DIFF) + 1]
        lines = diff.count("\n")
        diff = f"{head}[{lines - head.count(chr(10))} of {lines} lines of the diff not shown]\n"
    places = f"{edited.places} places" if edited.places > 1 else "1 place"
    return f"edited {path} in {places}\n{diff}"


async def mount(coordinator: Any, settings: FilesystemConfig) -> None:
    """Mount `read_file`, `write_file`, `edit_file` and `list_directory`.

    Settings as in `FilesystemConfig`.
    """
    # They share the session's allowed folders.
    workspace = Workspace(coordinator, settings)
    for kind in (ReadFile, WriteFile, EditFile, ListDirectory):
        tool = kind(workspace)
        await coordinator.mount("tools", tool, name=kind.name)
        if isinstance(tool, ChangingTool):
            tool_check(kind.name).register(coordinator, tool.check)
