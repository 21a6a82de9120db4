"""The line below the prompt: modes, model, context, cost, token budget, branch and directory, or chosen fields."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from amplifier_app.base.sanitize import one_line
from amplifier_app.plan.schema.grammar import STATUS_FIELDS
from amplifier_app.render.ansi import cells, clip, clip_middle, paint
from amplifier_app.runtime import describe
from amplifier_app.runtime.status import Status
from amplifier_app.sessions.summary import short_id

_NEARLY_FULL = 80
"""Per cent of the context or the budget from which the number is highlighted."""

_MAX_DIRECTORY = 40


_METER_CELLS = 5


def status_line(status: Status, width: int, names: Sequence[str] = STATUS_FIELDS[:7]) -> str:
    """Return the line, at most `width` cells wide; fields are dropped from its right end.

    Args:
        status: The state of the session.
        width: The cells of a line.
        names: The fields, of `STATUS_FIELDS`; the directory is at the right.
    """
    fields: list[str] = []
    for has_meter in (True, False):
        named = _fields(status, has_meter=has_meter)
        fields = [field for name in names for field in named.get(name, ()) if field]
        if cells(" · ".join(fields)) < width:
            break
    directory = clip_middle(one_line(status.directory), _MAX_DIRECTORY)
    line = ""
    for field in fields:
        longer = f"{line} · {field}" if line else f" {field}"
        if cells(longer) > width:
            return line or clip(longer, width)
        line = longer
    gap = width - cells(line) - cells(directory) - 1
    if "directory" not in names or gap < 2:
        return line
    return f"{line}{' ' * gap}{paint(directory, 'dim')}"


def _fields(status: Status, *, has_meter: bool) -> dict[str, list[str]]:
    """The texts of each field, empty if there is nothing to show."""
    return {
        "mode": [_mode(status), paint(one_line(status.module_mode or "", 30), "bold")],
        "model": [_model(status)],
        "context": [_context(status, has_meter=has_meter)],
        "cost": [_cost(status)],
        "tokens": [_tokens(status)],
        "branch": [paint(one_line(status.branch or "", 40), "dim")],
        "profile": [paint(one_line(status.profile, 40), "dim")],
        "provider": [paint(one_line(status.provider, 40), "dim")],
        "session": [paint(short_id(status.session_id), "dim")],
    }


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


def _context(status: Status, *, has_meter: bool) -> str:
    percent = status.context_percent
    if percent is None:
        used = status.context_used
        return paint(f"{describe.tokens(used)} tokens", "dim") if used else ""
    text = f"{percent} % of {describe.tokens(status.context_limit or 0)}"
    style = "yellow" if percent >= _NEARLY_FULL else "dim"
    if not has_meter:
        return paint(text, style)
    full = min(round(percent * _METER_CELLS / 100), _METER_CELLS)
    meter = paint("▰" * full, "yellow" if percent >= _NEARLY_FULL else "accent")
    return f"{meter}{paint('▱' * (_METER_CELLS - full) + f' {text}', style)}"


def _cost(status: Status) -> str:
    if status.budget is None:
        return paint(status.cost_text, "dim") if status.cost else ""
    return _budget(status.cost_text, status.cost, status.budget)


def _tokens(status: Status) -> str:
    return _budget(status.tokens_text, status.tokens, status.token_budget)


def _budget(text: str, used: Decimal | int | None, limit: Decimal | int | None) -> str:
    nearly = used is not None and limit is not None and 100 * used >= _NEARLY_FULL * limit
    return paint(text, "yellow" if nearly else "dim")
