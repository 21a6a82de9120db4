"""Run command lines in a shell, with the environment, limits and folder of a session."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from amplifier_modules._shared.module.spans import event_ids
from amplifier_modules._shared.process.denials import Denials
from amplifier_modules._shared.process.environment import command_environment
from amplifier_modules._shared.process.output import Captured, OutputCapture
from amplifier_modules._shared.process.output_dir import output_dir
from amplifier_modules._shared.process.sandbox import command_sandbox
from amplifier_modules.tool_bash.config import BashConfig
from amplifier_modules.tool_bash.folder import Trace, WorkingFolder
from amplifier_modules.tool_bash.output_events import OutputReporter
from amplifier_support.process.commands import Command, Ended, ProcessRunner
from amplifier_support.programs import find_program
from amplifier_support.session_capabilities import OUTSIDE_SANDBOX, WORKING_DIR

# Bash sets these from the folder it starts in; the values of the session's shell would mislead.
_NOT_PASSED_ON = ("OLDPWD", "SHLVL", "_")


class Job(NamedTuple):
    """A command line ready to run, its folder open.

    Attributes:
        line: As the model wrote it.
        command: The command passed to the shell.
        folder: Where it starts, links resolved.
        trace: Records where it ends; None if not needed.
    """

    line: str
    command: Command
    folder: str
    trace: Trace | None


class Finished(NamedTuple):
    """How a command ended, its output, the log of what it left running, and notes."""

    ended: Ended
    captured: Captured
    log: Path | None
    notes: list[str]


class Shell:
    """The shell of one session.

    Attributes:
        name: Name of the shell program.
        sandbox: Restricts the commands; None if nothing does.

    Raises:
        RuntimeError: The system is not a POSIX one, or has no shell.
        SandboxUnavailable: The machine cannot enforce the sandbox.
    """

    def __init__(self, coordinator: Any, config: BashConfig) -> None:
        working_dir = WORKING_DIR.of(coordinator)
        shells = (find_program(name, working_dir) for name in ("bash", "sh"))
        found = next(filter(None, shells), None) if os.name == "posix" else None
        if found is None:
            raise RuntimeError("tool-bash: no POSIX shell found on this system")
        self._program = found
        self.name = os.path.basename(found)
        self._coordinator = coordinator
        self._config = config
        sandbox = command_sandbox(coordinator, config.sandbox)
        self._folder = WorkingFolder(coordinator, config, sandbox)
        self.sandbox = sandbox
        self._runner = ProcessRunner(sandbox)
        self._outside = ProcessRunner()
        self._denials = Denials(sandbox, coordinator.hooks, "bash")
        self._captures: list[OutputCapture] = []

    @property
    def limits(self) -> str | None:
        """What the sandbox keeps commands from, as a sentence; None without a sandbox."""
        return None if self.sandbox is None else self.sandbox.limits

    @property
    def working_dir(self) -> str:
        """Where the next command starts."""
        return self._folder.next

    def job(self, line: str, working_directory: str | None, *, traced: bool) -> Job:
        """Prepare a command line; its folder stays open until `run` has ended.

        Args:
            line: The command line.
            working_directory: Where it starts; None for where the last one ended.
            traced: Whether the next one starts where this one ends.

        Raises:
            PathError: The folder is not allowed.
            OSError: The folder cannot be used.
        """
        with self._folder.locate(working_directory or ".") as location:
            descriptor = location.open(os.O_RDONLY | os.O_DIRECTORY)
            path = location.path
        trace = self._folder.trace(self._program) if traced else None
        argv = [self._program, "-c", line if trace is None else trace.of(line)]
        inherited = None if trace is None else trace.descriptor
        command = Command(argv, self._environment(path), descriptor, inherited=inherited)
        return Job(line, command, path, trace)

    async def run(
        self,
        job: Job,
        *,
        timeout: float | None,
        capture: OutputCapture,
        also: Callable[[bytes], None] | None = None,
        **about: Any,
    ) -> Finished:
        """Run it until it ends.

        Args:
            job: The prepared command.
            timeout: Seconds until it is killed; None for no limit.
            capture: Receives its output; closed unless a process was left running.
            also: Also called with its output.
            **about: Further data for the output events.

        Raises:
            CommandError: It could not be run.
            asyncio.CancelledError: After the command and everything it started was killed.
        """
        reporter = OutputReporter(self._coordinator.hooks, "bash", **about)

        def output(data: bytes) -> None:
            capture.feed(data)
            reporter.feed(data)
            if also is not None:
                also(data)

        outside = self._may_run_outside(job.line)
        runner = self._outside if outside else self._runner
        try:
            ended = await runner.run(job.command, timeout=timeout, output=output)
        except BaseException:
            capture.close()
            raise
        finally:
            os.close(job.command.folder)
            left = job.trace.read() if job.trace is not None else None
            await reporter.close()
        log: Path | None = None
        if ended.background:
            log = capture.spill()
            self._captures.append(capture)
        else:
            capture.close()
        captured = capture.captured()
        if outside:
            about_sandbox = ["it ran outside the sandbox, as the user allowed for this once"]
        else:
            about_sandbox = await self._denials.report(ended.exit_code, captured.text)
        notes = [*self._folder.follow(job.folder, left), *about_sandbox]
        return Finished(ended, captured, log, notes)

    def capture(self, *, spill: bool = False) -> OutputCapture:
        """Create the capture for a command's output; with `spill` all of it goes to a file."""
        capture = OutputCapture(
            limit=self._config.max_output,
            spill_limit=self._config.max_spill,
            new_file=lambda: output_dir(self._coordinator) / f"bash-{secrets.token_hex(6)}.txt",
        )
        if spill:
            capture.spill()
        return capture

    async def close(self) -> None:
        """Kill processes that commands left running."""
        await self._runner.close()
        await self._outside.close()
        for capture in self._captures:
            capture.close()

    def _may_run_outside(self, line: str) -> bool:
        """Whether the user allowed this call to run outside the sandbox; an answer counts once."""
        allowed = OUTSIDE_SANDBOX.of(self._coordinator)
        return bool(allowed) and allowed.pop(event_ids().get("span_id", ""), None) == line

    def _environment(self, folder: str) -> dict[str, str]:
        environment = command_environment(self._coordinator, self._config.env_passthrough)
        for name in _NOT_PASSED_ON:
            environment.pop(name, None)
        return {**environment, "PWD": folder}
