"""A conversation on a terminal: scrollback that only grows, and a small live region below it.

Finished output is printed once and never changed. Unfinished output (the current block, running
tools) is in the live region, which is redrawn at most twelve times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Generator
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from amplifier_app.base.sanitize import StreamSanitizer, for_terminal
from amplifier_app.render.activity import Activity, dim
from amplifier_app.render.console import ScreenConsole
from amplifier_app.render.markdown import MarkdownStream
from amplifier_app.render.screen import Screen
from amplifier_app.runtime import describe
from amplifier_app.runtime.notices import notice_handlers
from amplifier_app.runtime.observer import (
    NOTE_ON_TERMINAL,
    Level,
    Renderer,
    SessionFacts,
    SubSessionFacts,
)
from amplifier_app.runtime.turn import EventHandler, SubSession, TurnResult, peek, succeeded

REFRESH_SECONDS = 0.08
RESULT_LINES = 4
"""Lines shown of a tool's result; the rest is folded."""

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"

_LEVEL_STYLES = {"info": "dim", "warning": "yellow", "error": "bold red"}
_LEVEL_MARKS = {"info": "·", "warning": "!", "error": "✗"}


class TerminalRenderer(Renderer):
    """Shows a session on a terminal.

    Args:
        screen: The terminal.
        quiet: Show only the answer, warnings and errors.
        full_result_hint: Where to find the folded part of a long result.
    """

    longest_note = NOTE_ON_TERMINAL

    def __init__(self, screen: Screen, *, quiet: bool = False, full_result_hint: str = "") -> None:
        super().__init__()
        self._screen = screen
        self._quiet = quiet
        self.full_result_hint = full_result_hint
        self._console = ScreenConsole(screen)
        self._printed: list[str] = []  # not on the screen yet
        self._is_live = False
        self._timer: asyncio.TimerHandle | None = None
        self._refreshed = 0.0
        self._activity = Activity()
        self._last = ""  # what was printed last: "text", "thinking" or "tool"
        self._begin_message()

    # Events of the session

    def handlers(self) -> dict[str, EventHandler]:
        return {
            "provider:request": self._on_request,
            "content_block:delta": self._on_delta,
            "content_block:end": self._on_block_end,
            "tool:pre": self._on_tool_start,
            "tool:output": self._on_tool_output,
            "tool:post": self._on_tool_end,
            "tool:error": self._on_tool_error,
            "task:start": self._on_task_start,
            "steer:injected": self._on_steering,
            **notice_handlers(self),
        }

    def session_opened(self, facts: SessionFacts) -> None:
        if facts.saved:
            self.full_result_hint = f"amplifier session show {facts.session_id}"

    def turn_started(self) -> None:
        self._begin_message()
        self._last = ""
        self._activity.clear()
        self._start_live()

    def turn_ended(self, result: TurnResult) -> None:
        self._flush()
        if not self._shown and result.has_answer:
            self._text.feed(for_terminal(result.response))
            self._flush()
        for about in self._activity.calls():
            self._line("✗", "yellow", f"{about} · interrupted")
        self._activity.clear()
        self._stop_live()

    def notice(self, message: str, level: Level, source: str) -> None:
        if level == "info" and self._quiet:
            return
        mark, style = _LEVEL_MARKS[level], _LEVEL_STYLES[level]
        self._print(Text(f"{mark} {for_terminal(message)}", style=style))
        self._refresh()

    def reply(self, content: Any) -> None:
        self._finish_message()
        self._print(Text(for_terminal(content)) if isinstance(content, str) else content)
        self._refresh()

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        was_live = self._is_live
        self._stop_live()
        try:
            with self.while_paused():
                yield
        finally:
            if was_live:
                self._start_live()

    def message_sent(self, text: str) -> None:
        self._finish_message()
        self._space("message", continues=False)
        self._print(Text.assemble(("› ", "bold"), for_terminal(text)))
        self._refresh()

    def close(self) -> None:
        self._stop_live()
        self._screen.close()

    # One message of the model

    def _begin_message(self) -> None:
        self._text = MarkdownStream(lambda: self._screen.width)
        self._text_begun = False
        self._thought = ""
        self._shown = False
        self._streamed: set[Any] = set()
        self._sanitizer = StreamSanitizer(terminal=True)

    def _on_request(self, event: str, data: dict[str, Any]) -> None:
        self._flush()
        self._begin_message()
        self._schedule()

    def _on_delta(self, event: str, data: dict[str, Any]) -> None:
        kind, delta = peek(data, "block_type"), peek(data, "delta")
        if isinstance(delta, str) and kind in ("text", "thinking"):
            self._streamed.add(peek(data, "block_index"))
            self._add(kind, self._sanitizer.feed(delta))

    def _on_block_end(self, event: str, data: dict[str, Any]) -> None:
        kind = peek(data, "block_type")
        if kind not in ("text", "thinking"):
            return
        if peek(data, "block_index") not in self._streamed:
            self._add(kind, for_terminal(describe.block_text(data)))
        self._flush()

    def _add(self, kind: str, text: str) -> None:
        if not text:
            return
        if kind == "thinking":
            if not self._quiet:
                self._thought += text
        else:
            self._text.feed(text)
            self._shown = True
        self._schedule()

    def _flush(self) -> None:
        """Print the rest of the message, finished or not."""
        self._finish_message()
        self._refresh()

    def _finish_message(self) -> None:
        self._add("text", self._sanitizer.flush())
        self._print_finished()
        thought, self._thought = self._thought, ""
        if thought.strip():
            self._print_thought(thought)
        self._print_text(self._text.finish())
        self._text_begun = False

    def _print_finished(self) -> None:
        lines, newline, rest = self._thought.rpartition("\n")
        if newline:
            self._thought = rest
            self._print_thought(lines)
        self._print_text(self._text.take())

    def _print_thought(self, text: str) -> None:
        self._space("thinking", continues=self._last == "thinking")
        self._print(Text(text, style="dim italic"))

    def _print_text(self, lines: list[str]) -> None:
        if lines:
            self._space("text", continues=self._text_begun)
            self._text_begun = True
            self._printed += [f"{line}\n" for line in lines]

    def _space(self, kind: str, *, continues: bool) -> None:
        """Print a blank line between unrelated parts."""
        if self._last and not continues:
            self._printed.append("\n")
        self._last = kind

    def _print(self, renderable: RenderableType) -> None:
        """Add lines to the scrollback, with the next refresh."""
        self._printed.append(self._console.lines(renderable))

    # Tools

    def _on_tool_start(self, event: str, data: dict[str, Any]) -> None:
        self._flush()
        if not self._quiet:
            self._activity.call_started(data)
            self._schedule()

    def _on_tool_output(self, event: str, data: dict[str, Any]) -> None:
        self._activity.call_wrote(data)

    def _on_tool_end(self, event: str, data: dict[str, Any]) -> None:
        result = peek(data, "tool_result")
        success = succeeded(peek(data, "result") if result is None else result)
        self._tool_ended(data, success, describe.result_text(data))

    def _on_tool_error(self, event: str, data: dict[str, Any]) -> None:
        self._tool_ended(data, False, describe.error_text(data))

    def _tool_ended(self, data: dict[str, Any], success: bool, output: str) -> None:
        about, waited = self._activity.call_ended(data)
        if self._quiet:
            return
        milliseconds = peek(data, "duration_ms")
        measured = isinstance(milliseconds, (int, float))
        seconds = milliseconds / 1000 if measured else waited
        mark, style = ("✓", "green") if success else ("✗", "red")
        self._line(mark, style, f"{about} · {describe.duration(seconds)}")
        self._print_result(output)
        self._refresh()

    def _line(self, mark: str, style: str, text: str) -> None:
        self._space("tool", continues=self._last == "tool")
        line = Text.assemble((mark, style), " ", text, no_wrap=True, overflow="ellipsis")
        self._print(line)

    def _print_result(self, output: str) -> None:
        lines = [line for line in for_terminal(output[:20_000]).splitlines() if line.strip()]
        shown = "\n".join(lines[:RESULT_LINES])
        if shown:
            text = Text(shown, style="dim", no_wrap=True, overflow="ellipsis")
            self._print(Padding(text, (0, 0, 0, 4), expand=False))
        hidden = output.count("\n") + 1 - RESULT_LINES if len(lines) > RESULT_LINES else 0
        if hidden > 0:
            where = f" ({self.full_result_hint})" if self.full_result_hint else ""
            self._print(Text(f"    … {hidden} more lines{where}", style="dim"))

    # Sub-agents

    def _on_task_start(self, event: str, data: dict[str, Any]) -> None:
        self._activity.call_waits(data)

    def sub_session_started(self, facts: SubSessionFacts) -> None:
        if not self._quiet:
            self._activity.agent_started(facts)
            self._schedule()

    def sub_session_doing(self, session_id: str, what: str) -> None:
        self._activity.agent_doing(session_id, what)
        self._schedule()

    def sub_session_ended(self, ended: SubSession) -> None:
        self._activity.agent_ended(ended.session_id)
        self._schedule()

    def _on_steering(self, event: str, data: dict[str, Any]) -> None:
        self.message_sent(str(peek(data, "text") or ""))

    # The live region

    def _start_live(self) -> None:
        self._is_live = True
        self._refresh()
        self._schedule()

    def _stop_live(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_live = False
        self._refresh()

    def _live_region(self) -> list[str]:
        height = max(3, min(12, self._screen.height // 3))
        lines: list[str] = []
        if self._thought.strip():
            lines += self._tail(Text(self._thought, style="dim italic"), height)
        lines += self._text.rest[-height:]
        for line in self._activity.lines()[:height]:
            lines += self._tail(Text.assemble(self._frame(), " ", dim(line.text)), 1)
            if line.below:
                lines += self._tail(dim(f"    {line.below}"), 1)
        if not lines:
            lines += self._tail(self._frame(), 1)
        return lines

    def _tail(self, renderable: RenderableType, lines: int) -> list[str]:
        return self._console.lines(renderable).splitlines()[-lines:]

    def _frame(self) -> Text:
        return Text(_SPINNER[int(time.monotonic() / REFRESH_SECONDS) % len(_SPINNER)], style="cyan")

    def _schedule(self) -> None:
        """Redraw soon, but at most every `REFRESH_SECONDS`."""
        if self._timer is None and self._is_live:
            wait = self._refreshed + REFRESH_SECONDS - time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(max(0.0, wait), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._print_finished()
        self._refresh()
        # Keep the spinner moving while the session waits.
        self._schedule()

    def _refresh(self) -> None:
        """Bring the screen up to date, in one update."""
        printed, self._printed = "".join(self._printed), []
        self._screen.commit(printed, self._live_region() if self._is_live else [])
        self._refreshed = time.monotonic()
        if self._screen.failure is not None:
            self.on_failure()
