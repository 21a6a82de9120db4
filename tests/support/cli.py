"""Running the real console script in a real process."""

import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.conditions import Conditions, apply_conditions
from tests.support.fixtures import scrubbed
from tests.support.warm_interpreter import WarmInterpreter, WarmProcess, WarmPython

_GUARD = Path(__file__).with_name("network_guard")


class Finished(NamedTuple):
    """How a run of the program ended. `code` is negative for a signal, as in `subprocess`."""

    code: int
    stdout: str
    stderr: str
    home: Path


def amplifier_command() -> list[str]:
    """The installed console script next to this interpreter, else the module behind it."""
    script = Path(sys.executable).with_name("amplifier.exe" if os.name == "nt" else "amplifier")
    return [str(script)] if script.exists() else [sys.executable, "-m", "amplifier_app.cli"]


def child_environment(
    home: Path, env: Mapping[str, str | None] | None = None, *, network: bool = False
) -> dict[str, str]:
    """The environment of a child: isolated home, no keys or proxies, loopback only.

    `env` is laid over it; a None takes a variable out.
    """
    environment = scrubbed(dict(os.environ))
    environment |= {"AMPLIFIER_HOME": str(home), "PYTHONIOENCODING": "utf-8", "NO_COLOR": "1"}
    if not network:
        paths = [str(_GUARD), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    for name, value in (env or {}).items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return environment


_COLD_SHARE = 200
"""One test of this many starts the program anew, so that a missing import cannot hide in clones."""

_PIPE_HOLDS = 60_000
"""Bytes that a pipe takes before it is read."""


def _is_in_cold_share() -> bool:
    test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
    return zlib.crc32(test.encode()) % _COLD_SHARE == 0


def start_amplifier(
    *arguments: str | Path,
    home: Path | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str | None] | None = None,
    network: bool = False,
    cold: bool = False,
    conditions: Conditions | None = None,
    **popen: Any,
) -> subprocess.Popen[bytes]:
    """Starts the program in a session of its own and returns at once.

    Unless it is to be `cold`, may use the network, or the test is one of the `_COLD_SHARE`, the process is
    cloned from an interpreter that has imported the program already; see `tests.support.warm_interpreter`.

    `popen` goes to `subprocess.Popen`; by default stdin is null and both outputs are pipes.
    The child's AMPLIFIER_HOME is `home`, by default the one of the running test.
    """
    home = home or Path(os.environ.get("AMPLIFIER_HOME") or tempfile.mkdtemp(prefix="amplifier-"))
    options: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "start_new_session": True,
        **popen,
    }
    command = [*amplifier_command(), *map(str, arguments)]
    environment = child_environment(home, env, network=network)
    # The clones' guard of the network cannot be taken out.
    if not (cold or network or _is_in_cold_share()) and not popen.keys() - {
        "stdin",
        "stdout",
        "stderr",
        "bufsize",
    }:
        interpreter = WarmInterpreter.suited_to(environment)
        if interpreter is not None:
            started = conditions and conditions._asdict()
            options["conditions"] = started
            return WarmProcess(interpreter, command, cwd=cwd, env=environment, **options)
    if conditions is not None:
        options["preexec_fn"] = partial(apply_conditions, conditions._asdict())
    process: Any = subprocess.Popen(command, cwd=cwd, env=environment, **options)
    return process


def start_python(
    code: str,
    *arguments: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str | None] | None = None,
    **popen: Any,
) -> subprocess.Popen[Any]:
    """Starts `python -c CODE` with the home of the running test; it can import what the suite can.

    Cloned from an interpreter that has imported the program already, where that is possible.
    `popen` goes to `subprocess.Popen`.
    """
    environment = child_environment(Path(os.environ["AMPLIFIER_HOME"]), env)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    interpreter = WarmInterpreter.suited_to(environment)
    if interpreter is None:
        return subprocess.Popen(command, cwd=cwd, env=environment, **popen)
    return WarmPython(interpreter, command, cwd=cwd, env=environment, **popen)


def run_python(
    code: str, *arguments: str | Path, timeout: float = 60.0, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs `start_python` to its end.

    Raises:
        subprocess.TimeoutExpired: It did not end in time.
    """
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with start_python(code, *arguments, **pipes, **options) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def _filled_pipe(data: bytes) -> int:
    """The reading end of a pipe that has the data, and no more to come."""
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    return reading


def run_amplifier(
    *arguments: str | Path,
    home: Path | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str | None] | None = None,
    stdin: str | bytes | None = None,
    timeout: float = 60.0,
    network: bool = False,
    cold: bool = False,
    conditions: Conditions | None = None,
    **popen: Any,
) -> Finished:
    """Runs the program to its end.

    Args:
        home: Its AMPLIFIER_HOME; by default the one of the running test.
        env: Variables laid over the isolated environment; None takes one out.
        stdin: What is piped in; None gives it the null device.
        timeout: Seconds until it is killed.
        conditions: What else it finds when it starts.
        popen: Other streams than pipes.

    Raises:
        subprocess.TimeoutExpired: It did not end in time.
    """
    home = home or Path(os.environ.get("AMPLIFIER_HOME") or tempfile.mkdtemp(prefix="amplifier-"))
    data = stdin.encode() if isinstance(stdin, str) else stdin
    # Data that fits is in the pipe from the start: a run waits for it only for a short time.
    filled = None if data is None or len(data) > _PIPE_HOLDS else _filled_pipe(data)
    unfilled = subprocess.DEVNULL if data is None else subprocess.PIPE
    try:
        process = start_amplifier(
            *arguments,
            home=home,
            cwd=cwd,
            env=env,
            network=network,
            cold=cold,
            conditions=conditions,
            **{"stdin": unfilled if filled is None else filled, **popen},
        )
    finally:
        if filled is not None:
            os.close(filled)
    with process:
        try:
            rest = data if filled is None else None
            stdout, stderr = process.communicate(rest, timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return Finished(
        process.returncode,
        (stdout or b"").decode("utf-8", "replace"),
        (stderr or b"").decode("utf-8", "replace"),
        home,
    )


def succeed(*arguments: str | Path, **options: Any) -> Finished:
    """Runs `run_amplifier` with these arguments, which has to end with exit code 0."""
    finished = run_amplifier(*arguments, **options)
    assert finished.code == 0, finished.stderr
    return finished
