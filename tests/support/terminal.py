"""The program on a real pseudo-terminal, with keyboard input."""

import os
import re
import termios
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pexpect
from ptyprocess import PtyProcess

from tests.support.cli import amplifier_command, child_environment
from tests.support.screen import Emulator
from tests.support.warm_interpreter import WarmInterpreter

ENTER = "\r"
CTRL_C = "\x03"
CTRL_D = "\x04"
CTRL_J = "\n"
ALT_ENTER = "\x1b\r"
UP = "\x1b[A"
TAB = "\t"
PASTE = "\x1b[200~{}\x1b[201~"

PROMPT_MARK = re.escape("\x1b]133;A\x1b\\")
"""Written when the chat begins to wait for a prompt."""
OUTPUT_MARK = re.escape("\x1b]133;C\x1b\\")
"""Written when it begins to work."""

_WHERE_IS_THE_CURSOR = "\x1b[6n"
_SIGNALS = r"\x1b\](?:2;|8;;)[^\x07\x1b]*\x1b\\"
"""The titles and links that the program itself sends."""

_SEQUENCES = re.compile(rf"{_SIGNALS}|\x1b(?:\[[0-?]*[ -/]*[@-~]|[()][AB012]|[=>78])")


class _ClonedPty(PtyProcess):
    """A terminal of a process that is not a child of this one."""

    def __init__(self, interpreter: WarmInterpreter, process: int, descriptor: int) -> None:
        super().__init__(process, descriptor)
        self._interpreter = interpreter

    def isalive(self) -> bool:
        return not self._has_ended(None if self.flag_eof else 0)

    def wait(self) -> int | None:
        self._has_ended(None)
        return self.exitstatus

    def _has_ended(self, timeout: float | None) -> bool:
        if not self.terminated:
            self.status = self._interpreter.wait(self.pid, timeout)
            self.terminated = self.status is not None
            if self.status is not None:
                code = os.waitstatus_to_exitcode(self.status)
                self.exitstatus, self.signalstatus = (code, None) if code >= 0 else (None, -code)
        return self.terminated


class _Spawned(pexpect.spawn):
    """A process on a terminal, forked from a warm interpreter unless a cold start is requested."""

    def __init__(self, *args: Any, cold: bool, **options: Any) -> None:
        self.cold = cold
        super().__init__(*args, **options)
        # A test closes it when the process has ended, or need not end in order.
        self.ptyproc.delayafterclose = 0

    def _spawnpty(self, args: list[str], **options: Any) -> Any:
        environment = options["env"]
        interpreter = None if self.cold else WarmInterpreter.suited_to(environment)
        if interpreter is None:
            return super()._spawnpty(args, **options)
        ours, theirs = os.openpty()
        termios.tcsetwinsize(theirs, options["dimensions"])
        try:
            process = interpreter.clone(
                [os.fsdecode(word) for word in args],
                options["cwd"],
                environment,
                [theirs] * 3,
                has_terminal=True,
            )
        finally:
            os.close(theirs)
        return _ClonedPty(interpreter, process, ours)


class Terminal:
    """`amplifier` on a terminal, of 100 × 30 unless given as columns and rows.

    Everything it writes is kept in `raw`, as it came.
    """

    def __init__(
        self,
        *arguments: str | Path,
        home: Path | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float = 30.0,
        cold: bool = False,
        size: tuple[int, int] = (100, 30),
    ) -> None:
        command = [*amplifier_command(), *map(str, arguments)]
        home = home or Path(os.environ["AMPLIFIER_HOME"])
        environment = child_environment(home, {"TERM": "xterm-256color", **(env or {})})
        self.raw = ""
        self._size = size
        self._seen = 0
        self._answered = 0
        self.process = _Spawned(
            command[0],
            command[1:],
            cwd=cwd,
            env=environment,
            dimensions=size[::-1],
            encoding="utf-8",
            codec_errors="surrogateescape",
            timeout=timeout,
            cold=cold,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.close(force=True)

    @property
    def shown(self) -> str:
        """The output without escape sequences: every state of the screen, in order."""
        return _SEQUENCES.sub("", self.raw)

    def lines(self) -> list[str]:
        """Return what the terminal shows, scrollback included, without trailing spaces."""
        emulator = Emulator(*self._size)
        emulator.feed(self.raw)
        return emulator.lines()

    def until_lines(self, expected: Callable[[list[str]], object]) -> list[str]:
        """Read until the lines that the terminal shows are as expected; return them."""
        while not expected(lines := self.lines()):
            if how := self.read():
                raise AssertionError(f"{how} before it was shown:\n" + "\n".join(lines))
        return lines

    def until(self, pattern: str) -> str:
        """Read until the regular expression `pattern` appears after the previous match.

        Gives what was shown up to its end. What is painted after that may not be read yet.
        """
        while True:
            found = re.compile(pattern, re.DOTALL).search(self.shown, self._seen)
            if found:
                text = self.shown[self._seen : found.end()]
                self._seen = found.end()
                return text
            how = self.read()
            if how:
                raise AssertionError(f"{how} before {pattern!r} was shown:\n{self.shown[-2000:]}")

    def read(self) -> str | None:
        """Read what is written next; why nothing is, if the process ended or is silent."""
        which = self.process.expect([".+", pexpect.EOF, pexpect.TIMEOUT])
        if which > 0:
            self.raw += self.process.before or ""
            return "ended" if which == 1 else "went silent"
        self.raw += self.process.match.group()
        # It asks where the cursor is, and one read may end in the middle of that.
        while (found := self.raw.find(_WHERE_IS_THE_CURSOR, self._answered)) >= 0:
            self._answered = found + len(_WHERE_IS_THE_CURSOR)
            # At once, not after the moment that pexpect waits before it types.
            os.write(self.process.fileno(), b"\x1b[1;1R")
        return None

    def prompt(self) -> None:
        """Wait until the chat waits for a prompt: its mark, or the plain prompt."""
        self.until(f"{PROMPT_MARK}|(?:^|\n)> ")

    @property
    def unmarked(self) -> str:
        """The output without the marks of prompts, titles and links."""
        return re.sub(f"{PROMPT_MARK}|{OUTPUT_MARK}|{_SIGNALS}", "", self.raw)

    def type(self, keys: str) -> None:
        self.process.send(keys)

    def enter(self, text: str, *shown: str) -> None:
        """Send a line; wait until each pattern appears."""
        self.type(text + ENTER)
        for pattern in shown:
            self.until(pattern)

    def ask(self, text: str, *shown: str) -> None:
        """Send a line to the chat; wait until each pattern appears, then for the next prompt."""
        self.enter(text, *shown)
        self.prompt()

    def quit(self) -> None:
        """Leave the chat with Ctrl-D."""
        self.type(CTRL_D)
        assert self.finish() == 0

    def finish(self) -> int:
        """Wait for the process to end; return its exit code."""
        self.process.expect(pexpect.EOF)
        self.raw += self.process.before or ""
        self.process.close()
        return self.process.exitstatus if self.process.exitstatus is not None else -1


class Chat(Terminal):
    """`amplifier run` on a terminal, which waits for a prompt when the block of its `with` begins."""

    def __init__(self, *arguments: str | Path, **options: Any) -> None:
        super().__init__("run", *arguments, **options)

    def __enter__(self) -> Self:
        try:
            self.prompt()
        except BaseException:
            self.process.close(force=True)
            raise
        return self
