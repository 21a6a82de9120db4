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
            return Answered(None, b"", b"", f"could not be started: {error}", 0.0)
        streams = (source.fileno(), errors.theirs)
        job = Command(argv, environment, place, streams)
        running = asyncio.ensure_future(runner.run(job, timeout=timeout, output=take))
        try:
            ended = await _first(running, flooded)
        except CommandError as error:
            return Answered(None, b"", b"", f"could not be run: {error}", loop.time() - started)
        error_output = errors.read()
    seconds = loop.time() - started
    if ended is None:
        return Answered(
            None, b"", error_output, f"it printed more than {MAX_OUTPUT} bytes", seconds
        )
    if ended.timed_out:
        return Answered(
            None, bytes(output), error_output, f"it did not finish within {timeout:g} s", seconds
        )
    code = ended.exit_code
    if code is None or code < 0:
        number = -(code or 0)
        return Answered(
            None, bytes(output), error_output, f"it was killed by signal {number}", seconds
        )
    return Answered(code, bytes(output), error_output, None, seconds)


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
    found = (
        os.path.join(folder, name)
        if os.path.dirname(name)
        else shutil.which(name, path=environment.get("PATH"))
    )
    if found is None:
        raise FileNotFoundError(f"program {command[0]!r} not found")
    return [found, *command[1:]]


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
