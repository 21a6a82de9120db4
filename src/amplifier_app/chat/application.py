"""The terminal of a chat: a live region, the input line and a status line, during the whole conversation.

One prompt_toolkit application reads the keyboard from the start to the end, turns included. Finished
output is printed above it; for renderers it is the `Screen`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Self

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import Completer, DynamicCompleter
from prompt_toolkit.data_structures import Size
from prompt_toolkit.document import Document
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import History
from prompt_toolkit.input import create_input
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.search import stop_search

from amplifier_app.base.errors import AppError
from amplifier_app.base.pager import page_on
from amplifier_app.base.stdio import Output, terminal_size
from amplifier_app.chat.external_editor import edit
from amplifier_app.chat.folding import Folds
from amplifier_app.chat.keys import key_bindings
from amplifier_app.chat.layout import STYLE, ChatLayout
from amplifier_app.chat.renderer import ReflowRenderer, TerminalOutput, UpdateFile
from amplifier_app.chat.slash.registry import is_command
from amplifier_app.chat.terminal import TYPING_PAUSE, Listener, Sent, State
from amplifier_app.chat.terminal_modes import KeyMode

# Marks of a prompt and of the output after it: terminals jump between them.
_PROMPT_MARK, _OUTPUT_MARK = "\x1b]133;A\x1b\\", "\x1b]133;C\x1b\\"

# No colours, lines are wrapped, the cursor is shown, pasted text is not marked.
_AS_IT_WAS = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?2004l"

_LEAVE_NOTE = "Ctrl-C again to leave"


class ChatApplication:
    """A `ChatTerminal` that is also a `Screen`; use it as an async context manager.

    Args:
        output: The terminal to draw on.
        history: Earlier inputs.
        keys: The mode of the keyboard, entered.
        vi: Use the keys of vi instead of those of Emacs.
    """

    def __init__(
        self, output: Output, *, history: History, keys: KeyMode, vi: bool = False
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
            output=self._create_output(),
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
        if text and not text.endswith("\n"):
            text += "\n"
        if not self._is_drawn:
            self._output.write(text)
            return
        with self._file.hold_output():
            if text:
                self._app.renderer.erase(leave_alternate_screen=False)
                self._app.output.write_raw(text)
            self._redraw()

    def show(self, lines: Sequence[str]) -> None:
        self.commit("", lines)

    def signal(self, sequence: str) -> None:
        self._output.write(sequence)

    def close(self) -> None:
        """Clear the live region; the input line stays until the end of the chat."""
        self.show([])

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

    @contextlib.contextmanager
    def suspended(self) -> Generator[None]:
        app = self._app
        if not self._is_drawn:
            yield
            return
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
        if self._app.is_running:
            self._app.renderer.erase()
            self._app._is_running = False  # pyright: ignore[reportPrivateUsage]
        # A signal may also have interrupted the application while it did so itself.
        self._output.write(_AS_IT_WAS)

    # For key bindings

    def send(self) -> None:
        """Send the text of the input line, or only a command typed after folded texts."""
        shown, kept = self.buffer.text, ""
        typed = self.folds.text_after(shown)
        if typed != shown and is_command(typed):
            shown, kept = typed, shown.removesuffix(typed)
        text = self.folds.unfold(shown)
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
        elif self.note:
            self.leave()
        else:
            self.note = _LEAVE_NOTE
        self.refresh()

    def leave(self) -> None:
        """Leave the chat."""
        if self.listener is not None:
            self.listener.on_leave()

    def edit(self) -> None:
        """Edit the input line in the user's editor."""
        if self.state is State.BUSY:
            self.note = "the editor can be used when the prompt has ended"
            self.refresh()
            return
        try:
            with self.suspended():
                text = edit(self.draft, self._output.fd)
        except AppError as error:
            self.note = error.message
            self.refresh()
        else:
            self.draft = text

    def cycle_mode(self) -> None:
        """Switch to the next approval mode."""
        if self.listener is not None:
            self.listener.cycle_mode()

    def suspend_to_background(self) -> None:
        """Stop the process as the shell's job, until it is continued."""
        self._app.suspend_to_background()

    def _text_changed(self) -> None:
        self.note = ""
        text = self.buffer.text
        # As it was stored; what is edited stays.
        if self._is_recalled and text in self.buffer.history.get_strings():
            self.buffer.text = self.folds.fold_entry(text)

    @property
    def _is_recalled(self) -> bool:
        """Whether the input line shows an entry of the history."""
        lines = self.buffer._working_lines  # pyright: ignore[reportPrivateUsage]
        return self.buffer.working_index < len(lines) - 1

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

    def _create_output(self) -> TerminalOutput:
        file: Any = self._file
        # Without reports of the cursor position nothing is mixed with the keys that are typed.
        return TerminalOutput(file, self._size, term=os.environ.get("TERM"), enable_cpr=False)

    def _size(self) -> Size:
        columns, rows = terminal_size(self._output.fd)
        return Size(rows=rows, columns=columns)


def _color_depth() -> ColorDepth | None:
    """Return the colours of the terminal; None leaves it to prompt_toolkit."""
    if os.environ.get("NO_COLOR"):
        return ColorDepth.MONOCHROME
    true_color = os.environ.get("COLORTERM") in ("truecolor", "24bit")
    return ColorDepth.TRUE_COLOR if true_color else None
