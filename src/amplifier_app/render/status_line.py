"""The line below the prompt: modes, model, context, cost, token budget, branch and directory."""

from __future__ import annotations

from decimal import Decimal

from amplifier_app.base.sanitize import one_line
from amplifier_app.render.ansi import cells, clip, clip_middle, paint
from amplifier_app.runtime import describe
from amplifier_app.runtime.status import Status

_NEARLY_FULL = 80
"""Per cent of the context or the budget from which the number is highlighted."""

_MAX_DIRECTORY = 40


def status_line(status: Status, width: int) -> str:
    """Return the line, at most `width` cells wide; fields are dropped from its right end."""
    fields = [field for field in _fields(status) if field]
    directory = clip_middle(one_line(status.directory), _MAX_DIRECTORY)
    line = ""
    for field in fields:
        longer = f"{line} · {field}" if line else f" {field}"
        if cells(longer) > width:
            return line or clip(longer, width)
        line = longer
    gap = width - cells(line) - cells(directory) - 1
    return f"{line}{' ' * gap}{paint(directory, 'dim')}" if gap >= 2 else line


def _fields(status: Status) -> list[str]:
    return [
        _mode(status),
        paint(one_line(status.module_mode or "", 30), "bold"),
        _model(status),
        _context(status),
        _cost(status),
        _tokens(status),
        paint(one_line(status.branch or "", 40), "dim"),
    ]


def _mode(status: Status) -> str:
    mode = one_line(status.mode or "", 20)
    # In these modes nothing asks.
    if not mode or status.policy is None or mode in ("read-only", "propose"):
        return paint(mode, "bold")
    return f"{paint(mode, 'bold')} → {paint(status.policy, 'bold yellow')}"


def _model(status: Status) -> str:
    if status.provider == "local":
        return paint("demo model", "yellow")
    return paint(one_line(status.model or status.provider, 40), "dim")


def _context(status: Status) -> str:
    percent = status.context_percent
    if percent is None:
        used = status.context_used
        return paint(f"{describe.tokens(used)} tokens", "dim") if used else ""
    text = f"{percent} % of {describe.tokens(status.context_limit or 0)}"
    return paint(text, "yellow" if percent >= _NEARLY_FULL else "dim")


def _cost(status: Status) -> str:
    if status.budget is None:
        return paint(status.cost_text, "dim") if status.cost else ""
    return _budget(status.cost_text, status.cost, status.budget)


def _tokens(status: Status) -> str:
    return _budget(status.tokens_text, status.tokens, status.token_budget)


def _budget(text: str, used: Decimal | int | None, limit: Decimal | int | None) -> str:
    nearly = used is not None and limit is not None and 100 * used >= _NEARLY_FULL * limit
    return paint(text, "yellow" if nearly else "dim")
