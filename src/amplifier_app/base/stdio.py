"""The standard streams: stdout reserved for the answer, stdin read without hanging."""

from __future__ import annotations

import contextlib
import io
import os
import select
import stat
import sys
import textwrap
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from amplifier_app.base.errors import UsageError
from amplifier_app.base.redact import redact

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from typing import Any, TextIO

STDIN_GRACE_SECONDS = 2.0
"""Seconds to wait for data on an open pipe if there is a prompt argument as well, counted from the
start of the process. `-` waits without a limit."""

_STARTED = time.monotonic()
_MAX_LINE = 1 << 16
_MAX_BYTES = 64 << 20

ERASE_LINE = "\r\x1b[K"


class Output:
    """Writes to a file descriptor.

    A failure (a closed pipe, a full disk) is stored, and later writes are discarded: callers must not
    get an exception.

    Attributes:
        failure: The first error; None if there was none.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.failure: OSError | None = None
        self._later: list[str] = []

    def isatty(self) -> bool:
        return self.fd >= 0 and os.isatty(self.fd)

    def write(self, text: str) -> bool:
        """Write `text` as UTF-8, with `?` for lone surrogates. False after a failure."""
        return self.flush() and self._write(text)

    def write_later(self, text: str, running_loop: Callable[[], AbstractEventLoop]) -> bool:
        """Write `text` before the event loop waits for anything. False after a failure.

        Texts that arrived together are written together, which is many times faster.
        """
        if self.failure is not None:
            return False
        if not self._later:
            running_loop().call_soon(self.flush)
        self._later.append(text)
        return True

    def flush(self) -> bool:
        """Write what `write_later` has kept. False after a failure."""
        if self._later:
            text = "".join(self._later)
            self._later.clear()
            return self._write(text)
        return self.failure is None

    def _write(self, text: str) -> bool:
        return self.write_bytes(text.encode("utf-8", "replace"))

    def write_bytes(self, data: bytes) -> bool:
        """Write bytes at once, without what `write_later` has kept. False after a failure."""
        if self.failure is not None:
            return False
        try:
            while data:
                try:
                    data = data[os.write(self.fd, data) :]
                except BlockingIOError:
                    # The parent may have made the pipe non-blocking.
                    select.select([], [self.fd], [])
        except OSError as error:
            self.failure = error
            return False
        return True


class _OutputFile(io.RawIOBase):
    """An `Output` as the file below a text stream: writing to it never raises."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        written = bytes(data)
        self._output.write_bytes(written)
        return len(written)

    def fileno(self) -> int:
        return self._output.fd

    def isatty(self) -> bool:
        return self._output.isatty()


class _Text(io.TextIOWrapper):
    """A text stream that stays open: modules that close `sys.stdout` must not take it from others."""

    def close(self) -> None:
        _flush(self)


class _RedactedText(_Text):
    """A text stream that replaces secrets, for errors: their texts quote URLs, commands and headers.

    Attributes:
        divert: Takes each text instead of the stream; False if it leaves the text to the stream.
    """

    divert: Callable[[str], bool] | None = None
    _waiting = ""

    def write(self, text: str, /) -> int:
        self._show(text)
        return len(text)

    def flush(self) -> None:
        if self._waiting:
            self._show("")
        super().flush()

    def _show(self, text: str) -> None:
        waiting, self._waiting = self._waiting, ""
        try:
            redacted = redact(waiting + text)
        except ImportError:
            # This very import of the rules has printed it; the next text, or the end, is after that.
            self._waiting = waiting + text
            return
        if self.divert is None or not self.divert(redacted):
            super().write(redacted)


