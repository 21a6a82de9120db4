"""Real processes and what they cost: CPU seconds of a child and of all it started and waited for.

The processes run in the environment of the tests, or in that of AMPLIFIER_BENCH_VENV. The figures
that count are those of a user: a virtual environment with nothing but the wheel in it, installed by
pip, which compiles it. Next to the tools of this project, httpx finds click and rich, imports its own
command line, and so makes the program everything is compared with look dearer than it is.
"""

import contextlib
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.cli import child_environment

_VENV = os.environ.get("AMPLIFIER_BENCH_VENV")

READER = """\
import json, os, sys
import httpx

url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
headers = {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "anthropic-version": "2023-06-01"}
body = {
    "model": "claude-sonnet-5-5",
    "max_tokens": 1000,
    "stream": True,
    "messages": [{"role": "user", "content": "hi"}],
}
with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as response:
    response.raise_for_status()
    for line in response.iter_lines():
        if line.startswith("data: "):
            event = json.loads(line[6:])
            if event["type"] == "content_block_delta":
                sys.stdout.write(event["delta"]["text"])
"""
"""The least that asks for the same and prints it: a synchronous program on httpx."""


PAINTED = b"\x1b[?2004h"
"""Written by prompt_toolkit with the first prompt: from now on pasted text is marked."""


class Cost(NamedTuple):
    """CPU seconds in user and system mode, and what was written to stdout."""

    user: float
    system: float
    stdout: bytes

    @property
    def cpu(self) -> float:
        return self.user + self.system


class Bench:
    """Processes that ask the server at `url`, in a folder of their own.

    Args:
        url: The server.
        folder: The folder.
        source: The source folder to run; by default the environment has it.
    """

    def __init__(self, url: str, folder: Path, source: Path | None = None) -> None:
        self.folder = folder
        self.sessions = folder / "home" / "sessions"
        (folder / "reader.py").write_text(READER)
        keys = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "test-key"}
        # Without its guard: what watches over the network is not part of what a run costs.
        self._env = child_environment(folder / "home", keys, network=True)
        for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):
            self._env.pop(name, None)
        if source is not None:
            self._env["PYTHONPATH"] = str(source)

    def amplifier(self, *arguments: str) -> Cost:
        """`amplifier run` with these arguments."""
        return self.command("run", *arguments)

    def command(self, *arguments: str) -> Cost:
        """`amplifier` with these arguments."""
        return self._cost(str(bin_folder() / "amplifier"), *arguments)

    def program(self, *command: str | Path) -> Cost:
        """Any program, in the same folder and environment."""
        return self._cost(*map(str, command))

    def completion(self, *words: str) -> Cost:
        """The answer to Tab in bash at the end of these words."""
        line = ["amplifier", *words]
        asking = {"COMP_WORDS": "\n".join(line), "COMP_CWORD": str(len(words))}
        env = {**self._env, **asking, "_AMPLIFIER_COMPLETE": "complete_bash"}
        return self._cost(str(bin_folder() / "amplifier"), env=env)

    def on_terminal(self, *command: str, until: bytes = b"") -> Cost:
        """A program of the environment with a terminal for its standard streams.

        Args:
            command: Its name and arguments.
            until: It is killed once it has written this; by default it runs to its end.
        """
        ours, theirs = os.openpty()
        env = {**self._env, "TERM": "xterm-256color"}
        env.pop("NO_COLOR", None)
        process = subprocess.Popen(
            [str(bin_folder() / command[0]), *command[1:]],
            cwd=self.folder,
            env=env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        written = b""
        with contextlib.suppress(OSError):  # the terminal is closed with its last user
            while not until or until not in written:
                part = os.read(ours, 1 << 16)
                if not part:
                    break
                written += part
                if b"\x1b[6n" in part:  # the terminal is asked where its cursor is
                    os.write(ours, b"\x1b[1;1R")
        if until:
            process.kill()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        os.close(ours)
        assert until in written, written
        assert until or process.returncode == 0, written
        return Cost(usage.ru_utime, usage.ru_stime, written)

    def interpreter(self) -> Cost:
        """An interpreter that starts and ends."""
        return self._cost(str(bin_folder() / "python"), "-c", "pass")

    def hello(self) -> Cost:
        """The least that shows a prompt of prompt_toolkit, until it is painted."""
        code = "from prompt_toolkit import PromptSession; PromptSession().prompt('> ')"
        return self.on_terminal("python", "-c", code, until=PAINTED)

    def reader(self) -> Cost:
        """The program on httpx that does the same."""
        return self._cost(str(bin_folder() / "python"), str(self.folder / "reader.py"))

    def _cost(self, *command: str, env: dict[str, str] | None = None) -> Cost:
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env=env or self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            assert process.stdout is not None
            stdout = process.stdout.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, command
        return Cost(usage.ru_utime, usage.ru_stime, stdout)


def bin_folder() -> Path:
    """Return the folder of the measured programs."""
    return Path(_VENV, "bin") if _VENV else Path(sys.executable).parent


def compare(
    benchmark: Any, ours: Callable[[], Cost], floor: Callable[[], Cost], rounds: int
) -> tuple[Cost, Cost]:
    """Runs both by turns, so that a busy machine troubles them alike; the last of each.

    `extra_info` gets the least CPU of each in milliseconds, and the ratios: of these two, and the
    median of those of the pairs.
    """
    own: list[Cost] = []
    bare: list[Cost] = []

    def pair() -> None:
        bare.append(floor())
        own.append(ours())

    benchmark.pedantic(pair, rounds=rounds, warmup_rounds=0 if benchmark.disabled else 1)
    least, floor_cpu = min(cost.cpu for cost in own), min(cost.cpu for cost in bare)
    pairs = [a.cpu / b.cpu for a, b in zip(own, bare, strict=True) if b.cpu]
    benchmark.extra_info |= {
        "cpu_ms": round(least * 1e3, 1),
        "floor_cpu_ms": round(floor_cpu * 1e3, 1),
        "ratio": round(least / floor_cpu, 3) if floor_cpu else None,
        "ratio_median": round(statistics.median(pairs), 3) if pairs else None,
    }
    return own[-1], bare[-1]
