"""How a run uses the terminal: it draws, or writes lines."""

from __future__ import annotations

from collections.abc import Mapping

from amplifier_app.base.stdio import is_dumb
from amplifier_app.commands.run.request import Request


def screen_mode(request: Request, display: Mapping[str, str]) -> str:
    """`full`, `plain` or `answer`: as requested, or else as set."""
    return request.screen or display.get("screen") or "full"


def draws(request: Request, display: Mapping[str, str]) -> bool:
    """Whether to draw on the terminal, not only to write lines."""
    return screen_mode(request, display) == "full" and not is_dumb()
