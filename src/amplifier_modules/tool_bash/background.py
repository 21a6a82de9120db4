"""Commands that run in the background, by the id the model uses."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from amplifier_core.models import ToolResult
from amplifier_modules._shared.module.spans import event_ids
from amplifier_modules._shared.module.tools import InvalidInput, failure
from amplifier_modules._shared.output import OutputCapture
from amplifier_modules.tool_bash.shell import (
    BashConfig,
    Finished,
    Job,
    Shell,
    ending,
    to_result,
    with_notes,
)
from amplifier_support.process.commands import CommandError
from amplifier_support.text import cut_text

BACKGROUND_START = "bash:background_start"
BACKGROUND_END = "bash:background_end"

AT_ONCE_SECONDS = 0.2
"""Seconds: a command that ends sooner is reported like one that ran in the foreground."""


class BackgroundCommand:
    """One command in the background.

    Attributes:
        id: Its id for the model.
        line: The command line.
        log: File with its whole output; None if there is none.
        reported: Whether the model knows that it has ended, or need not know: a command of the user.
    """

    def __init__(
        self, id: str, shell: Shell, job: Job, limit: int, *, is_own: bool = False
    ) -> None:
        self.id = id
        self.line = job.line
        self.reported = is_own
        self._limit = limit
        self._began = time.monotonic()
        self._changed = asyncio.Event()
        self._unread = self._nothing_read()
        self._killed = False
        capture = shell.capture()
        self.log: Path | None = capture.spill()
        self._task = asyncio.create_task(
            shell.run(
                job,
                timeout=None,
                capture=capture,
                also=self._feed,
                outside=is_own,
                background_id=id,
            )
        )
        self._task.add_done_callback(lambda task: self._changed.set())

    @property
    def runs(self) -> bool:
        return not self._task.done()

    @property
    def state(self) -> str:
        """Its state in a few words: running, or how it ended."""
        if self.runs:
            return f"running for {time.monotonic() - self._began:.0f} s"
        if self._killed:
            return "killed, with everything it had started"
        error = None if self._task.cancelled() else self._task.exception()
        if error is not None or self._task.cancelled():
            return f"lost: {error or 'the session ends'}"
        return f"ended: {ending(self._task.result().ended, None)}"

    def result(self) -> Finished:
        """Return how it ended.

        Raises:
            CommandError: It could not be run.
        """
        return self._task.result()

    async def wait(self, seconds: float) -> None:
        """Wait until it writes something or ends, at most `seconds`."""
        if self.runs and not self._changed.is_set():
            try:
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def wait_for_end(self, seconds: float) -> bool:
        """Return True if it ends within `seconds`."""
        await asyncio.wait([self._task], timeout=seconds)
        return not self.runs

    def read(self) -> str:
        """Return the output since the last call, cut in the middle if too long."""
        captured, self._unread = self._unread.captured(), self._nothing_read()
        if self.runs:
            self._changed.clear()
        if not captured.total:
            return "(no new output)"
        if not captured.cut:
            return captured.text
        where = f"; all of the output is in {self.log}" if self.log else ""
        return with_notes(captured.text, [f"{captured.total} new bytes{where}"])

    async def kill(self) -> None:
        """Kill it, with everything it started; does nothing if it has ended."""
        if self.runs:
            self._killed = True
            self._task.cancel()
            await asyncio.wait([self._task])

    def _feed(self, data: bytes) -> None:
        self._unread.feed(data)
        self._changed.set()

    def _nothing_read(self) -> OutputCapture:
        return OutputCapture(limit=self._limit, spill_limit=0, new_file=_no_file)


class Background:
    """The background commands of one session."""

    def __init__(self, coordinator: Any, shell: Shell, config: BashConfig) -> None:
        self._hooks = coordinator.hooks
        self._shell = shell
        self._config = config
        self._commands: dict[str, BackgroundCommand] = {}
        self._watchers: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[BackgroundCommand]:
        return iter(list(self._commands.values()))

    def find(self, id: str) -> BackgroundCommand:
        """Return the command with that id. Raises InvalidInput if there is none."""
        if id not in self._commands:
            known = ", ".join(self._commands) or "none"
            raise InvalidInput(f"no background command {id!r}; known ids: {known}")
        return self._commands[id]

    def check_room(self) -> None:
        """Raise InvalidInput if no more commands may run in the background."""
        running = [command.id for command in self if command.runs]
        if len(running) >= self._config.max_background:
            raise InvalidInput(
                f"{len(running)} background commands are already running ({', '.join(running)}); "
                "kill one with bash_kill"
            )

    async def start_own(self, line: str) -> str:
        """Start a command of the user, who is not limited by the sandbox; returns what became of it."""
        self.check_room()
        command = await self._add(self._shell.job(line, None, traced=False), is_own=True)
        if await command.wait_for_end(AT_ONCE_SECONDS):
            return f"{command.id} {command.state}"
        return f"{command.id} is running in the background; /bashes {command.id} shows its output"

    async def start(self, job: Job) -> ToolResult:
        """Start a command; the result has its id, or how it ended if it did so at once."""
        command = await self._add(job)
        id = command.id
        if not await command.wait_for_end(AT_ONCE_SECONDS):
            log = f"; its output goes to {command.log}" if command.log else ""
            note = f"running in the background as {id}{log}"
            return ToolResult(output=with_notes(command.read(), [note]))
        command.reported = True
        try:
            finished = command.result()
        except CommandError as error:
            return failure(error)
        return to_result(finished, None, [f"its id was {id}"])

    async def _add(self, job: Job, *, is_own: bool = False) -> BackgroundCommand:
        id = f"b{len(self._commands) + 1}"
        limit = self._config.max_output
        command = BackgroundCommand(id, self._shell, job, limit, is_own=is_own)
        self._commands[id] = command
        await self._hooks.emit(
            BACKGROUND_START, {"background_id": id, "command": job.line, **event_ids()}
        )
        watcher = asyncio.create_task(self._watch(command))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        return command

    def take_notices(self) -> list[str]:
        """Describe commands that have ended since the last call; each is reported once."""
        ended = [each for each in self if not each.runs and not each.reported]
        for command in ended:
            command.reported = True
        return [f"{each.id} ({_short(each.line)}) {each.state}" for each in ended]

    async def close(self) -> None:
        """Kill every command."""
        await asyncio.gather(*(command.kill() for command in self))
        if self._watchers:
            await asyncio.wait(self._watchers)

    async def _watch(self, command: BackgroundCommand) -> None:
        while not await command.wait_for_end(3600):
            pass
        data = {"background_id": command.id, "command": command.line, "state": command.state}
        await self._hooks.emit(BACKGROUND_END, {**data, **event_ids()})


def _short(line: str) -> str:
    first = line.strip().splitlines()[0]
    return cut_text(first, 60)


def _no_file() -> Path:
    raise OSError(errno.EPERM, "the whole output is already kept in a file")
