"""Compares each model request of a session with the one before it, and records the result.

Providers cache the beginning of a request. A request can use the cache as far as it begins with the
same bytes as the request before it, to the same model; texts that were for that request only do not
count. `requests.jsonl` in the session's folder has one line for each request: the sections after those
it shares with the line before, each with its origin, size and hash, and the first byte that differs.
"""

from __future__ import annotations

import logging
import marshal
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from amplifier_app.base.errors import Location
from amplifier_app.base.redact import redact
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.runtime.request_sections import (
    TOOL_FIELDS,
    Piece,
    Section,
    find_context_place,
    find_instruction_place,
    find_model_place,
    find_module_place,
    find_skill_place,
    find_tool_entry,
    split_message,
    split_tool,
)
from amplifier_app.sessions.folder import SavedSession, now
from amplifier_core._foreign import describe_exception
from amplifier_core.events import CONTEXT_POST_COMPACT
from amplifier_support import journal
from amplifier_support.fields import content_key, read_field, to_mapping
from amplifier_support.files import read_regular
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.session_capabilities import SentRequest
from amplifier_support.text import common_length, lazy_pattern

logger = logging.getLogger(__name__)

FILE = "requests.jsonl"

_WINDOW = 2000
"""Bytes around a difference that are searched for secrets and times."""
_EXCERPT = 60
_Key = tuple[int, str | None, bytes | None]
"""Number and hook of a message, and its content."""
_TIME = lazy_pattern(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?"
    r"|\b\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?\b|\b1\d{9}(?:\d{3})?(?:\.\d+)?\b"
)
"""A date, a time of day, or seconds or milliseconds since the epoch."""


class Difference(NamedTuple):
    """The first byte of a request that is not as in the request before it.

    Attributes:
        byte: Its offset, from 0.
        is_exact: False if only the section is known, which begins at `byte`: its earlier text was not
            stored.
        is_break: True if it is in what the next request should have begun with; False for texts that
            hooks had added to one request only.
        kind: The origin: as `Piece.kind`, or `model`, or `compaction`.
        name: See `Piece.name`; for `model` the two models.
        change: `changed`, `added`, `removed` or `moved`.
        is_time: True if it is part of a date or a time.
        message: The number of its message in the request, from 1; 0 if it is not in one.
        file: The file of the origin; None if it is unknown.
        line: The line in it.
        by: The hook that changed the message, with its place in the plan; empty if none did.
        before: The line around it in the earlier request, cut and without secrets.
        after: The same line in this request.
    """

    byte: int
    is_exact: bool
    is_break: bool
    kind: str
    name: str
    change: str
    is_time: bool = False
    message: int = 0
    file: str | None = None
    line: int | None = None
    by: str = ""
    before: str = ""
    after: str = ""

    @property
    def origin(self) -> str:
        """The origin for people: `hook stamp (plan.yaml:7), a time`."""
        number = f"message {self.message}"
        named = {
            "instruction": "instruction",
            "file": "instruction file",
            "compaction": f"compaction at {number}",
            "message": f"{number}, {self.name}",
        }
        text = named.get(self.kind, f"{self.kind} {self.name}")
        if self.change != "changed":
            text += f" {self.change}"
        if self.file is not None:
            text += f" ({Location(self.file, self.line)})"
        if self.is_time:
            text += ", a time"
        return f"{text}, by {self.by}" if self.by else text

    def __str__(self) -> str:
        return f"{'byte' if self.is_exact else 'after byte'} {self.byte:,}: {self.origin}"


class LoggedRequest(NamedTuple):
    """A request as the log has it.

    Attributes:
        number: Its number in the session, from 1.
        step: The number of the answer that it asks for; several requests for one answer failed or
            were repeated, up to the last.
        time: When it was sent, as metadata has it.
        provider: The name of the provider.
        model: The model, if known.
        size: Its bytes.
        stable: Its bytes without the texts that are for this request only.
        same: The bytes that it has in common with the beginning of the request before it; None if
            there is none.
        difference: The first byte that differs; None if there is none.
    """

    number: int
    step: int
    time: str
    provider: str
    model: str | None
    size: int
    stable: int
    same: int | None
    difference: Difference | None

    @property
    def target(self) -> tuple[str, str | None]:
        """Provider and model, which have a cache of their own."""
        return self.provider, self.model


