"""Text for a pipe: the raw answer on stdout, everything else as lines on stderr."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from typing import Any, cast

from amplifier_app.base.sanitize import StreamSanitizer, for_pipe, for_terminal
from amplifier_app.base.stdio import Output, stderr_is_tty, to_stderr
from amplifier_app.render.call_lines import CallLines
from amplifier_app.runtime import describe
from amplifier_app.runtime.observers.notices import notice_handlers
from amplifier_app.runtime.observers.observer import NOTE_ON_TERMINAL, Level, Renderer
from amplifier_app.runtime.turns.turn import EventHandler, TurnResult, peek


class StderrNotices(Renderer):
    """Writes notices as lines on stderr; `quiet` omits info."""

    def __init__(self, *, quiet: bool) -> None:
        super().__init__()
        self._quiet = quiet
        self._held_notices: list[str] | None = None  # while a question is on the terminal
        if stderr_is_tty():
            self.longest_note = NOTE_ON_TERMINAL

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        if stderr_is_tty():
            self._held_notices = []
        try:
            with super().paused():
                yield
        finally:
            held, self._held_notices = self._held_notices or [], None
            for line in held:
                self._print(line)

    def handlers(self) -> dict[str, EventHandler]:
        return notice_handlers(self)

    def notice(self, message: str, level: Level, source: str) -> None:
        if level == "info" and self._quiet:
            return
        prefix = "" if level == "info" else f"{level}: "
        line = f"amplifier: {prefix}{for_terminal(message)}"
        if self._held_notices is None:
            self._print(line)
        else:
            self._held_notices.append(line)

    def _print(self, line: str) -> None:
        to_stderr(line)


class StreamedBlocks(StderrNotices):
    """Shows the blocks of an answer, each once: in pieces as they come, or whole if a loop sends no pieces.

    Tool calls are lines between them, if it `shows_calls`.
    """

    def __init__(self, *, quiet: bool, shows_calls: bool = False) -> None:
        super().__init__(quiet=quiet)
        self._streamed: set[Any] = set()  # indices of the blocks that came in pieces
        self._calls: CallLines | None = None
        if shows_calls and not quiet:
            self._calls = CallLines(
                self._write_note, lambda call_id: self.call_number(call_id), self.longest_note
            )

    def handlers(self) -> dict[str, EventHandler]:
        return {
            **super().handlers(),
            "provider:request": self._on_request,
            "content_block:delta": self._on_delta,
            "content_block:end": self._on_block_end,
            **(self._calls.handlers() if self._calls is not None else {}),
        }

    def sub_session_changed(self, agent: str, data: dict[str, Any], *, was_seen: bool) -> None:
        if self._calls is not None:
            self._calls.agent_changed(agent, data)

    def turn_started(self) -> None:
        if self._calls is not None:
            self._calls.turn_started()
        self._begin_message()

    def _write_note(self, line: str) -> None:
        """Show the line of a call."""
        self.notice(line, "info", "")

    def _on_request(self, event: str, data: dict[str, Any]) -> None:
        self._begin_message()

    def _begin_message(self) -> None:
        self._streamed = set()

    def _on_delta(self, event: str, data: dict[str, Any]) -> None:
        kind, delta = peek(data, "block_type"), peek(data, "delta")
        if isinstance(delta, str) and self._shows(kind):
            self._streamed.add(peek(data, "block_index"))
            self._add_piece(kind, delta)

    def _on_block_end(self, event: str, data: dict[str, Any]) -> None:
        kind = peek(data, "block_type")
        if self._shows(kind):
            is_new = peek(data, "block_index") not in self._streamed
            self._end_block(kind, describe.block_text(data) if is_new else "")

    def _shows(self, kind: Any) -> bool:
        """Return True for a kind of blocks that is shown."""
        return kind in ("text", "thinking")

    def _add_piece(self, kind: str, text: str) -> None:
        """Show a piece of a block."""
        raise NotImplementedError

    def _end_block(self, kind: str, text: str) -> None:
        """Show all of a block; empty if it came in pieces."""
        raise NotImplementedError


class TextRenderer(StreamedBlocks):
    """Writes only the answer to stdout.

    Text is streamed if the request offered no tools. With tools, a message may be a comment on the
    calls that follow it, and with several steps only the last one gives the answer; the answer is
    then written at the end of the turn.

    Args:
        output: Receives the answer.
        quiet: Show only warnings and errors.
        progress: Show tool calls on stderr.
        stream: Write all text of the model as it comes, whatever the request offered.
        hold: Write only the final answer of a run that may send several prompts.
    """

    def __init__(
        self,
        output: Output,
        *,
        quiet: bool = False,
        progress: bool = False,
        stream: bool = False,
        hold: bool = False,
    ) -> None:
        super().__init__(quiet=quiet, shows_calls=progress)
        self.is_for_people = stderr_is_tty()
        self._output = output
        self._stream = stream
        self._hold = hold
        self._live = False
        self._several_steps = False
        self._written = False  # of the current message
        self._line_open = False
        self._sanitizer = StreamSanitizer(terminal=output.isatty())

    def handlers(self) -> dict[str, EventHandler]:
        return {**super().handlers(), "plan:end": self._on_plan}

    def notice(self, message: str, level: Level, source: str) -> None:
        self._output.flush()
        super().notice(message, level, source)

    def turn_started(self) -> None:
        super().turn_started()
        self._written = self._several_steps = False
        self._live = self._stream and not self._hold  # some loops report no requests

    def accepted(self, response: str) -> None:
        if self._hold:
            self._write(self._clean(response))
            self._end_line()

    def turn_ended(self, result: TurnResult) -> None:
        if self._calls is not None:
            self._calls.turn_ended()
        if not self._hold:
            self._write(self._sanitizer.flush())
            if not self._written and result.has_answer:
                self._write(self._clean(result.response))
            self._end_line()
        if self._calls is not None:
            self._calls.write_footer(result)

    def _on_request(self, event: str, data: dict[str, Any]) -> None:
        # A third-party loop may not report its tools; assume it offered some.
        tools = peek(data, "tools")
        offered = tools is None or tools or self._several_steps
        self._live = not self._hold and (self._stream or not offered)
        self._write(self._sanitizer.flush())
        self._end_line()
        self._written = False
        self._begin_message()

    def _shows(self, kind: Any) -> bool:
        return self._live and kind == "text"

    def _add_piece(self, kind: str, text: str) -> None:
        self._write(self._sanitizer.feed(text), later=True)

    def _end_block(self, kind: str, text: str) -> None:
        if text:
            # From a loop without deltas; each such block is a text of its own.
            self._end_line()
            self._write(self._clean(text))
        # Now, so that it comes before what is written to stderr.
        self._output.flush()

    def _on_plan(self, event: str, data: dict[str, Any]) -> None:
        steps = peek(data, "steps")
        self._several_steps = isinstance(steps, list) and len(cast("list[Any]", steps)) > 1

    def _clean(self, text: str) -> str:
        return for_terminal(text) if self._output.isatty() else for_pipe(text)

    def _write(self, text: str, *, later: bool = False) -> None:
        if not text:
            return
        self._written = True
        self._line_open = text[-1] != "\n"
        output = self._output
        if later:
            is_written = output.write_later(text, asyncio.get_running_loop)
        else:
            is_written = output.write(text)
        if not is_written:
            self.on_failure()

    def _end_line(self) -> None:
        if self._line_open:
            self._write("\n")
