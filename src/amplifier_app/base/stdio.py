"""The process's three streams: stdout kept for the answer, stdin read without hanging."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
import time
from collections.abc import Generator

STDIN_GRACE_SECONDS = 2.0
"""How long an open pipe that has written nothing yet is waited for when there is a prompt
argument as well, counted from the start of the process. `-` waits as long as it takes."""

_STARTED = time.monotonic()
_LONGEST_LINE = 1 << 16


class Output:
    """A file descriptor written to without buffering.

    A failure (the reader is gone, the disk is full) is remembered, and what is written after
    it goes nowhere: the code that writes is called from places that must not raise.

    Attributes:
        failure: The first error met; None while all is well.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.failure: OSError | None = None

    def isatty(self) -> bool:
        return self.fd >= 0 and os.isatty(self.fd)

    def write(self, text: str) -> bool:
        """Write `text` as UTF-8; what UTF-8 cannot carry becomes `?`. False once failed."""
        if self.failure is not None:
            return False
        data = text.encode("utf-8", "replace")
        try:
            while data:
                try:
                    data = data[os.write(self.fd, data) :]
                except BlockingIOError:
                    # A parent may have made the pipe non-blocking, which it then is for us too.
                    select.select([], [self.fd], [])
        except OSError as error:
            self.failure = error
            return False
        return True


@contextlib.contextmanager
def claimed_stdout() -> Generator[Output]:
    """Keep stdout for the answer alone; whatever else prints there lands on stderr.

    Done at the level of file descriptors, so that C libraries and child processes are included.
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
    except OSError:  # stderr is closed: nowhere to send strays to
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)
    sys.stdout = sys.stderr
    try:
        yield Output(kept)
    finally:
        _flush(stdout)
        sys.stdout = stdout
        os.dup2(kept, 1)
        os.close(kept)


def _no_stdout() -> Output:
    output = Output(-1)
    output.failure = BrokenPipeError("stdout is closed")
    return output


def _flush(stream: object) -> None:
    if stream is None:  # Python's own value for a stream that was closed at start-up
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
    """What is piped in: all of stdin as UTF-8, empty if stdin is a terminal or closed.

    Bytes that are no UTF-8 become U+FFFD.

    Args:
        wait: Wait for an open pipe as long as it takes. Otherwise one that has written nothing
            `STDIN_GRACE_SECONDS` after the start of the process is given up, and the result
            is None.
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
    """The first line of stdin without its end; what follows may never come and is not waited for.

    Args:
        seconds: How long to wait for each piece of it.

    Returns:
        Empty if stdin is at its end; None if nothing came in time.
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
    """Print a line on stderr; a closed stderr is nobody to tell."""
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)
