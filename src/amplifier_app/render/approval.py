"""A tool call to be approved, as lines for a terminal: a diff, a command or readable values."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, cast

from amplifier_app.base.json_text import value_text
from amplifier_app.base.paths import short_path
from amplifier_app.base.sanitize import visible
from amplifier_app.render.ansi import cells, clip, paint, wrapped
from amplifier_app.render.diff import DiffLine, FileDiff, compare, diff_lines, summary
from amplifier_app.render.markdown import markdown_lines
from amplifier_app.runtime import describe
from amplifier_core.approval import ToolApproval
from amplifier_support.fields import to_mapping
from amplifier_support.files import open_regular
from amplifier_support.named_tuple import NamedTuple

_MAX_CHANGED = 24
_MAX_LINES = 24
_CONTEXT = 3
_MAX_ALL = 1000
_WIDE_CONTEXT = 500
_MAX_COMPARED = 4_000_000
"""Lines of the old text times lines of the new text from which all count as changed."""
_LARGEST_FILE = 2 * 1024 * 1024
_MAX_LINE = 100_000
_WIDEST_FRAME = 120
_NARROWEST_FRAME = 30
_SHORTEST_RANGE = 24
_KEY_COLUMN = 8
_OPTIONS = ("session", "always", "outside")
"""Words in the options of a request besides yes and no."""
_ACTIONS = {"edit_file": "Edit", "write_file": "Write", "bash": "Run", "web_fetch": "Fetch"}
_PATHS = ("file_path", "path", "filename")
_TOKENS = re.compile(
    r"""(?P<string>'[^']*'|"(?:[^"\\]|\\.)*")|(?P<risky>[;&|<>()`]+|\$\(|\$\{?\w+\}?|\\[ux]\w+)"""
    r"""|(?P<option>(?<=\s)--?[\w-]+)"""
)
_TOKEN_STYLES = {"string": "green", "risky": "bold yellow", "option": "cyan"}

_Edit = tuple[str, str, bool]
"""Text to replace, its replacement, and whether to replace every occurrence."""


class _Change(NamedTuple):
    """The change of one file that a call makes.

    Attributes:
        path: The file.
        old: Its text; None if there is none to show.
        new: The text after the call.
        notes: What the user should know about it.
        is_refused: Whether the tool will refuse it; `old` and `new` then come from its edits.
    """

    path: str
    old: str | None
    new: str
    notes: list[str]
    is_refused: bool = False


def card_lines(
    request: ToolApproval,
    agent: str,
    width: int,
    *,
    whole: bool = False,
    height: int | None = None,
    framed: bool = True,
    all_key: str = "v",
) -> list[str]:
    """Return what a call would do, as lines of at most `width` cells.

    Args:
        request: The call.
        agent: The agent that makes it; empty for the session itself.
        width: The cells of a line.
        whole: Show all of it, and of an edit the whole file.
        height: The number of lines if not all is shown, as far as possible.
        framed: Draw a frame; without one, lines are only indented.
        all_key: The key that shows all of it.
    """
    framed = framed and width >= _NARROWEST_FRAME
    width = min(width, _WIDEST_FRAME) if framed else width
    inner = width - 4 if framed else width - 2
    change = None if request.is_proposal else find_change(request.tool_input, request.working_dir)
    diff = None
    if change is not None:
        context = _WIDE_CONTEXT if whole and not change.is_refused else _CONTEXT
        diff = _compare_texts(change.old or "", change.new, change.path, context)
    name, about, right = _heading(request, agent, diff)
    head = _top(name, about, right, inner) if framed else None
    above = [] if head is not None else _header(name, about, right, inner if framed else width)
    notes = _card_notes(request, change, inner)
    taken = len(notes) + len(above) + (head is not None) + framed
    room = _MAX_ALL if whole or height is None else max(height - taken, 3)
    if diff is not None:
        hint = "" if whole else f" ({all_key} shows them)"
        show = partial(diff_lines, diff, inner, fill=framed, hint=hint)
        body = _edit_lines(show, room, whole=whole)
    else:
        body = _call_body(request, inner, room, all_key, whole=whole)
    if framed:
        # A heading that does not fit between the corners is below them.
        lines = [*above, *body, *notes]
        return _frame(head or _top("", "", "", inner) or "", lines, inner)
    return [*above, *(f"  {line}" for line in (*body, *notes))]