def read_requests(session: Path) -> list[LoggedRequest]:
    """The requests in the log of a session; none if there is no log. Raises OSError."""
    return [request for request, _ in _read_log(session)]


def _read_log(session: Path) -> Iterator[tuple[LoggedRequest, list[Section]]]:
    """Yield each request with its sections, in a list that the next one to that model changes.

    The list is empty if the sections are unknown.

    Raises:
        OSError: The log cannot be read.
    """
    try:
        records = journal.readable_records(read_regular(session / FILE))
    except FileNotFoundError:
        return
    last, sections = None, list[Section]()
    for record in records:
        try:
            request, keep, added = _read_record(record)
        except (KeyError, TypeError, ValueError):
            logger.debug("%s: skipped an invalid record", session / FILE)
            continue
        if last is not None and request.number != last.number + 1:
            sections = []
        elif last is not None and last.target != request.target:
            sections = sections[:keep]
        # After a lost record, what later ones share with it is unknown.
        sections[keep:] = added if keep <= len(sections) else []
        last = request
        yield request, sections


def _read_record(record: dict[str, Any]) -> tuple[LoggedRequest, int, list[Section]]:
    """Raises KeyError, TypeError or ValueError."""
    keep, added, difference = record.pop("keep"), record.pop("sections"), record["difference"]
    record["difference"] = None if difference is None else Difference(**difference)
    numbers = (keep, *(record[name] for name in ("number", "step", "size", "stable")))
    if not all(isinstance(number, int) for number in numbers):
        raise TypeError
    return LoggedRequest(**record), keep, [Section(*each) for each in added]


class _Earlier(NamedTuple):
    """The counterpart of a comparison: the sections of the request before, and their bytes.

    Attributes:
        stable: The sections that the next request should begin with.
        tail: Those for that request only; empty if they are not known.
        size: The bytes of `stable`.
    """

    stable: Sequence[Section]
    tail: Sequence[Section]
    size: int


