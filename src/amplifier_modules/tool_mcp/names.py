"""Names of mounted tools: `mcp_<server>_<tool>`, in a form every model service accepts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container

_LONGEST = 64
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_-]")
_DIGEST = 8


def tool_name(server: str, tool: str, taken: Container[str]) -> str:
    """A name for a tool of a server that is not in `taken`.

    Characters that services refuse become `_`. A name that is too long or taken ends with a digest
    of the original, so that it is the same in every session.
    """
    name = _NOT_ALLOWED.sub("_", f"mcp_{server}_{tool}")
    if len(name) <= _LONGEST and name not in taken:
        return name
    digest = hashlib.sha256(f"{server}\n{tool}".encode()).hexdigest()[:_DIGEST]
    return f"{name[: _LONGEST - _DIGEST - 1]}_{digest}"
