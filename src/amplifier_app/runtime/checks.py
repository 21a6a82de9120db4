"""Checks of what a run has done: commands that succeed if the result is right."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from amplifier_app.base.errors import ConfigError
from amplifier_app.base.sanitize import for_pipe
from amplifier_app.runtime.sandbox import sandbox_for_checks
from amplifier_support.environment import without_secrets
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.process.commands import Command, CommandError, ProcessRunner
from amplifier_support.sandbox.sandbox import Sandbox
from amplifier_support.session_capabilities import SECRET_VARIABLES
from amplifier_support.working_folder import working_folder

_SHELL = "/bin/sh"


class ShellResult(NamedTuple):
    """The result of a command.

    Attributes:
        output: The end of what it wrote.
        exit_code: Negative for the signal that ended it; None after the time limit.
        seconds: Its running time.
    """

    output: str
    exit_code: int | None
    seconds: float


async def run_shell(
    command: str,
    coordinator: Any,
    *,
    most_bytes: int,
    timeout: float | None = None,
    variables: Mapping[str, str] | None = None,
    sandbox: Sandbox | None = None,
) -> ShellResult:
    """Run a shell command in the working directory, without the keys of the session.

    Args:
        command: The command.
        coordinator: The session's, which knows the variables that hold secrets.
        most_bytes: Size of the end of the output that is kept.
        timeout: Its time limit in seconds.
        variables: Environment variables to add.
        sandbox: Restricts it; None for a command of the user.

    Raises:
        CommandError: It cannot be started.
        asyncio.CancelledError: After everything it had started was killed.
    """
    written = bytearray()

    def keep(data: bytes) -> None:
        written.extend(data)
        del written[:-most_bytes]

    # The command may run code that the model wrote.
    names = SECRET_VARIABLES.of(coordinator) or ()
    environment = without_secrets(os.environ, secret_names=names) | dict(variables or {})
    runner = ProcessRunner(sandbox)
    folder = os.open(working_folder(), os.O_RDONLY)
    try:
        argv = (_SHELL, "-c", command)
        ended = await runner.run(Command(argv, environment, folder), timeout=timeout, output=keep)
    finally:
        os.close(folder)
        await runner.close()
    output = for_pipe(bytes(written).decode("utf-8", "replace"))
    return ShellResult(output, ended.exit_code, ended.seconds)


SECONDS = 600.0
"""The default time limit of a check."""

ANSWER_FILE = "AMPLIFIER_ANSWER_FILE"
"""The variable with the path of a file that contains the answer."""

ROW_FILE = "AMPLIFIER_ROW_FILE"
"""In a batch, the variable with the path of a JSON file that contains the row."""

_OUTPUT_BYTES = 4000


class Check(NamedTuple):
    """A command that must succeed after an answer.

    Attributes:
        name: Its name in reports.
        command: The shell command.
        seconds: Its time limit.
    """

    name: str
    command: str
    seconds: float = SECONDS


class CheckResult(NamedTuple):
    """The last run of a check.

    Attributes:
        name: Its name.
        command: The shell command.
        passed: Whether it ended with exit code 0.
        exit_code: Negative for the signal that ended it; None after the time limit.
        duration_ms: Its running time in milliseconds.
        output: The end of what it wrote.
        runs: How often it has run.
    """

    name: str
    command: str
    passed: bool
    exit_code: int | None
    duration_ms: int
    output: str
    runs: int

    @property
    def ending(self) -> str:
        """Its end, in a few words."""
        if self.exit_code is None:
            return f"time limit reached after {self.duration_ms / 1000:.3g} s"
        if self.exit_code < 0:
            return f"ended by signal {-self.exit_code}"
        return f"exit code {self.exit_code}"


def load_checks(plan: Mapping[str, Any], commands: Sequence[str]) -> tuple[Check, ...]:
    """The checks of a plan, then those of the command line.

    Raises:
        ConfigError: A time limit, which may come from a variable, is not a number of seconds.
    """
    checks = [_check(entry) for entry in plan.get("checks") or ()]
    return (*checks, *(Check(command, command) for command in commands))


def _check(entry: Mapping[str, Any]) -> Check:
    name, limit = entry.get("name") or entry["run"], entry.get("timeout", SECONDS)
    try:
        seconds = float(limit)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigError(
            f"the timeout of check {name!r} must be a number of seconds greater than 0 "
            f"(got {limit!r})",
            hint="Set it in the plan, or fix the variable it comes from.",
        )
    return Check(name, entry["run"], seconds)


class CheckRunner:
    """Runs the checks of one run.

    Args:
        checks: The checks.
        coordinator: The session's, which knows the variables that hold secrets.
        row: The row of a batch; None outside one.

    Attributes:
        results: The last result of each check that has run.

    Raises:
        ConfigError: The machine cannot enforce the sandbox.
    """

    def __init__(
        self, checks: Sequence[Check], coordinator: Any, row: Mapping[str, Any] | None = None
    ) -> None:
        self._checks = checks
        self._row = row
        self._coordinator = coordinator
        self._sandbox = sandbox_for_checks(coordinator)
        self._runs: dict[Check, int] = {}
        self.results: dict[Check, CheckResult] = {}

    async def run(self, answer: str) -> list[CheckResult]:
        """Run every check in the working directory, and return the results in order.

        Raises:
            ConfigError: The system cannot start a command.
            asyncio.CancelledError: After everything the check had started was killed.
        """
        try:
            shared = None if self._sandbox is None else self._sandbox.temporary_folder
            with tempfile.TemporaryDirectory(prefix="amplifier-", dir=shared) as place:
                file = Path(place) / "answer.txt"
                file.write_text(answer, encoding="utf-8", errors="replace")
                variables = {ANSWER_FILE: str(file)}
                if self._row is not None:
                    row = Path(place) / "row.json"
                    row.write_text(json.dumps(self._row), encoding="ascii")
                    variables[ROW_FILE] = str(row)
                for check in self._checks:
                    self.results[check] = await self._run(check, variables)
        except CommandError as error:
            raise ConfigError(f"cannot run the checks: {error}") from error
        return list(self.results.values())

    async def _run(self, check: Check, variables: Mapping[str, str]) -> CheckResult:
        ran = await run_shell(
            check.command,
            self._coordinator,
            most_bytes=_OUTPUT_BYTES,
            timeout=check.seconds,
            variables=variables,
            sandbox=self._sandbox,
        )
        self._runs[check] = self._runs.get(check, 0) + 1
        return CheckResult(
            check.name,
            check.command,
            ran.exit_code == 0,
            ran.exit_code,
            round(ran.seconds * 1000),
            ran.output,
            self._runs[check],
        )
