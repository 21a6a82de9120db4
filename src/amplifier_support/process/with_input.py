"""Run a program that gets data on its stdin and answers on its stdout."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping

from amplifier_support.named_tuple import NamedTuple
from amplifier_support.process.commands import Command, CommandError, Ended, ProcessRunner
from amplifier_support.programs import find_program

MAX_OUTPUT = 1024 * 1024
"""Bytes a command may print; one that prints more is killed."""

MAX_ERRORS = 16 * 1024
"""Bytes of its standard error that are kept, from the end."""


class Answered(NamedTuple):
    """The result of a command.

    Attributes:
        exit_code: 0 to 255; None if it did not exit by itself.
        output: What it printed.
        errors: The end of its standard error.
        problem: Why it did not exit by itself, as `it …`; None if it did.
        seconds: Wall time.
    """

    exit_code: int | None
    output: bytes
    errors: bytes
    problem: str | None
    seconds: float


async def run_with_input(
    runner: ProcessRunner,
    command: str | list[str],
    *,
    stdin: bytes,
    environment: Mapping[str, str],
    folder: str,
    timeout: float,
) -> Answered:
    """Run a command until it ends, or until its time or output exceeds the limit.

    Its stdin is an unnamed file, so it need not read all of it.

    Raises:
        asyncio.CancelledError: After everything it had started was killed.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    output = bytearray()
    flooded = asyncio.Event()

    def take(data: bytes) -> None:
        output.extend(data[: MAX_OUTPUT + 1 - len(output)])
        if len(output) > MAX_OUTPUT:
            flooded.set()

    def ended_early(problem: str, output: bytes = b"", errors: bytes = b"") -> Answered:
        return Answered(None, output, errors, problem, loop.time() - started)

    with contextlib.ExitStack() as stack:
        try:
            argv = _argv(command, environment, folder)
            place = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
            stack.callback(os.close, place)
            source = stack.enter_context(tempfile.TemporaryFile())
            source.write(stdin)
            source.seek(0)
            errors = stack.enter_context(_Errors())
        except OSError as error:
            return ended_early(f"could not be started: {error}")
        streams = (source.fileno(), errors.theirs)
        job = Command(argv, environment, place, streams)
        running = asyncio.ensure_future(runner.run(job, timeout=timeout, output=take))
        try:
            ended = await _first(running, flooded)
        except CommandError as error:
            return ended_early(f"could not be run: {error}")
        error_output = errors.read()
    if ended is None:
        return ended_early(f"it printed more than {MAX_OUTPUT} bytes", errors=error_output)
    printed, code = bytes(output), ended.exit_code
    if ended.timed_out:
        return ended_early(f"it did not finish within {timeout:g} s", printed, error_output)
    if code is None or code < 0:
        return ended_early(f"it was killed by signal {-(code or 0)}", printed, error_output)
    return Answered(code, printed, error_output, None, loop.time() - started)


async def _first(running: asyncio.Future[Ended], flooded: asyncio.Event) -> Ended | None:
    """Return the command's end; None if it was killed because of too much output."""
    waiting = asyncio.ensure_future(flooded.wait())
    try:
        await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return running.result()
        return None
    finally:
        waiting.cancel()
        if not running.done():
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError, CommandError):
                await running


def _argv(command: str | list[str], environment: Mapping[str, str], folder: str) -> list[str]:
    """The command with the absolute path of its program.

    Raises:
        OSError: The program was not found.
    """
    if isinstance(command, str):
        return [find_program("sh", folder) or "/bin/sh", "-c", command]
    name = os.path.expanduser(command[0])
    program = (
        os.path.join(folder, name)
        if os.path.dirname(name)
        else shutil.which(name, path=environment.get("PATH"))
    )
    if program is None:
        raise FileNotFoundError(f"program {command[0]!r} not found")
    return [program, *command[1:]]


class _Errors:
    """A pipe for standard error, whose end is kept; a context manager.

    Attributes:
        theirs: The end for the command.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._kept = bytearray()
        self._ours, self.theirs = os.pipe()
        os.set_blocking(self._ours, False)

    def __enter__(self) -> _Errors:
        self._loop.add_reader(self._ours, self._take)
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.remove_reader(self._ours)
        os.close(self._ours)
        os.close(self.theirs)

    def read(self) -> bytes:
        """The data so far; processes left running may write forever."""
        for _ in range(64):
            if not self._take():
                break
        return bytes(self._kept)

    def _take(self) -> bool:
        try:
            data = os.read(self._ours, 65536)
        except BlockingIOError:
            return False
        self._kept += data
        del self._kept[:-MAX_ERRORS]
        return bool(data)
