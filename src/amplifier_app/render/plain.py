"""Plain text on a terminal: for `--plain`, dumb terminals and screen readers."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

from amplifier_app.base.sanitize import StreamSanitizer, for_terminal, with_colours
from amplifier_app.base.stdio import ERASE_LINE, Output, terminal_size, to_stderr
from amplifier_app.render.ansi import rich_lines
from amplifier_app.render.text import StderrNotices, StreamedBlocks
from amplifier_app.runtime.observers.observer import Level
from amplifier_app.runtime.turns.turn import EventHandler, TurnResult, peek

_MAX_WORD = 80
"""Characters of a word that is written before it has ended."""


class PlainRenderer(StreamedBlocks):
    """Streams everything as lines of plain text, without a live region."""

    is_for_people = True
    takes_prints = True

    def __init__(self, output: Output, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet, shows_calls=True)
        self._output = output
        self._last_character = "\n"
        self._held: str | None = None  # what is written while the terminal is released
        self._begin_message()

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        self._end_line()
        self._held = ""
        try:
            with super().paused():
                yield
        finally:
            held, self._held = self._held, None
            self._write(held)

    def handlers(self) -> dict[str, EventHandler]:
        return {**super().handlers(), "steer:injected": self._on_steering}

    def turn_ended(self, result: TurnResult) -> None:
        if self._calls is not None:
            self._calls.turn_ended()
        self._write(self._word + self._sanitizer.flush())
        self._word = ""
        if not self._shown and result.has_answer:
            self._write(for_terminal(result.response))
        self._end_line()
        if self._calls is not None:
            self._calls.write_footer(result)

    def notice(self, message: str, level: Level, source: str) -> None:
        if level == "info":
            # The text goes on after it, so the word that is held back does, too.
            self._break_line()
        else:
            self._end_line()
        super().notice(message, level, source)

    def printed(self, line: str) -> None:
        self._end_line()
        self._write(f"{for_terminal(line)}\n")

    def reply(self, content: Any) -> None:
        content = for_terminal(content) if isinstance(content, str) else content
        lines = rich_lines(content, terminal_size(self._output.fd)[0], styled=False)
        self._end_line()
        self._write("\n".join(line.rstrip() for line in lines) + "\n")

    def line_entered(self) -> None:
        self._last_character = "\n"

    def message_sent(self, text: str) -> None:
        self._end_line()
        self._write(f"> {for_terminal(text)}\n")

    def _on_steering(self, event: str, data: dict[str, Any]) -> None:
        self.message_sent(str(peek(data, "text") or ""))

    def _begin_message(self) -> None:
        super()._begin_message()
        self._sanitizer = StreamSanitizer(terminal=True)
        self._shown = False
        self._word = ""  # the beginning of one, written when it ends: Enter must not break it

    def _on_request(self, event: str, data: dict[str, Any]) -> None:
        self._end_line()
        self._begin_message()

    def _shows(self, kind: Any) -> bool:
        return kind == "text" or (kind == "thinking" and not self._quiet)

    def _add_piece(self, kind: str, text: str) -> None:
        self._show(kind, self._sanitizer.feed(text))

    def _end_block(self, kind: str, text: str) -> None:
        self._show(kind, self._sanitizer.flush())
        self._show(kind, for_terminal(text))
        self._end_line()

    def _write_note(self, line: str) -> None:
        self._end_line()
        self._write(f"[{line}]\n")

    def _show(self, kind: str, text: str) -> None:
        self._shown = self._shown or (bool(text) and kind == "text")
        text = self._word + text
        end = max(text.rfind(" "), text.rfind("\n")) + 1
        end = len(text) if len(text) - end > _MAX_WORD else end
        self._word = text[end:]
        self._write(text[:end])

    def _write(self, text: str) -> None:
        if not text:
            return
        self._last_character = text[-1]
        if self._held is not None:
            self._held += text
        elif not self._output.write(text):
            self.on_failure()

    def _end_line(self) -> None:
        word, self._word = self._word, ""
        self._write(word)
        self._break_line()

    def _break_line(self) -> None:
        if self._last_character != "\n":
            self._write("\n")


class AnswerRenderer(PlainRenderer):
    """Shows only the answer, at the end of the turn, for plans whose modules draw on the terminal.

    If an answer was cut off, it shows the part that has arrived.

    User input during a turn, warnings and errors are shown as usual. Modules draw while a turn runs;
    then only whole lines are shown, so that nothing is drawn over the input.
    """

    def __init__(self, output: Output, *, quiet: bool = False) -> None:
        super().__init__(output, quiet=quiet)
        self._calls = None
        self._part = ""  # of the answer that is being written
        self._was_stopped = False  # and the line that says so is not written yet

    def handlers(self) -> dict[str, EventHandler]:
        return {
            **StderrNotices.handlers(self),
            "provider:request": self._on_other_message,
            "content_block:delta": self._on_text,
            "tool:pre": self._on_other_message,
            "steer:injected": self._on_steering,
        }

    def _on_other_message(self, event: str, data: dict[str, Any]) -> None:
        self._part = ""

    def _on_text(self, event: str, data: dict[str, Any]) -> None:
        delta = peek(data, "delta")
        if isinstance(delta, str) and peek(data, "block_type") == "text":
            self._part += delta

    def printed(self, line: str) -> None:
        self._end_line()
        self._write(f"{with_colours(line)}\n")

    def _print(self, line: str) -> None:
        # A module may have drawn since `_end_line` has erased its line.
        to_stderr(line, erase=not self.takes_prints or self._was_stopped)
        self._was_stopped = False

    def turn_started(self) -> None:
        super().turn_started()
        self.takes_prints = False
        self._part = ""

    def turn_ended(self, result: TurnResult) -> None:
        self.takes_prints = True
        self._was_stopped = result.status == "cancelled"
        # The terminal echoes the Ctrl-C that stopped it.
        self.has_open_line = self.has_open_line or self._was_stopped
        self._end_line()
        super().turn_ended(result)
        if self._part and not result.has_answer:
            self._write(for_terminal(self._part))
            self._write_note("the answer was cut off here")

    def _end_line(self) -> None:
        super()._end_line()
        if self.has_open_line and self._held is None:
            self.has_open_line = False
            self._output.write(ERASE_LINE)
