"""Files of JSON lines that only the user may read or write."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amplifier_support import journal
from amplifier_support.private_files import make_private_folder, open_private, open_regular

_MOST_BYTES = 8_000_000


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Add a line, in one write, so that several processes may do so.

    Raises:
        OSError: It cannot be written, or the path is a link or not a regular file.
    """
    make_private_folder(path.parent)
    file = open_private(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        torn = journal.ends_inside_line(file)
        line = json.dumps(record).encode("ascii") + b"\n"
        rest = memoryview(b"\n" + line if torn else line)
        while rest:
            rest = rest[os.write(file, rest) :]
    finally:
        os.close(file)


def read(path: Path, most_bytes: int = _MOST_BYTES) -> list[dict[str, Any]]:
    """The complete lines, up to so many bytes; none if the file is missing.

    Raises:
        OSError: It cannot be read, or another user could have written it.
    """
    try:
        file = open_regular(path, os.O_RDONLY)
    except FileNotFoundError:
        return []
    with open(file, "rb") as stream:
        state = os.fstat(stream.fileno())
        if state.st_uid != os.geteuid() or state.st_mode & 0o022:
            raise PermissionError(f"{path} may be written by others; make it yours and 0600")
        data = stream.read(most_bytes)
    return journal.readable_records(data)
