"""Ids and names in the characters and length every vendor accepts."""

from __future__ import annotations

import hashlib
import re

_PORTABLE = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOT_PORTABLE = re.compile(r"[^A-Za-z0-9_-]")


def portable_id(given: str) -> str:
    """A call's id or a tool's name in characters every vendor accepts: ``[A-Za-z0-9_-]``, at most 64.

    A valid one is returned unchanged; any other becomes a readable part and a hash, always the same
    for the same text, so that a provider may apply it to calls, results and tools independently.
    """
    if _PORTABLE.fullmatch(given):
        return given
    digest = hashlib.sha256(given.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{_NOT_PORTABLE.sub('_', given)[:48]}_{digest}"
