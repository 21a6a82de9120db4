"""Whether the network may be used for anything but the provider's."""

from __future__ import annotations

import os

VARIABLE = "AMPLIFIER_OFFLINE"


def is_offline(asked: bool = False) -> bool:
    """Whether nothing may be fetched: it was asked for, or AMPLIFIER_OFFLINE says so.

    Args:
        asked: Whether the command line asks for it.
    """
    return asked or os.environ.get(VARIABLE, "").lower() not in ("", "0", "false", "no")