def open_standard_streams() -> Output:
    """Make the standard streams of this process safe to use, whatever it was started with.

    A closed stdin is empty, a closed stdout is like a pipe without a reader, and a closed stderr
    discards everything: otherwise the next file that is opened would get the output. Characters that
    an encoding lacks become `?` (on stderr, escapes). Secrets are replaced on stderr. Writing never
    raises.

    Returns:
        What `sys.stdout` writes to; its `failure` is for the end of the command.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            _substitute(descriptor)
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] - closed at start-up
        stdin = io.BufferedReader(io.FileIO(0, closefd=False))
        sys.stdin = io.TextIOWrapper(stdin, "utf-8", "replace")
    output = Output(1)
    sys.stdout = _Text(
        io.BufferedWriter(_OutputFile(output)),
        getattr(sys.stdout, "encoding", None) or "utf-8",
        "replace",
        line_buffering=output.isatty(),
    )
    sys.stderr = _RedactedText(
        io.BufferedWriter(_OutputFile(Output(2))),
        getattr(sys.stderr, "encoding", None) or "utf-8",
        "backslashreplace",
        line_buffering=True,
    )
    return output


def _substitute(descriptor: int) -> None:
    """Open a standard descriptor that is closed; those below it are open."""
    if descriptor == 1:
        reading, writing = os.pipe()
        os.dup2(writing, descriptor)
        for end in {reading, writing} - {descriptor}:
            os.close(end)
    else:
        os.open(os.devnull, os.O_RDWR)
        os.set_inheritable(descriptor, True)


@contextlib.contextmanager
def claim_stdout() -> Generator[Output]:
    """Reserve stdout for the answer; anything else printed to it goes to stderr.

    Works on file descriptors, so it includes C libraries and child processes.
    """
    kept = os.dup(1)
    stdout = sys.stdout
    _flush(stdout)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    output = Output(kept)
    try:
        yield output
    finally:
        output.flush()
        _flush(stdout)
        sys.stdout = stdout
        os.dup2(kept, 1)
        os.close(kept)


@contextlib.contextmanager
def diverted_stderr(divert: Callable[[str], bool]) -> Generator[None]:
    """Pass what is written to `sys.stderr` on a terminal to `divert`, in any thread.

    Args:
        divert: Takes a text; returns False to have it written as it is.
    """
    stream = sys.stderr
    if not isinstance(stream, _RedactedText) or not stream.isatty():
        yield
        return
    before, stream.divert = stream.divert, divert
    try:
        yield
    finally:
        stream.divert = before


def _flush(stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):
        stream.flush()


def stdin_is_tty() -> bool:
    return os.isatty(0)


def stderr_is_tty() -> bool:
    return os.isatty(2)


def terminal_size(fd: int) -> tuple[int, int]:
    """Columns and rows of the terminal at a descriptor; 80 and 24 if they are unknown."""
    try:
        columns, rows = os.get_terminal_size(fd)
    except OSError:  # not a terminal, or one that is gone
        columns, rows = 0, 0
    return columns or 80, rows or 24


def terminal_width(fd: int) -> int | None:
    """Columns of the terminal at a descriptor; None if it is not one."""
    return terminal_size(fd)[0] if fd >= 0 and os.isatty(fd) else None


def is_dumb() -> bool:
    """Return True if the terminal only knows text."""
    return os.environ.get("TERM", "dumb") in ("", "dumb", "unknown")


def read_piped(*, wait: bool) -> str | None:
    """Piped input: all of stdin as UTF-8, empty if stdin is a terminal or closed.

    Invalid UTF-8 becomes U+FFFD.

    Args:
        wait: Wait for an open pipe without a limit. Otherwise the result is None if there is no
            data `STDIN_GRACE_SECONDS` after the start of the process.

    Raises:
        UsageError: There are more than 64 MiB.
    """
    try:
        mode = os.fstat(0).st_mode
        if os.isatty(0) and not wait:
            return ""
        if not wait and not stat.S_ISREG(mode):
            left = max(0.0, _STARTED + STDIN_GRACE_SECONDS - time.monotonic())
            if not select.select([0], [], [], left)[0]:
                return None
        return _read_all()
    except OSError:  # closed, or a directory
        return ""


def _read_all() -> str:
    parts: list[bytes] = []
    size = 0
    while part := os.read(0, 1 << 16):
        size += len(part)
        if size > _MAX_BYTES:
            raise UsageError(
                f"stdin has more than {_MAX_BYTES >> 20} MiB",
                hint="Write it to a file, and pass the name of the file instead.",
            )
        parts.append(part)
    return b"".join(parts).decode("utf-8-sig", "replace")


def read_line(seconds: float) -> str | None:
    """The first line of stdin without its line break; later input is not waited for.

    Args:
        seconds: How long to wait for each piece.

    Returns:
        Empty at the end of stdin; None on a timeout.
    """
    data = b""
    try:
        while b"\n" not in data and len(data) < _MAX_LINE:
            if not select.select([0], [], [], seconds)[0]:
                return None
            part = os.read(0, 1 << 12)
            if not part:
                break
            data += part
    except OSError:  # closed, or a directory
        return ""
    return data.partition(b"\n")[0].decode("utf-8-sig", "replace")


def to_stderr(text: str, *, erase: bool = False) -> None:
    """Print lines on stderr, on a terminal wrapped between words; errors are ignored if it is closed.

    Args:
        text: The lines.
        erase: Whether to erase the line that the cursor of a terminal is on.
    """
    if stderr_is_tty():
        text = "\n".join(_wrapped(line) for line in text.split("\n"))
        text = f"{ERASE_LINE}{text}" if erase else text
    with contextlib.suppress(OSError, ValueError):
        # In one piece: a thread of a module may draw on the terminal, too.
        print(f"{text}\n", end="", file=sys.stderr, flush=True)


def _wrapped(line: str) -> str:
    """The line for the terminal at stderr, further lines indented like the first."""
    width = terminal_width(2)
    if width is None or len(line) <= width:
        return line
    indent = line[: len(line) - len(line.lstrip(" "))]
    # A long word, such as a path, is left to the terminal, so that it can be copied.
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
