"""The transcript of a session: a journal (`amplifier_support.journal`) with one line for each message.

A line is the message itself, as the context received it, or is about those before it. A message
without a role is a message all the same.
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

from amplifier_app.base.errors import Location, SessionError
from amplifier_app.base.private_files import open_private
from amplifier_support import journal
from amplifier_support.journal import CLEAR, encode, replacement
from amplifier_support.private_files import sync_folder

__all__ = ["CLEAR", "Reading", "TranscriptWriter", "encode", "read_transcript", "replacement"]


class Reading(NamedTuple):
    """What a transcript holds.

    Attributes:
        messages: The conversation since it was last cleared.
        file: What is in the file.
    """

    messages: list[dict[str, Any]]
    file: journal.Reading = journal.EMPTY


def read_transcript(path: Path) -> Reading:
    """The messages in `path`; a missing file holds none.

    Raises:
        SessionError: A record that is not the torn last one does not parse, or the file
            cannot be read.
    """
    try:
        found = journal.read(path.read_bytes())
        return Reading(journal.current_items(found.records, _is_message), found)
    except FileNotFoundError:
        return Reading([])
    except OSError as error:
        raise SessionError(f"Cannot read {path}: {error.strerror}") from error
    except journal.Damaged as error:
        raise SessionError(
            "this record of the transcript is damaged",
            location=Location(str(path), error.line),
            hint="The file is left as it is. Fix or remove the line, then resume again.",
        ) from error
    except journal.UnknownControl as error:
        raise SessionError(
            f"the transcript has a record this version does not know: {error.control!r}",
            location=Location(str(path), error.line),
            hint="Resume the session with the version that wrote it.",
        ) from error


def _is_message(record: Any) -> bool:
    # Any but a dict is what a module put into a list of messages that it set.
    return not isinstance(record, dict) or "role" in record or record.get("control") is None


class TranscriptWriter:
    """Appends to a transcript. There must be one writer only (`SessionLock`).

    Args:
        path: The file; created 0600 when missing.
        reading: What was read of it; a torn tail is cut off.
    """

    def __init__(self, path: Path, reading: Reading) -> None:
        self._path = path
        descriptor = open_private(path, os.O_WRONLY | os.O_CREAT)
        self._writer = journal.Writer(descriptor, reading.file)
        try:
            self._writer.repair()
            if not reading.file.size:
                sync_folder(path.parent)
        except OSError as error:
            self.close()
            raise SessionError(f"Cannot write to {path}: {error.strerror}") from error
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        """Bytes of its whole records."""
        return self._writer.size

    def append(self, record: dict[str, Any]) -> None:
        """Add one record and return when it is on disk.

        Raises:
            SessionError: The disk refused, or the record is not JSON; the file is as it was before.
        """
        try:
            self._writer.write(encode(record))
        except journal.NotJSON as error:
            raise SessionError(
                f"Cannot save to {self._path}: a message is no JSON: {error}",
                hint="The module that made the message has to be fixed.",
            ) from error
        except OSError as error:
            raise SessionError(
                f"Cannot save to {self._path}: {error.strerror}",
                hint="Everything before is saved. Make room or fix the disk, then resume.",
            ) from error

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._writer.close()
