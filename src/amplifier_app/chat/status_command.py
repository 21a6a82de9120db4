"""`display.status.command`: a command of the user that prints the status line.

It gets the state of the session as JSON on stdin, and its first line is shown, with its colours. It runs in the
background when the state has changed, and now and then; until it has ended, the line before is shown.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from amplifier_app.base.sanitize import one_line, with_colours
from amplifier_app.render.ansi import paint
from amplifier_app.runtime.status import Status
from amplifier_support.environment import without_secrets
from amplifier_support.process.commands import ProcessRunner
from amplifier_support.process.with_input import run_with_input

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
    cost, budget = (None if one is None else float(one) for one in (status.cost, status.budget))
    return {
        **{"schema_version": 1, "session_id": status.session_id, "profile": status.profile},
        **{"provider": status.provider, "model": status.model, "mode": status.mode},
        **{"context_tokens": status.context_used, "context_limit": status.context_limit},
        **{"context_percent": status.context_percent, "cost_usd": cost, "max_cost": budget},
        **{"branch": status.branch, "directory": status.directory},
    }
