"""Runs the child that checks a module, and interprets how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, cast

import amplifier_support
from amplifier_app.base.checks import Check, Severity, some
from amplifier_app.base.errors import AppError
from amplifier_core._foreign import describe_exception
from amplifier_support.environment import without_secrets
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import cut_text

MEMORY_BYTES = 4 * 1024**3
"""Resident memory that a module and the processes it starts may use during the checks."""

NOT_REPORTED = 70
"""The child's exit code if it could not report the end of its checks."""

_START = """\
import sys
sys.path += sys.argv[1:]
from amplifier_support.process.limited_program import main
main()
"""
_FOLDER = str(Path(amplifier_support.__file__).parents[1])
_SUPERVISOR_SECONDS = 30.0
_OUTPUT_LINES = 20


class Tried(NamedTuple):
    """The result of running a module's checks.

    Attributes:
        kind: The kind it was checked as; None if it was not determined.
        checks: The child's findings, and a finding about its end if that is a fault.
        output: The end of its standard output and error.
    """

    kind: str | None
    checks: list[Check]
    output: str


def try_out(request: dict[str, Any], *, seconds: float, memory: int = MEMORY_BYTES) -> Tried:
    """Run a request in the child; nothing it started is left when this returns.

    Args:
        request: As read by `amplifier_kit.validation.child`.
        seconds: Time limit of the module.
        memory: Limit of resident memory in bytes.
    """
    # The module runs in the process that reports on it. The word separates findings from what
    # the module prints or writes to descriptors it finds open.
    word = secrets.token_hex(16)
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # Any process of the user can read a program's initial environment.
    environment = without_secrets(own)
    hidden = {name: value for name, value in own.items() if name not in environment}
    with tempfile.TemporaryDirectory(prefix="amplifier-validate-", ignore_cleanup_errors=True) as d:
        spec = {
            # -P keeps the current folder from being importable.
            "argv": [sys.executable, "-P", "-m", "amplifier_kit.validation.child"],
            "cwd": d,
            "seconds": seconds,
            "bytes": memory,
            "request": {"word": word, "request": request, "secrets": hidden},
        }
        ended = _run_supervised(spec, environment)
    kind, checks, last = _read_answers(ended["answers"], word)
    if not last.stage and ended["how"] in ("ended", "time"):
        # The checks did not start.
        raise AppError(f"the process that checks modules failed to start: {ended['output']}")
    fault = _fault(ended, last, seconds, memory)
    checks += [fault] if fault else []
    if ended["left"]:
        checks.append(_leftover_check(ended["left"]))
    lines = [line for line in str(ended["output"]).splitlines() if line.strip()]
    return Tried(kind, checks, "\n".join(lines[-_OUTPUT_LINES:]))


def _run_supervised(spec: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
    """Run a program under supervision to its end; it and all processes below it end when this returns or raises."""
    pid = b""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _START, _FOLDER],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as supervisor:
        assert supervisor.stdin is not None
        assert supervisor.stdout is not None
        assert supervisor.stderr is not None
        try:
            supervisor.stdin.write(json.dumps(spec).encode() + b"\n")
            supervisor.stdin.flush()
            pid = supervisor.stdout.readline()
            answer = supervisor.stdout.read()
        finally:
            with contextlib.suppress(OSError):
                supervisor.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                supervisor.wait(_SUPERVISOR_SECONDS)
            supervisor.kill()
        complaint = supervisor.stderr.read().decode("utf-8", "replace").strip()
    if answer.strip():
        return cast("dict[str, Any]", json.loads(answer))
    if not pid:
        raise AppError(f"the process that supervises modules did not start: {complaint}")
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(int(pid), signal.SIGKILL)
    return {"how": "lost", "code": None, "answers": "", "output": "", "left": []}


# -- reports of the child -----------------------------------------------------------------


class _Last(NamedTuple):
    """The child's progress: its last stage, the last known place, and True if it finished."""

    stage: str = ""
    place: str = ""
    done: bool = False


_SPOILED = Check(
    "isolation",
    False,
    "it replaced functions of the standard library that the checks need",
    advice="do not change other modules, such as json.dumps",
)


def _read_answers(answers: str, word: str) -> tuple[str | None, list[Check], _Last]:
    kind: str | None = None
    checks: list[Check] = []
    last = _Last()
    for line in answers.splitlines():
        first, _, text = line.partition(" ")
        if first != word:
            continue
        try:
            answer = json.loads(text)
        except ValueError:
            checks.append(_SPOILED)
            return kind, checks, last._replace(done=True)
        if "check" in answer:
            checks.append(Check(**answer["check"]))
        kind = answer.get("kind", kind)
        last = last._replace(**{k: v for k, v in answer.items() if k in _Last._fields})
    return kind, checks, last


