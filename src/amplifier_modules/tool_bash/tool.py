"""The tools `bash`, `bash_output` and `bash_kill` as models see them, and the commands in the background."""

from __future__ import annotations

import asyncio
import errno
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from amplifier_core.models import ToolResult
from amplifier_modules._shared.files import PathError
from amplifier_modules._shared.module.spans import event_ids
from amplifier_modules._shared.module.tools import (
    CheckedTool,
    InvalidInput,
    failure,
    object_schema,
    parameter,
)
from amplifier_modules._shared.output import OutputCapture
from amplifier_modules._shared.sandbox import SANDBOX_DENIED
from amplifier_modules.tool_bash.shell import (
    MODULE_ID,
    TOOL_OUTPUT,
    Again,
    BashConfig,
    Finished,
    Job,
    Shell,
    ending,
    to_result,
    with_notes,
)
from amplifier_support.process.commands import CommandError
from amplifier_support.session_capabilities import (
    START_BACKGROUND,
    tool_check,
    tool_sandbox,
    tool_working_dir,
)
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


# -- the module that tool-bash mounts ----------------------------------------------------


async def mount(coordinator: Any, settings: BashConfig) -> Callable[[], Awaitable[None]]:
    """Mount `bash` and, unless they are left out, `bash_output` and `bash_kill`.

    Args:
        coordinator: The session's coordinator.
        settings: Settings as in `BashConfig`.

    Returns:
        A cleanup function that kills processes still running.

    Raises:
        RuntimeError: The system is not a POSIX one, or has no shell.
    """
    shell = Shell(coordinator, settings)
    background = Background(coordinator, shell, settings) if settings.max_background else None
    bash = BashTool(shell, settings, background)
    tools: list[Any] = [bash]
    events = [TOOL_OUTPUT, SANDBOX_DENIED]
    if background is not None:
        tools += [BashOutputTool(background), BashKillTool(background)]
        events += [BACKGROUND_START, BACKGROUND_END]
        coordinator.register_contributor(
            "chat.commands", MODULE_ID, lambda: chat_commands(background)
        )
        START_BACKGROUND.register(coordinator, background.start_own)
    for tool in tools:
        await coordinator.mount("tools", tool, name=tool.name)
    tool_check(bash.name).register(coordinator, bash.check)
    tool_working_dir("bash").register(coordinator, lambda: shell.working_dir)
    tool_sandbox("bash").register(coordinator, lambda: shell.sandbox)
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(events))

    async def close() -> None:
        if background is not None:
            await background.close()
        await shell.close()

    return close


# -- the tools bash, bash_output and bash_kill as models see them ------------------------


MAX_WAIT_SECONDS = 60.0

_ID = parameter("string", "Id returned when the command was started, such as b1")


class DeniedCommand(Exception):
    """The config does not allow the command."""

    denies_call = True


class BashTool(CheckedTool):
    """Run a shell command (Tool Contract): a failure is a result, never an exception.

    Args:
        shell: Runs the commands.
        config: The module's settings.
        background: Manages background commands; None if they are disabled.
    """

    name = "bash"
    failures = (DeniedCommand, PathError, CommandError, OSError)

    def __init__(self, shell: Shell, config: BashConfig, background: Background | None) -> None:
        self._shell = shell
        self._config = config
        self._background = background
        self.require_approval = config.require_approval
        self.input_schema: dict[str, Any] = _input_schema(  # pyright: ignore[reportIncompatibleVariableOverride]
            background is not None
        )

    @property
    def description(self) -> str:
        """The description for the model."""
        limits = f"{self._config.timeout:g} s by default, {self._config.max_timeout:g} s at most"
        keeps = (
            "The next call starts in the folder where this one ends; no other shell state is kept. "
            if self._config.keep_folder
            else ""
        )
        background = (
            "For servers and long commands use run_in_background, then bash_output and bash_kill."
            if self._background is not None
            else "Processes it leaves running continue until the session ends."
        )
        restricted = f" {self._shell.limits}" if self._shell.limits else ""
        return (
            f"Run a command in {self._shell.name}. Each call starts a new shell without input and "
            f"returns the output and exit code. {keeps}Time limit: {limits}. {background}{restricted}"
        )

    async def run(self, values: dict[str, Any]) -> ToolResult:
        """Run a command.

        The output ends with a line on how the command ended. It is a success with exit code 0; the
        `error` of a failure has `message`, `type` and, if known, `exit_code`.

        Raises:
            asyncio.CancelledError: After the command and everything it started was killed.
        """
        line: str = values["command"]
        if not line.strip() or "\0" in line:
            raise InvalidInput("the command is empty or contains a NUL character")
        if (pattern := self._find_denial(line)) is not None:
            by = f"denied_commands in the tool's config ({pattern!r})"
            raise DeniedCommand(f"the command is denied by {by}")
        if self._background is not None and values.get("run_in_background"):
            self._background.check_room()
            job = self._shell.job(line, values.get("working_directory"), traced=False)
            return await self._background.start(job)
        return await self._run(line, values.get("working_directory"), self._timeout(values))

    def describe_failure(self, error: Exception, values: dict[str, Any]) -> str:
        if not isinstance(error, OSError):
            return str(error)
        where = f"{error.filename!r}: " if error.filename else ""
        return f"{where}{error.strerror}"

    async def check(self, input: Mapping[str, Any], span: str | None = None) -> bool:
        """The capability `*.check`: true for a command that the config denies."""
        return self._find_denial(str(input.get("command"))) is not None

    def _find_denial(self, line: str) -> str | None:
        """Return the pattern that denies a command."""
        for pattern in self._config.denied_commands:
            expression = re.escape(pattern).replace(r"\*", ".*")
            matcher = re.fullmatch if "*" in pattern else re.search
            if matcher(expression, line, re.IGNORECASE | re.DOTALL):
                return pattern
        return None

    def _timeout(self, values: dict[str, Any]) -> float:
        asked: float = values.get("timeout", self._config.timeout)
        if asked <= 0:
            raise InvalidInput("'timeout' must be greater than 0 seconds")
        return min(asked, self._config.max_timeout)

    async def _run(self, line: str, folder: str | None, timeout: float) -> ToolResult:
        again = Again()
        while True:
            job = self._shell.job(line, folder, traced=True)
            done = await self._shell.run(
                job,
                timeout=timeout,
                capture=self._shell.capture(),
                outside=again.outside,
                hosts=again.hosts,
            )
            again = await self._shell.ask_again(line, done, again.hosts)
            if not again.runs:
                break
        notices = [] if self._background is None else self._background.take_notices()
        if again.comment:
            notices.append(f"the user said: {again.comment}")
        return to_result(done, timeout, [*notices, *done.notes])


