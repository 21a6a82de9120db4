"""Whether the network may be used for anything other than the provider."""

from __future__ import annotations

import os

VARIABLE = "AMPLIFIER_OFFLINE"


def is_offline(asked: bool = False) -> bool:
    """Whether fetching is disabled, by the command line or by AMPLIFIER_OFFLINE.

    Args:
        asked: Whether the command line disables it.
    """
    return asked or os.environ.get(VARIABLE, "").lower() not in ("", "0", "false", "no")
