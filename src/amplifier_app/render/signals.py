"""Signals to a terminal in addition to text: its title, links to files, and the end of a prompt."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from amplifier_app.base.sanitize import visible
from amplifier_app.render.pictures import shows_pictures
from amplifier_app.render.screen import Screen

LONG_TURN_SECONDS = 10.0
"""Turns that take longer end with a bell or a notification."""

_SAVE_TITLE, _RESTORE_TITLE = "\x1b[22;2t", "\x1b[23;2t"
_BELL = "\x07"
_NOTIFYING = ("iTerm.app", "WezTerm", "ghostty")
"""`TERM_PROGRAM` of terminals that show a notification for OSC 9."""


class Signals:
    """Sends sequences that draw nothing.

    Args:
        screen: The terminal.
        environment: Variables that name the terminal program. Default: those of the process.

    Attributes:
        shows_pictures: Whether the terminal draws images.
    """

    def __init__(self, screen: Screen, environment: Mapping[str, str] | None = None) -> None:
        self._screen = screen
        environment = os.environ if environment is None else environment
        term = environment.get("TERM", "")
        in_tmux = "TMUX" in environment or term.startswith(("screen", "tmux"))
        self._has_title = not term.startswith(("linux", "vt", "dumb"))
        self._links = self._has_title and not in_tmux
        self._notifies = not in_tmux and (
            environment.get("TERM_PROGRAM") in _NOTIFYING or "KITTY_WINDOW_ID" in environment
        )
        self._title = ""
        self.shows_pictures = shows_pictures(environment)

    def set_title(self, title: str) -> None:
        """Set the title of the window."""
        title = visible(title, 80)
        if not self._has_title or title == self._title:
            return
        saved = "" if self._title else _SAVE_TITLE
        self._title = title
        self._screen.signal(f"{saved}\x1b]2;{title}\x1b\\")

    def turn_ended(self, seconds: float, message: str) -> None:
        """Ask for attention after a long turn: with a notification, or else with the bell."""
        if seconds > LONG_TURN_SECONDS:
            note = f"\x1b]9;{visible(message, 80)}\x1b\\" if self._notifies else _BELL
            self._screen.signal(note)

    def link(self, text: str, path: str) -> str:
        """Return text as a link to a file, if the terminal can show links."""
        if not self._links:
            return text
        address = Path(os.path.abspath(path)).as_uri()
        return f"\x1b]8;;{address}\x1b\\{text}\x1b]8;;\x1b\\"

    def close(self) -> None:
        """Restore the title."""
        if self._title:
            self._screen.signal(_RESTORE_TITLE)
            self._title = ""
