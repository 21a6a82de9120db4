"""The shell of a session: it runs commands, follows their folder, and asks about what the sandbox blocked."""

from __future__ import annotations

import asyncio
import codecs
import os
import secrets
import shlex
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from amplifier_core.approval import ApprovalTimeoutError, ToolApproval, ToolApprovalSystem
from amplifier_core.models import ToolResult
from amplifier_modules._shared.files import Location, PathError, PathGuard
from amplifier_modules._shared.module.config import (
    ModuleConfig,
    Published,
    alias_for,
    refused,
)
from amplifier_modules._shared.module.spans import event_ids
from amplifier_modules._shared.output import Captured, OutputCapture, output_dir
from amplifier_modules._shared.sandbox import (
    Denials,
    SandboxValue,
    command_environment,
    command_sandbox,
)
from amplifier_support.fields import to_mapping
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.process import INHERITED
from amplifier_support.process.commands import Command, Ended, ProcessRunner
from amplifier_support.programs import find_program
from amplifier_support.sandbox.sandbox import Sandbox
from amplifier_support.session_capabilities import MODE, OUTSIDE_SANDBOX, WORKING_DIR
from amplifier_support.text import lazy_pattern

MODULE_ID = "tool-bash"


class BashConfig(ModuleConfig):
    """Settings of tool-bash.

    Attributes:
        denied_commands: Commands to refuse, ignoring case: text anywhere in the command line or,
            with `*`, a pattern for the whole line. Only a guard rail, as a command can be written
            in many ways.
        require_approval: The tool's attribute of that name, for hooks that read it.
            `hooks-approval` uses its own rules instead.
        timeout: Time limit in seconds when the model does not set one.
        max_timeout: Longest time limit the model may set, in seconds.
        max_output: Bytes of output shown to the model; longer output is cut in the middle.
        max_spill: Bytes of longer output to keep in a file.
        keep_folder: Start each command in the folder where the last one ended.
        max_background: Commands that may run in the background at once; 0 disables them and leaves
            out their tools.
        allowed_paths: Folders the model may choose as working directory, absolute or relative to
            the session's; `~` is expanded. By default the session's. A command itself can go
            anywhere the user can.
        sandbox: What commands may do, as `session.sandbox` of a plan, which is the default.
        env_passthrough: Environment variables to pass to commands although their names or values
            look like secrets; `*` matches any text.
    """

    published: ClassVar[Mapping[str, Published]] = {
        "max_output_bytes": alias_for("max_output"),
        "allowed_commands": refused(
            "allow commands with rules of hooks-approval: {action: allow, tool: bash, "
            "command: …} with 'default: deny'",
            [],
        ),
        "safety_profile": refused(
            "profiles are not supported; set 'denied_commands', or use hooks-approval, which asks "
            "before every command",
            "unrestricted",
        ),
        "safety_overrides": refused("profiles are not supported; set 'denied_commands'", {}),
        "max_concurrent": refused(
            "commands of one response run in parallel; set 'parallel_tools: false' in the "
            "config of the orchestrator"
        ),
        "working_dir": refused(
            "commands start in the session's working directory, which hooks rely on; run "
            "amplifier there",
            ".",
        ),
    }

    denied_commands: list[str] = Field(default_factory=list[str])
    require_approval: bool = True
    timeout: float = Field(default=120, gt=0)
    max_timeout: float = Field(default=600, gt=0)
    max_output: int = Field(default=30_000, ge=1000)
    max_spill: int = Field(default=64 * 1024 * 1024, ge=0)
    keep_folder: bool = True
    max_background: int = Field(default=8, ge=0)
    allowed_paths: list[str] | None = None
    sandbox: SandboxValue = None
    env_passthrough: list[str] = Field(default_factory=list[str])


TOOL_OUTPUT = "tool:output"

_ANSWER_SECONDS = 300.0
_OUTSIDE = "Allow once, outside the sandbox"

INTERVAL = 0.2
"""Seconds between two events of a command."""

MOST = 4000
"""Characters in one event; earlier ones are left out."""

