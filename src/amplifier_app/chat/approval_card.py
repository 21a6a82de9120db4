"""Ask about a tool call: show what it would do, and answer with a single key."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from types import MappingProxyType

from prompt_toolkit.application import Application
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.formatted_text.utils import fragment_list_to_text
from prompt_toolkit.input import create_input
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import FormattedTextControl, Layout, Window
from prompt_toolkit.output import DummyOutput

from amplifier_app.base.errors import AppError
from amplifier_app.base.pager import page_on
from amplifier_app.base.sanitize import one_line, visible
from amplifier_app.base.stdio import terminal_size
from amplifier_app.chat.application import edit
from amplifier_app.chat.ask import (
    READ_SECONDS,
    WORD_SECONDS,
    Line,
    Stopped,
    forget_keys,
    terminal_output,
)
from amplifier_app.chat.terminal_modes import forget_typed
from amplifier_app.render.ansi import paint, plain, wrapped
from amplifier_app.render.approval import (
    STARTS,
    card_lines,
    key_lines,
    range_text,
)
from amplifier_app.runtime import describe
from amplifier_core.approval import ToolApproval, ToolApprovalAnswer

_INSTEAD = "No. Instead: "
_ESCAPE_SECONDS = 0.05
_KEY_NAMES = (
    *("y", "p", "P", "o", "n", "t", "v", "?", "← →", "Esc", "Ctrl-C"),
    *("g", "a", "e", "c"),
)
_ALLOWING = ("y", "p", "P", "o", "g", "a")
_ANSWERING = (*_ALLOWING, "n")
"""Keys that may be followed by Enter, and begin a word that is an answer, too."""
_REFRESH_SECONDS = 0.5
"""Seconds between two counts of the questions that wait."""
_PAUSE_SECONDS = 0.2
"""Seconds without another key after which what is typed has ended."""
_IGNORED = "press one of these keys, or type yes or no and press Enter"


async def ask_about_tool(
    fd: int,
    request: ToolApproval,
    agent: str,
    timeout: float | None,
    *,
    is_plain: bool = False,
    names: Mapping[str, str] = MappingProxyType({}),
    count_waiting: Callable[[], int] = lambda: 0,
) -> ToolApprovalAnswer | None:
    """Return the answer to a request; None if the user presses Esc or Ctrl-D.

    Args:
        fd: The terminal.
        request: The call.
        agent: The agent that makes it; empty for the session itself.
        timeout: Seconds to wait for an answer; None to wait forever.
        is_plain: Use no colours and draw nothing: what is asked, and the keys, are lines.
        names: The keys that the user has chosen instead of the usual ones.
        count_waiting: Returns the number of other questions that wait, for example from sub-agents.

    Raises:
        Stopped: Ctrl-C was pressed.
        TimeoutError: No answer within `timeout` seconds.
    """
    card = _Card(fd, request, agent, is_plain, names)
    card.count_waiting = count_waiting
    # Earlier keys were not typed as an answer.
    if forget_typed():
        raise Stopped
    async with asyncio.timeout(timeout):
        card.show(whole=False)
        while True:
            key = await card.key()
            if key == "c-z":
                os.kill(0, signal.SIGTSTP)
            if card.changes_keys(key) or (key == "e" and await card.edits()):
                continue
            if key in ("c-z", "v"):
                # Other output may be on the screen now.
                card.show(whole=key == "v" or card.shows_all)
                continue
            comment = await card.comment() if key in ("t", "c") else None
            if key in ("t", "c") and comment is None:
                continue
            answer = card.answer(key, comment)
            card.show_answer(answer)
            return answer


class _Card:
    def __init__(
        self, fd: int, request: ToolApproval, agent: str, is_plain: bool, names: Mapping[str, str]
    ) -> None:
        self._names = names
        self._fd = fd
        self._request = request
        self._agent = agent
        self._is_plain = is_plain
        self.count_waiting: Callable[[], int] = lambda: 0
        self.shows_all = False
        self._began: float | None = None  # when the card was first shown
        self._shows_keys = False
        self._range = request.usual_range
        self._options = _options(request)
        self._proposed = request.tool_input.get("proposal")

    def show(self, *, whole: bool) -> None:
        columns, rows = terminal_size(self._fd)
        # Above are an empty line and the keys, with a note on what was ignored, and the cursor's line.
        height = rows - len(key_lines(self._request, columns)) - 3
        draw = partial(
            card_lines,
            self._request,
            self._agent,
            columns,
            height=height,
            framed=not self._is_plain,
            all_key=self._names.get("v", "v"),
        )
        lines, all_lines = draw(whole=whole), draw(whole=True)
        text = "".join(f"{line}\n" for line in lines)
        if (
            whole
            and len(lines) > rows
            and not self._is_plain
            and page_on(self._fd, text, leaves_text=False)
        ):
            return
        self.shows_all = lines == all_lines
        self._write(["", *lines])
        self._began = self._began or asyncio.get_running_loop().time()

    def changes_keys(self, key: str) -> bool:
        """Return True for a key that only changes what the keys mean, or how many of them are shown."""
        self._shows_keys ^= key == "?"
        moved = self._range + {"left": -1, "right": 1}.get(key, 0)
        self._range = max(min(moved, len(self._request.ranges) - 1), 0)
        return key in ("?", "left", "right")

    async def edits(self) -> bool:
        """Let the user edit a proposal, and show it again, or how the commands start that are allowed."""
        if not self._request.is_proposal:
            ranges = self._request.ranges
            line = Line(self._fd, f"Yes to {STARTS}", {}, is_plain=self._is_plain, erases=True)
            before = ranges[max(self._range, 1)].removeprefix(STARTS)
            typed = " ".join((await line.read(before) or "").split())
            if f"{STARTS}{typed}" in ranges:
                self._range = ranges.index(f"{STARTS}{typed}")
            elif typed:
                self._write([paint("  the command does not start with these words", "yellow")])
            return True
        proposal = self._request.tool_input["proposal"]
        try:
            edited = edit(str(proposal), self._fd)
        except AppError as error:
            self._write([error.message])
        else:
            changed = {**self._request.tool_input, "proposal": edited}
            self._request = self._request._replace(tool_input=changed)
        self.show(whole=False)
        return True

    def show_answer(self, answer: ToolApprovalAnswer | None) -> None:
        answer = answer or ToolApprovalAnswer(self._options["n"])
        if answer.option.lower().startswith("allow"):
            calls = "" if answer.range is None else f": {range_text(self._request, answer.range)}"
            text = one_line(answer.option + calls, 400)
        elif answer.comment and not self._is_plain:
            text = f"{_INSTEAD}{one_line(answer.comment, 4000)}"
        elif self._agent and not answer.comment:
            text = answer.option
        else:
            return  # The renderer shows the denial; a plain line with a comment stays.
        self._write([paint(f"  {line}", "dim") for line in wrapped(text, self._width - 2)])

    def answer(self, key: str, comment: str | None) -> ToolApprovalAnswer | None:
        if key in ("escape", "c-d"):
            return None
        option = self._options["n" if key in ("t", "c") else key]
        proposal = self._request.tool_input.get("proposal")
        is_edited = self._request.is_proposal and proposal != self._proposed
        return ToolApprovalAnswer(
            option,
            comment,
            range=self._range if key in "pP" else None,
            input={"proposal": proposal} if is_edited else None,
        )

    async def key(self) -> str:
        """Return the key pressed, or the first letter of the word typed; other keys are reported and ignored.

        Raises:
            Stopped: Ctrl-C was pressed.
        """
        more = [] if self.shows_all else ["v"]
        if "p" in self._options and len(self._request.ranges) > 1:
            more += ["left", "right", *(["e"] if "command" in self._request.tool_input else [])]
        more += ["e", "c"] if self._request.is_proposal else ["t", "?"]
        keys = _AnswerKeys(
            (*self._options, *more), self._began or 0.0, self._names, self._report_ignored
        )
        if self._is_plain:
            self._write(self._key_lines())
        bold = {*_KEY_NAMES, *self._names.values()}

        def text() -> StyleAndTextTuples:
            rows = wrapped(keys.note, self._width) if keys.note else []
            note = "".join(f"{paint(row, 'yellow')}\n" for row in rows)
            return to_formatted_text(ANSI(note), style="class:note") + _with_bold_keys(
                self._key_lines(), bold
            )

        async def follow() -> None:
            shown = self.count_waiting()
            while True:
                await asyncio.sleep(_REFRESH_SECONDS)
                if shown != (shown := self.count_waiting()):
                    app.invalidate()

        def begin() -> None:
            app.create_background_task(follow())

        window = Window(
            FormattedTextControl(text, show_cursor=False),
            height=lambda: fragment_list_to_text(text()).count("\n") + 1,
            always_hide_cursor=True,
        )
        app: Application[str] = Application(
            layout=Layout(window),
            key_bindings=keys.bindings,
            erase_when_done=True,
            input=create_input(sys.stdin),
            output=DummyOutput() if self._is_plain else terminal_output(self._fd),
        )
        # Decide soon whether Esc begins the sequence of another key.
        app.ttimeoutlen, app.timeoutlen = _ESCAPE_SECONDS, _ESCAPE_SECONDS
        forget_keys(app.input)
        try:
            pressed = await app.run_async(pre_run=begin, handle_sigint=False)
        except (EOFError, OSError):  # the terminal is gone
            raise Stopped from None
        if pressed in ("c-c", "<sigint>") or forget_keys(app.input):
            raise Stopped
        return pressed

    def _report_ignored(self, app: Application[str], note: str) -> None:
        if self._is_plain:
            self._write(wrapped(note, self._width))
        else:
            app.invalidate()

    def _key_lines(self) -> list[str]:
        waiting = self.count_waiting()
        note = [f"{describe.count(waiting, 'more question')} waiting"] if waiting > 0 else []
        return note + key_lines(
            self._request,
            self._width,
            range_=self._range,
            more=self._shows_keys,
            shows_all=self.shows_all,
            names=self._names,
        )

    async def comment(self) -> str | None:
        """Return the message of the user to the model; None if the user goes back with Esc.

        Raises:
            Stopped: Ctrl-C was pressed.
        """
        line = Line(self._fd, _INSTEAD, {}, is_plain=self._is_plain, erases=True)
        return (await line.read() or "").strip() or None

    @property
    def _width(self) -> int:
        return terminal_size(self._fd)[0]

    def _write(self, lines: list[str]) -> None:
        output = [plain(line) for line in lines] if self._is_plain else lines
        data = "".join(f"{line}\n" for line in output).encode("utf-8", "replace")
        with contextlib.suppress(OSError):  # the terminal is gone; reading the key ends, too
            while data:
                data = data[os.write(self._fd, data) :]


def _options(request: ToolApproval) -> dict[str, str]:
    """The option of each key that answers."""
    if request.is_proposal:
        keys = (("g", "ask"), ("a", "auto"), ("n", "deny"))
        return {key: _option(request, word) for key, word in keys}
    options = {"y": _option(request, "once", "allow"), "n": _option(request, "deny")}
    for key, word in (("p", "session"), ("P", "always"), ("o", "outside")):
        if any(word in option.lower() for option in request.options):
            options[key] = _option(request, word)
    return options


def _option(request: ToolApproval, *words: str) -> str:
    """Return the option that contains one of the words."""
    matches = (option for word in words for option in request.options if word in option.lower())
    return next(matches, words[-1].title())


class _AnswerKeys:
    """Ends an application with the answer typed.

    What is typed ends with Enter or a pause. It has to be an answer as a whole, and one that allows the call takes effect
    only after the card has been visible for a moment: text that was being typed when it appeared is not an answer.

    Args:
        keys: The keys that answer.
        began: When the card appeared, by the clock of the event loop.
        names: The keys that the user has chosen instead of these.
        report: Shows the note on text that was ignored.

    Attributes:
        note: The text that was ignored last, and how to answer.
    """

    def __init__(
        self,
        keys: Iterable[str],
        began: float,
        names: Mapping[str, str],
        report: Callable[[Application[str], str], None],
    ) -> None:
        self._report = report
        self.bindings = KeyBindings()
        self.note = ""
        self._began = began
        self._typed = ""
        self._waiting: asyncio.TimerHandle | None = None
        self._answers = {names.get(key, key): key for key in keys if key in _ANSWERING}
        self._answers["no"] = "n"
        if "y" in self._answers:
            self._answers["yes"] = "y"
        self.bindings.add(Keys.Any)(self._receive)
        at_start = Condition(lambda: not self._typed)
        for key in keys:
            if key not in _ANSWERING:
                self.bindings.add(names.get(key, key), filter=at_start)(self._ending_with(key))
        for key in ("escape", "c-d", "c-c", "c-z", "<sigint>"):
            self.bindings.add(key)(self._ending_with(key))

    def _ending_with(self, key: str) -> Callable[[KeyPressEvent], None]:
        return lambda event: event.app.exit(result=key)

    def _receive(self, event: KeyPressEvent) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        loop = asyncio.get_running_loop()
        self._typed += event.data
        text = self._typed.rstrip("\r\n")
        answer = self._answers.get(text) or self._answers.get(text.lower())
        begins_word = any(word != text and word.startswith(text.lower()) for word in self._answers)
        wait = 0.0
        if text == self._typed:
            wait = WORD_SECONDS if begins_word else _PAUSE_SECONDS
        if answer in _ALLOWING:
            wait = max(wait, self._began + READ_SECONDS - loop.time())
        self._waiting = loop.call_later(wait, self._decide, event.app, text, answer)

    def _decide(self, app: Application[str], text: str, answer: str | None) -> None:
        self._typed = ""
        if answer is None:
            is_text = text and not text.startswith("\x1b")  # as the codes of keys do
            self.note = f"ignored {visible(text, 40)!r}: {_IGNORED}" if is_text else _IGNORED
            self._report(app, self.note)
        elif app.is_running and not app.is_done:
            app.exit(result=answer)


def _with_bold_keys(lines: list[str], keys: Collection[str]) -> StyleAndTextTuples:
    """The lines with the name of each key, at the start of an item, in bold."""
    parts: StyleAndTextTuples = []
    for number, line in enumerate(lines):
        parts.append(("", "\n" if number else ""))
        for item in re.split(r"( {2,})", line):
            key, space, rest = (item, "", "") if item in keys else item.partition(" ")
            parts.append(("bold" if key in keys else "", key))
            parts.append(("", space + rest))
    return parts
