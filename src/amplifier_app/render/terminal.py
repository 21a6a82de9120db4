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
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from amplifier_app.base.sanitize import (
    StreamSanitizer,
    for_terminal,
    one_line,
    visible,
    with_colours,
)
from amplifier_app.render.ansi import cells, clip, fold, message_lines, paint, rich_lines
from amplifier_app.render.call_lines import (
    FinishedCall,
    about_call,
    call_key,
    footer,
    join_parts,
    measure_seconds,
)
from amplifier_app.render.diff import Shown, checklist_lines, draw_call, todo_items
from amplifier_app.render.markdown import MarkdownStream
from amplifier_app.render.screen import Screen, Scrollback, image_blocks, image_protocol, picture
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
from amplifier_app.runtime.turns.turn import EventHandler, SubSession, TurnResult, is_answer, peek
from amplifier_app.sessions.summary import short_id

MAX_LINES = 6
_TODO_LINES = 2

_ROOM_FOR_KEYS = 60
"""Cells of a line on which the keys are shown next to a text that is cut for them."""

_SHOWN_AFTER = 1.0
"""Seconds after which a line shows its duration."""


class _Call:
    """A running tool call, with its span if the orchestrator reports one."""

    def __init__(self, data: dict[str, Any], number: int | None = None) -> None:
        self.about = about_call(data, number)
        self.tool = peek(data, "tool_name")
        self.span = peek(data, "span_id")
        self.started = time.monotonic()
        self.output = ""


class _SubAgent:
    """A running sub-agent, with the tool call that waits for it, if known."""

    def __init__(self, facts: SubSessionFacts, call: str | None) -> None:
        self._agent = one_line(facts.agent, 40)
        self._task = one_line(describe.task(facts.agent, facts.instruction), 100)
        self.call = call
        self.doing = ""
        self.steps = 0
        self.started = time.monotonic()

    @property
    def about(self) -> str:
        """Its task, until it has begun with it."""
        if not self.steps and not self.doing:
            return self._task
        doing = f" → {self.doing}" if self.doing else ""
        return f"{self._agent} · {describe.count(self.steps, 'step')}{doing}"


class Activity:
    """The to-do list, the running tool calls and sub-agents of one session."""

    def __init__(self) -> None:
        self._calls: dict[str, _Call] = {}
        self._waiting: dict[str, str] = {}  # sub-session → key of the waiting call
        self._agents: dict[str, _SubAgent] = {}
        self._todo: list[tuple[str, str]] = []

    def clear(self) -> None:
        """Remove all lines; the to-do list is kept while it has open items."""
        self._calls.clear()
        self._waiting.clear()
        self._agents.clear()
        if all(mark == "☑" for mark, _ in self._todo):
            self._todo = []

    # Tool calls

    def call_started(self, data: dict[str, Any], number: int | None = None) -> None:
        """Add the tool call of this event."""
        self._calls[call_key(data)] = _Call(data, number)

    def call_allowed(self, data: dict[str, Any]) -> None:
        """Count the time of tool calls from now: the calls of an answer begin when all are decided on."""
        if call_key(data) in self._calls:
            for call in self._calls.values():
                call.started = time.monotonic()

    def call_wrote(self, data: dict[str, Any]) -> None:
        """Record output of a tool call; tools of other authors do not know its span."""
        span, tool = peek(data, "span_id"), peek(data, "tool_name")
        lines = str(peek(data, "text") or "")[-2000:].rstrip().splitlines()
        writing = [
            call
            for call in self._calls.values()
            if (call.tool == tool if span is None else call.span == span)
        ]
        if lines and len(writing) == 1:
            writing[0].output = one_line(lines[-1], 200)

    def call_ended(self, ended: FinishedCall) -> float:
        """Remove a tool call; return its seconds."""
        items = None if ended.has_failed else todo_items(ended.input)
        if items is not None:
            self._todo = items
        call = self._calls.pop(call_key(ended.data), None)
        return 0.0 if call is None else time.monotonic() - call.started

    def calls(self) -> list[str]:
        """Return the descriptions of the running tool calls."""
        return [call.about for call in self._calls.values()]

    # Sub-agents

    def call_waits(self, data: dict[str, Any]) -> None:
        """Link a tool call to the sub-session it waits for: both share one line."""
        span, session_id = peek(data, "span_id"), str(peek(data, "sub_session_id"))
        for key, call in self._calls.items():
            if span is not None and call.span == span:
                self._waiting[session_id] = key

    def agent_started(self, facts: SubSessionFacts) -> None:
        """Add a sub-agent."""
        self._agents[facts.session_id] = _SubAgent(facts, self._waiting.get(facts.session_id))

    def agent_doing(self, session_id: str, what: str, *, is_step: bool = True) -> None:
        """Record the tool call of a sub-agent or why it waits, or its model call if `what` is empty."""
        agent = self._agents.get(session_id)
        if agent is not None:
            agent.doing = what
            agent.steps += bool(what) and is_step

    def agent_ended(self, session_id: str) -> None:
        """Remove a sub-agent."""
        self._waiting.pop(session_id, None)
        self._agents.pop(session_id, None)

    # Lines

    @property
    def is_busy(self) -> bool:
        """True if a tool call or a sub-agent runs."""
        return bool(self._calls or self._agents)

    def lines(self, width: int, hint: str = "") -> list[str]:
        """Return at most `MAX_LINES` lines of at most `width` cells.

        These are the to-do list while it has open items, then one line for each tool call and for
        each sub-agent without a waiting call.

        Args:
            width: Cells per line.
            hint: Keys shown next to the first running call.
        """
        todo = self._todo_lines(width)
        by_call = {agent.call: agent for agent in self._agents.values() if agent.call is not None}
        running: list[list[str]] = []
        for key, call in self._calls.items():
            agent = by_call.get(key)
            keys = "" if running else hint
            head = _running_line(agent or call, width, keys)
            below = [paint(clip(f"    {call.output}", width), "dim")] if call.output else []
            running.append([head, *below])
        for agent in self._agents.values():
            if agent.call not in self._calls:
                running.append([_running_line(agent, width, "" if running else hint)])
        return [*todo, *_fitting(running, MAX_LINES - len(todo))]

    def _todo_lines(self, width: int) -> list[str]:
        done = sum(mark == "☑" for mark, _ in self._todo)
        if done == len(self._todo):
            return []
        count = f"{done}/{len(self._todo)}"
        first, *rest = checklist_lines(self._todo, width - len(count) - 3, _TODO_LINES)
        return [_with_hint(f" {first}", count, width), *(f" {line}" for line in rest)]