def _heading(request: ToolApproval, agent: str, diff: FileDiff | None) -> tuple[str, str, str]:
    """The action, what it is about, and what is shown at the right: changes, and the position of the call."""
    action = _ACTIONS.get(request.tool_name, request.tool_name)
    action = "Proposal" if request.is_proposal else action
    right = [summary([diff])] if diff else []
    if request.total > 1:
        right.append(f"{request.position} of {request.total}")
    name = visible(f"{agent}: {action}" if agent else action, 200)
    return name, visible(diff.path, _MAX_LINE) if diff else "", " · ".join(right)


def _card_notes(request: ToolApproval, change: _Change | None, width: int) -> list[str]:
    notes = [] if change is None else list(change.notes)
    if change is not None and change.old == change.new and not notes:
        notes = ["the file already has this content"]
    if request.reason:
        because = "asking because " if request.reason.startswith("it ") else ""
        notes.append(because + request.reason)
    rows = (row for note in notes for row in wrapped(visible(note, 1000), width))
    return [paint(row, "yellow") for row in rows]


def _edit_lines(show: Callable[..., list[str]], room: int, *, whole: bool) -> list[str]:
    """The changes, with as many of them as fit `room` lines."""
    limit, context = (_MAX_ALL, _WIDE_CONTEXT) if whole else (_MAX_CHANGED, _CONTEXT)
    lines = show(limit=limit, context=context)
    for fewer in range(min(limit, room) - 1, 0, -1):
        if whole or len(lines) <= room:
            break
        lines = show(limit=fewer, context=context)
    return lines


def _call_body(
    request: ToolApproval, width: int, room: int, all_key: str, *, whole: bool
) -> list[str]:
    """The input of a call, or a proposal."""
    limit = room if request.is_proposal else min(_MAX_LINES, room)
    lines = [*(_proposal_lines if request.is_proposal else _input_lines)(request, width)]
    if whole or len(lines) <= limit:
        return lines
    left = describe.count(len(lines) - limit + 1, "more line")
    return [*lines[: limit - 1], paint(f"… {left} ({all_key} shows them)", "dim")]


def _frame(top: str, lines: list[str], inner: int) -> list[str]:
    side = paint("│", "accent")
    rows = [f"{side} {line}{' ' * (inner - cells(line))} {side}" for line in lines]
    return [top, *rows, paint(f"╰{'─' * (inner + 2)}╯", "accent")]


def _top(name: str, about: str, right: str, inner: int) -> str | None:
    """Return the upper side of a frame with what is in it; None if that does not fit."""
    left = f"{paint(name, 'bold accent')}  {about}" if about else paint(name, "bold accent")
    room = inner + 2 - sum(cells(part) + 2 for part in (left, right) if part)
    if room < 1:
        return None
    begin, end = (f" {part} " if part else "" for part in (left, paint(right, "dim")))
    # One cell of the line is left after the text at the right.
    after = 1 if right else 0
    line = paint("─" * (room - after), "accent")
    return f"{paint('╭', 'accent')}{begin}{line}{end}{paint('─' * after + '╮', 'accent')}"


