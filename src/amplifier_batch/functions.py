"""Functions that score answers, each in a process of its own: a bug in one ends neither the batch nor its process.

The process reads JSON lines from stdin: first the setup, `{"module", "file", "name", "project"}`, then any number of
`{"answer", "row", "result"}`; it writes `{"file"}` or `{"error"}`, then `{"value", "reason"}` for each answer. It ends
with its input, also in the middle of a call.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO, cast

from amplifier_app.base.redact import redact
from amplifier_app.trust import trusted_project
from amplifier_support.named_tuple import NamedTuple

Value = float | str | None

_MODULE = "amplifier_batch.functions"
_MAX_LABEL = 200
_MAX_SCORE = 1e100
"""Sums of the squares of larger numbers may be too large for a float."""

_MAX_LINE = 1 << 20
_KILL_SECONDS = 5.0


class FunctionError(Exception):
    """A function cannot be loaded; the message says why."""


class Function(NamedTuple):
    """A function that scores answers.

    Attributes:
        module: The installed module that has it; None for a file.
        file: The file that has it, absolute; None for a module.
        name: Its name there.
        seconds: The time limit of a call, and of loading it.
        project: The folder of the trusted project in use, and the hash of its content; None without one, or if it is
            always trusted.
    """

    module: str | None
    file: str | None
    name: str
    seconds: float
    project: tuple[str, str] | None = None


class FunctionProcess:
    """The process of a function, started with the first answer and again after the time limit.

    Args:
        function: The function.
    """

    def __init__(self, function: Function) -> None:
        self._function = function
        self._process: asyncio.subprocess.Process | None = None
        self._calls = asyncio.Lock()
        self._end = ""

    async def load(self) -> str | None:
        """Load the function and return its file; None for one that has no file.

        Raises:
            FunctionError: It does not exist, cannot be imported, or is not trusted.
        """
        reply = await self._exchange()
        if reply is None or "error" in reply:
            raise FunctionError(self._end if reply is None else reply["error"])
        return reply["file"]

    async def score(
        self, answer: str, row: Mapping[str, Any], result: Mapping[str, Any]
    ) -> tuple[Value, str | None]:
        """Call the function; returns the value, or None and the reason why it is missing."""
        async with self._calls:
            try:
                if self._process is None:
                    await self.load()
            except FunctionError as error:
                return None, str(error)
            reply = await self._exchange({"answer": answer, "row": row, "result": result})
            if reply is None:
                return None, self._end
            return reply["value"], reply["reason"] and redact(reply["reason"])

    async def close(self) -> None:
        """End the process and what it has started."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILL_SECONDS):
                await process.wait()

    async def _exchange(self, message: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """Send a message, or start the process with the setup, and return the reply.

        None after the time limit or the end of the process, which is then gone.
        """
        self._end = f"time limit reached after {self._function.seconds:g} s"
        try:
            async with asyncio.timeout(self._function.seconds):
                process = self._process
                if process is None:
                    process = self._process = await self._start()
                assert process.stdin is not None
                assert process.stdout is not None
                line = json.dumps(self._function._asdict() if message is None else message)
                # A process that has died is reported by the reading side.
                with contextlib.suppress(ConnectionError):
                    process.stdin.write(line.encode() + b"\n")
                    await process.stdin.drain()
                if (reply := await process.stdout.readline()).endswith(b"\n"):
                    return json.loads(reply)
                code = await process.wait()
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                self._end = f"its process ended ({how})"
        except (TimeoutError, ValueError):
            pass
        except BaseException:
            await self.close()
            raise
        await self.close()
        return None

    async def _start(self) -> asyncio.subprocess.Process:
        # -P: the working directory may contain anything.
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", _MODULE),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_MAX_LINE,
            # Killed with all that it has started; Ctrl-C is for the command.
            start_new_session=True,
        )


def to_value(value: Any) -> tuple[Value, str | None]:
    """Return what a scorer gave as a score, or None and the reason why it is none."""
    if isinstance(value, (bool, int, float)):
        # An integer may be too large for a float.
        with contextlib.suppress(OverflowError):
            if abs(number := float(value)) <= _MAX_SCORE:
                return number, None
    if isinstance(value, str) and value.strip() and len(value) <= _MAX_LABEL:
        return value, None
    if value is None:
        return None, "the scorer gave none"
    return None, f"not a number or a short text: {str(value)[:100]!r}"


# -- the process -------------------------------------------------------------------------


def _load(function: Function) -> Callable[..., Any]:
    """
    Raises:
        FunctionError: The function does not exist, or its file is not trusted.
    """
    if function.project is not None:
        # From here on, its files are imported as they were reviewed, like the files of modules.
        folder, digest = function.project
        project = trusted_project(Path(folder), trust=True)
        if project is not None and project.content and project.content.hash != digest:
            raise FunctionError(f"the project in {folder} changed since it was trusted")
    if function.file is not None:
        module = _import_file(Path(function.file))
    else:
        module = importlib.import_module(function.module or "")
    loaded: Any = getattr(module, function.name)
    if not callable(loaded):
        raise FunctionError(f"{function.name} is not a function")
    return cast("Callable[..., Any]", loaded)


def _import_file(file: Path) -> ModuleType:
    # By way of its folder: there, the files of a project are compared with the trusted ones.
    spec = PathFinder.find_spec(file.stem, [str(file.parent)])
    if spec is None or spec.loader is None or spec.origin != str(file):
        raise FunctionError(f"{file} does not exist, or cannot be imported by its name")
    spec.name = spec.loader.name = f"_scorer_{file.stem}"  # pyright: ignore[reportAttributeAccessIssue]
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _requests(stdin: TextIO) -> Iterator[dict[str, Any]]:
    """Yield the requests; the process ends with them, although a function may be running."""
    lines = queue.SimpleQueue[str]()

    def read() -> None:
        for line in stdin:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield json.loads(lines.get())


def main() -> None:
    """Serve until the input ends."""
    stdin = os.fdopen(os.dup(0), encoding="utf-8")
    output = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    # What the function reads and prints does not mix with the messages.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.dont_write_bytecode = True
    requests = _requests(stdin)
    setup = next(requests)
    try:
        function = _load(Function(**setup))
    # The module is the code of someone else, which may raise anything when it is imported.
    except (Exception, SystemExit) as error:
        reason = str(error) if isinstance(error, FunctionError) else _describe(error)
        print(json.dumps({"error": reason}), file=output)
        return
    with contextlib.suppress(TypeError):
        setup["file"] = inspect.getsourcefile(function)
    print(json.dumps({"file": setup["file"]}), file=output)
    for request in requests:
        try:
            value, reason = to_value(function(request["answer"], request["row"], request["result"]))
        # A scorer is the code of someone else: it may raise anything, and the score is then missing.
        except (Exception, SystemExit) as error:
            value, reason = None, _describe(error)
        print(json.dumps({"value": value, "reason": reason}), file=output)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:1000]


if __name__ == "__main__":
    main()
