"""Output of any length in bounded memory: keep its start and end, and write all of it to a file.

Output that is too long for a model to read at once is in one folder per session: `tool-output` in the
session's folder, else a temporary one that is removed with the session. The folder is a capability, so that
the tool that reads files can read there.
"""

from __future__ import annotations

import codecs
import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amplifier_support.files import make_private_folder, open_private_in, temporary_folder
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.session_capabilities import SESSION_DIR, TOOL_OUTPUT_DIR


class Captured(NamedTuple):
    """The part of an output to show.

    Attributes:
        text: All of it, or its start and end with a line between with the size of the cut.
        total: Its bytes.
        cut: Whether `text` lacks some.
        file: Where more of it is; None when `text` is all, or there is no file.
        in_file: Bytes in the file, counted from the start of the output.
        problem: Why there is no file although one was needed.
    """

    text: str
    total: int
    cut: bool
    file: Path | None
    in_file: int
    problem: str | None


class OutputCapture:
    """Takes output piece by piece.

    Args:
        limit: Bytes to keep in memory and show.
        spill_limit: Bytes to write to the file at most.
        new_file: Names the file, in a folder of the user's own; called when one is needed.
    """

    def __init__(self, *, limit: int, spill_limit: int, new_file: Callable[[], Path]) -> None:
        self._head_size = limit // 2
        self._tail_size = limit - self._head_size
        self._spill_limit = spill_limit
        self._new_file = new_file
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0
        self._file: int | None = None
        self._path: Path | None = None
        self._in_file = 0
        self._problem: str | None = None

    def feed(self, data: bytes) -> None:
        """Add a piece. Never raises: a file that cannot be written becomes a note."""
        self._total += len(data)
        if self._path is None and self._total > self._head_size + self._tail_size:
            self.spill()
        self._save(data)
        room = self._head_size - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data[-self._tail_size :]
        # Cut rarely: each cut copies what is kept.
        if len(self._tail) > 2 * self._tail_size:
            del self._tail[: -self._tail_size]

    def spill(self) -> Path | None:
        """Write everything to a file from now on; returns its path, or None if it cannot be created."""
        if self._path is not None or self._problem is not None:
            return self._path
        try:
            path = self._new_file()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            self._file = open_private_in(path.parent, path.name, flags)
        except OSError as error:
            self._problem = error.strerror or str(error)
            return None
        self._path = path
        self._save(bytes(self._head + self._tail))
        return path

    def close(self) -> None:
        """Close the file; further output is only counted and shown."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def captured(self) -> Captured:
        """Return the part to show of the output so far."""
        cut = self._total > self._head_size + self._tail_size
        if not cut:
            text = bytes(self._head + self._tail).decode("utf-8", "replace")
        else:
            head = _decoded_head(bytes(self._head))
            tail = _decoded_tail(bytes(self._tail[-self._tail_size :]))
            left_out = self._total - len(self._head) - self._tail_size
            text = f"{head}\n[… {left_out} bytes are cut out here …]\n{tail}"
        return Captured(text, self._total, cut, self._path, self._in_file, self._problem)

    def _save(self, data: bytes) -> None:
        if self._file is None:
            return
        data = data[: self._spill_limit - self._in_file]
        try:
            while data:
                written = os.write(self._file, data)
                self._in_file += written
                data = data[written:]
        except OSError as error:
            self._problem = error.strerror or str(error)
            self.close()


def _decoded_head(data: bytes) -> str:
    """Text up to a cut: at a nearby line end, else between two characters."""
    end = data.rfind(b"\n", len(data) * 3 // 4)
    if end >= 0:
        return data[:end].decode("utf-8", "replace")
    # Drops an incomplete character at the end: the rest of it was cut off.
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)


def _decoded_tail(data: bytes) -> str:
    start = data.find(b"\n", 0, len(data) // 4)
    if start < 0:
        start = next((at for at in range(min(4, len(data))) if data[at] & 0xC0 != 0x80), 0) - 1
    return data[start + 1 :].decode("utf-8", "replace")


def output_dir(coordinator: Any) -> Path:
    """The folder, created on first use and private to the user. Raises OSError if that fails."""
    known = TOOL_OUTPUT_DIR.of(coordinator)
    if known is not None:
        return Path(known)
    session = SESSION_DIR.of(coordinator)
    if session is not None:
        folder = Path(session) / "tool-output"
        if folder.is_symlink():
            raise OSError(errno.ELOOP, "it is a link", str(folder))
        make_private_folder(folder)
    else:
        folder = Path(tempfile.mkdtemp(prefix="amplifier-output-", dir=temporary_folder()))
        coordinator.register_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    TOOL_OUTPUT_DIR.register(coordinator, str(folder))
    return folder


def known_output_dir(coordinator: Any) -> str | None:
    """The folder if there may be output in it; it is not created."""
    known = TOOL_OUTPUT_DIR.of(coordinator)
    if known is None and (session := SESSION_DIR.of(coordinator)) is not None:
        known = os.path.join(session, "tool-output")
    return known