def _fitting(running: list[list[str]], max_lines: int) -> list[str]:
    """Return the lines of running calls; with many, without output and with the rest counted."""
    lines = [line for lines in running for line in lines]
    if len(lines) > max_lines:
        lines = [lines[0] for lines in running]
    if (more := len(lines) - max_lines) > 0:
        lines[max_lines - 1 :] = [paint(f"  … {more + 1} more", "dim")]
    return lines


def _running_line(what: _Call | _SubAgent, width: int, hint: str) -> str:
    """Return a line whose text is cut before its duration."""
    seconds = time.monotonic() - what.started
    duration = f" · {describe.duration(seconds)}" if seconds > _SHOWN_AFTER else ""
    keys = cells(hint) + 2 if hint and width >= _ROOM_FOR_KEYS else 0
    text = clip(what.about, max(width - len(duration) - 2 - keys, 8))
    return _with_hint(f"{spinner()} {text}{duration}", hint, width)


SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
SPINNER_SECONDS = 0.1

_CHARACTERS_PER_TOKEN = 4
_SECONDS_SHOWN_AFTER = 1.0

_CAUSES = {
    "RateLimitError": ("rate limited", "for the rate limit"),
    "NetworkError": ("connection failed", "for the connection"),
    "LLMTimeoutError": ("no answer in time", "after a timeout"),
    "StreamError": ("the answer was cut off", "after an answer was cut off"),
}
_OVERLOADED, _UNAVAILABLE = 529, 503
_OTHER_WAIT = "to repeat a failed request"
_MAX_CAUSE = 60