def _fault(ended: dict[str, Any], last: _Last, seconds: float, memory: int) -> Check | None:
    """A finding about how the child ended; None if it finished."""
    during = f" during {last.stage}" if last.stage else ""
    where = f"; it was at {last.place}" if last.place else ""
    how = ended["how"]
    if how == "time":
        return Check(
            "time",
            False,
            f"it did not end within {seconds:g} s{during} and was stopped{where}",
            advice="give every wait a time limit; if it needs longer, pass a longer --timeout",
        )
    if how == "memory":
        return Check(
            "memory",
            False,
            f"it used more than {_size(memory)} of memory{during} and was stopped{where}",
            advice="process data in pieces and keep only what is needed",
        )
    if last.done:
        return None
    code = ended["code"]
    advice = "raise an exception, or log a warning and return None, instead of exiting"
    if how == "lost":
        message = "it killed the process that supervises it"
        advice = "end only processes that the module started"
    elif how == "answers" or code == NOT_REPORTED:
        message = "it closed or filled files the checks need"
        advice = "do not touch open files or the standard library"
    elif code < 0:
        message = f"it was killed by {_signal_name(-code)}"
        advice = "look for a crash in native code, or for endless recursion"
    else:
        message = f"it exited the process (code {code})"
    return Check("isolation", False, f"{message}{during}{where}", advice=advice)


def _leftover_check(names: list[str]) -> Check:
    count = f"{len(names)} processes" if len(names) > 1 else "a process"
    return Check(
        "left_behind",
        False,
        f"it left {count} running, which the check killed: {some(set(names))}",
        "warning",
        "return a cleanup from mount() that ends them and waits for them",
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _size(count: int) -> str:
    return f"{count / 1024**3:.3g} GiB" if count >= 1024**3 else f"{count / 1024**2:.3g} MiB"


_LONGEST = 2_000


class Request(NamedTuple):
    """The modules and options of a check.

    Attributes:
        mode: `contract` or `behaviour`.
        folder: Put at the start of `sys.path`; may be empty.
        import_paths: Put at the end of `sys.path`.
        preferred_paths: Put before the environment's packages.
        entry_point: `"package:mount"`; None for a folder that is itself the package.
        package: The folder or file that is imported, containing the module's own code.
        name: The module's id, or the closest name to it.
        kind: The kind to check it as; None for the one it declares.
        config: The configuration for `mount`.
    """

    mode: str
    folder: str
    import_paths: list[str]
    preferred_paths: list[str]
    entry_point: str | None
    package: str
    name: str
    kind: str | None
    config: dict[str, Any]

    @property
    def root(self) -> Path:
        """The folder or file of the module's own code."""
        return Path(self.package).resolve()


class Findings:
    """Reports findings to the parent process.

    Attributes:
        request: The request.
        secrets: Environment variables for the module that other processes must not see.
        failed: Whether a finding so far fails the module.
        settings: The settings that the module's config schema has.
    """

    def __init__(self, connection: socket.socket) -> None:
        asked = json.loads(connection.makefile("rb").readline())
        self.request = Request(**asked["request"])
        self.secrets: dict[str, str] = asked["secrets"]
        self.failed = False
        self.settings: tuple[str, ...] = ()
        self._word = asked["word"]
        self._connection = connection
        self._owner = os.getpid()
        self._lock = threading.Lock()

    def good(self, name: str, message: str) -> None:
        """Report a check that passed."""
        self.add(Check(name, True, message))

    def bad(self, name: str, message: str, advice: str, severity: Severity = "error") -> None:
        """Report a check that failed, and how to fix it."""
        self.add(Check(name, False, message, severity, advice))

    def add(self, check: Check) -> None:
        """Report a finding; a very long message is cut."""
        self.failed = self.failed or (not check.passed and check.severity == "error")
        message = check.message.encode("utf-8", "replace").decode()
        self.say(check=check._replace(message=cut_text(message, _LONGEST))._asdict())

    def say(self, **facts: Any) -> None:
        """Report facts, except from a process that the module forked."""
        if os.getpid() == self._owner:
            line = f"{self._word} {json.dumps(facts)}\n".encode()
            with self._lock:
                self._connection.sendall(line)

    def describe(self, error: BaseException) -> str:
        """An exception in the module's code in one sentence, with its line."""
        return describe_exception(error, self.request.root)
