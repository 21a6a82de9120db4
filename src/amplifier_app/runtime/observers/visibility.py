"""Visibility of answers: blocks may be marked `user`, `developer` or `internal`.

The policy is the app's (Context & Orchestrator Specification, Visibility Policy): providers receive
every block, and the transcript stores every block. A mark in `content_block:start` hides a block
while it streams. A mark that arrives only with `content_block:end` is too late for text already
shown; from then on, blocks of that type without a mark at their start are shown when complete.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast, get_args

from amplifier_app.runtime.turns.turn import EventHandler, peek
from amplifier_support.fields import read_field

Shown = Literal["user", "developer", "internal"]
"""The marks of blocks; each level also shows the levels before it."""

LEVELS: tuple[str, ...] = get_args(Shown)

_THINKING = ("thinking", "reasoning", "redacted_thinking")


class Visibility:
    """Which blocks of answers are shown in one session.

    Args:
        level: The highest mark to show; blocks without a mark are always shown.
        folds: Whether the renderer folds thinking to one line unless it is requested.

    Attributes:
        thinking: Whether to show thinking regardless of its mark; None follows the mark.
    """

    def __init__(self, level: Shown = "user", *, folds: bool = False) -> None:
        self.level: Shown = level
        self.thinking: bool | None = None
        self._folds = folds
        self._hid_thinking = False

    def shows(self, kind: Any, mark: str | None) -> bool:
        """Return True if a block of this type and mark is shown."""
        if kind in _THINKING and self.thinking is not None:
            return self.thinking
        is_shown = mark is None or LEVELS.index(mark) <= LEVELS.index(self.level)
        self._hid_thinking = self._hid_thinking or (kind in _THINKING and not is_shown)
        return is_shown

    @property
    def folds_thinking(self) -> bool:
        """True if thinking is folded, because neither `/think` nor the level requests it."""
        return self._folds and not self.thinking and self.level == "user"

    def show_thinking(self, setting: bool | None = None) -> bool:
        """Show or hide thinking, or toggle it by default; return whether it is shown."""
        if setting is None:
            hidden = self._hid_thinking or self.folds_thinking
            setting = not self.thinking if self.thinking is not None else hidden
        self.thinking = setting
        return setting


def find_mark(block: Any) -> str | None:
    """Return the mark of a block, a mapping or a model; None if it has none."""
    mark = read_field(block, "visibility")
    return mark if mark in LEVELS else None


def shown_blocks(blocks: Sequence[Any], visibility: Visibility) -> list[Any]:
    """Return the visible blocks of a stored message."""
    return [block for block in blocks if visibility.shows(_kind(block), find_mark(block))]


def shown_text(
    response: str,
    messages: Sequence[Any],
    visibility: Visibility,
    redact: Callable[[str], str] = lambda text: text,
) -> str:
    """Remove hidden blocks from an answer that an orchestrator returned as one string.

    Hidden blocks are recognized by their text in the last assistant message. A string that does not
    contain it, because the orchestrator composed it, is unchanged.

    Args:
        response: The string.
        messages: The conversation, with blocks.
        visibility: Which blocks are shown.
        redact: The redaction that was applied to the answer.
    """
    texts = _texts_of_last(messages, visibility)
    if all(is_shown for _, is_shown in texts):
        return response
    for form in (texts, [(redact(text), is_shown) for text, is_shown in texts]):
        pattern = r"(\s*)".join(f"({_words(text)})" for text, _ in form)
        match = re.fullmatch(rf"(\s*){pattern}(\s*)", response)
        if match is not None:
            return _joined(match, [is_shown for _, is_shown in form])
    for text, is_shown in texts:
        for form in () if is_shown else (text, redact(text)):
            response = re.sub(_words(form), "", response)
    return response


def _texts_of_last(messages: Sequence[Any], visibility: Visibility) -> list[tuple[str, bool]]:
    """Return the texts of the last assistant message, and whether each is shown."""
    for message in reversed(messages):
        if peek(message, "role") != "assistant":
            continue
        content = peek(message, "content")
        blocks = cast("list[Any]", content) if isinstance(content, list) else []
        texts = [block for block in blocks if _kind(block) == "text"]
        pairs = [
            (str(peek(b, "text") or ""), visibility.shows("text", find_mark(b))) for b in texts
        ]
        return [(text, is_shown) for text, is_shown in pairs if text.strip()]
    return []


def _words(text: str) -> str:
    """Return a pattern for `text` that ignores differences in white space."""
    return r"\s+".join(map(re.escape, text.split()))


def _joined(match: re.Match[str], flags: list[bool]) -> str:
    """Join the visible texts, each but the first with the white space before it."""
    groups = match.groups()
    joined = ""
    for index, is_shown in enumerate(flags):
        if is_shown:
            joined += (groups[2 * index] if joined else "") + groups[2 * index + 1]
    return joined + (groups[-1] if joined else "")


def _kind(block: Any) -> Any:
    return peek(block, "type")


def visible_only(
    handlers: dict[str, EventHandler], visibility: Visibility
) -> dict[str, EventHandler]:
    """Wrap the handlers of a renderer so that they receive only visible blocks."""
    if not {"content_block:delta", "content_block:end"} & handlers.keys():
        return handlers
    blocks = _Blocks(handlers, visibility)
    return {
        **handlers,
        "provider:request": blocks.on_request,
        "content_block:start": blocks.on_start,
        "content_block:delta": blocks.on_delta,
        "content_block:end": blocks.on_end,
    }


def _with_type(data: dict[str, Any], kind: Any) -> dict[str, Any]:
    """The data of an event with the type of its block, which some loops give at its start only."""
    typed = kind is None or peek(data, "block_type") is not None
    return data if typed else {**data, "block_type": kind}


class _Blocks:
    """The blocks of the current answer."""

    def __init__(self, handlers: dict[str, EventHandler], visibility: Visibility) -> None:
        self._handlers = handlers
        self._visibility = visibility
        self._late: set[Any] = set()  # types of blocks whose mark came too late
        self._begin()

    def _begin(self) -> None:
        self._about: dict[Any, tuple[Any, str | None]] = {}
        self._held: dict[Any, list[dict[str, Any]]] = {}

    def _pass(self, event: str, data: dict[str, Any]) -> None:
        handler = self._handlers.get(event)
        if handler is not None:
            handler(event, data)

    def on_request(self, event: str, data: dict[str, Any]) -> None:
        self._begin()
        self._pass(event, data)

    def on_start(self, event: str, data: dict[str, Any]) -> None:
        kind, mark = self._mark_block(data)
        if self._visibility.shows(kind, mark):
            self._pass(event, data)

    def on_delta(self, event: str, data: dict[str, Any]) -> None:
        # Nothing new about its block, as almost always: as fast as possible.
        known = self._about.get(peek(data, "block_index"))
        if known is None or peek(data, "block_type") != known[0] or "visibility" in data:
            known = self._mark_block(data)
            data = _with_type(data, known[0])
        kind, mark = known
        if mark is None and kind in self._late:
            self._held.setdefault(peek(data, "block_index"), []).append(data)
        elif self._visibility.shows(kind, mark):
            self._pass(event, data)

    def on_end(self, event: str, data: dict[str, Any]) -> None:
        index = peek(data, "block_index")
        before = self._about.get(index, (None, None))[1]
        kind, mark = self._mark_block(data)
        held = self._held.pop(index, [])
        if not self._visibility.shows(kind, mark):
            if before is None:
                self._late.add(kind)
            return
        for delta in held:
            self._pass("content_block:delta", delta)
        self._pass(event, _with_type(data, kind))

    def _mark_block(self, data: dict[str, Any]) -> tuple[Any, str | None]:
        """Return the type and mark of a block, as known from its events so far."""
        index, block = peek(data, "block_index"), peek(data, "block")
        kind, mark = self._about.get(index, (None, None))
        kind = peek(data, "block_type") or kind or peek(block, "type")
        mark = find_mark(data) or find_mark(block) or mark
        self._about[index] = (kind, mark)
        return kind, mark
