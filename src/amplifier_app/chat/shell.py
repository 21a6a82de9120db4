"""`!command` in the chat: run a shell command and return what it wrote."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from amplifier_app.base.errors import AppError
from amplifier_app.base.sanitize import for_pipe
from amplifier_core.session_capabilities import SECRET_VARIABLES
from amplifier_support.environment import without_secrets
from amplifier_support.process.commands import Command, CommandError, ProcessRunner

MAX_BYTES = 100_000
"""The end of the output that is kept."""

_SHELL = "/bin/sh"


class ShellResult(NamedTuple):
    """What a command did.

    Attributes:
        output: The end of what it wrote.
        exit_code: Negative for the signal that ended it.
    """

    output: str
    exit_code: int


async def run_shell(command: str, coordinator: Any) -> ShellResult:
    """Run a shell command in the working directory, without the keys of the session.

    Raises:
        AppError: It cannot be started.
        asyncio.CancelledError: After everything it had started was killed.
    """
    written = bytearray()

    def keep(data: bytes) -> None:
        written.extend(data)
        del written[:-MAX_BYTES]

    runner = ProcessRunner()
    folder = os.open(".", os.O_RDONLY)
    names = SECRET_VARIABLES.of(coordinator) or ()
    environment = without_secrets(os.environ, secret_names=names)
    try:
        argv = (_SHELL, "-c", command)
        ended = await runner.run(Command(argv, environment, folder), timeout=None, output=keep)
    except CommandError as error:
        raise AppError(f"cannot run the command: {error}") from error
    finally:
        os.close(folder)
        await runner.close()
    output = for_pipe(bytes(written).decode("utf-8", "replace")).rstrip("\n")
    return ShellResult(output, ended.exit_code or 0)
