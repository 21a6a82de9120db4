"""A session on a terminal: scrollback that only grows, and a small live region below it.

Finished output is printed once and never changed. What is not finished (the end of the answer, running
tools, the model call) is in the live region, which is redrawn at most twelve times a second, and less
often if drawing is slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Generator
from typing import Any

from amplifier_app.base.sanitize import for_terminal, with_colours
from amplifier_app.render.activity import Activity
from amplifier_app.render.ansi import clip, fold, paint
from amplifier_app.render.finished_call import FinishedCall, seconds_of
from amplifier_app.render.message_view import MessageView
from amplifier_app.render.pictures import image_blocks, picture
from amplifier_app.render.progress import Progress, footer, join_parts, retry_text
from amplifier_app.render.screen import Screen
from amplifier_app.render.scrollback import Scrollback
from amplifier_app.render.signals import Signals
from amplifier_app.render.tool_calls import Shown, draw_call
from amplifier_app.runtime import describe
from amplifier_app.runtime.observers.notices import notice_handlers
from amplifier_app.runtime.observers.observer import (
    NOTE_ON_TERMINAL,
    Level,
    Renderer,
    SessionFacts,
    SubSessionFacts,
)
from amplifier_app.runtime.observers.visibility import Visibility
from amplifier_app.runtime.turns.event_data import EventHandler, is_answer, peek
from amplifier_app.runtime.turns.turn import SubSession, TurnResult

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
    """

    longest_note = NOTE_ON_TERMINAL
    folds_thinking = True
    draws_retries = True
    is_for_people = True
    takes_prints = True

    def __init__(
        self,
        screen: Screen,
        *,
        quiet: bool = False,
        chat: bool = False,
    ) -> None:
        super().__init__()
        self.visibility = Visibility(folds=True)
        self._screen = screen
        self._quiet = quiet
        self._chat = chat
        self.full_result_hint = ""
        self._scrollback = Scrollback(screen)
        self._is_live = False
        self._is_stopping = False  # the turn ends after the running tool
        self._is_paused = False  # what is printed is held
        self._timer: asyncio.TimerHandle | None = None
        self._next_refresh = 0.0
        self._signals = Signals(screen)
        self._title = "amplifier"
        self._activity = Activity()
        self._progress = Progress()
        self._message = MessageView(
            self._scrollback,
            self._progress,
            width=lambda: screen.width,
            folds=lambda: self.visibility.folds_thinking,
            omits=quiet,
            fold_hint=" (/think shows it)" if chat else "",
        )
        self._turn_began = time.monotonic()
        self._changed: set[str] = set()
        self._seen: set[Any] = set()  # ids of calls that the user has allowed

    @property
    def folded_thinking(self) -> str:
        return "\n\n".join(filter(None, self._message.folded))

    # Events of the session

    def handlers(self) -> dict[str, EventHandler]:
        return {
            **notice_handlers(self),
            "provider:request": self._on_request,
            "provider:retry": self._on_retry,
            "content_block:delta": self._on_delta,
            "content_block:end": self._on_block_end,
            "tool:pre": self._on_tool_start,
            "approval:granted": self._on_approval,
            "tool:output": self._on_tool_output,
            "tool:post": self._on_tool_end,
            "tool:error": self._on_tool_end,
            "task:start": self._on_task_start,
            "steer:injected": self._on_steering,
            "cancel:requested": self._on_stop,
        }

    def session_opened(self, facts: SessionFacts) -> None:
        if self._chat:
            self.full_result_hint = "/show N shows a whole result"
        elif facts.saved:
            self.full_result_hint = (
                f"amplifier session show {facts.session_id} --call N shows a whole result"
            )
        self._progress.start_call(facts.model or facts.provider)
        self._title = f"amplifier · {os.path.basename(facts.working_dir) or facts.working_dir}"
        self._set_title("")

    def turn_started(self) -> None:
        self._message.begin()
        self._activity.clear()
        self._progress.start_call()
        self._turn_began = time.monotonic()
        self._changed.clear()
        self._message.folded.clear()
        self._set_title("● ")
        self._is_stopping = False
        self._is_live = True
        self._refresh()
        self._schedule()

    def turn_ended(self, result: TurnResult) -> None:
        self._message.finish()
        if not self._message.has_text and result.has_answer:
            self._message.add_text(result.response)
        for about in self._activity.calls():
            self._scrollback.begin("tool")
            room = max(self._screen.width - len("✗  · interrupted"), 8)
            line = f"{paint('✗', 'yellow')} {clip(about, room)} · interrupted"
            self._scrollback.print([line])
        self._activity.clear()
        self._message.print_retries()
        if not self._quiet:
            self._print_footer(result)
        self._stop_live()
        self._set_title("")
        if self.signals:
            seconds = time.monotonic() - self._turn_began
            ended = "finished" if result.status == "success" else "stopped"
            self._signals.turn_ended(seconds, f"{self._title}: {ended}")

    def _set_title(self, mark: str) -> None:
        if self.signals:
            self._signals.set_title(f"{mark}{self._title}")

    def notice(self, message: str, level: Level, source: str) -> None:
        if level == "info" and self._quiet:
            return
        mark, style, text_style = _LEVELS[level]
        # Hints are indented already; all rows of a notice are.
        lines = [line.removeprefix("  ") for line in for_terminal(message).split("\n")]
        first, *rest = self._scrollback.wrapped("\n".join(lines), 2)
        self._scrollback.print([f"{paint(mark, style)} {paint(first, text_style)}"])
        self._scrollback.print(f"  {paint(line, text_style)}" for line in rest)
        self._refresh()

    def printed(self, line: str) -> None:
        self._message.print_finished()
        line = with_colours(line).expandtabs().rstrip()
        self._scrollback.print(fold(line, max(self._screen.width, 8)))
        self._refresh()

    def reply(self, content: Any) -> None:
        self._message.print_finished()
        if isinstance(content, str):
            self._scrollback.print(self._scrollback.wrapped(for_terminal(content)))
        else:
            # Rich is loaded for commands that draw with it.
            from amplifier_app.render.console import ScreenConsole

            self._scrollback.print(ScreenConsole(self._screen).lines(content).splitlines())
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
        self._message.print_finished()
        self._scrollback.begin("message", always=True)
        first, *rest = self._scrollback.wrapped(for_terminal(text), 2)
        self._scrollback.print([f"{paint('›', 'bold')} {first}", *(f"  {line}" for line in rest)])
        self._refresh()

    def close(self) -> None:
        self._stop_live()
        self._signals.close()
        self._screen.close()

    # One message of the model

    def _on_request(self, event: str, data: dict[str, Any]) -> None:
        self._message.finish()
        self._message.begin()
        self._progress.start_call(str(peek(data, "model") or ""))
        self._refresh()
        self._schedule()

    def _on_retry(self, event: str, data: dict[str, Any]) -> None:
        # A provider may also log the retry: what is in the live region need not be a notice, too.
        self.retries.is_new_event(data)
        self._progress.retries(data)
        self._schedule()

    def _on_delta(self, event: str, data: dict[str, Any]) -> None:
        self._message.receive(data)
        if self._timer is None:
            self._schedule()

    def _on_block_end(self, event: str, data: dict[str, Any]) -> None:
        self._message.end_block(data)
        self._refresh()

    # Tools

    def _on_tool_start(self, event: str, data: dict[str, Any]) -> None:
        self._message.finish()
        self._message.print_retries()
        if not self._quiet:
            self._activity.call_started(data, self._number_of(data))
            self._schedule()
        self._refresh()

    def _on_approval(self, event: str, data: dict[str, Any]) -> None:
        self._activity.call_allowed(data)
        # The card has shown what the call does.
        if is_answer(data):
            self._seen.add(peek(data, "tool_call_id"))

    def _on_tool_output(self, event: str, data: dict[str, Any]) -> None:
        self._activity.call_wrote(data)

    def _on_tool_end(self, event: str, data: dict[str, Any]) -> None:
        call = FinishedCall(data, 0.0, self._number_of(data))
        waited = self._activity.call_ended(data, failed=call.has_failed)
        if self._quiet:
            return
        call = call._replace(seconds=seconds_of(data, waited))
        self._message.finish()
        shown = self._print_call(call, was_seen=peek(data, "tool_call_id") in self._seen)
        if self.signals and self._signals.shows_pictures:
            size = self._screen.width, self._screen.height
            drawn = [picture(block, *size) for block in image_blocks(data)]
            self._scrollback.print(filter(None, drawn))
        if shown.is_folded and self.full_result_hint:
            hint = self._scrollback.wrapped(self.full_result_hint, 4)
            self._scrollback.print(paint(f"    {line}", "dim") for line in hint)
            self.full_result_hint = ""  # once is enough
        self._progress.start_call()
        self._refresh()
        self._schedule()

    def _print_call(self, call: FinishedCall, *, was_seen: bool) -> Shown:
        """Print a finished call and count the file it has changed."""
        if not call.has_failed:
            self._changed.update(describe.changed_files(call.data))
        self._scrollback.begin("tool")
        link = self._signals.link if self.signals else None
        shown = draw_call(call, self._screen.width, link, whole=self.verbose, was_seen=was_seen)
        self._scrollback.print(shown.lines)
        return shown

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

    def sub_session_retries(self, session_id: str, data: dict[str, Any]) -> None:
        self._activity.agent_waits(session_id, retry_text(data))
        self._schedule()

    def sub_session_changed(self, agent: str, data: dict[str, Any], *, was_seen: bool) -> None:
        if not self._quiet:
            self._print_call(
                FinishedCall(data, seconds_of(data, 0.0), agent=agent), was_seen=was_seen
            )
            self._refresh()

    def sub_session_ended(self, ended: SubSession) -> None:
        self._activity.agent_ended(ended.session_id)
        self._schedule()

    def _on_steering(self, event: str, data: dict[str, Any]) -> None:
        self.message_sent(str(peek(data, "text") or ""))

    def _on_stop(self, event: str, data: dict[str, Any]) -> None:
        self._is_stopping = True
        self._refresh()

    # The end of a turn

    def _print_footer(self, result: TurnResult) -> None:
        commands = ("/diff", "/undo") if self._chat else ()
        seconds = time.monotonic() - self._turn_began
        text = footer(result, seconds, len(self._changed), commands=commands)
        if result.steps:
            self._scrollback.begin("footer")
            self._scrollback.print(
                paint(f"  {line}", "dim") for line in self._scrollback.wrapped(text, 2)
            )

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
        lines = self._message.live_lines(height)
        key = "Esc" if self._chat else "Ctrl-C"
        stop = f"{key} again to stop now" if self._is_stopping else f"{key} stop"
        steer = "type to steer" if self._chat and not self._is_stopping else ""
        shows_keys = self._chat or self._is_stopping
        activity = self._activity.lines(width, join_parts(stop, steer) if shows_keys else "")
        if activity or not lines:
            kind = "tool" if self._activity.is_busy else "status"
            lines += self._scrollback.spaced(kind, activity)
        if not self._activity.is_busy:
            lines.append(self._progress.line(width, key, join_parts(stop, steer)))
        return lines

    def _schedule(self) -> None:
        """Redraw soon, but not too often."""
        if self._timer is None and self._is_live:
            wait = self._next_refresh - time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(max(0.0, wait), self._tick)

    def _tick(self) -> None:
        self._timer = None
        began = time.monotonic()
        self._message.print_finished()
        self._refresh()
        took = time.monotonic() - began
        self._next_refresh = began + max(REFRESH_SECONDS, _PAUSE_PER_DRAWING * took)
        # Keep the spinner moving while the session waits.
        self._schedule()

    def _refresh(self) -> None:
        """Bring the screen up to date, in one update."""
        if self._is_paused:
            return
        printed = self._scrollback.take()
        self._screen.commit(printed, self._live_region() if self._is_live else [])
        self._next_refresh = time.monotonic() + REFRESH_SECONDS
        if self._screen.failure is not None:
            self.on_failure()
