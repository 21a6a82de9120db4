"""The live region below the scrollback, on an emulated terminal."""

import fcntl
import os
import struct
import termios

import pytest

from amplifier_app.base.stdio import Output
from amplifier_app.render.ansi import cells, clip, clip_middle
from amplifier_app.render.screen import AnsiScreen
from tests.support.screen import Emulator


class Rig:
    """A screen on a pseudo-terminal, and what an emulator makes of it."""

    def __init__(self, columns: int, rows: int, **environment: str) -> None:
        self.master, self.slave = os.openpty()
        self.emulator = Emulator(columns, rows)
        self.resize(columns, rows)
        self.screen = AnsiScreen(Output(self.slave), environment)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.emulator.resize(columns, rows)

    def written(self) -> str:
        """Feed what was written to the emulator, and return it."""
        os.write(self.slave, b"\x00")
        text = b""
        while not text.endswith(b"\x00"):
            text += os.read(self.master, 65536)
        self.emulator.feed(text[:-1].decode())
        return text[:-1].decode()

    def lines(self) -> list[str]:
        self.written()
        return self.emulator.lines()


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_committed_lines_stay_above_the_live_region(columns: int) -> None:
    rig = Rig(columns, 6)
    expected: list[str] = []
    for number in range(30):
        rig.screen.commit("", [f"working on {number}", "x" * 200])
        rig.screen.commit(f"line {number}\n")
        expected.append(f"line {number}")
    assert rig.lines() == [*expected, "working on 29", "x" * (columns - 1) + "…"]
    rig.screen.commit("", [])
    assert rig.lines() == expected


def test_an_update_is_one_write_and_repaints_nothing_above() -> None:
    rig = Rig(40, 10)
    rig.screen.commit("first\n", ["live"])
    assert rig.written().count("\x1b[?2026h") == 1
    rig.screen.commit("second\n", ["live 2"])
    update = rig.written()
    assert "first" not in update
    assert update.startswith("\x1b[?2026h\r \x1b[J\r\x1b[K")
    rig.screen.commit("", ["live 2"])
    assert rig.written() == "", "nothing changed"


def test_an_echo_after_a_full_line_leaves_no_copy_of_it() -> None:
    rig = Rig(40, 10)
    rig.screen.commit("first\n", ["x" * 40, "y" * 40])
    rig.written()
    rig.emulator.feed("^C^C")
    rig.screen.commit("", ["y" * 40])
    assert rig.lines() == ["first", "y" * 40]


def test_a_region_taller_than_the_terminal_shows_its_end() -> None:
    rig = Rig(40, 5)
    rig.screen.commit("", [f"row {n}" for n in range(20)])
    assert rig.lines() == ["row 16", "row 17", "row 18", "row 19"]
    rig.screen.commit("", [])
    assert rig.lines() == []


def test_the_cursor_is_hidden_while_there_is_a_live_region() -> None:
    rig = Rig(40, 5)
    rig.screen.commit("", ["one"])
    rig.screen.commit("text\n", ["two"])
    rig.screen.commit("", [])
    written = rig.written()
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1
    assert written.endswith("\x1b[?25h\x1b[?2026l")


@pytest.mark.parametrize("after", [30, 100])
def test_a_resized_terminal_that_cuts_lines_loses_and_doubles_nothing(after: int) -> None:
    rig = Rig(60, 10, TERM="linux")
    rig.screen.commit("kept\n", ["a" * 60, "b" * 60])
    rig.written()
    rig.resize(after, 10)
    rig.screen.commit("next\n", ["c" * 200])
    assert rig.lines() == ["kept", "next", "c" * (after - 1) + "…"]


def test_a_terminal_that_wraps_lines_again_is_erased_as_far_as_they_reach() -> None:
    rig = Rig(60, 10, TERM="xterm-256color")
    rig.screen.commit("", ["a" * 60, "b" * 10])
    rig.written()
    rig.resize(25, 10)  # `a` takes three rows now, `b` one
    rig.screen.commit("", ["c"])
    assert rig.written().startswith("\x1b[?2026h\r\x1b[3A \x1b[J\r\x1b[K")


def test_a_closed_terminal_is_reported() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    screen = AnsiScreen(Output(writing), {})
    screen.commit("hello\n")
    os.close(writing)
    assert screen.failure is not None


LINK, END = "\x1b]8;;file:///a\x1b\\", "\x1b]8;;\x1b\\"


@pytest.mark.parametrize(
    ("line", "width", "expected"),
    [
        ("short", 5, "short"),
        ("longer", 5, "long…"),
        ("日本語", 5, "日本…"),
        ("日本語", 4, "日…"),
        ("\x1b[31mlonger\x1b[0m", 5, "\x1b[31mlong…\x1b[0m"),
        (f"{LINK}longer{END}", 5, f"{LINK}long…{END}"),
        ("abc", 0, ""),
    ],
)
def test_lines_are_cut_by_cells_and_end_their_styles(line: str, width: int, expected: str) -> None:
    assert clip(line, width) == expected
    assert cells(expected) <= width


def test_the_middle_is_left_out() -> None:
    assert clip_middle("/a/long/path/to/file.py", 11) == "/a/lo…le.py"
    assert cells(clip_middle("日本語の名前", 7)) <= 7
    assert clip_middle("abc", 3) == "abc"
