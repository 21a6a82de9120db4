"""Run a shell command of the user or the plan, and return the end of what it wrote."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from amplifier_app.base.sanitize import for_pipe
from amplifier_support.environment import without_secrets
from amplifier_support.process.commands import Command, ProcessRunner
from amplifier_support.sandbox.sandbox import Sandbox
from amplifier_support.session_capabilities import SECRET_VARIABLES

_SHELL = "/bin/sh"


class ShellResult(NamedTuple):
    """What a command did.

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
    folder = os.open(".", os.O_RDONLY)
    try:
        argv = (_SHELL, "-c", command)
        ended = await runner.run(Command(argv, environment, folder), timeout=timeout, output=keep)
    finally:
        os.close(folder)
        await runner.close()
    output = for_pipe(bytes(written).decode("utf-8", "replace"))
    return ShellResult(output, ended.exit_code, ended.seconds)