class RequestLog:
    """The requests of one session; see the capability `session.request_log`.

    Args:
        coordinator: The coordinator of the session.
        plan: Its plan.
        saved: The saved session, if there is one.

    Attributes:
        breaks: The requests that could not use the cache, each with the reason.
        count: The number of requests of this process.
    """

    def __init__(
        self, coordinator: Any, plan: ResolvedPlan, saved: SavedSession | None = None
    ) -> None:
        self._coordinator = coordinator
        self._plan = plan
        self._saved = saved
        self.breaks: list[str] = []
        self.count = 0
        self._pieces: dict[_Key, list[Section]] = {}
        self._last: LoggedRequest | None = None
        self._by_model: dict[tuple[str, str | None], _Earlier] = {}
        self._sections: Sequence[Section] = ()
        self._was_compacted = False
        self._has_failed = False
        coordinator.hooks.register(
            CONTEXT_POST_COMPACT, self._on_compaction, name="app-request-log"
        )
        if saved is not None and saved.size:
            self._restore(saved.path)

    def _restore(self, folder: Path) -> None:
        try:
            for request, sections in _read_log(folder):
                self._last, self._sections = request, sections
                self._by_model[request.target] = _Earlier(sections, (), request.stable)
        except OSError as error:
            self._report(error)

    def _on_compaction(self, event: str, data: Any) -> None:
        self._was_compacted = True

    def note(self, sent: SentRequest) -> None:
        """Compare a request with the one before it, and record it."""
        try:
            self._note(sent)
        # Messages and tools come from modules and may hold anything; a request needs no record of it.
        except Exception as error:
            self._report(error)

    def _note(self, sent: SentRequest) -> None:
        stable, tail = self._split(sent)
        key = sent.provider, sent.model
        last, earlier = self._last, self._by_model.get(key)
        difference, same = None, None
        if earlier is not None and earlier.stable:
            difference, same = self._compare(earlier, stable, tail)
        elif earlier is None and last is not None:
            name = f"{last.model or last.provider} → {sent.model or sent.provider}"
            difference, same = Difference(0, True, True, "model", name, "changed"), 0
            difference = _at(difference, find_model_place(self._plan.tree, sent.model))
        size = sum(section.size for section in stable)
        number = 1 if last is None else last.number + 1
        self.count += 1
        if difference is not None and difference.is_break:
            texts = f": {difference.before!r} → {difference.after!r}" if difference.after else ""
            self.breaks.append(f"request {number}, {difference}{texts}")
        request = LoggedRequest(
            number,
            0 if self._saved is None else self._saved.steps + 1,
            now(),
            *key,
            size + sum(section.size for section in tail),
            size,
            same,
            difference,
        )
        if self._saved is not None:
            self._write(self._saved.path, request, stable)
        self._last, self._sections = request, stable
        self._by_model[key] = _Earlier(stable, tail, size)
        self._was_compacted = False

    # -- sections ------------------------------------------------------------------------

    def _split(self, sent: SentRequest) -> tuple[list[Section], list[Section]]:
        """The sections of a request that the next one should begin with, and the others."""
        before, self._pieces = self._pieces, {}
        stable: list[Section] = []
        mounted: Mapping[str, Any] = self._coordinator.get("tools") or {}
        for spec in sent.tools:
            tool = mounted.get(spec.name)
            parts = read_field(tool, "description_parts")
            content = content_key((spec.name, spec.description, spec.parameters, parts))
            stable += _split_tool(spec, parts) if content is None else _split_known_tool(content)
        messages, texts, tail = list(sent.messages), list(sent.injections), list[Section]()
        # Texts for this request only are at its end, as messages or as part of the last one.
        while texts and messages and read_field(messages[-1], "content") == texts[-1][1]:
            messages.pop()
            source, text = texts.pop()
            tail.insert(0, Section.of(Piece("hook", source, f"{text}\n"), len(messages) + 1))
        if messages and texts:
            messages[-1], taken = _without_texts(messages[-1], texts)
            tail = [Section.of(piece, len(messages)) for piece in taken] + tail
        hooks = _find_writers(sent)
        for number, message in enumerate(messages, 1):
            content = content_key(message)
            key = number, hooks.get(content), content
            # Long conversations come by here with every request.
            sections = before.get(key) if content is not None else None
            if sections is None:
                pieces = split_message(message, key[1])
                sections = [Section.of(piece, number, key[1] or "") for piece in pieces]
            self._pieces[key] = sections
            stable += sections
        return stable, tail

    # -- comparing -----------------------------------------------------------------------

    def _compare(
        self, earlier: _Earlier, stable: list[Section], tail: list[Section]
    ) -> tuple[Difference | None, int]:
        """The first difference, and the bytes before it."""
        at = same = 0
        for one, other in zip(earlier.stable, stable, strict=False):
            if one is not other and (one.digest != other.digest or one.size != other.size):
                break
            at, same = at + 1, same + one.size
        old, new = [*earlier.stable[at:], *earlier.tail], [*stable[at:], *tail]
        if not old:
            return None, same
        common = _common(old, new)
        offset = common or 0
        if same + offset >= earlier.size:
            section = _section_at(old, offset) or old[-1]
            difference = _describe(same + offset, section, is_break=False)
            place = self._find_hook(section.name) if section.kind == "hook" else None
            return _at(difference, place), same + offset
        left, right = _section_at(old, offset), _section_at(new, offset)
        section, change = _choose(left, right, earlier.stable, stable)
        difference = _describe(same + offset, section, change=change, is_exact=common is not None)
        if common is not None:
            texts = _around(old, offset), _around(new, offset)
            before, after = (_excerpt(*text) for text in texts)
            is_time = all(_is_time(*text) for text in texts)
            difference = difference._replace(is_time=is_time, before=before, after=after)
        start = _read_start(new, old, section, offset)
        return self._locate(difference, section, start), same + offset

    def _locate(self, difference: Difference, section: Section, start: str) -> Difference:
        """Add the place of a break, and the hook that changed its message.

        Args:
            difference: The break.
            section: The section it is in.
            start: The text of the section before it.
        """
        tree, name = self._plan.tree, section.name
        mounted: Mapping[str, Any] = self._coordinator.get("tools") or {}
        if section.kind == "tool":
            entry = find_tool_entry(tree, mounted.get(name))
            return _at(difference, None if entry is None else entry.key_at("module"))
        if section.kind == "skill":
            tools = (tool for tool in mounted.values() if name in _skill_files(tool))
            return _at(difference, find_skill_place(_skill_files(next(tools, None)).get(name)))
        if self._was_compacted:
            context = find_context_place(tree)
            return _at(difference._replace(kind="compaction", name=""), context)
        place = Location(name, max(start.count("\n"), 1)) if section.kind == "file" else None
        if place is None:
            role, _, body = start.partition("\n")
            content = (section.content or b"").decode("utf-8", "replace")[len(role) + 1 :]
            if role in ("system", "developer"):
                place = find_instruction_place(tree, content, len(body))
            if place is not None:
                difference = difference._replace(kind="instruction", name="")
        if difference.kind == "hook":
            return _at(difference, self._find_hook(name))
        if section.by:
            at = self._find_hook(section.by)
            by = section.by if at is None else f"{section.by} ({at.file}:{at.line})"
            difference = difference._replace(by=by)
        return _at(difference, place)

    def _find_hook(self, name: str) -> Location | None:
        """The place of a hook's module in the plan."""
        owner = self._coordinator.hooks.find_owner(name)
        return find_module_place(self._plan.tree, "hook", owner or name)

    # -- the file ------------------------------------------------------------------------

    def _write(self, folder: Path, request: LoggedRequest, sections: Sequence[Section]) -> None:
        keep = 0
        for before, other in zip(self._sections, sections, strict=False):
            if before is not other and before[:5] != other[:5]:
                break
            keep += 1
        difference = request.difference
        record = {
            **request._asdict(),
            "difference": None if difference is None else difference._asdict(),
            "sections": [section[:5] for section in sections[keep:]],
            "keep": keep,
        }
        journal.append(folder, FILE, record, durable=False)

    def _report(self, error: Exception) -> None:
        if not self._has_failed:
            problem = describe_exception(error, None)
            logger.warning("A request cannot be compared with the one before it: %s", problem)
        self._has_failed = True


