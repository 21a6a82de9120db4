"""Ask about a tool call: show what it would do, and answer with a single key."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.application import Application
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.input import create_input
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import FormattedTextControl, Layout, Window

from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import terminal_size
from amplifier_app.chat.ask import ALONE_SECONDS, Stopped, terminal_output
from amplifier_app.chat.terminal_modes import forget_typed
from amplifier_app.render.ansi import paint, plain
from amplifier_app.render.approval import card_lines, key_lines, wrapped
from amplifier_core.approval import ToolApproval, ToolApprovalAnswer

_INSTEAD = "No. Instead: "
_ESCAPE_SECONDS = 0.05
_KEY_NAMES = ("y", "s", "a", "o", "n", "t", "v", "Esc", "Ctrl-C")
_ALLOWING = ("y", "s", "a", "o")


async def ask_about_tool(
    fd: int, request: ToolApproval, agent: str, timeout: float | None, *, is_plain: bool = False
) -> ToolApprovalAnswer | None:
    """Return the answer to a request; None if the user presses Esc or Ctrl-D.

    Args:
        fd: The terminal.
        request: The call.
        agent: The agent that makes it; empty for the session itself.
        timeout: Seconds to wait for an answer; None to wait forever.
        is_plain: Use no colours.

    Raises:
        Stopped: Ctrl-C was pressed.
        TimeoutError: No answer within `timeout` seconds.
    """
    card = _Card(fd, request, agent, is_plain)
    # Earlier keys were not typed as an answer.
    forget_typed()
    async with asyncio.timeout(timeout):
        card.show(whole=False)
        while True:
            key = await card.key()
            if key == "c-z":
                os.kill(0, signal.SIGTSTP)
            if key in ("c-z", "v"):
                # Other output may be on the screen now.
                card.show(whole=key == "v" or card.shows_all)
                continue
            comment = await card.comment() if key == "t" else None
            if key == "t" and comment is None:
                continue
            answer = card.answer(key, comment)
            card.show_answer(answer)
            return answer


class _Card:
    def __init__(self, fd: int, request: ToolApproval, agent: str, is_plain: bool) -> None:
        self._fd = fd
        self._request = request
        self._agent = agent
        self._is_plain = is_plain
        self.shows_all = False
        self._options = {"y": _option(request, "once", "allow"), "n": _option(request, "deny")}
        for key, word in (("s", "session"), ("a", "always"), ("o", "outside")):
            if any(word in option.lower() for option in request.options):
                self._options[key] = _option(request, word)

    def show(self, *, whole: bool) -> None:
        shown, all_lines = (
            card_lines(self._request, self._agent, self._width, whole=one) for one in (whole, True)
        )
        self.shows_all = shown == all_lines
        self._write(["", *shown])

    def show_answer(self, answer: ToolApprovalAnswer | None) -> None:
        if answer is None:
            return
        if answer.option.lower().startswith("allow"):
            scope = self._request.scopes.get(answer.option)
            text = one_line(f"{answer.option}{f': {scope}' if scope else ''}", 400)
        elif answer.comment:
            text = f"{_INSTEAD}{one_line(answer.comment, 4000)}"
        else:
            return  # The renderer shows the denial.
        self._write([paint(f"  {line}", "dim") for line in wrapped(text, self._width - 2)])

    def answer(self, key: str, comment: str | None) -> ToolApprovalAnswer | None:
        if key in ("escape", "c-d"):
            return None
        return ToolApprovalAnswer(self._options["n" if key == "t" else key], comment)

    async def key(self) -> str:
        """Return the key pressed; other keys than those shown do nothing.

        Raises:
            Stopped: Ctrl-C was pressed.
        """
        more = () if self.shows_all else ("v",)
        keys = (*self._options, "t", *more, "escape", "c-d", "c-c", "c-z", "<sigint>")
        window = Window(
            FormattedTextControl(lambda: _with_bold_keys(self._key_lines()), show_cursor=False),
            height=lambda: len(self._key_lines()),
            always_hide_cursor=True,
        )
        app: Application[str] = Application(
            layout=Layout(window),
            key_bindings=_Answering(keys).bindings,
            erase_when_done=True,
            input=create_input(sys.stdin),
            output=terminal_output(self._fd),
        )
        _quiet(app)
        clear_typeahead(app.input)
        try:
            pressed = await app.run_async(handle_sigint=False)
        except (EOFError, OSError):  # the terminal is gone
            raise Stopped from None
        if pressed in ("c-c", "<sigint>"):
            raise Stopped
        return pressed

    def _key_lines(self) -> list[str]:
        return key_lines(self._request, self._width, shows_all=self.shows_all)

    async def comment(self) -> str | None:
        """Return the message of the user to the model; None if the user goes back with Esc.

        Raises:
            Stopped: Ctrl-C was pressed.
        """
        bindings = KeyBindings()

        @bindings.add("escape")
        def back(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
            event.app.exit(exception=EOFError)

        session: PromptSession[str] = PromptSession(
            _INSTEAD,
            key_bindings=bindings,
            output=terminal_output(self._fd),
            erase_when_done=True,
            enable_suspend=True,
        )
        _quiet(session.app)
        try:
            text = await session.prompt_async()
        except EOFError:
            return None
        except (KeyboardInterrupt, OSError):  # or the terminal is gone
            raise Stopped from None
        return text.strip() or None

    @property
    def _width(self) -> int:
        return terminal_size(self._fd)[0]

    def _write(self, lines: list[str]) -> None:
        shown = [plain(line) for line in lines] if self._is_plain else lines
        data = "".join(f"{line}\n" for line in shown).encode("utf-8", "replace")
        with contextlib.suppress(OSError):  # the terminal is gone; reading the key ends, too
            while data:
                data = data[os.write(self._fd, data) :]


def _option(request: ToolApproval, *words: str) -> str:
    """Return the option that contains one of the words."""
    for word in words:
        for option in request.options:
            if word in option.lower():
                return option
    return words[-1].title()


class _Answering:
    """Ends an application with the key pressed.

    A key that allows the call counts only if no other key comes right before or after it: text that was being typed
    when the question appeared is not an answer.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self.bindings = KeyBindings()
        self._waiting: asyncio.TimerHandle | None = None
        self._pressed = -ALONE_SECONDS  # when the last key was
        self.bindings.add(Keys.Any)(lambda event: self._forget())
        for key in keys:
            self.bindings.add(key)(self._ending_with(key))

    def _ending_with(self, key: str) -> Callable[[KeyPressEvent], None]:
        def answer(event: KeyPressEvent) -> None:
            was_typing = self._forget()
            if key not in _ALLOWING:
                event.app.exit(result=key)
            elif not was_typing:
                end = functools.partial(event.app.exit, result=key)
                self._waiting = asyncio.get_running_loop().call_later(ALONE_SECONDS, end)

        return answer

    def _forget(self) -> bool:
        """Discard the last key, if it still waits; return whether it was pressed just now."""
        if self._waiting is not None:
            self._waiting.cancel()
        before, self._pressed = self._pressed, asyncio.get_running_loop().time()
        return self._pressed - before < ALONE_SECONDS


def _with_bold_keys(lines: list[str]) -> StyleAndTextTuples:
    """The lines with the name of each key, at the start of an item, in bold."""
    parts: StyleAndTextTuples = []
    for number, line in enumerate(lines):
        for index, item in enumerate(line.split(" · ")):
            key, space, rest = item.partition(" ")
            is_key = key in _KEY_NAMES
            parts.append(("", ("\n" if number and not index else "") + (" · " if index else "")))
            parts.append(("bold" if is_key else "", key))
            parts.append(("", space + rest))
    return parts


def _quiet(app: Application[Any]) -> None:
    """Decide soon whether Esc begins the sequence of another key."""
    app.ttimeoutlen, app.timeoutlen = _ESCAPE_SECONDS, _ESCAPE_SECONDS
