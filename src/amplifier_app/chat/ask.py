"""Ask a question on the terminal and wait for the choice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.filters import Condition
from prompt_toolkit.input import Input
from prompt_toolkit.input.typeahead import get_typeahead
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import Output as TerminalOutput
from prompt_toolkit.output import create_output

from amplifier_app.base.sanitize import for_terminal, one_line, visible
from amplifier_app.base.stdio import is_dumb
from amplifier_app.chat.terminal_modes import forget_typed, read_line
from amplifier_app.render.ansi import wrapped
from amplifier_app.trust import Answer, instruction_sources
from amplifier_app.trust.content import Content
from amplifier_app.trust.review import INSTRUCTIONS, changes, cut, listing, selection
from amplifier_app.trust.store import Record

WORD_SECONDS = 0.4
"""Seconds in which a key may become a word: y yes, and n no."""
READ_SECONDS = 1.0
"""Seconds a question has to be visible before it can be answered with yes."""

_WORDS = {"yes": "y", "no": "n"}


class Stopped(Exception):
    """Ctrl-C was pressed at a question, or the terminal is gone."""


def forget_keys(source: Input) -> bool:
    """Discard the keys that a question has read after its answer; return True if Ctrl-C is among them."""
    return any(press.key == Keys.ControlC for press in get_typeahead(source))


def terminal_output(fd: int) -> TerminalOutput:
    """Return the terminal at `fd` for prompt_toolkit; stdout may be redirected."""
    file = open(fd, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    output: Any = create_output(stdout=file)
    # Without reports of the cursor position nothing is mixed with the keys that are pressed.
    output.enable_cpr = False
    return output


async def ask_on_terminal(
    fd: int, question: str, options: list[str], timeout: float | None, *, is_plain: bool = False
) -> str | None:
    """Return the option chosen by its number, name or prefix; None on Esc or Ctrl-D.

    If one option allows and another denies, the single keys y and n choose them.

    Args:
        fd: The terminal.
        question: Text shown above the options.
        options: The possible answers.
        timeout: Seconds to wait for an answer; None to wait forever.
        is_plain: Let the terminal edit the answer, and draw nothing.

    Raises:
        Stopped: Ctrl-C was pressed.
        TimeoutError: No answer within `timeout` seconds.
    """
    keys = _yes_and_no(options)
    is_approval = bool(keys) and len(options) == len(keys)
    names = keys if is_approval else {str(n): option for n, option in enumerate(options, 1)}
    choices = "  ".join(f"[{name}] {one_line(option)}" for name, option in names.items())
    choices += " (y/n)" if keys and not is_approval else ""
    line = Line(fd, f"{choices}: ", keys, is_plain=is_plain)
    if keys:
        line.forget_typed()
    line.write(_question_lines(question, line.width))
    async with asyncio.timeout(timeout):
        while (answer := await line.read()) is not None:
            word = answer.strip().lower()
            choice = keys.get(_WORDS.get(word, word)) or choose(answer, options)
            if choice is not None:
                return choice
            line.write([_what_to_type(keys, len(options))])
    return None


async def ask_for_text_on_terminal(
    fd: int, question: str, timeout: float | None, *, is_plain: bool = False
) -> str | None:
    """Return the line that the user types, which may be empty; None on Esc or Ctrl-D.

    Args:
        fd: The terminal.
        question: Text shown above the line.
        timeout: Seconds to wait for an answer; None to wait forever.
        is_plain: Let the terminal edit the answer, and draw nothing.

    Raises:
        Stopped: Ctrl-C was pressed.
        TimeoutError: No answer within `timeout` seconds.
    """
    line = Line(fd, "> ", {}, is_plain=is_plain)
    line.forget_typed()
    line.write(_question_lines(question, line.width))
    async with asyncio.timeout(timeout):
        return await line.read()


class Line:
    """An input line below a question.

    Args:
        fd: The terminal.
        prompt: Text before the input.
        keys: Single keys that choose an option.
        is_plain: Let the terminal edit the line, and draw nothing; so does a dumb terminal.
        erases: Erase it when it has been read, if it is drawn.
    """

    def __init__(
        self, fd: int, prompt: str, keys: dict[str, str], *, is_plain: bool, erases: bool = False
    ) -> None:
        self._output = terminal_output(fd)
        self._prompt = prompt
        self._session: PromptSession[str] | None = None
        if not (is_plain or is_dumb()):
            self._session = PromptSession(
                prompt,
                output=self._output,
                key_bindings=_key_bindings(keys),
                enable_suspend=True,
                erase_when_done=erases,
            )
            self._session.app.ttimeoutlen, self._session.app.timeoutlen = 0.05, 0.3
        self.width = self._output.get_size().columns

    def forget_typed(self) -> None:
        """Discard earlier keys: they were not typed as an answer.

        Raises:
            Stopped: Ctrl-C is among them.
        """
        if forget_typed() or self._forget_keys():
            raise Stopped

    def _forget_keys(self) -> bool:
        return self._session is not None and forget_keys(self._session.app.input)

    def write(self, lines: list[str]) -> None:
        """Show lines above it."""
        self._write("".join(f"{line}\n" for line in lines))

    async def read(self, default: str = "") -> str | None:
        """Return the answer; None on Esc or Ctrl-D.

        Args:
            default: The text to edit, if the line is drawn.

        Raises:
            Stopped: Ctrl-C was pressed, or the terminal is gone.
        """
        try:
            if self._session is not None:
                text = await self._session.prompt_async(default=default)
                if self._forget_keys():
                    raise Stopped
                return text
            self._write(self._prompt)
            return await read_line(0)
        except (KeyboardInterrupt, OSError):
            raise Stopped from None
        except EOFError:
            return None

    def _write(self, text: str) -> None:
        self._output.write(text)
        self._output.flush()


def _question_lines(question: str, width: int) -> list[str]:
    # Indented lines are quoted, and left as they are.
    rows = (
        row
        for line in for_terminal(question).split("\n")
        for row in ([line] if line.startswith(" ") else wrapped(line, width))
    )
    return ["", *rows]


def _what_to_type(keys: dict[str, str], count: int) -> str:
    """Return the instruction for a question with this many options, shown after an answer that
    chose none.
    """
    if keys and count == len(keys):
        return "Type y or n; Esc denies."
    number = f"a number from 1 to {count}"
    return f"Type y, n or {number}; Esc denies." if keys else f"Type {number}."


def _yes_and_no(options: list[str]) -> dict[str, str]:
    """The options chosen by y and n; empty if they are not an approval."""
    words = {"y": "allow", "n": "deny"}
    choices = {
        key: option
        for key, word in words.items()
        for option in reversed(options)
        if option.lower().startswith(word)
    }
    return choices if len(choices) == len(words) else {}


def _key_bindings(keys: dict[str, str]) -> KeyBindings:
    bindings = KeyBindings()
    loop = asyncio.get_running_loop()
    began = loop.time()

    def choosing(key: str, option: str) -> Callable[[KeyPressEvent], None]:
        def choose_option(event: KeyPressEvent) -> None:
            app, buffer = event.app, event.current_buffer
            buffer.insert_text(event.data)

            def end() -> None:
                # More text means that the key was not an answer, but the start of a word.
                if buffer.text == event.data and app.is_running and not app.is_done:
                    app.exit(result=option)

            unread = began + READ_SECONDS - loop.time() if key == "y" else 0.0
            loop.call_later(max(WORD_SECONDS, unread), end)

        return choose_option

    for key, option in keys.items():
        at_start = Condition(lambda: not get_app().current_buffer.text)
        bindings.add(key, filter=at_start)(choosing(key, option))

    @bindings.add("escape")
    def deny(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
        event.app.exit(exception=EOFError)

    return bindings


def choose(answer: str, options: list[str]) -> str | None:
    """Return the option that `answer` selects; None if it matches none or several."""
    answer = answer.strip().lower()
    if answer.isdecimal():
        return options[int(answer) - 1] if 0 < int(answer) <= len(options) else None
    exact = [option for option in options if option.lower() == answer]
    near = [option for option in options if answer and option.lower().startswith(answer)]
    matches = exact or near
    return matches[0] if len(matches) == 1 else None


# -- trust in a project


_MAX_FILES = 20
_MAX_SELECTED = 30
_MAX_CHANGES = 200

_ANSWERS: dict[str, Answer] = {
    "trust": "trust",
    "skip project settings": "go on without",
    "quit": "stop",
}


def ask_about_trust(content: Content, record: Record | None, terminal: int) -> Answer:
    """Return the answer given on the terminal; Ctrl-C and Ctrl-D mean "stop".

    Args:
        content: The files of the project.
        record: What was trusted before; None if nothing was.
        terminal: The descriptor of the terminal to ask on.
    """
    question = "\n".join(question_about(content, record))
    if forget_typed():
        return "stop"
    try:
        chosen = asyncio.run(ask_on_terminal(terminal, question, list(_ANSWERS), None))
    except Stopped:
        return "stop"
    return _ANSWERS.get(chosen or "", "stop")


def question_about(content: Content, record: Record | None) -> list[str]:
    """Return the lines shown above the options."""
    root = visible(str(content.root))
    if record is None:
        head = f"The project {root} contains configuration that you have not trusted yet:"
        entries = cut(listing(content), _MAX_FILES, "files")
    else:
        head = f"The configuration of the project {root} has changed since you trusted it:"
        entries = cut([*changes(record.entries, content.entries)], _MAX_CHANGES, "lines")
    selected = cut(selection(content), _MAX_SELECTED, "lines")
    texts = cut(
        [visible(str(source)) for source in instruction_sources(str(content.root))],
        _MAX_FILES,
        "files",
    )
    return [
        head,
        "",
        *(f"  {line}" for line in entries),
        "",
        *([INSTRUCTIONS, "", *(f"  {line}" for line in texts), ""] if texts else []),
        *(["Contents:", "", *(f"  {line}" for line in selected), ""] if selected else []),
        "Trusted code runs with your permissions. You are asked again when any of it changes"
        f"{', except the instructions' if texts else ''}.",
        "Full contents: amplifier trust --show",
    ]
