"""A chat that gets keys and signals at random ends in time, and leaves nothing behind.

A seed gives the replies and what is sent, but not how the program and the test interleave.
"""

import contextlib
import os
import random
import re
import signal
import termios
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import succeed
from tests.support.plans import mock_plan
from tests.support.processes import processes_in
from tests.support.terminal import CTRL_C, CTRL_D, ENTER, PASTE, TAB, Chat, Terminal
from tests.support.warm_interpreter import is_available

pytestmark = pytest.mark.thorough

ESC, SHIFT_TAB = "\x1b", "\x1b[Z"
MODULES: dict[str, Any] = {
    "tools": [{"module": "tool-bash"}, {"module": "tool-filesystem"}],
    "hooks": [{"module": "hooks-approval"}],
}
WRITE = {"name": "write_file", "input": {"file_path": "a.txt", "content": "line\n" * 9}}
REPLIES: list[Any] = [
    "answer " * 40,
    {"text": "late", "delay": 0.4},
    {"tool_calls": [{"name": "bash", "input": {"command": "seq 500"}}, WRITE]},
    {"tool_calls": [{"name": "bash", "input": {"command": "touch b; sleep 60"}}]},
    {"text": "cut " * 20, "error": {"type": "NetworkError", "after_chunks": 2}},
    {"error": {"type": "AuthenticationError"}},
]
KEYS = [
    *(ENTER, ESC, TAB, SHIFT_TAB, CTRL_C, CTRL_D, "y", "n", "t", "half ", "\x7f"),
    *(f"go{ENTER}", f"and this{ENTER}", f"!sleep 0.3{ENTER}", PASTE.format("row\n" * 30) + ENTER),
    *(f"/{name}{ENTER}" for name in ("status", "undo", "model", "mode edits", "fork", "resume")),
]
SIGNALS = (signal.SIGINT, signal.SIGWINCH, signal.SIGCONT, signal.SIGPIPE)
ENDS = ("keys", "SIGTERM", "SIGTERM twice", "SIGHUP", "SIGKILL")
MODES = (("\x1b[?2004h", "\x1b[?2004l"), ("\x1b[?25l", "\x1b[?25h"), ("\x1b[22;2t", "\x1b[23;2t"))


class _Chat:
    """A chat whose output is read all the time."""

    def __init__(self, terminal: Terminal) -> None:
        self._process = terminal.process
        self._thread = threading.Thread(target=self._read)
        self.written = b""
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._process.child_fd, 1 << 16):
                self.written += data

    def signal(self, signum: int) -> None:
        assert self._process.pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signum)

    def play(self, rng: random.Random) -> None:
        for _ in range(rng.choice([2, 8, 16])):
            kind = rng.random()
            if kind < 0.8:
                os.write(self._process.child_fd, rng.choice(KEYS).encode())
            elif kind < 0.9:
                self.signal(rng.choice(SIGNALS))
            else:
                self._process.setwinsize(rng.choice([5, 24]), rng.choice([20, 80]))
            time.sleep(rng.random() * 0.15)

    def end(self, how: str, rng: random.Random) -> None:
        if how.startswith("SIG"):
            self.signal(getattr(signal, how.split()[0]))
        if how == "SIGTERM twice":
            time.sleep(rng.random() * 0.1)
            self.signal(signal.SIGTERM)
        deadline = time.monotonic() + 30
        while self._thread.is_alive():
            assert time.monotonic() < deadline, self.written[-2000:].decode("utf-8", "replace")
            if how == "keys":
                with contextlib.suppress(OSError):
                    os.write(self._process.child_fd, rng.choice([CTRL_C, CTRL_D, "q"]).encode())
            self._thread.join(0.1)


@pytest.mark.skipif(not is_available(), reason="needs the warm interpreter")
@pytest.mark.parametrize("end", ENDS)
def test_a_chat_ends_whatever_it_gets(tmp_path: Path, end: str) -> None:
    for seed in range(12):
        rng = random.Random(f"{end} {seed}")
        folder = tmp_path / str(seed)
        folder.mkdir()
        replies = rng.sample(REPLIES, len(REPLIES))
        plan = mock_plan(folder, replies, mock={"chunk_delay": 0.01, "on_end": "cycle"}, **MODULES)
        plain = ["--plain"] if seed % 3 == 0 else []
        with Chat("-f", plan, "--session", "s", *plain, cwd=folder) as terminal:
            modes = termios.tcgetattr(terminal.process.child_fd) if plain else None
            chat = _Chat(terminal)
            chat.play(rng)
            chat.end(end, rng)
            after = termios.tcgetattr(terminal.process.child_fd)
            code = terminal.finish()
        written = terminal.raw + chat.written.decode("utf-8", "replace")
        assert not re.search("Traceback|Exception in", written), (seed, written)
        if end != "SIGKILL":
            assert code in (0, 130, 143), (seed, code, written[-2000:])
            assert modes is None or modes == after, seed
            assert all(written.rfind(on) <= written.rfind(off) for on, off in MODES), seed
        deadline = time.monotonic() + 10
        while left := processes_in(folder):
            assert time.monotonic() < deadline, (seed, left)
            time.sleep(0.05)
    succeed("session", "verify")
