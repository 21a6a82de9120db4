"""Long output on a terminal goes through a pager, as in git; elsewhere it is written as it is."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator

from amplifier_app.base.stdio import is_dumb
from amplifier_support.environment import without_secrets
from amplifier_support.programs import find_program

_NO_PAGER = ("", "cat")
_PART = 65_536


def show_paged(text: str | Iterable[str], *, use_pager: bool = True) -> None:
    """Write `text`, or its pieces, to stdout, through the user's pager if stdout is a terminal.

    The pager is AMPLIFIER_PAGER, PAGER or `less`; an empty value or `cat` means none.
    """
    pieces = [text] if isinstance(text, str) else text
    command = _pager() if use_pager and sys.stdout.isatty() else None
    if command is None or not _page(command, pieces):
        for part in joined(pieces):
            sys.stdout.write(part)
        sys.stdout.flush()


def joined(pieces: Iterable[str]) -> Iterator[str]:
    """Join short pieces into parts that are worth a write each."""
    part: list[str] = []
    size = 0
    for piece in pieces:
        part.append(piece)
        size += len(piece)
        if size >= _PART:
            yield "".join(part)
            part.clear()
            size = 0
    yield "".join(part)


def page_on(terminal: int, text: str, *, leaves_text: bool = True) -> bool:
    """Show `text` in the user's pager; return whether there is one.

    Args:
        terminal: The descriptor of the terminal, which nothing else uses meanwhile.
        text: The text.
        leaves_text: Leave it on the screen; otherwise `less` restores what was there.
    """
    command = _pager()
    options = "FRX" if leaves_text else "R"
    return command is not None and _page(command, [text], terminal, options)


def _pager() -> list[str] | None:
    if is_dumb():
        return None
    command = os.environ.get("AMPLIFIER_PAGER", os.environ.get("PAGER", "less"))
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    if not words or words[0] in _NO_PAGER:
        return None
    program = words[0] if os.path.isabs(words[0]) else find_program(words[0])
    return None if program is None else [program, *words[1:]]


def _page(
    command: list[str], pieces: Iterable[str], terminal: int | None = None, options: str = "FRX"
) -> bool:
    """Return True if the pager could be started."""
    # Keep colours, leave the text on the screen, and end at once if all of it fits.
    environment = {"LESS": options, "LV": "-c", **without_secrets(os.environ)}
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=terminal, stderr=terminal, env=environment
        )
    except OSError:
        return False
    assert process.stdin is not None
    # Ctrl-C belongs to the pager while it runs.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        # The pager may end before it has read everything.
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            for part in joined(pieces):
                pipe.write(part.encode("utf-8", "replace"))
        process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    return True
