"""One message of the model as it arrives: its text as Markdown, its thinking folded or dim."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from amplifier_app.base.sanitize import StreamSanitizer, for_terminal
from amplifier_app.render.ansi import paint
from amplifier_app.render.markdown import MarkdownStream
from amplifier_app.render.progress import Progress
from amplifier_app.render.scrollback import Scrollback
from amplifier_app.runtime import describe
from amplifier_app.runtime.turns.event_data import peek

_KINDS = ("text", "thinking")


class MessageView:
    """Prints the finished part of a message, and holds the rest for the live region.

    Args:
        scrollback: Where finished lines go.
        progress: Counts what arrives.
        width: Returns the width of the screen.
        folds: Returns whether thinking is folded to one line.
        omits: Whether thinking is left out.
        fold_hint: How to see folded thinking.

    Attributes:
        has_text: Whether text of the message has been shown.
        folded: The thinking that was folded since it was emptied.
    """

    def __init__(
        self,
        scrollback: Scrollback,
        progress: Progress,
        *,
        width: Callable[[], int],
        folds: Callable[[], bool],
        omits: bool,
        fold_hint: str,
    ) -> None:
        self._scrollback = scrollback
        self._progress = progress
        self._width = width
        self._folds = folds
        self._omits = omits
        self._fold_hint = fold_hint
        self.folded: list[str] = []
        self.begin()

    def begin(self) -> None:
        """Begin a new message."""
        self.has_text = False
        self._text = MarkdownStream(self._width)
        self._text_begun = False
        self._thought = ""
        self._thinking_since: float | None = None
        self._streamed: set[Any] = set()  # indices of the blocks that came in pieces
        self._block: tuple[Any, Any] = ("", None)  # type and index of the current one
        self._deltas: list[Any] = []
        self._sanitizer = StreamSanitizer(terminal=True)

    def receive(self, data: dict[str, Any]) -> None:
        """Take a piece of a block; it is used with the next `print_finished`."""
        # There may be thousands a second.
        block = peek(data, "block_type"), peek(data, "block_index")
        if block != self._block:
            self._use_deltas()
            self._block = block
            self._streamed.add(block[1])
        self._deltas.append(peek(data, "delta"))

    def end_block(self, data: dict[str, Any]) -> None:
        """Print the end of a block, or all of one that did not come in pieces."""
        kind = peek(data, "block_type")
        if kind not in _KINDS:
            return
        self._use_deltas()
        if peek(data, "block_index") not in self._streamed:
            self._add(kind, for_terminal(describe.block_text(data)))
        self.finish()

    def add_text(self, text: str) -> None:
        """Print a text that is not part of any block."""
        self._add("text", for_terminal(text))
        self.finish()

    def finish(self) -> None:
        """Print the rest, finished or not."""
        self._use_deltas()
        self._add("thinking" if self._thought else "text", self._sanitizer.flush())
        self.print_finished()
        self._finish_thought()
        self._print_text(self._text.finish())
        self._text_begun = False

    def print_finished(self) -> None:
        """Print the lines that more text cannot change."""
        self._use_deltas()
        if not self._folds():
            lines, newline, self._thought = self._thought.rpartition("\n")
            if newline:
                self._print_thought(lines)
        self._print_text(self._text.take())

    def live_lines(self, max_lines: int) -> list[str]:
        """Return the end of what is not finished, in at most `max_lines` lines each."""
        lines: list[str] = []
        if self._thought.strip() and not self._folds():
            lines += self._scrollback.spaced(
                "thinking", self._thought_lines(self._thought)[-max_lines:]
            )
        rest = self._text.rest[-max_lines:]
        if rest:
            lines += self._scrollback.spaced("text", rest, always=not self._text_begun)
        return lines

    def print_retries(self) -> None:
        """Print, once, that the provider had to repeat requests."""
        summary = self._progress.take_retry_summary()
        if summary:
            self._scrollback.begin("note")
            self._scrollback.print([paint(f"· {summary}", "dim")])

    def _use_deltas(self) -> None:
        kind, deltas = self._block[0], self._deltas
        if deltas and kind in _KINDS:
            text = "".join(delta for delta in deltas if isinstance(delta, str))
            self._progress.add_characters(kind, len(text))
            self._add(kind, self._sanitizer.feed(text))
        self._deltas = []

    def _add(self, kind: str, text: str) -> None:
        if not text:
            return
        if kind == "text":
            if not self.has_text:
                self.print_retries()
            self._text.feed(text)
            self.has_text = True
        elif not self._omits:
            self._thought += text
            if self._thinking_since is None:
                self._thinking_since = self._progress.since

    def _finish_thought(self) -> None:
        thought, self._thought = self._thought, ""
        since, self._thinking_since = self._thinking_since, None
        if since is None:
            return
        if self._folds():
            self.folded.append(thought.strip())
            seconds = describe.duration(time.monotonic() - since)
            self.print_retries()
            self._scrollback.begin("thinking", always=True)
            self._scrollback.print([paint(f"✻ thought for {seconds}{self._fold_hint}", "dim")])
        elif thought.strip():
            self._print_thought(thought)

    def _print_thought(self, text: str) -> None:
        self._scrollback.begin("thinking")
        self._scrollback.print(self._thought_lines(text))

    def _thought_lines(self, text: str) -> list[str]:
        return [paint(line, "dim italic") for line in self._scrollback.wrapped(text)]

    def _print_text(self, lines: list[str]) -> None:
        if lines:
            self._scrollback.begin("text", always=not self._text_begun)
            self._text_begun = True
            self._scrollback.print(lines)
