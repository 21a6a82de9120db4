"""Every command with standard streams that are closed, full or without a reader."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.cli import run_amplifier, succeed
from tests.support.commands import Furnished, commands_with_lines, every_command, furnished
from tests.support.conditions import Conditions

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


class Streams(NamedTuple):
    """The streams a process gets.

    Attributes:
        stdout: Opens its stdout; None for a pipe that is read.
        stderr: The same for stderr.
        closed: Descriptors that are closed.
        code: How a command ends that has something to write to stdout.
    """

    stdout: Callable[[], int] | None = None
    stderr: Callable[[], int] | None = None
    closed: tuple[int, ...] = ()
    code: int = 0


def without_reader() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def full() -> int:
    return os.open("/dev/full", os.O_WRONLY)


STREAMS = {
    "stdout-without-reader": Streams(stdout=without_reader, code=141),
    "stdout-full": Streams(stdout=full, code=6),
    "stdout-closed": Streams(closed=(1,), code=141),
    "stderr-without-reader": Streams(stderr=without_reader),
    "stderr-full": Streams(stderr=full),
    "stderr-closed": Streams(closed=(2,)),
    "stdin-closed": Streams(closed=(0,)),
    "both-without-reader": Streams(stdout=without_reader, stderr=without_reader, code=141),
    "both-full": Streams(stdout=full, stderr=full, code=6),
    "all-closed": Streams(closed=(0, 1, 2), code=141),
}

FULLY = ("both-full", "both-without-reader", "all-closed")
"""With these, every command is run: the others are parts of them."""

SOME = ("--help", "run hi", "module list", "session rename")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Furnished:
    return furnished(tmp_path_factory.mktemp("furnished"), with_batch=False)


def test_every_command_has_a_line() -> None:
    assert every_command() == commands_with_lines()


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        *((name, SOME) for name in STREAMS),
        *(pytest.param(name, ("",), marks=pytest.mark.thorough) for name in FULLY),
    ],
)
def test_every_command_ends_as_documented(
    name: str, begin: tuple[str, ...], shared: Furnished, tmp_path: Path
) -> None:
    place = shared if begin == SOME else furnished(tmp_path)
    streams = STREAMS[name]
    written = 0
    for line in place.lines():
        if not " ".join(line).startswith(begin) or "--help" in line[1:]:
            continue
        if begin == SOME and "--output" in line:
            continue
        opened = {
            stream: opener()
            for stream, opener in (("stdout", streams.stdout), ("stderr", streams.stderr))
            if opener is not None
        }
        done = run_amplifier(
            *line,
            home=place.home,
            cwd=place.work,
            conditions=Conditions(closed=streams.closed),
            **opened,
        )
        for descriptor in opened.values():
            os.close(descriptor)
        # `resume` of a session needs a terminal.
        expected = (2,) if "resume" in line and line[0] != "batch" else (0, streams.code)
        assert done.code in expected, (line, done)
        assert "Traceback" not in done.stderr
        assert "Exception" not in done.stderr
        if done.code == 6:
            written += 1
            assert done.stderr.count("no space left on device") == (streams.stderr is None)
        elif done.code == 141:
            written += 1
            assert "pipe" not in done.stderr
    assert bool(written) == (streams.code != 0)
    succeed("session", "verify", home=place.home)
