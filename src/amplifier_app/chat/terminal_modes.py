"""Modes of the terminal while the chat reads the keyboard."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from collections.abc import Generator
from typing import Any, Self

from amplifier_app.base.signals import hold_signals

try:
    import termios
except ImportError:  # no terminals of this kind on Windows
    termios = None  # type: ignore[assignment]

_READ_SIZE = 1 << 16


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
        self._before = self._get()
        try:
            self._read_keys()
        except BaseException:  # a signal
            self.restore()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        with hold_signals():
            self.restore()

    def restore(self) -> None:
        """Set the mode that was before."""
        self._set(self._before)

    def _read_keys(self) -> None:
        mode = self._get()
        if mode is not None and termios is not None:
            mode[0] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR)
            mode[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
            mode[3] |= termios.ISIG | termios.NOFLSH
            mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
            # Ctrl-Z and Ctrl-\ are keys.
            disabled = os.fpathconf(self._fd, "PC_VDISABLE").to_bytes(1, "big")
            mode[6][termios.VSUSP] = mode[6][termios.VQUIT] = disabled
            self._set(mode)
            self.typed_ahead = self._pending().replace(b"\n", b"\r")

    def set_interrupt_signal(self, enabled: bool) -> None:
        """Make Ctrl-C a signal, which works while the program is busy, or a key like others."""
        mode = self._get()
        if mode is not None and termios is not None:
            mode[3] = mode[3] | termios.ISIG if enabled else mode[3] & ~termios.ISIG
            self._set(mode)

    @contextlib.contextmanager
    def released(self) -> Generator[None]:
        """The mode before it, for another program."""
        mode = self._get()
        self._set(self._before)
        try:
            yield
        finally:
            self._set(mode)

    def _get(self) -> list[Any] | None:
        if termios is not None:
            with contextlib.suppress(termios.error):  # not a terminal, or one that is gone
                return termios.tcgetattr(self._fd)
        return None

    def _set(self, mode: list[Any] | None) -> None:
        if mode is not None and termios is not None:
            with contextlib.suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._fd, termios.TCSANOW, mode)

    def _pending(self) -> bytes:
        try:
            ready = select.select([self._fd], [], [], 0)[0]
            return os.read(self._fd, _READ_SIZE) if ready else b""
        except OSError:  # the terminal is gone
            return b""


async def read_line(fd: int) -> str | None:
    """Return a line that the terminal itself edits and shows; None on Ctrl-D, and on Esc without Enter.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
        OSError: The terminal is gone.
    """
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    with _line_mode(fd):
        loop.add_reader(fd, readable.set)
        try:
            await readable.wait()
            text = os.read(fd, _READ_SIZE).decode("utf-8", "replace")
        finally:
            loop.remove_reader(fd)
    if "\x03" in text:
        raise KeyboardInterrupt
    if "\x1b" in text:
        # The code of an arrow key begins with Esc; what follows must not answer the next question.
        forget_typed()
    return None if "\x1b" in text or not text else text.rstrip("\r\n")


@contextlib.contextmanager
def _line_mode(fd: int) -> Generator[None]:
    """The terminal edits a line, which also Ctrl-C and Esc end."""
    before = None
    if termios is not None:
        try:
            before, mode = termios.tcgetattr(fd), termios.tcgetattr(fd)
        except termios.error as error:
            raise OSError(*error.args) from error
        mode[0] |= termios.ICRNL
        mode[3] |= termios.ECHO | termios.ICANON | termios.IEXTEN
        mode[3] &= ~termios.ISIG
        mode[6][termios.VEOL], mode[6][termios.VEOL2] = b"\x03", b"\x1b"
        termios.tcsetattr(fd, termios.TCSANOW, mode)
    try:
        yield
    finally:
        if before is not None and termios is not None:
            with contextlib.suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(fd, termios.TCSANOW, before)


def forget_typed() -> None:
    """Discard input typed before a question: it is not an answer to it."""
    if termios is not None:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcflush(0, termios.TCIFLUSH)
