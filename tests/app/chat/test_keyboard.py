"""The keyboard during a turn, on a real pseudo-terminal."""

from __future__ import annotations

import asyncio
import os
import termios
from collections.abc import Iterator

import pytest
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.keys import Keys

from amplifier_app.chat.keyboard import Keyboard
from amplifier_core.testing import wait_for

ENTER, ALT_ENTER, CTRL_J = "\r", "\x1b\r", "\n"


class Desk:
    """A terminal with a typing user, and the lines taken."""

    def __init__(self) -> None:
        self.hands, self.fd = os.openpty()
        self.taken: list[str] = []
        self.changes = 0
        self.ahead: list[KeyPress] = []

    def keyboard(self, line: str = "") -> Keyboard:
        return Keyboard(
            self.fd,
            take=self.taken.append,
            changed=self._changed,
            ahead=self._given_ahead,
            line=line,
        )

    def _changed(self) -> None:
        self.changes += 1

    def _given_ahead(self) -> list[KeyPress]:
        given, self.ahead = self.ahead, []
        return given

    def type(self, keys: str | bytes) -> None:
        os.write(self.hands, keys.encode() if isinstance(keys, str) else keys)

    def modes(self) -> tuple[bool, bool, bool]:
        attributes = termios.tcgetattr(self.fd)
        lines = attributes[3] & termios.ICANON, attributes[3] & termios.ECHO
        return bool(lines[0]), bool(lines[1]), bool(attributes[3] & termios.ISIG)

    async def until_taken(self, *texts: str) -> None:
        await wait_for(lambda: len(self.taken) >= len(texts), timeout=10)
        assert self.taken == list(texts)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    os.close(desk.hands)
    os.close(desk.fd)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("plain", "plain"),
        ("wrongg\x7f", "wrong"),
        ("bc\x1b[D\x1b[Da", "abc"),
        ("bc\x1b[D\x02a\x06\x1b[Cd", "abcd"),
        ("bc\x01a\x05d", "abcd"),
        ("bc\x1b[Ha\x1b[Fd", "abcd"),
        ("xabc\x01\x1b[3~", "abc"),
        ("gone\x15abc", "abc"),
        ("abc gone\x17\x7f", "abc"),
        ("gone\x17abc", "abc"),
        ("abcgone\x02\x02\x02\x02\x0b", "abc"),
        ("one" + ALT_ENTER + "two" + CTRL_J + "three", "one\ntwo\nthree"),
        ("one\ntwo\x01zw", "one\nzwtwo"),
        ("\x1b[200~one\r\ntwo\rthree\x1b[201~!", "one\ntwo\nthree!"),
        ("ünïcödé 日本", "ünïcödé 日本"),
        ("a\x1b[5;9Rb\x1b[Ac\x00\x07", "abc"),
    ],
)
async def test_keys_edit_the_line(desk: Desk, keys: str, text: str) -> None:
    with desk.keyboard():
        desk.type(keys + ENTER)
        await desk.until_taken(text)


async def test_a_character_may_arrive_in_pieces(desk: Desk) -> None:
    with desk.keyboard() as keyboard:
        for byte in "é→".encode() + b"\x1b[D":
            desk.type(bytes([byte]))
            await asyncio.sleep(0.01)
        assert await wait_for(lambda: keyboard.cursor == 1, timeout=10)
        assert keyboard.line == "é→"


async def test_lines_are_taken_in_order_and_the_rest_is_kept(desk: Desk) -> None:
    with desk.keyboard() as keyboard:
        desk.type("one" + ENTER + ENTER + "  " + ENTER + "two" + ENTER + "half")
        await desk.until_taken("one", "two")
        assert await wait_for(lambda: keyboard.line == "half", timeout=10)
    assert desk.taken == ["one", "two"]
    assert keyboard.line == "half"


async def test_ctrl_d_leaves_only_on_an_empty_line(desk: Desk) -> None:
    with desk.keyboard():
        desk.type("a\x04" + ENTER + "\x04")
        await desk.until_taken("a", "/quit")


async def test_it_starts_with_a_draft_and_with_keys_read_earlier(desk: Desk) -> None:
    desk.ahead = [KeyPress("b", "b"), KeyPress(Keys.ControlM, "\r"), KeyPress("c", "c")]
    with desk.keyboard("a") as keyboard:
        assert desk.taken == ["ab"]
        assert keyboard.line == "c"


async def test_terminal_modes_are_restored(desk: Desk) -> None:
    before = termios.tcgetattr(desk.fd)
    with desk.keyboard():
        assert desk.modes() == (False, False, True)
    assert termios.tcgetattr(desk.fd) == before
    with pytest.raises(RuntimeError), desk.keyboard():
        raise RuntimeError
    assert termios.tcgetattr(desk.fd) == before


async def test_a_released_terminal_can_be_read_by_others(desk: Desk) -> None:
    with desk.keyboard() as keyboard:
        desk.type("half")
        assert await wait_for(lambda: keyboard.line == "half", timeout=10)
        with keyboard.away():
            assert desk.modes() == (True, True, True)
            desk.type("yes\n")
            assert os.read(desk.fd, 100) == b"yes\n"
        desk.type(" done" + ENTER)
        await desk.until_taken("half done")


async def test_every_change_is_reported(desk: Desk) -> None:
    with desk.keyboard():
        before = desk.changes
        desk.type("abc")
        assert await wait_for(lambda: desk.changes == before + 3, timeout=10)
        desk.type("\x07\x1b[A")
        desk.type(ENTER)
        await desk.until_taken("abc")
        assert desk.changes == before + 4


async def test_a_file_that_is_not_a_terminal_is_not_read() -> None:
    read, write = os.pipe()
    os.write(write, b"not for us\r")
    taken: list[str] = []
    with Keyboard(read, take=taken.append, changed=lambda: None):
        await asyncio.sleep(0.05)
    assert taken == []
    assert os.read(read, 100) == b"not for us\r"
    os.close(read)
    os.close(write)


async def test_a_closed_terminal_is_not_read_again() -> None:
    hands, fd = os.openpty()
    with Keyboard(fd, take=lambda _: None, changed=lambda: None):
        os.close(hands)
        assert await wait_for(
            lambda: asyncio.get_running_loop().remove_reader(fd) is False, timeout=10
        )
    os.close(fd)