def _find_writers(sent: SentRequest) -> dict[bytes | None, str]:
    """The hooks that wrote messages of a request, by the key of the message."""
    writers: dict[bytes | None, str] = {}
    known = {content_key(message) for message in sent.view} if sent.changes else set()
    for hook, messages in sent.changes:
        keys = (
            {content_key(message) for message in messages} if isinstance(messages, list) else set()
        )
        writers.update(dict.fromkeys(keys - known - {None}, hook))
        known |= keys
    return writers


def _split_tool(spec: Any, parts: Any) -> tuple[Section, ...]:
    return tuple(Section.of(piece, 0) for piece in split_tool(spec, parts))


@lru_cache(maxsize=1024)  # The rows of a batch have the same tools.
def _split_known_tool(content: bytes) -> tuple[Section, ...]:
    *fields, parts = marshal.loads(content)
    return _split_tool(dict(zip(TOOL_FIELDS, fields, strict=True)), parts)


def _without_texts(message: Any, texts: Sequence[tuple[str, str]]) -> tuple[Any, list[Piece]]:
    """A tool result without the texts that were appended to it for this request, and these."""
    content, taken = read_field(message, "content"), list[Piece]()
    if not isinstance(message, dict):
        return message, taken
    for source, text in reversed(texts):
        piece = Piece("hook", source, f"{text}\n")
        if isinstance(content, str) and content.endswith(f"\n\n{text}"):
            content = content[: -len(text) - 2]
        elif isinstance(content, list) and content and read_field(content[-1], "text") == text:
            content = content[:-1]
        else:
            break
        taken.insert(0, piece)
    return ({**message, "content": content}, taken) if taken else (message, taken)