_LINE_END = lazy_pattern(r"\r\n|\n|\r")
_KEY_BEGINS, _KEY_ENDS = "-----BEGIN ", "-----END "


class OutputReporter:
    """Emit `tool:output` with the output since the last event, a few times a second.

    Only complete lines are reported before the end, and a gap ends at a line end: neither half of a
    secret cut in two could be recognised and redacted.

    Args:
        hooks: The session's hook registry.
        tool_name: The tool that runs the command.
        about: Further data for the events.
    """

    def __init__(self, hooks: Any, tool_name: str, **about: Any) -> None:
        self._hooks = hooks
        self._data = {"tool_name": tool_name, **about, **event_ids()}
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._skipped = 0
        self._is_amid = False  # the next text continues a line whose start was left out
        self._task: asyncio.Task[None] | None = None

    def feed(self, data: bytes) -> None:
        """Add the next piece of output."""
        # Only the end of a flood of output is shown; the rest is not even decoded.
        self._skipped += max(0, len(data) - 4 * MOST)
        self._is_amid = self._is_amid or len(data) > 4 * MOST
        self._text += self._decoder.decode(data[-4 * MOST :])
        if self._is_amid or len(self._text) > MOST:
            start = _next_line(self._text, max(0, len(self._text) - MOST))
            self._is_amid = start is None
            self._skipped += len(self._text) if start is None else start
            self._text = "" if start is None else self._text[start:]
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._report_soon())

    async def close(self) -> None:
        """Report the rest at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._report(len(self._text))

    async def _report_soon(self) -> None:
        await asyncio.sleep(INTERVAL)
        await self._report(_end_of_lines(self._text))

    async def _report(self, end: int) -> None:
        text, self._text = self._text[:end], self._text[end:]
        if text:
            skipped, self._skipped = self._skipped, 0
            await self._hooks.emit(TOOL_OUTPUT, {**self._data, "text": text, "skipped": skipped})


def _next_line(text: str, at: int) -> int | None:
    """Return the start of the first line after `at`; None if there is none."""
    end = text.find(_KEY_ENDS, at)
    if end >= 0 and not at < text.find(_KEY_BEGINS, at) < end:
        at = end  # otherwise only the end of a private key would remain
    match = _LINE_END.search(text, at)
    return None if match is None else match.end()


def _end_of_lines(text: str) -> int:
    """End of the last complete line, or the start of a private key that has not ended yet."""
    end = max(text.rfind("\n"), text.rfind("\r")) + 1
    key = text.rfind(_KEY_BEGINS)
    if key >= 0 and text.find(_KEY_ENDS, key, end) < 0:
        return min(end, key)
    return end


_MAX_NOTE = 4096
"""Bytes of the longest path the system accepts."""


class WorkingFolder:
    """Track the folder commands start in.

    Args:
        coordinator: The session's.
        config: The module's settings.
        sandbox: Restricts the commands.
    """

    def __init__(self, coordinator: Any, config: BashConfig, sandbox: Sandbox | None) -> None:
        self._coordinator = coordinator
        self._config = config
        self._sandbox = sandbox
        self._kept: str | None = None

    def locate(self, chosen: str) -> Location:
        """Return the folder for a command.

        Args:
            chosen: The model's choice, relative to where the last command ended.

        Raises:
            PathError: The folder is not allowed.
            OSError: A folder in the path is missing.
        """
        if self._kept is not None and not os.path.isdir(self._kept):
            self._kept = None
        return self._guarded(self._kept or self._home, chosen)

    def trace(self, shell: str) -> Trace | None:
        """Return a trace of where a command of this shell ends; None if not wanted or possible."""
        if not self._config.keep_folder:
            return None
        try:
            place = None if self._sandbox is None else self._sandbox.temporary_folder
            return Trace(shell, place)
        except OSError:
            # Nowhere to write the trace. Running the command matters more.
            return None

    def follow(self, began: str, ended: str | None) -> list[str]:
        """Start the next command where this one ended; return notes for the model.

        Args:
            began: The folder it started in, links resolved.
            ended: The folder it ended in; None if unknown.
        """
        if ended is None or ended == began:
            return []
        try:
            with self._guarded(ended, ".") as location:
                os.close(location.open(os.O_RDONLY | os.O_DIRECTORY))
        except (PathError, OSError):
            return [f"the next command starts in {self._kept or self._home} again, not in {ended}"]
        self._kept = ended
        return [f"the next command starts in {ended}"]

    @property
    def next(self) -> str:
        """The start folder of the next command if the model chooses nothing else."""
        return self._kept or self._home

    @property
    def _home(self) -> str:
        return WORKING_DIR.of(self._coordinator) or os.getcwd()

    def _guarded(self, base: str, path: str) -> Location:
        home, allowed = self._home, self._config.allowed_paths
        roots = [home] if allowed is None else [os.path.expanduser(root) for root in allowed]
        roots = [os.path.join(home, root) for root in roots]
        if path == "." and os.path.realpath(base) == os.path.realpath(home):
            roots.append(home)
        return PathGuard(roots, base=base, writing=False, setting="allowed_paths").locate(path)


class Trace:
    """The file in which a shell records the folder it ends in.

    It has no name, so that nothing is left of it however the session ends.

    Args:
        shell: The shell's program.
        place: A folder for temporary files that the shell may use; None for the usual one.

    Raises:
        OSError: There is no place for temporary files.

    Attributes:
        descriptor: The file, to be inherited by the shell as number INHERITED.
    """

    def __init__(self, shell: str, place: str | None = None) -> None:
        self._file = tempfile.TemporaryFile(buffering=0, dir=place)  # noqa: SIM115 - `read` closes it
        self.descriptor = self._file.fileno()
        # dash takes only one digit in `>&9`, and scripts use those numbers themselves.
        is_dash = os.path.basename(os.path.realpath(shell)) == "dash"
        self._target = f"/dev/fd/{INHERITED}" if is_dash else f"&{INHERITED}"

    def of(self, command: str) -> str:
        """`command`, extended to record where it ends.

        The trap is on its first line, so that errors name the lines the model wrote.
        """
        note = f"{{ pwd -P >{self._target}; }} 2>/dev/null"
        return f"trap {shlex.quote(note)} EXIT; {command}"

    def read(self) -> str | None:
        """The folder; None if the shell was killed or replaced, or wrote something else there."""
        with self._file:
            noted = os.pread(self.descriptor, _MAX_NOTE + 1, 0)
        path = os.fsdecode(noted.removesuffix(b"\n"))
        is_path = len(noted) <= _MAX_NOTE and os.path.isabs(path) and "\0" not in path
        return path if is_path else None


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
    """The result of a command: its output, the log of what it left running, and notes.

    Attributes:
        blocked: What the sandbox kept it from, of those notes.
        hosts: The hosts that it wanted, of those that the sandbox can be told to allow.
    """

    ended: Ended
    captured: Captured
    log: Path | None
    notes: list[str]
    blocked: list[str] = []  # noqa: RUF012 - never changed
    hosts: list[str] = []  # noqa: RUF012 - never changed


class Again(NamedTuple):
    """An answer about a command that the sandbox blocked.

    Attributes:
        runs: Whether it runs again.
        outside: Whether it does so outside the sandbox.
        hosts: Hosts that this run may reach.
        comment: What the user says to the model along with a denial.
    """

    runs: bool = False
    outside: bool = False
    hosts: tuple[str, ...] = ()
    comment: str | None = None


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
        program = next(filter(None, shells), None) if os.name == "posix" else None
        if program is None:
            raise RuntimeError("tool-bash: no POSIX shell found on this system")
        self._program = program
        self.name = os.path.basename(program)
        self._coordinator = coordinator
        self._config = config
        sandbox = command_sandbox(coordinator, config.sandbox)
        self._folder = WorkingFolder(coordinator, config, sandbox)
        self.sandbox = sandbox
        self._runner = ProcessRunner(sandbox)
        self._outside = ProcessRunner()
        self._once: list[ProcessRunner] = []
        self._asked: set[tuple[str, ...]] = set()
        self._denials = Denials(sandbox, coordinator.hooks, "bash")
        self._captures: list[OutputCapture] = []

    @property
    def limits(self) -> str | None:
        """The limits of the sandbox as a sentence; None without a sandbox."""
        return None if self.sandbox is None else self.sandbox.limits

    @property
    def working_dir(self) -> str:
        """The start folder of the next command."""
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
        outside: bool = False,
        hosts: tuple[str, ...] = (),
        **about: Any,
    ) -> Finished:
        """Run it until it ends.

        Args:
            job: The prepared command.
            timeout: Seconds until it is killed; None for no limit.
            capture: Receives its output; closed unless a process was left running.
            also: Also called with its output.
            outside: Whether the user allowed it to run outside the sandbox.
            hosts: Hosts that the user allowed for this run.
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

        outside = outside or self._may_run_outside(job.line)
        runner, sandbox, denials = self._runner, self.sandbox, self._denials
        if outside:
            runner = self._outside
        elif hosts and sandbox is not None and (policy := sandbox.policy_with(hosts)) is not None:
            sandbox = sandbox.with_policy(policy)
            denials = Denials(sandbox, self._coordinator.hooks, "bash")
            self._once.append(runner := ProcessRunner(sandbox))
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
            about_sandbox = await denials.report(ended.exit_code, captured.text)
        new_hosts = [] if outside or sandbox is None else sandbox.take_unlisted()
        notes = [*self._folder.follow(job.folder, left), *about_sandbox]
        # Pipelines and refusals read as pages end with 0; other hosts may be wanted for statistics only.
        is_named = any(host.rpartition(":")[0] in job.line for host in new_hosts)
        is_blocked = not outside and (ended.exit_code != 0 or is_named)
        return Finished(ended, captured, log, notes, about_sandbox if is_blocked else [], new_hosts)

    async def ask_again(self, line: str, done: Finished, hosts: tuple[str, ...]) -> Again:
        """Ask the user whether a command that the sandbox blocked may run again: with the hosts that it wants, or
        outside. After a no, the same is not asked again.

        Args:
            line: The command.
            done: How it ended.
            hosts: The hosts that the user has allowed for this command.
        """
        system, mode = self._coordinator.approval_system, MODE.of(self._coordinator)
        if not done.blocked or not isinstance(system, ToolApprovalSystem):
            return Again()
        if not getattr(system, "is_interactive", False):
            return Again()
        if mode is not None and mode.mode in ("read-only", "propose"):
            return Again()
        new_hosts = tuple(host for host in done.hosts if host not in hosts)
        sandbox = self.sandbox
        policy = None if sandbox is None or not new_hosts else sandbox.policy_with(new_hosts)
        rules = map(to_mapping, (self._coordinator.config or {}).get("approvals") or ())
        # The sandbox hides those files from commands; outside of it nothing does.
        may_leave = not any(rule.get("action") == "deny" and rule.get("path") for rule in rules)
        asked = (line, *new_hosts)
        if asked in self._asked or (policy is None and not may_leave):
            return Again()
        if policy is None or sandbox is None:
            options = [_OUTSIDE, "Deny"]
            question = "The sandbox blocked this command. Run it again outside of it?"
            reason = f"{done.blocked[0]}. Run it again outside the sandbox, with all your rights?"
        else:
            options = ["Allow once", "Allow for this session", "Allow always"]
            options += [*([_OUTSIDE] if may_leave else []), "Deny"]
            names = ", ".join(new_hosts)
            question = f"This command wants {names}. Run it again with access to that?"
            reason = f"it wants {names}, which the sandbox does not allow"
        request = ToolApproval(
            question=f"{question}\n{line}",
            tool_name="bash",
            tool_input={"command": line},
            working_dir=WORKING_DIR.of(self._coordinator) or os.getcwd(),
            options=options,
            reason=reason,
            ranges=[", ".join(new_hosts)] if policy is not None else [],
            stored_in=None if sandbox is None else sandbox.hosts_file,
        )
        # Outside is offered once, whatever the answer: the next run may fail for the same reason.
        if policy is None:
            self._asked.add(asked)
        try:
            answer = await system.request_tool_approval(request, _ANSWER_SECONDS)
        except ApprovalTimeoutError:
            return Again()
        if answer.by != "user" or not answer.option.lower().startswith("allow"):
            self._asked.add(asked)
            return Again(comment=answer.comment)
        if policy is None or sandbox is None or answer.option == _OUTSIDE:
            return Again(runs=True, outside=True)
        if answer.option == options[0]:
            return Again(runs=True, hosts=(*hosts, *new_hosts))
        sandbox.change(policy)
        if answer.option == options[2]:
            sandbox.store_hosts(new_hosts)
        return Again(runs=True, hosts=hosts)

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
        for runner in (self._outside, *self._once):
            await runner.close()
        for capture in self._captures:
            capture.close()

    def _may_run_outside(self, line: str) -> bool:
        """Return True if the user allowed this call to run outside the sandbox; an answer counts once."""
        allowed = OUTSIDE_SANDBOX.of(self._coordinator)
        return bool(allowed) and allowed.pop(event_ids().get("span_id", ""), None) == line

    def _environment(self, folder: str) -> dict[str, str]:
        environment = command_environment(self._coordinator, self._config.env_passthrough)
        for name in _NOT_PASSED_ON:
            environment.pop(name, None)
        return {**environment, "PWD": folder}


