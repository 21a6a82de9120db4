"""The tool `bash` as models see it."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
from pathlib import Path
from typing import Any, ClassVar

from amplifier_core.models import ToolResult
from amplifier_modules._shared.command_environment import command_environment, configured_secrets
from amplifier_modules._shared.output import Captured, OutputCapture
from amplifier_modules._shared.output_dir import output_dir
from amplifier_modules._shared.paths import Location, PathError, PathGuard
from amplifier_modules._shared.process import Command, CommandError, Ended, ProcessRunner
from amplifier_modules._shared.tool_input import InvalidInput, read_input
from amplifier_modules.tool_bash.config import BashConfig

# Bash sets these from the folder it starts in; what the session's shell says would mislead.
_NOT_PASSED_ON = ("OLDPWD", "SHLVL", "_")
_SHOWN_PIDS = 10


class BashTool:
    """Runs a shell command (Tool Contract): a failure is a result, never an exception.

    Args:
        coordinator: The session's.
        config: The module's settings.

    Raises:
        RuntimeError: The system is not a POSIX one, or has no shell.
    """

    name = "bash"
    input_schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {
            "command": {"type": "string", "minLength": 1, "description": "The command line"},
            "timeout": {
                "type": "number",
                "exclusiveMinimum": 0,
                "description": "Seconds until it is killed",
            },
            "working_directory": {
                "type": "string",
                "description": "Folder to run it in; by default the session's working directory",
            },
        },
        "required": ["command"],
        "additionalProperties": False,
    }

    def __init__(self, coordinator: Any, config: BashConfig) -> None:
        shell = shutil.which("bash") or shutil.which("sh") if os.name == "posix" else None
        if shell is None:
            raise RuntimeError("tool-bash: there is no POSIX shell here to run commands with")
        self._shell = os.path.abspath(shell)
        self._coordinator = coordinator
        self._config = config
        self._runner = ProcessRunner()
        self._captures: list[OutputCapture] = []

    @property
    def description(self) -> str:
        """What it does, for the model."""
        limits = f"{self._config.timeout:g} s by default, {self._config.max_timeout:g} s at most"
        return (
            f"Run a command in {os.path.basename(self._shell)}. Each call is a shell of its own, "
            f"without input; its output and exit code are returned. Time limit: {limits}. What it "
            "leaves running in the background goes on until the session ends."
        )

    def get_schema(self) -> dict[str, Any]:
        """JSON schema of the input."""
        return self.input_schema

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        """Run a command.

        The output is its text and a last line on how it ended. It succeeds with exit code 0; the
        `error` of a failure has `message`, `type` and, where there is one, `exit_code`.

        Raises:
            asyncio.CancelledError: After the command and everything it started was killed.
        """
        try:
            values = read_input(self.input_schema, input)
            command: str = values["command"]
            if not command.strip() or "\0" in command:
                raise InvalidInput("the command is empty or has a NUL character")
            with self._folder(values.get("working_directory", ".")) as folder:
                return await self._run(command, self._timeout(values), folder)
        except (InvalidInput, PathError, CommandError) as error:
            return _failure(type(error).__name__, str(error))
        except OSError as error:
            where = f"{error.filename!r}: " if error.filename else ""
            return _failure(type(error).__name__, f"{where}{error.strerror}")

    async def close(self) -> None:
        """Kill what commands left running in the background."""
        await self._runner.close()
        for capture in self._captures:
            capture.close()

    def _timeout(self, values: dict[str, Any]) -> float:
        asked: float = values.get("timeout", self._config.timeout)
        if asked <= 0:
            raise InvalidInput("'timeout' must be more than 0 seconds")
        return min(asked, self._config.max_timeout)

    def _folder(self, path: str) -> Location:
        base = self._coordinator.get_capability("session.working_dir") or os.getcwd()
        allowed = self._config.allowed_paths
        roots = None if allowed is None else [os.path.expanduser(root) for root in allowed]
        if path == "." and roots is not None:
            roots = [*roots, base]
        guard = PathGuard(roots, base=base, writing=False, setting="allowed_paths")
        return guard.locate(path)

    async def _run(self, command: str, timeout: float, folder: Location) -> ToolResult:
        capture = OutputCapture(
            limit=self._config.max_output,
            spill_limit=self._config.max_spill,
            new_file=lambda: output_dir(self._coordinator) / f"bash-{secrets.token_hex(6)}.txt",
        )
        descriptor = folder.open(os.O_RDONLY | os.O_DIRECTORY)
        try:
            job = Command([self._shell, "-c", command], self._environment(folder.path), descriptor)
            ended = await self._runner.run(job, timeout=timeout, output=capture.feed)
        except BaseException:
            capture.close()
            raise
        finally:
            os.close(descriptor)
        log: Path | None = None
        if ended.background:
            log = capture.spill()
            self._captures.append(capture)
        else:
            capture.close()
        return _result(ended, capture.captured(), timeout, log)

    def _environment(self, folder: str) -> dict[str, str]:
        environment = command_environment(
            os.environ,
            secrets=configured_secrets(self._coordinator.config),
            secret_names=self._coordinator.get_capability("secrets.variables") or (),
            passthrough=self._config.env_passthrough,
        )
        for name in _NOT_PASSED_ON:
            environment.pop(name, None)
        return {**environment, "PWD": folder}


def _result(ended: Ended, captured: Captured, timeout: float, log: Path | None) -> ToolResult:
    notes = [*_cut(captured), *_running(ended, log), _ending(ended, timeout)]
    text = captured.text if captured.total else "(no output)"
    lines = "\n".join(f"[{note}]" for note in notes)
    output = "\n".join((text.removesuffix("\n"), lines))
    if ended.exit_code == 0:
        return ToolResult(output=output)
    kind = "TimedOut" if ended.timed_out else "ExitStatus"
    error: dict[str, Any] = {"message": notes[-1], "type": kind}
    if ended.exit_code is not None:
        error["exit_code"] = ended.exit_code
    return ToolResult(success=False, output=output, error=error)


def _cut(captured: Captured) -> list[str]:
    if not captured.cut:
        return []
    size = f"the output has {captured.total} bytes"
    if captured.file is None or captured.in_file == 0:
        why = f": {captured.problem}" if captured.problem else ""
        return [f"{size}; what is cut out was not kept{why}"]
    part = (
        "all of it is"
        if captured.in_file == captured.total
        else (f"the first {captured.in_file} of them are")
    )
    return [f"{size}; {part} in {captured.file}"]


def _running(ended: Ended, log: Path | None) -> list[str]:
    if not ended.background:
        return []
    where = f"; its further output goes to {log}" if log else ""
    return [f"still running in the background: {_listed(ended.background)}{where}"]


def _listed(pids: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, pids[:_SHOWN_PIDS]))
    more = len(pids) - _SHOWN_PIDS
    return f"{shown} and {more} more" if more > 0 else shown


def _ending(ended: Ended, timeout: float) -> str:
    if ended.timed_out:
        text = f"killed after {timeout:g} s, the time limit, with everything it had started"
        if ended.unkillable:
            text += f", except what may not be killed: {_listed(ended.unkillable)}"
        return text
    code = ended.exit_code or 0
    if code < 0:
        return f"killed by signal {-code} ({signal.Signals(-code).name})"
    return f"exit code {code}"


def _failure(kind: str, message: str) -> ToolResult:
    return ToolResult(success=False, error={"message": message, "type": kind})
