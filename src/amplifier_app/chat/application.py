"""The terminal of a chat: a live region, the input line and a status line, during the whole conversation.

One prompt_toolkit application reads the keyboard from the start to the end, turns included. Finished
output is printed above it; for renderers it is the `Screen`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import select
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

from prompt_toolkit.application import Application, get_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import Completer, DynamicCompleter
from prompt_toolkit.data_structures import Point, Size
from prompt_toolkit.document import Document
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.filters import (
    Condition,
    FilterOrBool,
    emacs_mode,
    has_completions,
    is_done,
    is_searching,
    vi_navigation_mode,
)
from prompt_toolkit.formatted_text import ANSI, AnyFormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import create_input
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding import KeyBindings, KeyPress
from prompt_toolkit.key_binding.bindings.search import abort_search
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import (
    BufferControl,
    ConditionalContainer,
    Dimension,
    FormattedTextControl,
    HSplit,
    Layout,
    Window,
)
from prompt_toolkit.layout.menus import CompletionsMenu
from prompt_toolkit.layout.processors import HighlightIncrementalSearchProcessor
from prompt_toolkit.layout.screen import Char, Screen
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.renderer import Renderer
from prompt_toolkit.search import accept_search, stop_search
from prompt_toolkit.styles import Style
from prompt_toolkit.widgets import SearchToolbar

from amplifier_app.base import paths
from amplifier_app.base.errors import AppError, SessionError, Terminated
from amplifier_app.base.file_writing import make_private_folder, open_private
from amplifier_app.base.pager import page_on
from amplifier_app.base.redact import redact
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import Output, terminal_size
from amplifier_app.chat.project_files import Folds, clipboard_image, dropped_image, to_mention
from amplifier_app.chat.slash.registry import is_command
from amplifier_app.chat.terminal import TYPING_PAUSE, Listener, Sent, State
from amplifier_app.chat.terminal_modes import KeyMode
from amplifier_app.render.ansi import clip, has_colours, paint
from amplifier_app.render.screen import BEGIN_UPDATE, END_UPDATE, ERASE_DOWN, reflows
from amplifier_app.render.theme import BACKGROUND_QUERY, use_background
from amplifier_support.environment import without_secrets
from amplifier_support.programs import find_program

STYLE = Style.from_dict(
    {
        "waiting": "dim",
        "search-match": "dim",
        "search-toolbar": "",
        "completion-menu": "noreverse bg:default",
        "completion-menu.completion": "noreverse bg:default fg:default",
        "completion-menu.completion.current": "reverse",
        "completion-menu.meta.completion": "noreverse bg:default fg:default dim",
        "completion-menu.meta.completion.current": "reverse fg:default",
        "scrollbar.background": "bg:default",
        "scrollbar.button": "reverse",
    }
)

_MENU_ROWS = 8
_MAX_MATCHES = 5
_LINK = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


class ChatLayout:
    """The windows: live region, waiting messages, input line, search, completions, status."""

    def __init__(self, chat: ChatApplication) -> None:
        self._chat = chat
        search = SearchToolbar(
            backward_search_prompt="search history: ", forward_search_prompt="search history: "
        )
        line = Window(
            BufferControl(
                chat.buffer,
                search_buffer_control=search.control,
                preview_search=True,
                input_processors=[HighlightIncrementalSearchProcessor()],
            ),
            height=lambda: Dimension(min=1, max=max(1, chat.height // 2)),
            get_line_prefix=_line_prefix,
            wrap_lines=True,
            dont_extend_height=True,
        )
        self._root = HSplit(
            [
                self._text(self._live, ""),
                self._text(self._waiting, "class:waiting"),
                line,
                search,
                ConditionalContainer(self._text(self._matches, "class:search-match"), is_searching),
                ConditionalContainer(
                    CompletionsMenu(max_height=_MENU_ROWS), has_completions & ~is_done
                ),
                self._text(self._status, ""),
            ]
        )
        self._search = search
        self.layout = Layout(self._root, focused_element=line)

    def height(self, size: Size) -> int:
        """Return the rows it needs now."""
        needed = self._root.preferred_height(size.columns, size.rows).preferred
        return min(needed, size.rows)

    def _text(self, content: Callable[[], AnyFormattedText], style: str) -> ConditionalContainer:
        """A window that is as high as its text, and absent without any."""
        text = _once_per_drawing(content)
        window = Window(FormattedTextControl(text), style=style, dont_extend_height=True)
        return ConditionalContainer(window, Condition(lambda: bool(_length(text()))))

    def _live(self) -> AnyFormattedText:
        chat = self._chat
        room = max(1, chat.height - chat.buffer.document.line_count - len(chat.waiting()) - 2)
        lines = [clip(_LINK.sub("", line), chat.width) for line in chat.live[-room:]]
        return ANSI("\n".join(lines)) if lines else ""

    def _waiting(self) -> AnyFormattedText:
        return "\n".join(clip(line, self._chat.width) for line in self._chat.waiting())

    def _matches(self) -> AnyFormattedText:
        """The other inputs that contain the searched text, newest first."""
        query = self._search.search_buffer.text
        if not query:
            return ""
        entries = reversed(self._chat.buffer.history.get_strings())
        lines = dict.fromkeys(one_line(entry) for entry in entries if query in entry)
        return "\n".join(
            f"  {clip(match, self._chat.width - 2)}" for match in [*lines][:_MAX_MATCHES]
        )

    def _status(self) -> AnyFormattedText:
        chat = self._chat
        if chat.note:
            return ANSI(paint(f" {chat.note}", "dim"))
        status = chat.status(chat.width)
        return ANSI(clip(status, chat.width)) if status else ""


def _once_per_drawing(content: Callable[[], AnyFormattedText]) -> Callable[[], AnyFormattedText]:
    """Keep a text until the next drawing: several parts of the layout ask for it each time."""
    drawing = -1
    text: AnyFormattedText = ""

    def content_of_drawing() -> AnyFormattedText:
        nonlocal drawing, text
        current = get_app().render_counter
        if current != drawing:
            drawing, text = current, content()
        return text

    return content_of_drawing


def _length(text: AnyFormattedText) -> int:
    return len(text.value) if isinstance(text, ANSI) else len(str(text))


def _line_prefix(line: int, wrapped: int) -> AnyFormattedText:
    return ANSI(paint("› ", "bold accent")) if line == wrapped == 0 else "  "


def key_bindings(chat: ChatApplication) -> KeyBindings:
    """Return the keys of a chat."""
    bindings = KeyBindings()
    typing = ~is_searching
    quiet = typing & ~has_completions
    busy = Condition(lambda: chat.state is State.BUSY)
    empty = Condition(lambda: not chat.buffer.text)

    def bind(*keys: Keys | str, when: FilterOrBool, act: Callable[[], object]) -> None:
        bindings.add(*keys, filter=when)(lambda event: act())

    # The input

    @bindings.add("enter", filter=typing)
    def send(event: KeyPressEvent) -> None:
        menu = chat.buffer.complete_state
        if menu is not None and menu.current_completion is not None:
            chat.buffer.apply_completion(menu.current_completion)
        else:
            chat.send()

    bind("c-j", when=typing, act=lambda: chat.buffer.insert_text("\n"))
    bind("escape", "enter", when=typing, act=lambda: chat.buffer.insert_text("\n"))
    bind("c-x", "c-e", when=typing, act=chat.edit)
    bind("c-v", when=typing, act=chat.paste_image)

    @bindings.add(Keys.BracketedPaste, filter=typing)
    def paste(event: KeyPressEvent) -> None:
        text = dropped_image(event.data) or chat.folds.fold_if_long(event.data)
        event.current_buffer.insert_text(text)

    folded = Condition(lambda: chat.marker_before_cursor is not None)

    @bindings.add("backspace", filter=folded & typing)
    def delete_folded(event: KeyPressEvent) -> None:
        marker = chat.marker_before_cursor
        assert marker is not None
        chat.buffer.delete_before_cursor(len(marker))
        chat.folds.forget(marker)

    # The search in the history, and the menu of completions

    bindings.add("escape", filter=is_searching, eager=True)(abort_search)

    @bindings.add("enter", filter=is_searching)
    def accept_match(event: KeyPressEvent) -> None:
        accept_search()
        chat.buffer.cursor_position = len(chat.buffer.text)

    @Condition
    def is_only_match() -> bool:
        menu = chat.buffer.complete_state
        return menu is not None and len(menu.completions) == 1

    @bindings.add("tab", filter=typing & is_only_match)
    def complete(event: KeyPressEvent) -> None:
        menu = chat.buffer.complete_state
        assert menu is not None
        chat.buffer.apply_completion(menu.completions[0])

    in_menu = has_completions & typing & emacs_mode
    bind("escape", when=in_menu, act=chat.buffer.cancel_completion)

    # The chat

    bind("c-c", when=typing, act=chat.interrupt)
    commands = emacs_mode | vi_navigation_mode
    bind("escape", when=busy & quiet & commands, act=chat.interrupt)
    bind("c-d", when=empty & typing, act=chat.leave)
    bind("c-b", when=busy & empty & quiet, act=chat.to_background)
    bind("s-tab", when=quiet, act=chat.cycle_mode)
    bind("c-z", when=True, act=chat.suspend_to_background)
    return bindings


class UpdateFile:
    """A file for prompt_toolkit that collects what belongs to one update."""

    encoding = "utf-8"

    def __init__(self, output: Output) -> None:
        self._output = output
        self._parts: list[str] = []
        self._held = 0

    def write(self, text: str) -> int:
        self._parts.append(text)
        return len(text)

    def flush(self) -> None:
        if self._held:
            return
        text, self._parts = "".join(self._parts), []
        if text:
            self._output.write(f"{BEGIN_UPDATE}{text}{END_UPDATE}")

    @contextlib.contextmanager
    def hold_output(self) -> Generator[None]:
        """Write everything in it at once, at the end."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            self.flush()

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._output.fd