# -- what the model sees of a command: its output and its end -----------------------------


_SHOWN_PIDS = 10


def to_result(done: Finished, timeout: float | None, notes: Sequence[str]) -> ToolResult:
    """Return the result of a command that has ended; a success if the exit code is 0.

    Args:
        done: Its end.
        timeout: Its time limit in seconds.
        notes: Further notes, placed before how it ended.
    """
    ended, captured = done.ended, done.captured
    lines = [*_describe_cut(captured), *_describe_running(done), *notes, ending(ended, timeout)]
    output = with_notes(captured.text if captured.total else "(no output)", lines)
    if ended.exit_code == 0:
        return ToolResult(output=output)
    kind = "TimedOut" if ended.timed_out else "ExitStatus"
    error: dict[str, Any] = {"message": lines[-1], "type": kind}
    if ended.exit_code is not None:
        error["exit_code"] = ended.exit_code
    return ToolResult(success=False, output=output, error=error)


def with_notes(text: str, notes: Sequence[str]) -> str:
    """`text` followed by notes, each in brackets on its own line."""
    return "\n".join((text.removesuffix("\n"), *(f"[{note}]" for note in notes)))


def _describe_cut(captured: Captured) -> list[str]:
    if not captured.cut:
        return []
    size = f"the output has {captured.total} bytes"
    if captured.file is None or captured.in_file == 0:
        why = f": {captured.problem}" if captured.problem else ""
        return [f"{size}; the part cut out was not kept{why}"]
    part = (
        "all of it is"
        if captured.in_file == captured.total
        else f"the first {captured.in_file} of them are"
    )
    return [f"{size}; {part} in {captured.file}"]


def ending(ended: Ended, timeout: float | None) -> str:
    """Describe in a few words how a command ended."""
    if ended.timed_out:
        text = f"killed after the time limit of {timeout:g} s, with everything it had started"
        if ended.unkillable:
            text += f", except processes that cannot be killed: {_listed(ended.unkillable)}"
        return text
    code = ended.exit_code or 0
    if code < 0:
        return f"killed by signal {-code} ({signal.Signals(-code).name})"
    return f"exit code {code}"


def _describe_running(done: Finished) -> list[str]:
    if not done.ended.background:
        return []
    where = f"; its further output goes to {done.log}" if done.log else ""
    return [f"still running in the background: {_listed(done.ended.background)}{where}"]


def _listed(pids: tuple[int, ...]) -> str:
    numbers = ", ".join(map(str, pids[:_SHOWN_PIDS]))
    more = len(pids) - _SHOWN_PIDS
    return f"{numbers} and {more} more" if more > 0 else numbers
