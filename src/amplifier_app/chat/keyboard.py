"""Read lines from the terminal while a turn runs.

The prompt editor cannot be used then, because the turn's output owns the screen. This module reads
the keys and keeps the line; the renderer of the turn displays it. Ctrl-C remains a signal.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
from collections.abc import Callable, Generator, Iterable
from typing import Any

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.keys import Keys

from amplifier_app.chat.terminal_modes import typing_mode

LEAVE = "/quit"


def _to_line_start(buffer: Buffer) -> None:
    buffer.cursor_position += buffer.document.get_start_of_line_position()


def _to_line_end(buffer: Buffer) -> None:
    buffer.cursor_position += buffer.document.get_end_of_line_position()


def _delete_word(buffer: Buffer) -> None:
    back = buffer.document.find_start_of_previous_word()
    buffer.delete_before_cursor(-back if back else buffer.cursor_position)


def _delete_to_line_start(buffer: Buffer) -> None:
    buffer.delete_before_cursor(len(buffer.document.current_line_before_cursor))


def _delete_to_line_end(buffer: Buffer) -> None:
    buffer.delete(len(buffer.document.current_line_after_cursor))


_EDITING: dict[str, Callable[[Buffer], Any]] = {
    Keys.ControlH: Buffer.delete_before_cursor,
    Keys.Delete: Buffer.delete,
    Keys.ControlW: _delete_word,
    Keys.ControlU: _delete_to_line_start,
    Keys.ControlK: _delete_to_line_end,
    Keys.Left: Buffer.cursor_left,
    Keys.ControlB: Buffer.cursor_left,
    Keys.Right: Buffer.cursor_right,
    Keys.ControlF: Buffer.cursor_right,
    Keys.Home: _to_line_start,
    Keys.ControlA: _to_line_start,
    Keys.End: _to_line_end,
    Keys.ControlE: _to_line_end,
    Keys.ControlJ: lambda buffer: buffer.insert_text("\n"),
}


class Keyboard:
    """The keyboard during a turn; reads while used as a context manager.

    Args:
        fd: The terminal to read from; ignored if it is not a terminal.
        take: Called with each line on Enter; Ctrl-D on an empty line sends `LEAVE`.
        changed: Called when the line has changed.
        ahead: Returns keys that were read earlier but not used.
        line: Initial text of the line.
    """

    def __init__(
        self,
        fd: int,
        *,
        take: Callable[[str], None],
        changed: Callable[[], None],
        ahead: Callable[[], Iterable[KeyPress]] = tuple,
        line: str = "",
    ) -> None:
        self._fd = fd
        self._take = take
        self._changed = changed
        self._ahead = ahead
        self._buffer = Buffer(document=Document(line))
        self._parser = Vt100Parser(self.press)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._escaped = False
        self._reading = contextlib.ExitStack()

    @property
    def line(self) -> str:
        """The text typed but not sent."""
        return self._buffer.text

    @property
    def cursor(self) -> int:
        """The cursor position in the line."""
        return self._buffer.cursor_position

    def __enter__(self) -> Keyboard:
        self._start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._reading.close()

    @contextlib.contextmanager
    def away(self) -> Generator[None]:
        """Release the terminal to another reader for the duration."""
        self._reading.close()
        try:
            yield
        finally:
            self._start()

    def _start(self) -> None:
        if not self._reading.enter_context(typing_mode(self._fd)):
            return
        loop = asyncio.get_running_loop()
        loop.add_reader(self._fd, self._read)
        self._reading.callback(loop.remove_reader, self._fd)
        for key in self._ahead():
            self.press(key)
        self._changed()

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # the terminal is gone; SIGHUP is handled elsewhere
            asyncio.get_running_loop().remove_reader(self._fd)
            return
        self._parser.feed(self._decode(data))

    def press(self, key: KeyPress) -> None:
        """Handle a key press."""
        escaped, self._escaped = self._escaped, key.key == Keys.Escape
        edit = _EDITING.get(key.key)
        if key.key == Keys.ControlM and not escaped:
            self._submit()
        elif key.key == Keys.ControlM:
            self._buffer.insert_text("\n")
        elif key.key == Keys.ControlD and not self.line:
            self._take(LEAVE)
        elif key.key == Keys.BracketedPaste:
            self._buffer.insert_text(key.data.replace("\r\n", "\n").replace("\r", "\n"))
        elif edit is not None:
            edit(self._buffer)
        elif len(key.data) == 1 and key.data.isprintable():
            self._buffer.insert_text(key.data)
        else:
            return
        self._changed()

    def _submit(self) -> None:
        text = self.line
        self._buffer.document = Document()
        if text.strip():
            self._take(text)
