"""A session on a terminal: scrollback that only grows, and a small live region below it.

Finished output is printed once and never changed. What is not finished (the end of the answer, running
tools, the model call) is in the live region, which is redrawn at most twelve times a second, and less
often if drawing is slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Generator, Iterable
from typing import Any

from amplifier_app.base.sanitize import StreamSanitizer, for_terminal
from amplifier_app.render.activity import Activity
from amplifier_app.render.ansi import paint
from amplifier_app.render.finished_call import FinishedCall, seconds_of
from amplifier_app.render.markdown import MarkdownStream
from amplifier_app.render.progress import Progress, footer
from amplifier_app.render.screen import Screen
from amplifier_app.render.table import wrapped
from amplifier_app.render.tool_calls import shown_call
from amplifier_app.runtime import describe
from amplifier_app.runtime.notices import notice_handlers
from amplifier_app.runtime.observer import (
    NOTE_ON_TERMINAL,
    Level,
    Renderer,
    SessionFacts,
    SubSessionFacts,
)
from amplifier_app.runtime.turn import EventHandler, SubSession, TurnResult, peek
from amplifier_app.runtime.visibility import Visibility

REFRESH_SECONDS = 0.08
_PAUSE_PER_DRAWING = 8
"""A redraw that takes a second is followed by a pause of so many seconds."""

_LEVELS: dict[Level, tuple[str, str, str]] = {
    "info": ("·", "dim", "dim"),
    "warning": ("!", "yellow", ""),
    "error": ("✗", "bold red", ""),
}
"""The mark of a notice, its style, and that of the text."""


class TerminalRenderer(Renderer):
    """Shows a session on a terminal.

    Args:
        screen: The terminal.
        quiet: Show only the answer, warnings and errors.
        chat: Whether the user can type during a turn and use slash commands.
        full_result_hint: How to see the folded part of a result.
    """

    longest_note = NOTE_ON_TERMINAL
    folds_thinking = True
    is_for_people = True

    def __init__(
        self,
        screen: Screen,
        *,
        quiet: bool = False,
        chat: bool = False,
        full_result_hint: str = "",
    ) -> None:
        super().__init__()
        self.visibility = Visibility(folds=True)
        self._screen = screen
        self._quiet = quiet
        self._chat = chat
        self.full_result_hint = full_result_hint
        self._printed: list[str] = []  # lines that are not on the screen yet
        self._is_live = False
        self._is_paused = False  # what is printed is held
        self._timer: asyncio.TimerHandle | None = None
        self._next_refresh = 0.0
        self._activity = Activity()
        self._progress = Progress()
        self._last = ""  # what was printed last: "text", "thinking", "tool", "note" or "message"
        self._turn_began = time.monotonic()
        self._changed: set[str] = set()
        self._begin_message()

    # Events of the session

    def handlers(self) -> dict[str, EventHandler]:
        return {
            **notice_handlers(self),
            "provider:request": self._on_request,
            "provider:retry": self._on_retry,
            "content_block:delta": self._on_delta,
            "content_block:end": self._on_block_end,
            "tool:pre": self._on_tool_start,
            "tool:output": self._on_tool_output,
            "tool:post": self._on_tool_end,
            "tool:error": self._on_tool_end,
            "task:start": self._on_task_start,
            "steer:injected": self._on_steering,
        }

    def session_opened(self, facts: SessionFacts) -> None:
        if self._chat:
            self.full_result_hint = "/show N shows a whole result"
        elif facts.saved:
            self.full_result_hint = (
                f"amplifier session show {facts.session_id} --call N shows a whole result"
            )
        self._progress.started(facts.model or facts.provider)

    def turn_started(self) -> None:
        self._begin_message()
        self._activity.clear()
        self._progress.started()
        self._turn_began = time.monotonic()
        self._changed.clear()
        self._is_live = True
        self._refresh()
        self._schedule()

    def turn_ended(self, result: TurnResult) -> None:
        self._finish_message()
        if not self._shown and result.has_answer:
            self._add("text", for_terminal(result.response))
            self._finish_message()
        for about in self._activity.calls():
            self._space("tool")
            self._print([f"{paint('✗', 'yellow')} {about} · interrupted"])
        self._activity.clear()
        self._settle_retries()
        if not self._quiet:
            self._print_footer(result)
        self._stop_live()

    def notice(self, message: str, level: Level, source: str) -> None:
        if level == "info" and self._quiet:
            return
        mark, style, text_style = _LEVELS[level]
        first, *rest = self._wrapped(for_terminal(message), 2)
        self._print([f"{paint(mark, style)} {paint(first, text_style)}"])
        self._print(f"  {paint(line, text_style)}" for line in rest)
        self._refresh()

    def reply(self, content: Any) -> None:
        self._finish_message()
        if isinstance(content, str):
            self._print(self._wrapped(for_terminal(content), 0))
        else:
            # Rich is loaded for commands that draw with it.
            from amplifier_app.render.console import ScreenConsole

            self._printed.append(ScreenConsole(self._screen).lines(content))
        self._refresh()

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        was_live = self._is_live
        self._stop_live()
        self._is_paused = True
        try:
            with self.while_paused():
                yield
        finally:
            self._is_paused = False
            self._refresh()
            if was_live:
                self._is_live = True
                self._refresh()
                self._schedule()

    def message_sent(self, text: str) -> None:
        self._finish_message()
        self._space("message", always=True)
        first, *rest = self._wrapped(for_terminal(text), 2)
        self._print([f"{paint('›', 'bold')} {first}", *(f"  {line}" for line in rest)])
        self._refresh()

    def close(self) -> None:
        self._stop_live()
        self._screen.close()

    # One message of the model

    def _begin_message(self) -> None:
        self._text = MarkdownStream(lambda: self._screen.width)
        self._text_begun = False
        self._thought = ""
        self._thinking_since: float | None = None
        self._shown = False
        self._streamed: set[Any] = set()
        self._block: tuple[Any, Any] = ("", None)  # type and index of the block that streams
        self._deltas: list[Any] = []
        self._sanitizer = StreamSanitizer(terminal=True)

    def _on_request(self, event: str, data: dict[str, Any]) -> None:
        self._finish_message()
        self._begin_message()
        self._progress.started(str(peek(data, "model") or ""))
        self._refresh()
        self._schedule()

    def _on_retry(self, event: str, data: dict[str, Any]) -> None:
        # A provider may also log the retry: what is in the live region need not be a notice, too.
        self.retries.is_new_event(data)
        self._progress.retries(data)
        self._schedule()

    def _settle_retries(self) -> None:
        summary = self._progress.settled()
        if summary:
            self._space("note")
            self._print([paint(f"· {summary}", "dim")])

    def _on_delta(self, event: str, data: dict[str, Any]) -> None:
        # There may be thousands a second: collect them until the next redraw.
        block = peek(data, "block_type"), peek(data, "block_index")
        if block != self._block:
            self._take_deltas()
            self._block = block
            self._streamed.add(block[1])
        self._deltas.append(peek(data, "delta"))
        if self._timer is None:
            self._schedule()

    def _take_deltas(self) -> None:
        """Use the pieces of the answer that have arrived since the last redraw."""
        kind, deltas = self._block[0], self._deltas
        if deltas and kind in ("text", "thinking"):
            text = "".join(delta for delta in deltas if isinstance(delta, str))
            self._progress.received(kind, len(text))
            self._add(kind, self._sanitizer.feed(text))
        self._deltas = []

    def _on_block_end(self, event: str, data: dict[str, Any]) -> None:
        kind = peek(data, "block_type")
        if kind not in ("text", "thinking"):
            return
        self._take_deltas()
        if peek(data, "block_index") not in self._streamed:
            self._add(kind, for_terminal(describe.block_text(data)))
        self._finish_message()
        self._refresh()

    def _add(self, kind: str, text: str) -> None:
        if not text:
            return
        if kind == "thinking":
            if not self._quiet:
                self._thought += text
                if self._thinking_since is None:
                    self._thinking_since = self._progress.since
        else:
            if not self._shown:
                self._settle_retries()
            self._text.feed(text)
            self._shown = True
        self._schedule()

    def _finish_message(self) -> None:
        """Print the rest of the message, finished or not."""
        self._take_deltas()
        rest = self._sanitizer.flush()
        self._add("thinking" if self._thought else "text", rest)
        self._print_finished()
        self._finish_thought()
        self._print_text(self._text.finish())
        self._text_begun = False

    def _print_finished(self) -> None:
        if not self.visibility.folds_thinking:
            lines, newline, self._thought = self._thought.rpartition("\n")
            if newline:
                self._print_thought(lines)
        self._print_text(self._text.take())

    def _finish_thought(self) -> None:
        thought, self._thought = self._thought, ""
        since, self._thinking_since = self._thinking_since, None
        if since is None:
            return
        if self.visibility.folds_thinking:
            seconds = describe.duration(time.monotonic() - since)
            self._settle_retries()
            self._space("thinking", always=True)
            hint = " (/think shows it)" if self._chat else ""
            self._print([paint(f"✻ thought for {seconds}{hint}", "dim")])
        elif thought.strip():
            self._print_thought(thought)

    def _print_thought(self, text: str) -> None:
        self._space("thinking")
        self._print(paint(line, "dim italic") for line in self._wrapped(text, 0))

    def _print_text(self, lines: list[str]) -> None:
        if lines:
            self._space("text", always=not self._text_begun)
            self._text_begun = True
            self._print(lines)

    def _space(self, kind: str, *, always: bool = False) -> None:
        """Print an empty line between parts of different kinds, or before each part."""
        if self._needs_space(kind, always=always):
            self._print([""])
        self._last = kind

    def _needs_space(self, kind: str, *, always: bool = False) -> bool:
        return bool(self._last) and (always or kind != self._last)

    def _print(self, lines: Iterable[str]) -> None:
        """Add lines to the scrollback, with the next refresh."""
        self._printed += [f"{line}\n" for line in lines]

    def _wrapped(self, text: str, indent: int) -> list[str]:
        width = max(self._screen.width - indent, 8)
        return [row for line in text.split("\n") for row in wrapped(line.rstrip(), width)]

    # Tools

    def _on_tool_start(self, event: str, data: dict[str, Any]) -> None:
        self._finish_message()
        self._settle_retries()
        if not self._quiet:
            self._activity.call_started(data, self._number_of(data))
            self._schedule()
        self._refresh()

    def _on_tool_output(self, event: str, data: dict[str, Any]) -> None:
        self._activity.call_wrote(data)

    def _on_tool_end(self, event: str, data: dict[str, Any]) -> None:
        call = FinishedCall(data, 0.0, self._number_of(data))
        waited = self._activity.call_ended(data, failed=call.has_failed)
        if self._quiet:
            return
        call = call._replace(seconds=seconds_of(data, waited))
        if not call.has_failed:
            self._changed.update(describe.changed_files(data))
        self._finish_message()
        self._space("tool")
        shown = shown_call(call, self._screen.width)
        self._print(shown.lines)
        if shown.is_folded and self.full_result_hint:
            self._print([paint(f"    {self.full_result_hint}", "dim")])
            self.full_result_hint = ""  # once is enough
        self._progress.started()
        self._refresh()
        self._schedule()

    def _number_of(self, data: dict[str, Any]) -> int | None:
        call_id = peek(data, "tool_call_id")
        return self.call_number(str(call_id)) if call_id else None

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

    # The end of a turn

    def _print_footer(self, result: TurnResult) -> None:
        commands = ("/diff", "/undo") if self._chat else ()
        seconds = time.monotonic() - self._turn_began
        text = footer(result, seconds, len(self._changed), commands=commands)
        if result.steps:
            self._space("footer")
            self._print(paint(f"  {line}", "dim") for line in self._wrapped(text, 2))

    # The live region

    def _stop_live(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_live = False
        self._refresh()

    def _live_region(self) -> list[str]:
        width = self._screen.width
        height = max(3, min(12, self._screen.height // 3))
        lines: list[str] = []
        if self._thought.strip() and not self.visibility.folds_thinking:
            lines += self._with_space("thinking", self._thought_lines(height), always=False)
        rest = self._text.rest[-height:]
        if rest:
            lines += self._with_space("text", rest, always=not self._text_begun)
        stop = "Esc" if self._chat else "Ctrl-C"
        hint = f"{stop} stop · type to steer" if self._chat else ""
        activity = self._activity.lines(width, hint)
        if activity or not rest:
            lines += self._with_space("tool" if self._activity.is_busy else "status", activity)
        if not self._activity.is_busy:
            hint = "type to steer" if self._chat else ""
            lines.append(self._progress.line(width, stop=stop, hint=hint))
        return lines

    def _thought_lines(self, most: int) -> list[str]:
        return [paint(line, "dim italic") for line in self._wrapped(self._thought, 0)[-most:]]

    def _with_space(self, kind: str, lines: list[str], *, always: bool = False) -> list[str]:
        """Return lines of the live region below the same space that they have when finished."""
        return ["", *lines] if self._needs_space(kind, always=always) else lines

    def _schedule(self) -> None:
        """Redraw soon, but not too often."""
        if self._timer is None and self._is_live:
            wait = self._next_refresh - time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(max(0.0, wait), self._tick)

    def _tick(self) -> None:
        self._timer = None
        began = time.monotonic()
        self._take_deltas()
        self._print_finished()
        self._refresh()
        took = time.monotonic() - began
        self._next_refresh = began + max(REFRESH_SECONDS, _PAUSE_PER_DRAWING * took)
        # Keep the spinner moving while the session waits.
        self._schedule()

    def _refresh(self) -> None:
        """Bring the screen up to date, in one update."""
        if self._is_paused:
            return
        printed, self._printed = "".join(self._printed), []
        self._screen.commit(printed, self._live_region() if self._is_live else [])
        self._next_refresh = time.monotonic() + REFRESH_SECONDS
        if self._screen.failure is not None:
            self.on_failure()
