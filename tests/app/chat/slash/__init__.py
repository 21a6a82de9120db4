"""Slash commands: what they show."""

import io
from typing import Any

from rich.console import Console

from amplifier_app.base.sanitize import for_terminal
from amplifier_app.runtime.observers.observer import Level, Renderer


class Notices(Renderer):
    """Keeps what is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[str] = []

    def notice(self, message: str, level: Level, source: str) -> None:
        self.shown.append(message)


def read_text(reply: Any, *, width: int = 80, terminal: bool = False) -> str:
    """The text of the reply to a command."""
    file = io.StringIO()
    console = Console(
        file=file, width=width, color_system=None, force_terminal=terminal, legacy_windows=False
    )
    console.print(for_terminal(reply) if isinstance(reply, str) else reply)
    return file.getvalue()