class BashOutputTool(CheckedTool):
    """Report what background commands have written and how they ended."""

    name = "bash_output"
    description = (
        "Get what a background command has written since the last call, and its "
        "state. Without an id, list background commands. 'wait' waits for new output."
    )
    input_schema: ClassVar[dict[str, Any]] = object_schema(
        id=_ID,
        wait=parameter(
            "number",
            "Seconds to wait for new output or the end of the command",
            minimum=0,
            maximum=MAX_WAIT_SECONDS,
        ),
    )

    def __init__(self, background: Background) -> None:
        self._background = background

    async def run(self, values: dict[str, Any]) -> ToolResult:
        """The output of one command, or the list of all."""
        if "id" not in values:
            return self._list()
        command = self._background.find(values["id"])
        await command.wait(min(values.get("wait", 0), MAX_WAIT_SECONDS))
        command.reported = command.reported or not command.runs
        return _new_output(command)

    def _list(self) -> ToolResult:
        lines = [f"{each.id}: {each.state}: {each.line}" for each in self._background]
        return ToolResult(output="\n".join(lines) or "no background commands")


class BashKillTool(CheckedTool):
    """Kill a background command."""

    name = "bash_kill"
    description = "Kill a background command and everything it started."
    input_schema: ClassVar[dict[str, Any]] = object_schema("id", id=_ID)

    def __init__(self, background: Background) -> None:
        self._background = background

    async def run(self, values: dict[str, Any]) -> ToolResult:
        """Kill it and return what it has written since the last call."""
        command = self._background.find(values["id"])
        await command.kill()
        command.reported = True
        return _new_output(command)


def _new_output(command: BackgroundCommand) -> ToolResult:
    return ToolResult(output=with_notes(command.read(), [f"{command.id}: {command.state}"]))


def _input_schema(background: bool) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "command": parameter("string", "The command line", minLength=1),
        "timeout": parameter(
            "number", "Time limit in seconds; the command is killed after it", exclusiveMinimum=0
        ),
        "working_directory": parameter(
            "string", "Folder to run in; default: where the last call ended"
        ),
    }
    if background:
        properties["run_in_background"] = parameter(
            "boolean", "Return at once with an id; runs without a time limit"
        )
    return object_schema("command", **properties)


_TAIL_BYTES = 16_384
_TAIL_LINES = 20


def chat_commands(background: Background) -> list[dict[str, Any]]:
    """The commands for the channel `chat.commands`."""

    async def bashes(argument: str) -> str:
        words = argument.split()
        try:
            if not words:
                return "\n".join(map(_line, background)) or "No background commands."
            if words[0] == "stop" and len(words) == 2:
                command = background.find(words[1])
                await command.kill()
                return f"{command.id} {command.state}"
            if len(words) == 1:
                command = background.find(words[0])
                tail = "\n".join(_tail(command.log)[-_TAIL_LINES:])
                return f"{_line(command)}\n{tail or '(no output)'}"
        except InvalidInput as error:
            return str(error)
        return (
            "/bashes lists them, /bashes ID shows the end of the output, /bashes stop ID ends one"
        )

    return [
        {
            "name": "bashes",
            "summary": "Background commands: list, show the output of one, stop one",
            "usage": "[ID|stop ID]",
            "handler": bashes,
            "during_turn": True,
        }
    ]


def _line(command: BackgroundCommand) -> str:
    last = next(iter(_tail(command.log)[-1:]), "")
    text = f"{command.id}  {command.state}  {command.line.strip().splitlines()[0]}"
    return f"{text}\n    {last}" if last else text


def _tail(log: Path | None) -> list[str]:
    """The last lines of a log, without empty ones at its end."""
    if log is None:
        return []
    try:
        with log.open("rb") as file:
            start = file.seek(0, 2)
            file.seek(max(0, start - _TAIL_BYTES))
            data = file.read()
    except OSError:
        return []
    lines = data.decode("utf-8", "replace").rstrip().splitlines()
    return lines if start <= _TAIL_BYTES else lines[1:]