class TerminalOutput(Vt100_Output):
    """A terminal whose scrollback has nothing of what is erased."""

    def erase_down(self) -> None:
        """Erase from the start of the line; prompt_toolkit does this in the first column only."""
        self.write_raw(ERASE_DOWN)


class ReflowRenderer(Renderer):
    """A renderer that finds the top of its region on a terminal that has wrapped the lines again."""

    def render(self, app: Any, layout: Any, is_done: bool = False) -> None:
        """Draw; before the signal of a new size has arrived, too."""
        drawn = self._last_size
        if drawn is not None and self.output.get_size().columns < drawn.columns:
            self.erase(leave_alternate_screen=False)
        super().render(app, layout, is_done)

    def erase(self, leave_alternate_screen: bool = True) -> None:
        """Erase the region, as far up as it reaches now."""
        drawn, size = self._last_size, self.output.get_size()
        if (
            self._last_screen is not None
            and drawn is not None
            and size.columns < drawn.columns
            and reflows(os.environ)
        ):
            self._cursor_pos = self._cursor_after_reflow(self._last_screen, size.columns)
        super().erase(leave_alternate_screen)

    def _cursor_after_reflow(self, screen: Screen, columns: int) -> Point:
        """Return the position of the cursor after each line has been wrapped at `columns`."""
        x, y = self._cursor_pos
        above = sum(max(1, -(-self._cells(screen.data_buffer[row]) // columns)) for row in range(y))
        return Point(x=x % columns, y=above + x // columns)

    def _cells(self, row: Mapping[int, Char]) -> int:
        """The cells of a row as it was written: without plain spaces at its end."""
        styled = self._style_string_has_style or {}
        written = (
            x + cell.width for x, cell in row.items() if cell.char != " " or styled[cell.style]
        )
        return max(written, default=0)


_OTHERS = ("nano", "vi")


def edit(text: str, terminal: int) -> str:
    """Return the text after it was edited with `$VISUAL` or `$EDITOR`.

    Args:
        text: The text to edit.
        terminal: The descriptor of the terminal, which nothing else uses meanwhile.

    Raises:
        AppError: No editor was found, or it failed.
    """
    command = _command()
    try:
        with tempfile.TemporaryDirectory(prefix="amplifier-") as folder:
            file = Path(folder) / "prompt.md"
            file.write_text(text, encoding="utf-8", errors="replace")
            done = subprocess.run(
                [*command, str(file)],
                stdin=0,
                stdout=terminal,
                stderr=terminal,
                env=without_secrets(os.environ),
                check=False,
            )
            edited = file.read_text(encoding="utf-8", errors="replace").rstrip("\n")
    except OSError as error:
        what = error.strerror or str(error)
        raise AppError(
            f"cannot use the editor {command[0]}: {what}; nothing was changed"
        ) from error
    if done.returncode:
        raise AppError(f"the editor ended with exit code {done.returncode}; nothing was changed")
    return edited


def _command() -> list[str]:
    """Return the editor with its options; its program is never one of the project."""
    for variable in ("VISUAL", "EDITOR"):
        value = os.environ.get(variable)
        if value:
            try:
                program, *options = shlex.split(value) or [value]
            except ValueError as error:
                raise AppError(f"${variable} is not a command: {value!r}: {error}") from error
            path = program if os.path.isabs(program) else find_program(program)
            if path is None:
                raise AppError(f"${variable} is set to {program!r}, which is not on PATH")
            return [path, *options]
    path = next(filter(None, map(find_program, _OTHERS)), None)
    if path is None:
        raise AppError("no editor found; set $EDITOR")
    return [path]


# Marks of a prompt and of the output after it: terminals jump between them.
_PROMPT_MARK, _OUTPUT_MARK = "\x1b]133;A\x1b\\", "\x1b]133;C\x1b\\"

# No colours, lines are wrapped, the cursor is shown, pasted text is not marked.
_AS_IT_WAS = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?2004l"

_ANSWER_SECONDS = 0.5
"""Seconds in which a terminal answers that answers at all."""
_ANSWER = re.compile(r"(?:\x1b|\A)\]11;([^\x07\x1b]{0,64})(?:\x07|\x1b\\)")
_BEGUN_ANSWER = re.compile(r"\x1b(?:\][\d;:/a-zA-Z]{0,64}\x1b?)?\Z")


class BackgroundQuery:
    """Asks the terminal for its background, and takes the answer out of what is typed, whenever it comes.

    Args:
        app: The application that reads the keyboard.
    """

    def __init__(self, app: Application[None]) -> None:
        self._app = app
        self._asked: float | None = None  # until the answer has come
        self._begun = ""
        reader: Any = getattr(app.input, "stdin_reader", None)
        if reader is not None:
            self._read: Callable[[], str] = reader.read
            reader.read = self._read_typed

    def ask(self) -> str:
        """Return the question for the terminal."""
        self._asked = time.monotonic()
        return BACKGROUND_QUERY

    def wait(self) -> None:
        """Wait for an answer that may still come; what is typed meanwhile is kept."""
        source = self._app.input
        while (left := self._seconds_left) > 0 and select.select([source.fileno()], [], [], left)[
            0
        ]:
            store_typeahead(source, source.read_keys())

    @property
    def _seconds_left(self) -> float:
        return 0.0 if self._asked is None else self._asked + _ANSWER_SECONDS - time.monotonic()

    def _read_typed(self) -> str:
        data = self._begun + self._read()
        self._begun = ""
        if self._asked is None:
            return data
        data = _ANSWER.sub(self._take, data)
        begun = _BEGUN_ANSWER.search(data)
        # A lone Esc is a key, unless the answer may still come.
        if begun and (begun[0] != "\x1b" or self._seconds_left > 0):
            data, self._begun = data[: begun.start()], begun[0]
        return data

    def _take(self, answer: re.Match[str]) -> str:
        self._asked = None
        use_background(answer[1])
        self._app.invalidate()
        return ""


class _PrivateHistory(FileHistory):
    """A history whose file has no secrets; what was typed in this chat is recalled as it was."""

    def store_string(self, string: str) -> None:
        super().store_string(redact(string))


def _is_no_signal(record: logging.LogRecord) -> bool:
    """Return True if reading the history has failed, not been ended by a signal."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, (KeyboardInterrupt, Terminated))


def project_history(project: str) -> tuple[History, str | None]:
    """Return the prompt history of a directory, in a file that only its owner can read.

    Returns:
        The history, and why it is not saved; None if it is.
    """
    logging.getLogger("prompt_toolkit.buffer").addFilter(_is_no_signal)
    name = hashlib.sha256(project.encode("utf-8", "surrogateescape")).hexdigest()[:24]
    path = paths.state_dir() / "history" / name
    try:
        make_private_folder(path.parent)
        os.close(open_private(path, os.O_WRONLY | os.O_CREAT))
    except SessionError as error:
        return InMemoryHistory(), error.message
    return _PrivateHistory(path), None


_LEAVE_NOTE = "Ctrl-C again to leave"


class ChatApplication:
    """A `ChatTerminal` that is also a `Screen`; use it as an async context manager.

    Args:
        output: The terminal to draw on.
        history: Earlier inputs.
        keys: The mode of the keyboard, entered.
        vi: Use the keys of vi instead of those of Emacs.
        asks_background: Ask the terminal for its background, which decides on the theme.
    """

    def __init__(
        self,
        output: Output,
        *,
        history: History,
        keys: KeyMode,
        vi: bool = False,
        asks_background: bool = False,
    ) -> None:
        self.echoes = False
        self._output = output
        self._file = UpdateFile(output)
        self._keys = keys
        self.listener: Listener | None = None
        self.waiting: Callable[[], Sequence[str]] = tuple
        self.status: Callable[[int], str] = lambda width: ""
        self.completer: Completer | None = None
        self.state = State.OPENING
        self.note = ""
        self.live: list[str] = []
        self.folds = Folds()
        self._sent_early: list[Sent] = []
        self.buffer = Buffer(
            multiline=True,
            history=history,
            completer=DynamicCompleter(lambda: self.completer),
            complete_while_typing=Condition(self._completes_while_typing),
            on_text_changed=lambda _: self._text_changed(),
        )
        self._layout = ChatLayout(self)
        self._app: Application[None] = Application(
            layout=self._layout.layout,
            key_bindings=key_bindings(self),
            style=STYLE,
            include_default_pygments_style=False,
            editing_mode=EditingMode.VI if vi else EditingMode.EMACS,
            input=create_input(),
            # Without reports of the cursor position nothing is mixed with the keys that are typed.
            output=TerminalOutput(
                cast("Any", self._file), self._size, term=os.environ.get("TERM"), enable_cpr=False
            ),
            color_depth=_color_depth(),
            erase_when_done=True,
            before_render=lambda _: self._before_render(),
            # The signal is enough; polling would erase a question that has the terminal.
            terminal_size_polling_interval=None,
        )
        renderer = self._app.renderer
        self._app.renderer = ReflowRenderer(renderer.style, self._app.output)
        # A lone Esc stops a turn: decide soon whether it begins a sequence.
        self._app.ttimeoutlen = 0.05
        self._app.timeoutlen = 0.3
        self._task: asyncio.Task[None] | None = None
        self._background = BackgroundQuery(self._app) if asks_background else None
        self._last_key = -TYPING_PAUSE
        self._app.key_processor.before_key_press += lambda _: self._key_pressed()

    # Screen

    @property
    def width(self) -> int:
        return self._size().columns

    @property
    def height(self) -> int:
        return self._size().rows

    @property
    def failure(self) -> OSError | None:
        return self._output.failure

    def commit(self, text: str, live: Sequence[str] | None = None) -> None:
        if live is not None:
            self.live = list(live)
        if not self._is_drawn:
            self._output.write(text)
            return
        with self._file.hold_output():
            if text:
                self._app.renderer.erase(leave_alternate_screen=False)
                self._app.output.write_raw(text)
            self._redraw()

    def signal(self, sequence: str) -> None:
        self._output.write(sequence)

    # ChatTerminal

    @property
    def draft(self) -> str:
        return self.folds.unfold(self.buffer.text)

    @draft.setter
    def draft(self, text: str) -> None:
        self.folds = self.folds.for_next_line()
        self.buffer.document = Document(self.folds.fold_again(text))

    def set_state(self, state: State) -> None:
        before, self.state = self.state, state
        self._keys.set_interrupt_signal(state is not State.IDLE)
        if (before is State.IDLE) is not (state is State.IDLE):
            self._mark(_PROMPT_MARK if state is State.IDLE else _OUTPUT_MARK)
        while self.listener is not None and self._sent_early:
            self.listener.on_input(self._sent_early.pop(0))
        self.refresh()

    def refresh(self) -> None:
        if self._is_drawn:
            self._app.invalidate()

    def shown(self, text: str) -> str:
        return self.folds.for_next_line().fold_again(text)

    def insert_folded(self, text: str, label: str) -> None:
        before = self.buffer.document.text_before_cursor
        self.buffer.insert_text(self.folds.fold(text, label, before))

    def page(self, text: str) -> bool:
        if text.count("\n") < self.height:
            return False
        with self.suspended():
            return page_on(self._output.fd, text)

    def edit_text(self, text: str) -> str:
        with self.suspended():
            return edit(text, self._output.fd)

    @contextlib.contextmanager
    def suspended(self) -> Generator[None]:
        app = self._app
        if not self._is_drawn:
            yield
            return
        self._await_background()
        app.renderer.erase()
        # As `prompt_toolkit.application.in_terminal` does, which can only be awaited.
        app._running_in_terminal = True  # pyright: ignore[reportPrivateUsage]
        try:
            with app.input.detach(), self._keys.released():
                yield
        finally:
            app._running_in_terminal = False  # pyright: ignore[reportPrivateUsage]
            app.renderer.reset()
            self._redraw()

    async def typing_paused(self) -> None:
        """Wait until no key has been pressed for a moment."""
        # A key only moves the end.
        while (left := self._last_key + TYPING_PAUSE - time.monotonic()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(left)

    async def __aenter__(self) -> Self:
        keys: list[KeyPress] = []
        Vt100Parser(keys.append).feed(self._keys.typed_ahead.decode("utf-8", "replace"))
        store_typeahead(self._app.input, keys)
        drawn = asyncio.Event()
        self._app.after_render += lambda _: drawn.set()
        self._output.write("\r")
        if self._background is not None:
            self._output.write(self._background.ask())
        run = self._app.run_async(handle_sigint=False, set_exception_handler=False)
        self._task = asyncio.create_task(run)
        self._task.add_done_callback(self._leave_if_failed)
        painted = asyncio.create_task(drawn.wait())
        await asyncio.wait([painted, self._task], return_when=asyncio.FIRST_COMPLETED)
        painted.cancel()
        self._keys.set_interrupt_signal(True)
        return self

    async def __aexit__(self, *exc: Any) -> None:
        assert self._task is not None
        if not (self._task.done() or self._app.is_done):  # done without a terminal
            self._app.exit()
        await asyncio.wait([self._task])

    def restore(self) -> None:
        """Leave the terminal as it was if the event loop has ended without the application."""
        self._await_background()
        if self._app.is_running:
            self._app.renderer.erase()
            self._app._is_running = False  # pyright: ignore[reportPrivateUsage]
        # A signal may also have interrupted the application while it did so itself.
        self._output.write(_AS_IT_WAS)

    # For key bindings

    def send(self) -> None:
        """Send the text of the input line, or only a command typed after folded texts."""
        line, kept = self.buffer.text, ""
        typed = self.folds.text_after(line)
        if typed != line and is_command(typed):
            line, kept = typed, line.removesuffix(typed)
        text = self.folds.unfold(line)
        if text.strip():
            self.buffer.history.append_string(text)
        sent = Sent(text, is_recalled=self._is_recalled)
        self.buffer.reset()
        if kept:
            self.buffer.insert_text(kept)
        else:
            self.folds = self.folds.for_next_line()
        if self.listener is not None:
            self.listener.on_input(sent)
        elif text.strip():
            self._sent_early.append(sent)

    def interrupt(self) -> None:
        """Handle Ctrl-C: stop what runs, clear the line, or leave when pressed twice."""
        if self._app.layout.is_searching:
            stop_search()
        elif self.state is State.BUSY and self.listener is not None:
            self.listener.on_interrupt()
        elif self.buffer.text:
            self.buffer.cancel_completion()
            self.draft = ""
        elif self.note == _LEAVE_NOTE:
            self.leave()
        else:
            self.note = _LEAVE_NOTE
        self.refresh()

    def leave(self) -> None:
        """Leave the chat."""
        if self.listener is not None:
            self.listener.on_leave()

    def to_background(self) -> None:
        """Let the running prompt go on without the chat."""
        if self.listener is not None:
            self.listener.on_background()

    def edit(self) -> None:
        """Edit the input line in the user's editor."""
        if self.state is State.BUSY:
            self.note = "the editor can be used when the prompt has ended"
            self.refresh()
            return
        try:
            text = self.edit_text(self.draft)
        except AppError as error:
            self.note = error.message
            self.refresh()
        else:
            self.draft = text

    def paste_image(self) -> None:
        """Insert the mention of the image in the clipboard."""
        try:
            self.buffer.insert_text(f"@{to_mention(clipboard_image())} ")
        except AppError as error:
            self.note = error.message
            self.refresh()

    def cycle_mode(self) -> None:
        """Switch to the next approval mode."""
        if self.listener is not None:
            self.listener.cycle_mode()

    def suspend_to_background(self) -> None:
        """Stop the process as the shell's job, until it is continued."""
        self._app.suspend_to_background()

    @property
    def marker_before_cursor(self) -> str | None:
        """The marker of a folded text that ends at the cursor; None if there is none."""
        return self.folds.marker_before(self.buffer.document.text_before_cursor)

    def _text_changed(self) -> None:
        self.note = ""
        text = self.buffer.text
        # As it was stored; what is edited stays.
        if self._is_recalled and text in self.buffer.history.get_strings():
            self.buffer.text = self.folds.fold_entry(text)

    @property
    def _is_recalled(self) -> bool:
        """True if the input line shows an entry of the history."""
        lines = self.buffer._working_lines  # pyright: ignore[reportPrivateUsage]
        return self.buffer.working_index < len(lines) - 1

    def _await_background(self) -> None:
        """Leave no answer of the terminal to the next reader."""
        if self._background is not None:
            self._background.wait()

    # Drawing

    def _key_pressed(self) -> None:
        self._last_key = time.monotonic()

    @property
    def _is_drawn(self) -> bool:
        app = self._app
        return app.is_running and not app._running_in_terminal  # pyright: ignore[reportPrivateUsage]

    def _redraw(self) -> None:
        """Draw now: `invalidate` would only schedule it, as an update of its own."""
        self._app._redraw()  # pyright: ignore[reportPrivateUsage]

    def _before_render(self) -> None:
        """Erase a region that has become smaller: prompt_toolkit would keep its height."""
        renderer = self._app.renderer
        last = renderer.last_rendered_screen
        if last is not None and self._layout.height(self._size()) < last.height:
            with self._file.hold_output():
                renderer.erase(leave_alternate_screen=False)

    def _mark(self, mark: str) -> None:
        if self._is_drawn and not os.environ.get("TERM", "").startswith("linux"):
            with self._file.hold_output():
                self._app.renderer.erase(leave_alternate_screen=False)
                self._app.output.write_raw(mark)
                self._redraw()

    def _leave_if_failed(self, task: asyncio.Task[None]) -> None:
        """Leave if the terminal is gone."""
        if not task.cancelled() and task.exception() is not None and self.listener is not None:
            self.listener.on_leave()

    def _completes_while_typing(self) -> bool:
        before = self.buffer.document.text_before_cursor
        return before.startswith("/") or before.rpartition(" ")[2].startswith("@")

    def _size(self) -> Size:
        columns, rows = terminal_size(self._output.fd)
        return Size(rows=rows, columns=columns)


def _color_depth() -> ColorDepth | None:
    """Return the colours of the terminal; None leaves it to prompt_toolkit."""
    if not has_colours():
        return ColorDepth.MONOCHROME
    true_color = os.environ.get("COLORTERM") in ("truecolor", "24bit")
    return ColorDepth.TRUE_COLOR if true_color else None
