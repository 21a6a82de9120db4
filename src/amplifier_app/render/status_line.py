"""The line below the prompt: modes, model, context, cost, token budget, branch and directory, or chosen fields.

The command of `display.status.command` gets the state of the session as JSON on stdin, and its first line
is shown, with its colours. It runs in the background when the state has changed, and now and then; until it
has ended, the line before is shown.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Coroutine, Sequence
from decimal import Decimal
from typing import Any

from amplifier_app.base.sanitize import one_line, with_colours
from amplifier_app.plan.schema.grammar import STATUS_FIELDS
from amplifier_app.render.ansi import cells, clip, clip_middle, paint
from amplifier_app.runtime import describe
from amplifier_app.runtime.status import Status
from amplifier_app.sessions.summary import short_id
from amplifier_support.environment import without_secrets
from amplifier_support.process.commands import ProcessRunner
from amplifier_support.process.with_input import run_with_input

# -- display.status.command: a command of the user that prints the status line -----------


_SECONDS = 5.0
"""Time limit of the command."""
_PAUSE = 1.0
"""Seconds between two runs."""
_AGE = 10.0
"""Seconds after which the line is printed again, although the state is the same."""


class StatusCommand:
    """The status line that a command prints.

    Args:
        command: The shell command.
        secret_names: Variables that hold secrets, which it does not get.
        start: Runs a coroutine in the background, and refreshes the terminal when it has ended.
    """

    def __init__(
        self,
        command: str,
        secret_names: Sequence[str],
        start: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._command = command
        self._secret_names = secret_names
        self._start = start
        self._line = ""
        self._status: Status | None = None
        self._is_running = False
        self._ended = 0.0

    def line(self, status: Status, width: int) -> str:
        """Return the line printed last, of any width; run the command if it is out of date."""
        age = asyncio.get_running_loop().time() - self._ended
        if not self._is_running and (status != self._status or age > _AGE):
            self._is_running, self._status = True, status
            self._start(self._run(status, max(_PAUSE - age, 0.0)))
        return self._line

    async def _run(self, status: Status, wait: float) -> None:
        await asyncio.sleep(wait)
        runner = ProcessRunner(None)
        try:
            ran = await run_with_input(
                runner,
                self._command,
                stdin=json.dumps(as_json(status)).encode("ascii") + b"\n",
                environment=without_secrets(os.environ, secret_names=self._secret_names),
                folder=os.getcwd(),
                timeout=_SECONDS,
            )
        finally:
            await runner.close()
            self._is_running, self._ended = False, asyncio.get_running_loop().time()
        problem = ran.problem or (f"it exited with code {ran.exit_code}" if ran.exit_code else None)
        if problem is None:
            first = ran.output.decode("utf-8", "replace").partition("\n")[0]
            self._line = f" {with_colours(first.expandtabs())}"
        else:
            errors = one_line(ran.errors.decode("utf-8", "replace"), 100)
            text = f" the status command failed: {problem}{f' ({errors})' if errors else ''}"
            self._line = paint(text, "yellow")


def as_json(status: Status) -> dict[str, Any]:
    """The state of a session as the command gets it."""
    cost, budget = (
        None if amount is None else float(amount) for amount in (status.cost, status.budget)
    )
    return {
        **{"schema_version": 1, "session_id": status.session_id, "profile": status.profile},
        **{"provider": status.provider, "model": status.model, "mode": status.mode},
        **{"context_tokens": status.context_used, "context_limit": status.context_limit},
        **{"context_percent": status.context_percent, "cost_usd": cost, "max_cost": budget},
        **{"branch": status.branch, "directory": status.directory},
    }


# -- the line below the prompt -----------------------------------------------------------


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
        longer = f"{line}{paint(' · ', 'dim')}{field}" if line else f" {field}"
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
        "tokens": [_budget(status.tokens_text, status.tokens, status.token_budget)],
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


def _budget(text: str, used: Decimal | int | None, limit: Decimal | int | None) -> str:
    nearly = used is not None and limit is not None and 100 * used >= _NEARLY_FULL * limit
    return paint(text, "yellow" if nearly else "dim")
