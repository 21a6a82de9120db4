"""Modes of the terminal that are ours for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Generator


@contextlib.contextmanager
def typing_mode(fd: int) -> Generator[bool]:
    """While entered, keys come one by one, are not shown by the terminal, and Enter is not Ctrl-J.

    Ctrl-C and Ctrl-Z are signals still, and output is as before.

    Yields:
        Whether it is a terminal that can do this.
    """
    try:
        import termios
    except ImportError:  # no terminals of this kind on Windows
        yield False
        return
    try:
        before = termios.tcgetattr(fd)
    except termios.error:  # not a terminal
        yield False
        return
    typing = list(before)
    typing[0] = before[0] & ~(termios.ICRNL | termios.INLCR | termios.IGNCR)
    typing[3] = before[3] & ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
    controls = list(before[6])
    controls[termios.VMIN], controls[termios.VTIME] = 1, 0
    typing[6] = controls
    termios.tcsetattr(fd, termios.TCSANOW, typing)
    try:
        yield True
    finally:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(fd, termios.TCSANOW, before)