class Progress:
    """The state of the model call that runs.

    Attributes:
        since: `time.monotonic()` at its start.
    """

    def __init__(self) -> None:
        self._model = ""
        self._doing = "waiting"
        self.since = time.monotonic()
        self._characters = 0
        self._retry: tuple[str, float, str] | None = None  # cause, end of the wait, attempt
        self._waited = 0.0
        self._waited_for = ""
        self._tries = 1

    def start_call(self, model: str = "") -> None:
        """A model call starts."""
        self._model = one_line(model, 40) or self._model
        self._doing = "waiting"
        self.since = time.monotonic()
        self._characters = 0

    def add_characters(self, kind: str, characters: int) -> None:
        """A piece of the answer has arrived."""
        self._doing = "thinking" if kind == "thinking" else "writing"
        self._characters += characters
        self._end_wait()

    def seconds(self) -> float:
        """Seconds since the model call started."""
        return time.monotonic() - self.since

    def retries(self, data: dict[str, Any]) -> None:
        """The provider waits before it repeats a request."""
        self._end_wait()
        delay = _delay(data)
        cause, self._waited_for = _cause(data)
        self._retry = (cause, time.monotonic() + delay, _attempt(data))
        self._waited += delay
        self._tries += 1

    def _end_wait(self) -> None:
        if self._retry is not None:
            # The wait may have been cut short.
            self._waited -= max(0.0, self._retry[1] - time.monotonic())
            self._retry = None

    def take_retry_summary(self) -> str:
        """Return, once, a summary of the retries; empty if there were none."""
        if self._retry is not None and self._retry[1] > time.monotonic():
            self._tries -= 1  # stopped before the request was repeated
        self._end_wait()
        waited, self._waited = self._waited, 0.0
        tries, self._tries = self._tries, 1
        tried = f", tried {tries} times" if tries > 2 else ""
        return f"waited {round(waited)} s {self._waited_for}{tried}" if waited >= 0.5 else ""

    def line(self, width: int, key: str, hint: str) -> str:
        """Return the line for what is going on, at most `width` cells wide.

        Args:
            width: Cells of the line.
            key: The key that stops the turn.
            hint: What this and other keys do.
        """
        if self._retry is not None:
            cause, end, attempt = self._retry
            left = end - time.monotonic()
            others = cells(_retrying("", left, attempt)) + cells(f"  · {key} to give up")
            retrying = _retrying(clip(cause, max(width - others, 8)), left, attempt)
            return clip(f"{spinner()} {retrying} · {key} to give up", width)
        text = " ".join(filter(None, (self._model, self._doing)))
        if self.seconds() > _SECONDS_SHOWN_AFTER:
            text += f" · {int(self.seconds())} s"
        if self._characters:
            count = max(1, self._characters // _CHARACTERS_PER_TOKEN)
            text += f" · ↓ {describe.count(count, 'token')}"
        return _with_hint(f"{spinner()} {text}", hint, width)


def retry_text(data: dict[str, Any]) -> str:
    """Describe a retry: `rate limited, retrying in 4 s (2 of 4)`."""
    return _retrying(_cause(data)[0], _delay(data), _attempt(data))


def _retrying(cause: str, seconds: float, attempt: str) -> str:
    left = max(0, round(seconds))
    when = f"retrying in {left} s" if left else "retrying"
    comma = "" if cause.endswith("…") else ","
    return f"{cause}{comma} {when}{attempt}"


def _cause(data: dict[str, Any]) -> tuple[str, str]:
    message = one_line(str(peek(data, "error_message") or "the request failed"), _MAX_CAUSE)
    kind = str(peek(data, "error_type"))
    if kind == "ProviderUnavailableError":
        return _unavailability(peek(data, "status_code"), message)
    return _CAUSES.get(kind, (message, _OTHER_WAIT))


def _unavailability(status: Any, message: str) -> tuple[str, str]:
    # Providers of other authors send no status.
    if status == _OVERLOADED or "overloaded" in message.lower():
        return "the provider is overloaded", "for the overloaded provider"
    code = f" ({status})" if isinstance(status, int) else ""
    if code and status >= 500 and status != _UNAVAILABLE:
        return f"server error{code}", "after a server error"
    return f"the provider is unavailable{code}", "for the unavailable provider"


def _delay(data: dict[str, Any]) -> float:
    delay = peek(data, "delay")
    return float(delay) if isinstance(delay, (int, float)) else 0.0


def _attempt(data: dict[str, Any]) -> str:
    attempt, attempts = peek(data, "attempt"), peek(data, "max_retries")
    return f" ({attempt} of {attempts})" if attempt and attempts else ""


def spinner() -> str:
    """Return the current frame of the spinner."""
    return paint(SPINNER[int(time.monotonic() / SPINNER_SECONDS) % len(SPINNER)], "accent")


def _with_hint(line: str, hint: str, width: int) -> str:
    """Return a line with a hint at its right end, if there is room."""
    gap = width - cells(line) - cells(hint)
    return f"{line}{' ' * gap}{paint(hint, 'dim')}" if hint and gap >= 2 else clip(line, width)


_KINDS = ("text", "thinking")


class MessageView:
    """Prints the finished part of a message, and holds the rest for the live region.

    Args:
        scrollback: Where finished lines go.
        progress: Counts what arrives.
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
        folds: Callable[[], bool],
        omits: bool,
        fold_hint: str,
    ) -> None:
        self._scrollback = scrollback
        self._progress = progress
        self._folds = folds
        self._omits = omits
        self._fold_hint = fold_hint
        self.folded: list[str] = []
        self.begin()

    def begin(self) -> None:
        """Begin a new message."""
        self.has_text = False
        self._text = MarkdownStream(lambda: self._scrollback.width)
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
                self._scrollback.add("thinking", self._thought_lines(lines))
        self._print_text(self._text.take())

    def live_lines(self, max_lines: int) -> list[str]:
        """Return the end of what is not finished, in at most `max_lines` lines each."""
        lines: list[str] = []
        if self._thought.strip() and not self._folds():
            thought = self._thought_lines(self._thought)[-max_lines:]
            lines += self._scrollback.spaced("thinking", thought)
        rest = self._text.rest[-max_lines:]
        if rest:
            lines += self._scrollback.spaced("text", rest, always=not self._text_begun)
        return lines

    def print_retries(self) -> None:
        """Print, once, that the provider had to repeat requests."""
        summary = self._progress.take_retry_summary()
        if summary:
            self._scrollback.add("note", [paint(f"· {summary}", "dim")])

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
            line = paint(f"✻ thought for {seconds}{self._fold_hint}", "dim")
            self._scrollback.add("thinking", [line], always=True)
        elif thought.strip():
            self._scrollback.add("thinking", self._thought_lines(thought))

    def _thought_lines(self, text: str) -> list[str]:
        return [paint(line, "dim italic") for line in self._scrollback.wrapped(text)]

    def _print_text(self, lines: list[str]) -> None:
        if lines:
            self._scrollback.add("text", lines, always=not self._text_begun)
            self._text_begun = True


LONG_TURN_SECONDS = 10.0
"""Turns that take longer end with a bell or a notification."""

_SAVE_TITLE, _RESTORE_TITLE = "\x1b[22;2t", "\x1b[23;2t"
_BELL = "\x07"
_NOTIFYING = ("iTerm.app", "WezTerm", "ghostty")
"""`TERM_PROGRAM` of terminals that show a notification for OSC 9."""


class Signals:
    """Sends sequences that draw nothing.

    Args:
        screen: The terminal.
        environment: Variables that name the terminal program. Default: those of the process.

    Attributes:
        images: How the terminal draws images; empty if it does not.
    """

    def __init__(self, screen: Screen, environment: Mapping[str, str] | None = None) -> None:
        self._screen = screen
        environment = os.environ if environment is None else environment
        term = environment.get("TERM", "")
        in_tmux = "TMUX" in environment or term.startswith(("screen", "tmux"))
        self._has_title = not term.startswith(("linux", "vt", "dumb"))
        self._links = self._has_title and not in_tmux
        self._notifies = not in_tmux and (
            environment.get("TERM_PROGRAM") in _NOTIFYING or "KITTY_WINDOW_ID" in environment
        )
        self._title = ""
        self.images = image_protocol(environment)

    def set_title(self, title: str) -> None:
        """Set the title of the window."""
        title = visible(title, 80)
        if not self._has_title or title == self._title:
            return
        saved = "" if self._title else _SAVE_TITLE
        self._title = title
        self._screen.signal(f"{saved}\x1b]2;{title}\x1b\\")

    def turn_ended(self, seconds: float, message: str) -> None:
        """Ask for attention after a long turn: with a notification, or else with the bell."""
        if seconds > LONG_TURN_SECONDS:
            note = f"\x1b]9;{visible(message, 80)}\x1b\\" if self._notifies else _BELL
            self._screen.signal(note)

    def link(self, text: str, path: str) -> str:
        """Return text as a link to a file, if the terminal can show links."""
        if not self._links:
            return text
        address = Path(os.path.abspath(path)).as_uri()
        return f"\x1b]8;;{address}\x1b\\{text}\x1b]8;;\x1b\\"

    def close(self) -> None:
        """Restore the title."""
        if self._title:
            self._screen.signal(_RESTORE_TITLE)
            self._title = ""


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

    def __init__(self, screen: Screen, *, quiet: bool = False, chat: bool = False) -> None:
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
            "tool:output": lambda event, data: self._activity.call_wrote(data),
            "tool:post": self._on_tool_end,
            "tool:error": self._on_tool_end,
            "task:start": lambda event, data: self._activity.call_waits(data),
            "steer:injected": lambda event, data: self.message_sent(str(peek(data, "text") or "")),
            "cancel:requested": self._on_stop,
        }

    def session_opened(self, facts: SessionFacts) -> None:
        if self._chat:
            self.full_result_hint = "/show N shows a whole result"
        elif facts.saved:
            self.full_result_hint = (
                f"amplifier session show {short_id(facts.session_id)} --call N shows a whole result"
            )
        self._progress.start_call(facts.model or facts.provider)
        self._title = f"amplifier · {os.path.basename(facts.working_dir) or facts.working_dir}"
        self._set_title("")

    def turn_started(self) -> None:
        self._message.begin()
        self._activity.clear()
        self._progress.start_call()
        # A request between two prompts, such as for a title, is not part of this one.
        self._progress.take_retry_summary()
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
            room = max(self._screen.width - len("✗  · interrupted"), 8)
            line = f"{paint('✗', 'yellow')} {clip(about, room)} · interrupted"
            self._scrollback.add("tool", [line])
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
            self._scrollback.print(rich_lines(content, self._screen.width, styled=True))
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
        rows = self._scrollback.wrapped(for_terminal(text), 2)
        self._scrollback.add("message", message_lines(rows, self._screen.width), always=True)
        self._refresh()

    def close(self) -> None:
        self._stop_live()
        self._signals.close()
        self._screen.commit("", [])

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
            self._activity.call_started(data, self._find_number(data))
            self._schedule()
        self._refresh()

    def _on_approval(self, event: str, data: dict[str, Any]) -> None:
        self._activity.call_allowed(data)
        # The card has shown what the call does.
        if is_answer(data):
            self._seen.add(peek(data, "tool_call_id"))

    def _on_tool_end(self, event: str, data: dict[str, Any]) -> None:
        call = FinishedCall(data, 0.0, self._find_number(data))
        waited = self._activity.call_ended(call)
        if self._quiet:
            return
        call = call._replace(seconds=measure_seconds(data, waited))
        self._message.finish()
        output = self._print_call(call, was_seen=peek(data, "tool_call_id") in self._seen)
        if self.signals and (protocol := self._signals.images):
            size = self._screen.width, self._screen.height
            drawn = [picture(block, protocol, *size) for block in image_blocks(data)]
            self._scrollback.print(filter(None, drawn))
        if output.is_folded and self.full_result_hint:
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
        link = self._signals.link if self.signals else None
        output = draw_call(call, self._screen.width, link, whole=self.verbose, was_seen=was_seen)
        self._scrollback.add("tool", output.lines)
        return output

    def _find_number(self, data: dict[str, Any]) -> int | None:
        call_id = peek(data, "tool_call_id")
        return self.call_number(str(call_id)) if call_id else None

    # Sub-agents

    def sub_session_started(self, facts: SubSessionFacts) -> None:
        if not self._quiet:
            self._activity.agent_started(facts)
            self._schedule()

    def sub_session_doing(self, session_id: str, what: str) -> None:
        self._activity.agent_doing(session_id, what)
        self._schedule()

    def sub_session_retries(self, session_id: str, data: dict[str, Any]) -> None:
        self._activity.agent_doing(session_id, retry_text(data), is_step=False)
        self._schedule()

    def sub_session_changed(self, agent: str, data: dict[str, Any], *, was_seen: bool) -> None:
        if not self._quiet:
            call = FinishedCall(data, measure_seconds(data, 0.0), agent=agent)
            self._print_call(call, was_seen=was_seen)
            self._refresh()

    def sub_session_ended(self, ended: SubSession) -> None:
        self._activity.agent_ended(ended.session_id)
        self._schedule()

    def _on_stop(self, event: str, data: dict[str, Any]) -> None:
        self._is_stopping = True
        self._refresh()

    # The end of a turn

    def _print_footer(self, result: TurnResult) -> None:
        commands = ("/diff", "/undo") if self._chat else ()
        seconds = time.monotonic() - self._turn_began
        text = footer(result, seconds, len(self._changed), commands=commands)
        if result.steps:
            rows = self._scrollback.wrapped(text, 2)
            self._scrollback.add("footer", (paint(f"  {row}", "dim") for row in rows))

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