def key_lines(
    request: ToolApproval,
    width: int,
    *,
    range_: int | None = None,
    more: bool = False,
    shows_all: bool = False,
    names: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """Return the keys that answer the question: one line as far as possible, and more on request.

    Args:
        request: The call.
        width: The cells of a line.
        range_: The position of the calls that an answer applies to; by default the usual one.
        more: Show all keys.
        shows_all: The card has nothing more to show.
        names: The keys that the user has chosen instead of the usual ones.
    """

    def named(*items: str) -> list[str]:
        parts = [item.split(" ", 1) for item in items]
        return [f"{names.get(key, key)} {text}" for key, text in parts]

    if request.is_proposal:
        keys = ["g go, asking for edits", "a go in auto", "e edit", "c comment", "n no"]
        return _joined(named(*keys, *([] if shows_all else ["v show all of it"])), "   ", width)
    calls = range_text(request, range_)
    offered = {word: any(word in option.lower() for option in request.options) for word in _OPTIONS}
    items = named("y yes", *([f"p yes to {calls}"] if offered["session"] else []))
    items += named("n no", "t no, because …", "? less" if more else "? more")
    needed = sum(map(cells, items))
    gap = "   " if needed + 3 * (len(items) - 1) <= width else "  "
    spare = width - needed - len(gap) * (len(items) - 1)
    if spare < 0 and offered["session"]:
        items[1] = clip(items[1], max(cells(items[1]) + spare, _SHORTEST_RANGE))
    lines = _joined(items, gap, width)
    if not more:
        return lines
    rest: list[tuple[str, str]] = []
    if offered["session"]:
        rest.append(("p", f"yes to {calls}, in this session"))
    if offered["always"]:
        folder, file = (short_path(path or "") for path in (request.working_dir, request.stored_in))
        where = visible(f"{folder}, stored in {file}", 400)
        rest.append(("P", f"the same, also in later sessions in {where}"))
    if offered["session"] and len(request.ranges) > 1:
        rest.append(("← →", "fewer or more calls"))
        rest += [("e", "type how the commands start")] if "command" in request.tool_input else []
    if offered["outside"]:
        rest.append(("o", "yes, once and outside the sandbox, with all your rights"))
    rest += [*([] if shows_all else [("v", "show all of it")]), ("Esc", "no")]
    rest.append(("Ctrl-C", "stop the prompt"))
    for key, text in rest:
        first, *others = wrapped(text, max(width - _KEY_COLUMN, _SHORTEST_RANGE))
        lines.append(f"{names.get(key, key):<{_KEY_COLUMN}}{first}")
        lines += [" " * _KEY_COLUMN + other for other in others]
    return lines


STARTS = "commands that start with "
"""The beginning of a range of commands, before their first words."""


def range_text(request: ToolApproval, range_: int | None = None) -> str:
    """The calls that an answer which is remembered applies to."""
    position = request.usual_range if range_ is None else range_
    known = 0 <= position < len(request.ranges)
    return visible(request.ranges[position] if known else "exactly this call", 400)


def _joined(items: list[str], gap: str, width: int) -> list[str]:
    lines = [""]
    for item in items:
        joined = f"{lines[-1]}{gap}{item}" if lines[-1] else item
        if cells(joined) <= width:
            lines[-1] = joined
        else:
            lines += wrapped(item, width)
    return [line for line in lines if line]


def find_change(
    values: Mapping[str, Any], folder: str, unsaved: str | None = None
) -> _Change | None:
    """Return what a call of a tool that changes one file would change, without doing it.

    Args:
        values: The input of the call.
        folder: Where relative paths start.
        unsaved: The text of the file, if it is not the saved one.
    """
    path = next((values[key] for key in _PATHS if isinstance(values.get(key), str)), None)
    content, edits = values.get("content"), _edits(values)
    if path is None or not (isinstance(content, str) or edits):
        return None
    old, notes = _current_text(path, folder) if unsaved is None else (unsaved, [])
    if isinstance(content, str):
        is_unreadable = old is None and bool(notes)
        return _Change(path, old, content, notes or ["a new file"] * (old is None), is_unreadable)
    if old is None:
        notes = notes or ["the file does not exist"]
    else:
        new, problem = _apply_edits(old, edits)
        if not problem:
            return _Change(path, old, new, notes)
        notes = [*notes, problem]
    removed, added = "\n".join(edit[0] for edit in edits), "\n".join(edit[1] for edit in edits)
    return _Change(path, removed, added, notes, is_refused=True)


def _wrapped_lines(text: str, width: int) -> list[str]:
    lines = (visible(line, _MAX_LINE) for line in text.split("\n"))
    return [part for line in lines for part in wrapped(line, width)]


def _header(name: str, about: str, right: str, width: int) -> list[str]:
    left = f"{name}  {about}" if about else name
    painted = left.replace(name, paint(name, "bold accent"), 1)
    room = width - cells(left) - cells(right)
    if not right:
        return [painted] if room >= 0 else wrapped(left, width)
    if room >= 2:
        return [f"{painted}{' ' * room}{paint(right, 'dim')}"]
    return [*(wrapped(left, width) if cells(left) > width else [painted]), paint(right, "dim")]


def _input_lines(request: ToolApproval, width: int) -> Iterator[str]:
    values = dict(request.tool_input)
    command = values.pop("command", None)
    if isinstance(command, str):
        mark = "$ "
        for part in _wrapped_lines(command, width - 2):
            yield mark + highlighted(part)
            mark = "  "
    elif command is not None:
        values["command"] = command
    for key, value in values.items():
        first, *rest = _wrapped_lines(value_text(value), max(width - cells(key) - 2, 10))
        label = visible(key, 60)
        yield f"{paint(label + ':', 'dim')} {first}"
        yield from (f"{' ' * cells(label)}  {part}" for part in rest)


def _proposal_lines(request: ToolApproval, width: int) -> Iterator[str]:
    proposal = str(request.tool_input.get("proposal", ""))
    text = "\n".join(visible(line, _MAX_LINE) for line in proposal.split("\n"))
    yield from markdown_lines(text, width)
    todos = request.tool_input.get("todos")
    steps = [to_mapping(todo).get("content") for todo in todos] if isinstance(todos, list) else []
    if steps:
        yield ""
    for step in steps:
        first, *rest = wrapped(visible(str(step), 400), width - 2)
        yield f"☐ {first}"
        yield from (f"  {part}" for part in rest)


def highlighted(command: str) -> str:
    """Return a line of a command with what joins, redirects or expands marked."""
    return _TOKENS.sub(lambda match: paint(match[0], _TOKEN_STYLES[match.lastgroup or ""]), command)


def _edits(values: Mapping[str, Any]) -> list[_Edit]:
    listed = values.get("edits")
    items = cast("list[Any]", listed) if isinstance(listed, list) else [values]
    edits: list[_Edit] = []
    for edit in map(to_mapping, items):
        old, new = edit.get("old_string"), edit.get("new_string")
        if not isinstance(old, str) or not isinstance(new, str) or not old:
            return []
        edits.append((_lf(old), _lf(new), edit.get("replace_all") is True))
    return edits


def _apply_edits(text: str, edits: list[_Edit]) -> tuple[str, str]:
    """The text after the edits, and why the tool will refuse them, if it will."""
    for old, new, everywhere in edits:
        count = text.count(old)
        if not count:
            return text, "the text to replace is not in the file"
        if count > 1 and not everywhere:
            return text, f"the text to replace is in the file {count} times"
        text = text.replace(old, new)
    return text, ""


def _compare_texts(old: str, new: str, path: str, context: int) -> FileDiff:
    """The changes from one text to another, quickly also for long ones, with the lines around."""
    before, after = _visible_lines(old).split("\n"), _visible_lines(_lf(new)).split("\n")
    shared = min(len(before), len(after))
    start = next((n for n in range(shared) if before[n] != after[n]), shared)
    rest = shared - start
    end = next((n for n in range(rest) if before[-1 - n] != after[-1 - n]), rest)
    stop = len(after) - end
    above = [DiffLine(" ", n + 1, after[n]) for n in range(max(start - context, 0), start)]
    lines = len(after) - (after[-1] == "")  # nothing follows the last line break
    below = [DiffLine(" ", n + 1, after[n]) for n in range(stop, min(stop + context, lines))]
    changes = _changes(before[start : len(before) - end], after[start:stop])
    return FileDiff(
        path,
        [*above, *(change._replace(number=change.number + start) for change in changes), *below],
    )


def _changes(old: list[str], new: list[str]) -> list[DiffLine]:
    if len(old) * len(new) > _MAX_COMPARED:
        removed = [DiffLine("-", number, line) for number, line in enumerate(old, 1)]
        return [*removed, *(DiffLine("+", number, line) for number, line in enumerate(new, 1))]
    lines = compare("\n".join(old), "\n".join(new)).lines if old and new else []
    if not lines:
        mark, only = ("-", old) if old else ("+", new)
        return [DiffLine(mark, number, line) for number, line in enumerate(only, 1)]
    return lines[1:] if lines[0].mark == "@" else lines


def _visible_lines(text: str) -> str:
    if re.fullmatch(r"[\x20-\x7e\n\t]*", text):
        return text
    return "\n".join(visible(line, _MAX_LINE) for line in text.split("\n"))


def _lf(text: str) -> str:
    return text.replace("\r\n", "\n")


def _current_text(path: str, folder: str) -> tuple[str | None, list[str]]:
    """The text of a file, None if it has none to show; and notes on it."""
    if "\0" in path:
        return None, ["the path contains a NUL character"]
    written = os.path.normpath(os.path.join(folder, path))
    real = os.path.realpath(written)
    notes: list[str] = []
    if real != written:
        notes.append(f"leads to {real}")
        if os.path.commonpath([real, os.path.realpath(folder)]) != os.path.realpath(folder):
            return None, notes
    try:
        descriptor = open_regular(real, os.O_RDONLY)
    except FileNotFoundError:
        return None, notes
    except OSError as error:
        return None, [*notes, f"cannot read the file: {error.strerror}"]
    with open(descriptor, "rb") as file:
        data = file.read(_LARGEST_FILE + 1)
    if len(data) > _LARGEST_FILE:
        return None, [*notes, "the file is too large to compare"]
    if b"\0" in data:
        return None, [*notes, "the file is not text"]
    return _lf(data.decode("utf-8", "replace")), notes