def _common(old: Sequence[Section], new: Sequence[Section]) -> int | None:
    """The number of equal bytes at the beginning of both; None if the old ones are not known."""
    if any(section.content is None for section in old):
        return None
    left, right = (b"".join(section.content or b"" for section in part) for part in (old, new))
    return common_length(left, right)


def _section_at(sections: Sequence[Section], offset: int) -> Section | None:
    """The section with this byte; None after the last one."""
    for section in sections:
        if offset < section.size:
            return section
        offset -= section.size
    return None


def _choose(
    left: Section | None, right: Section | None, old: Sequence[Section], new: Sequence[Section]
) -> tuple[Section, str]:
    """The section that a difference comes from, and what became of it."""
    names = [{(item.kind, item.name) for item in part if not item.number} for part in (old, new)]
    if left is not None and not left.number and (left.kind, left.name) not in names[1]:
        return left, "removed"
    if right is not None and not right.number and (right.kind, right.name) not in names[0]:
        return right, "added"
    if right is None or left is None:
        section = left or right
        assert section is not None
        return section, "removed" if right is None else "added"
    is_same = (left.kind, left.name) == (right.kind, right.name)
    if not right.number and not is_same:
        return right, "moved"
    # A text with a place in a file or a hook says more than a message that has replaced it.
    is_replaced = left.kind in ("file", "hook") and right.kind == "message"
    is_gone = is_replaced and left.kind == "hook"
    return (left if is_replaced else right), "removed" if is_gone else "changed"


def _around(sections: Sequence[Section], offset: int) -> tuple[str, str]:
    """The text before and after an offset, as far as it matters."""
    content = b"".join(section.content or b"" for section in sections)
    window = content[max(0, offset - _WINDOW) : offset], content[offset : offset + _WINDOW]
    before, after = (part.decode("utf-8", "replace") for part in window)
    return before, after


def _is_time(before: str, after: str) -> bool:
    near = before[-_EXCERPT:]
    matches = _TIME.finditer(near + after[:_EXCERPT])
    return any(match.start() <= len(near) < match.end() for match in matches)


def _excerpt(before: str, after: str) -> str:
    """The line around an offset without secrets, from a few characters before it."""
    text = redact(before + after)
    # A secret may begin before the offset.
    offset = common_length(text, redact(before))
    start = max(text.rfind("\n", 0, offset) + 1, offset - _EXCERPT // 2)
    return text[start:].partition("\n")[0][:_EXCERPT]


def _read_start(
    new: Sequence[Section], old: Sequence[Section], section: Section, offset: int
) -> str:
    """The text of a section before an offset in the sections that it is one of."""
    sections = new if section in new else old
    offset -= sum(earlier.size for earlier in sections[: sections.index(section)])
    return (section.content or b"")[: max(offset, 0)].decode("utf-8", "replace")


def _describe(
    byte: int,
    section: Section,
    *,
    is_break: bool = True,
    is_exact: bool = True,
    change: str = "changed",
) -> Difference:
    kind, name, number = section[:3]
    return Difference(byte, is_exact, is_break, kind, name, change, message=number)


def _skill_files(tool: Any) -> Mapping[str, Any]:
    return to_mapping(read_field(tool, "skill_files"))


def _at(difference: Difference, place: Location | None) -> Difference:
    return difference if place is None else difference._replace(file=place.file, line=place.line)
