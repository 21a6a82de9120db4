"""Escape sequences of terminals: colours, cursor movement, titles, links."""

from __future__ import annotations

import re

# ESC [ parameters intermediates final: colours, cursor movement.
_CSI = r"\[[0-?]{0,64}[ -/]{0,8}[@-~]"
# ESC ] text terminator (titles, links, clipboard), and the other strings: DCS, SOS, PM, APC.
_STRING = r"[\]PX^_][^\x07\x1b\n]{0,1024}(?:\x07|\x1b\\)"
# ESC intermediates final: character sets, reset.
_SHORT = r"[ -/]{0,8}[0-OQ-WYZ\\`-~]"

SEQUENCE = rf"\x1b(?:{_CSI}|{_STRING}|{_SHORT})"
"""Pattern of a whole sequence. Those that are longer do not match, so that they cannot hide text."""

UNFINISHED = r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}|[\]PX^_][^\x07\x1b\n]{0,1024}\x1b?|[ -/]{0,8})?\Z"
"""Pattern of the end of a text that more text could turn into a sequence."""


def without_sequences(text: str) -> str:
    """Return `text` without whole escape sequences."""
    # Compiled on first use: most texts have none.
    return re.sub(SEQUENCE, "", text) if "\x1b" in text else text
