"""Slash commands: what they show."""

from __future__ import annotations

from typing import Any

from amplifier_app.render.ansi import plain, reply_lines
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
    lines = map(plain, reply_lines(reply, width, styled=terminal))
    return "".join(f"{line}\n" for line in lines)
