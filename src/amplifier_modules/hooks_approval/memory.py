"""Answers that apply to more than one call.

An answer is remembered for one call: the same tool in the same working directory with the same
input or, for tools that change a file, the same file. For the session, approving an edit in the
working directory approves all edits in the folder of the file and below. Only digests are stored, so that no
secret in a command ends up in the file.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

from amplifier_modules._shared.files import records
from amplifier_modules.hooks_approval.config import MODULE_ID
from amplifier_modules.hooks_approval.rules import Call
from amplifier_support.below import is_below
from amplifier_support.clock import utc_now

logger = logging.getLogger(__name__)

FILE_NAME = "approvals.jsonl"


class Memory:
    """What was allowed for this session, and always.

    Args:
        folder: The user's own settings folder; None stores nothing beyond the session.
        session: Digests of calls allowed for this session.
    """

    def __init__(self, folder: str | None, session: set[str]) -> None:
        self._file = Path(folder) / FILE_NAME if folder else None
        self._session = session
        self._warned = False

    @property
    def is_lasting(self) -> bool:
        return self._file is not None

    def recall(self, call: Call) -> str | None:
        """``session`` or ``always`` if the call was allowed for that long, otherwise None."""
        digest = _digest(call)
        if digest in self._session or not self._session.isdisjoint(map(_edits_in, _folders(call))):
            return "session"
        if self._file is None:
            return None
        try:
            known = any(record.get("digest") == digest for record in records.read(self._file))
        except OSError as error:
            self._warn(f"cannot read the approvals given for always: {error}")
            return None
        return "always" if known else None

    def scope(self, call: Call, *, always: bool) -> str:
        """What `keep` applies to, in words: the calls, and how long or where it is stored."""
        what = f"exactly this call of {call.tool}"
        folders = [] if always else _folders(call)
        if folders:
            folder = os.path.relpath(folders[0], call.base)
            what = "edits in this directory" if folder == os.curdir else f"edits in {folder}/"
        elif call.changes_one_file:
            path = call.places[0].real
            inside = is_below(path, call.base)
            what = f"{call.tool} {os.path.relpath(path, call.base) if inside else path}"
        elif call.command is not None:
            what = "exactly this command"
        return f"{what} in {call.start}, stored in {self._file}" if always else what

    def keep(self, call: Call, *, always: bool, was_shown: bool) -> None:
        """Remember that the call is allowed; if it cannot be stored, for the session only.

        Args:
            call: The call.
            always: Whether to store it for all sessions.
            was_shown: Whether the user saw the `scope`; without it, only this call is meant.
        """
        digest = _digest(call)
        if not always or self._file is None:
            folders = _folders(call) if was_shown else []
            self._session.add(_edits_in(folders[0]) if folders else digest)
            return
        record = {
            "digest": digest,
            "tool": call.tool,
            "working_dir": call.base,
            "at": utc_now().isoformat(),
        }
        try:
            records.append(self._file, record)
        except OSError as error:
            self._session.add(digest)
            self._warn(f"cannot store the approval, so it is for this session only: {error}")

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("%s: %s", MODULE_ID, message)


def _folders(call: Call) -> list[str]:
    """The folders that an edit is in, from that of the file up to the working directory."""
    if not (call.changes_one_file and call.edits_inside):
        return []
    folders = [os.path.dirname(call.places[0].real)]
    while folders[-1] != call.base and is_below(folders[-1], call.base):
        folders.append(os.path.dirname(folders[-1]))
    return folders


def _edits_in(folder: str) -> str:
    return _hashed(["edits", folder])


def _digest(call: Call) -> str:
    what: Any = dict(call.values)
    if call.changes_one_file:
        what = sorted(place.real for place in call.places)
    about = [call.base, call.tool, what]
    if call.command is not None and call.start != call.base:
        # The same command may mean something else there.
        about.append(call.start)
    if call.command is not None and call.is_sandboxed:
        about.append("sandboxed")
    return _hashed(about)


def _hashed(what: Any) -> str:
    text = json.dumps(what, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
