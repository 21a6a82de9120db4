"""Modes of the terminal while the chat reads the keyboard."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
from collections.abc import Generator
from typing import Any, Self

from amplifier_app.base.signals import hold_signals
from amplifier_support.files import on_error

try:
    import termios
except ImportError:  # no terminals of this kind on Windows
    termios = None  # type: ignore[assignment]

_READ_SIZE = 1 << 16
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O?[ -~])")
_SEQUENCE_SECONDS = 0.05
"""Seconds after Esc in which the rest of a key's code arrives."""


class KeyMode:
    """While entered, keys come one by one and unchanged, and the terminal does not show them.

    Ctrl-C is a signal at first, and output is as before.

    Args:
        fd: The terminal; other files are left alone.

    Attributes:
        typed_ahead: The keys typed before, with Enter as a carriage return: until now the terminal
            turned it into a line feed, which is Ctrl-J.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._before: list[Any] | None = None
        self.typed_ahead = b""

    def __enter__(self) -> Self:
        self._before = _get_mode(self._fd)
        with on_error(self.restore):  # such as a signal
            self._read_keys()
        return self

    def __exit__(self, *exc: object) -> None:
        with hold_signals():
            self.restore()

    def restore(self) -> None:
        """Set the mode that was before."""
        _set_mode(self._fd, self._before)

    def _read_keys(self) -> None:
        mode = _get_mode(self._fd)
        if mode is not None and termios is not None:
            mode[0] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR)
            mode[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
            mode[3] |= termios.ISIG | termios.NOFLSH
            mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
            # Ctrl-Z and Ctrl-\ are keys.
            disabled = os.fpathconf(self._fd, "PC_VDISABLE").to_bytes(1, "big")
            mode[6][termios.VSUSP] = mode[6][termios.VQUIT] = disabled
            _set_mode(self._fd, mode)
            self.typed_ahead = self._pending().replace(b"\n", b"\r")

    def set_interrupt_signal(self, enabled: bool) -> None:
        """Make Ctrl-C a signal, which works while the program is busy, or a key like others."""
        mode = _get_mode(self._fd)
        if mode is not None and termios is not None:
            mode[3] = mode[3] | termios.ISIG if enabled else mode[3] & ~termios.ISIG
            _set_mode(self._fd, mode)

    @contextlib.contextmanager
    def released(self) -> Generator[None]:
        """The mode before it, for another program."""
        mode = _get_mode(self._fd)
        _set_mode(self._fd, self._before)
        try:
            yield
        finally:
            _set_mode(self._fd, mode)

    def _pending(self) -> bytes:
        try:
            ready = select.select([self._fd], [], [], 0)[0]
            return os.read(self._fd, _READ_SIZE) if ready else b""
        except OSError:  # the terminal is gone
            return b""


def _get_mode(fd: int) -> list[Any] | None:
    if termios is not None:
        with contextlib.suppress(termios.error):  # not a terminal, or one that is gone
            return termios.tcgetattr(fd)
    return None


def _set_mode(fd: int, mode: list[Any] | None) -> None:
    if mode is not None and termios is not None:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(fd, termios.TCSANOW, mode)


async def read_line(fd: int) -> str | None:
    """Return a line that the terminal itself edits and shows; None on Ctrl-D, and on Esc without Enter.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
        OSError: The terminal is gone.
    """
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    text = ""
    with _line_mode(fd):
        loop.add_reader(fd, readable.set)
        try:
            while True:
                await readable.wait()
                readable.clear()
                data = os.read(fd, _READ_SIZE)
                text += data.decode("utf-8", "replace")
                if data.endswith(b"\x1b"):
                    # It may begin the code of another key, whose rest the terminal keeps for a line.
                    await asyncio.sleep(_SEQUENCE_SECONDS)
                    with KeyMode(fd) as keys:
                        text += keys.typed_ahead.decode("utf-8", "replace")
                    text = _SEQUENCE.sub("", text)
                if not data or text.endswith(("\n", "\r", "\x03", "\x1b")):
                    break
        finally:
            loop.remove_reader(fd)
    if "\x03" in text:
        raise KeyboardInterrupt
    return None if "\x1b" in text or not text else text.rstrip("\r\n")


@contextlib.contextmanager
def _line_mode(fd: int) -> Generator[None]:
    """The terminal edits a line, which also Ctrl-C and Esc end."""
    before, mode = _get_mode(fd), _get_mode(fd)
    if mode is not None and termios is not None:
        mode[0] |= termios.ICRNL
        mode[3] |= termios.ECHO | termios.ICANON | termios.IEXTEN
        mode[3] &= ~termios.ISIG
        mode[6][termios.VEOL], mode[6][termios.VEOL2] = b"\x03", b"\x1b"
    _set_mode(fd, mode)
    try:
        yield
    finally:
        _set_mode(fd, before)


def forget_typed() -> bool:
    """Discard input typed before a question, which is not an answer to it.

    Returns:
        True if Ctrl-C is in it: it was typed while it was a key, at the end of an earlier question.
    """
    with KeyMode(0) as keys:
        pass
    if termios is not None:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcflush(0, termios.TCIFLUSH)
    return b"\x03" in keys.typed_ahead
