"""The standard streams: stdout reserved for the answer, stdin read without hanging."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

STDIN_GRACE_SECONDS = 2.0
"""How long to wait for data on an open pipe if there is a prompt argument as well, counted from the
start of the process. `-` waits without a limit."""

_STARTED = time.monotonic()
_LONGEST_LINE = 1 << 16


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
        if self.failure is not None:
            return False
        data = text.encode("utf-8", "replace")
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


@contextlib.contextmanager
def claimed_stdout() -> Generator[Output]:
    """Reserve stdout for the answer; anything else printed to it goes to stderr.

    Works on file descriptors, so it includes C libraries and child processes.
    """
    try:
        kept = os.dup(1)
    except OSError:
        yield _no_stdout()
        return
    stdout = sys.stdout
    _flush(stdout)
    try:
        os.dup2(2, 1)
    except OSError:  # stderr is closed: discard the output
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)
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


def _no_stdout() -> Output:
    output = Output(-1)
    output.failure = BrokenPipeError("stdout is closed")
    return output


def _flush(stream: object) -> None:
    if stream is None:  # set by Python for a stream that was closed at start-up
        return
    with contextlib.suppress(OSError, ValueError):
        stream.flush()  # type: ignore[attr-defined]


def stdin_is_tty() -> bool:
    try:
        return os.isatty(0)
    except OSError:
        return False


def stderr_is_tty() -> bool:
    try:
        return os.isatty(2)
    except OSError:
        return False


def read_piped(*, wait: bool) -> str | None:
    """Piped input: all of stdin as UTF-8, empty if stdin is a terminal or closed.

    Invalid UTF-8 becomes U+FFFD.

    Args:
        wait: Wait for an open pipe without a limit. Otherwise the result is None if there is no
            data `STDIN_GRACE_SECONDS` after the start of the process.
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
    while part := os.read(0, 1 << 16):
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
        while b"\n" not in data and len(data) < _LONGEST_LINE:
            if not select.select([0], [], [], seconds)[0]:
                return None
            part = os.read(0, 1 << 12)
            if not part:
                break
            data += part
    except OSError:  # closed, or a directory
        return ""
    return data.partition(b"\n")[0].decode("utf-8-sig", "replace")


def to_stderr(line: str) -> None:
    """Print a line on stderr; errors are ignored if stderr is closed."""
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)
