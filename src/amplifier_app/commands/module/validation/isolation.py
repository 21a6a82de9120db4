"""Running the child that tries a module out, and understanding how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple, cast

import amplifier_support
from amplifier_app.base.checks import Check, some
from amplifier_app.base.errors import AppError
from amplifier_support.environment import without_secrets

MEMORY_BYTES = 4 * 1024**3
"""Resident memory that a module, with all it starts, may take while it is checked."""

NOT_TOLD = 70
"""The child's exit code where it could not report the end of its checks."""

_START = """\
import sys
sys.path += sys.argv[1:]
__import__("warden").main()
"""
# Last, lest they hide a standard module.
_FOLDERS = (str(Path(__file__).parent), str(Path(amplifier_support.__file__).parents[1]))
_WARDEN_SECONDS = 30.0
_OUTPUT_LINES = 20


class Tried(NamedTuple):
    """What came of trying a module out.

    Attributes:
        kind: What it was taken for, if it came so far.
        checks: What the child found; how it ended, where that is a fault, is among them.
        output: The end of what was written to the outputs.
    """

    kind: str | None
    checks: list[Check]
    output: str


def try_out(request: dict[str, Any], *, seconds: float, memory: int = MEMORY_BYTES) -> Tried:
    """Have the child carry out a request; nothing it starts is left when this returns.

    Args:
        request: As `amplifier_app.commands.module.validation.child` takes it.
        seconds: The longest the module may take.
        memory: Bytes of resident memory it may take.
    """
    # The module shares a process with its judge. That it prints something, or writes to what
    # it finds open, is not taken for a finding.
    word = secrets.token_hex(16)
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # Any process of the user can read the variables a program is started with.
    environment = without_secrets(own)
    hidden = {name: value for name, value in own.items() if name not in environment}
    with tempfile.TemporaryDirectory(prefix="amplifier-validate-", ignore_cleanup_errors=True) as d:
        spec = {
            # -P: what lies in the current folder is not importable by accident.
            "argv": [sys.executable, "-P", "-m", "amplifier_app.commands.module.validation.child"],
            "cwd": d,
            "seconds": seconds,
            "bytes": memory,
            "request": {"word": word, "request": request, "secrets": hidden},
        }
        ended = _watched(spec, environment)
    kind, checks, last = _read_answers(ended["answers"], word)
    if not last.stage and ended["how"] in ("ended", "time"):
        # The module was not even looked at.
        raise AppError(f"the process that tries modules out does not work: {ended['output']}")
    fault = _fault(ended, last, seconds, memory)
    checks += [fault] if fault else []
    if ended["left"]:
        checks.append(_left_behind(ended["left"]))
    lines = [line for line in str(ended["output"]).splitlines() if line.strip()]
    return Tried(kind, checks, "\n".join(lines[-_OUTPUT_LINES:]))


def _watched(spec: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
    """Run a warden to its end; it ends at once, with all it watches over, when this is left."""
    pid = b""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _START, *_FOLDERS],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as warden:
        assert warden.stdin is not None
        assert warden.stdout is not None
        assert warden.stderr is not None
        try:
            warden.stdin.write(json.dumps(spec).encode() + b"\n")
            warden.stdin.flush()
            pid = warden.stdout.readline()
            answer = warden.stdout.read()
        finally:
            with contextlib.suppress(OSError):
                warden.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                warden.wait(_WARDEN_SECONDS)
            warden.kill()
        complaint = warden.stderr.read().decode("utf-8", "replace").strip()
    if answer.strip():
        return cast("dict[str, Any]", json.loads(answer))
    if not pid:
        raise AppError(f"the process that watches over modules did not start: {complaint}")
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(int(pid), signal.SIGKILL)
    return {"how": "lost", "code": None, "answers": "", "output": "", "left": []}


# -- what the child said -----------------------------------------------------------------


class _Last(NamedTuple):
    """How far the child came: its last stage, the place it was seen at, whether it is through."""

    stage: str = ""
    place: str = ""
    done: bool = False


def _read_answers(answers: str, word: str) -> tuple[str | None, list[Check], _Last]:
    kind: str | None = None
    checks: list[Check] = []
    last = _Last()
    for line in answers.splitlines():
        said, _, text = line.partition(" ")
        if said != word:
            continue
        answer = json.loads(text)
        if "check" in answer:
            checks.append(Check(**answer["check"]))
        kind = answer.get("kind", kind)
        last = last._replace(**{k: v for k, v in answer.items() if k in _Last._fields})
    return kind, checks, last


def _fault(ended: dict[str, Any], last: _Last, seconds: float, memory: int) -> Check | None:
    """What is wrong with the way the child ended; nothing if it came to its end."""
    during = f" during {last.stage}" if last.stage else ""
    where = f"; it was at {last.place}" if last.place else ""
    how = ended["how"]
    if how == "time":
        return Check(
            "time",
            False,
            f"it did not end within {seconds:g} s{during} and was stopped{where}",
            advice="wait for nothing without a limit; if it needs longer, give a longer --timeout",
        )
    if how == "memory":
        return Check(
            "memory",
            False,
            f"it took more than {_size(memory)} of memory{during} and was stopped{where}",
            advice="read and keep what is needed, in pieces",
        )
    if last.done:
        return None
    code = ended["code"]
    advice = "raise an exception, or log a warning and return None, instead of ending it"
    if how == "lost":
        found = "it killed the process that watches over it"
        advice = "end no processes but your own"
    elif how == "answers" or code == NOT_TOLD:
        found = "it took away, or filled, what the checks need"
        advice = "leave the files that are open, and the standard library, as they are"
    elif code < 0:
        found = f"it was ended by {_signal_name(-code)}"
        advice = "a crash is in native code, or in recursion without an end"
    else:
        found = f"it ended the whole process with exit code {code}"
    return Check("isolation", False, f"{found}{during}{where}", advice=advice)


def _left_behind(names: list[str]) -> Check:
    count = f"{len(names)} processes" if len(names) > 1 else "a process"
    return Check(
        "left_behind",
        False,
        f"it left {count} running, which had to be killed: {some(set(names))}",
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
