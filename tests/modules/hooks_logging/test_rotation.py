"""Levels, and files that are put aside: nothing is lost or split while others write or read."""

import json
import os
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from amplifier_core.events import ALL_EVENTS
from amplifier_core.testing import MockCoordinator
from amplifier_modules import hooks_logging
from amplifier_modules.hooks_logging.log import LEVELS, Level, choose_level, select
from amplifier_support.files import open_locked
from tests.support.cli import start_python

WRITER = """
import asyncio, sys
from amplifier_core.testing import MockCoordinator
from amplifier_modules import hooks_logging

async def main(path, name, count):
    coordinator = MockCoordinator()
    config = {"path": path, "max_bytes": 4096, "backups": 1000}
    close = await hooks_logging.mount(coordinator, config)
    for number in range(count):
        await coordinator.hooks.emit("tool:pre", {"who": name, "n": number, "pad": "x" * (number % 300)})
    close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


class Log:
    def __init__(self, folder: Path, **config: Any) -> None:
        self.file = folder / "events.jsonl"
        self.config = config
        self.coordinator = MockCoordinator()
        self.coordinator.register_capability("session.dir", str(folder))

    async def write(self, *numbers: int, event: str = "tool:pre") -> None:
        close = await hooks_logging.mount(self.coordinator, self.config)
        assert close is not None
        for number in numbers:
            await self.coordinator.hooks.emit(event, {"n": number, "pad": "x" * 300})
        close()

    def files(self) -> list[str]:
        """The log's files, the oldest first."""
        aside = [path for path in self.file.parent.iterdir() if path.suffix[1:].isdigit()]
        aside.sort(key=lambda path: -int(path.suffix[1:]))
        return [path.name for path in (*aside, self.file) if path.exists()]

    def lines(self) -> list[dict[str, Any]]:
        texts = [(self.file.parent / name).read_text() for name in self.files()]
        return [json.loads(line) for text in texts for line in text.splitlines()]

    def numbers(self) -> list[int]:
        return [line["data"]["n"] for line in self.lines()]


async def test_a_file_grows_unless_it_may_not(tmp_path: Path) -> None:
    log = Log(tmp_path)
    await log.write(*range(100))
    assert log.files() == ["events.jsonl"]
    assert not (tmp_path / "events.jsonl.lock").exists()


async def test_full_files_are_put_aside_whole_and_counted(tmp_path: Path) -> None:
    log = Log(tmp_path, max_bytes=2000, backups=3)
    await log.write(*range(40))
    assert log.files() == ["events.jsonl.3", "events.jsonl.2", "events.jsonl.1", "events.jsonl"]
    for name in log.files():
        path = tmp_path / name
        assert 0 < path.stat().st_size <= 2000
        assert path.stat().st_mode & 0o777 == 0o600
    # The latest are there, in order and without a gap.
    assert log.numbers() == list(range(40))[-len(log.numbers()) :]
    assert len(log.numbers()) >= 12


async def test_a_line_longer_than_the_limit_is_written_whole(tmp_path: Path) -> None:
    log = Log(tmp_path, max_bytes=1024, max_value_chars=100_000)
    log.coordinator.hooks.set_default_fields(long="y" * 5000)
    await log.write(1, 2)
    assert log.numbers() == [1, 2]
    assert log.files() == ["events.jsonl.1", "events.jsonl"]


async def test_a_later_session_appends_to_the_file(tmp_path: Path) -> None:
    log = Log(tmp_path, max_bytes=2000, backups=100)
    for number in range(20):
        await log.write(number)
    assert log.numbers() == list(range(20))


def test_processes_that_share_a_file_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "shared.jsonl"
    writers = [start_python(WRITER, path, name, "150") for name in "abc"]
    log = Log(tmp_path)
    log.file = path
    # A reader meanwhile: whatever it finds are whole lines, but for the one being written.
    while any(writer.poll() is None for writer in writers):
        for file in tmp_path.glob("shared.jsonl*[!k]"):
            try:
                whole = file.read_bytes().rpartition(b"\n")[0]
            except FileNotFoundError:
                continue
            for line in whole.splitlines():
                json.loads(line)
        time.sleep(0.02)
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    lines = log.lines()
    assert len(log.files()) > 10
    for name in "abc":
        assert [line["data"]["n"] for line in lines if line["data"]["who"] == name] == list(
            range(150)
        )


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX locks")
async def test_who_holds_the_lock_for_good_stops_rotation_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amplifier_modules.hooks_logging.log.LOCK_SECONDS", 0.05)
    log = Log(tmp_path, max_bytes=1024)
    held = open_locked(f"{log.file}.lock")
    assert held is not None
    await log.write(*range(5))
    os.close(held)
    assert log.files() == ["events.jsonl"]
    assert log.numbers() == list(range(5))
    assert caplog.text.count("is not rotated") == 1


async def test_a_file_that_cannot_be_rotated_keeps_growing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log(tmp_path, max_bytes=1024, backups=1)
    (tmp_path / "events.jsonl.1" / "in").mkdir(parents=True)
    await log.write(*range(9))
    lines = [json.loads(line) for line in log.file.read_text().splitlines()]
    assert [line["data"]["n"] for line in lines] == list(range(9))
    assert caplog.text.count("cannot be rotated") == 1


@pytest.mark.skipif(os.name != "posix", reason="needs links")
async def test_a_planted_link_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    log = Log(tmp_path, max_bytes=1024)
    (tmp_path / "events.jsonl.1").symlink_to(victim)
    await log.write(*range(9))
    assert victim.read_text() == "mine"
    assert not (tmp_path / "events.jsonl.1").is_symlink()


async def test_a_removed_file_is_created_again(tmp_path: Path) -> None:
    log = Log(tmp_path, max_bytes=10_000)
    close = await hooks_logging.mount(log.coordinator, log.config)
    assert close is not None
    await log.coordinator.hooks.emit("tool:pre", {"n": 1})
    log.file.rename(tmp_path / "taken")
    await log.coordinator.hooks.emit("tool:pre", {"n": 2})
    close()
    assert log.numbers() == [2]


@pytest.mark.parametrize(
    ("event", "level"),
    [
        ("content_block:delta", "debug"),
        ("llm:stream_chunk", "debug"),
        ("tool:post", "info"),
        ("own:event", "info"),
        ("provider:retry", "warning"),
        ("approval:denied", "warning"),
        ("tool:error", "error"),
        ("module:load_failed", "error"),
        ("shell_hook:failed", "error"),
    ],
)
def test_the_level_follows_from_the_events_name(event: str, level: str) -> None:
    assert choose_level(event) == level


@pytest.mark.parametrize(
    ("level", "written"),
    [
        (None, ["tool:pre", "provider:retry", "tool:error"]),
        ("debug", ["content_block:delta", "tool:pre", "provider:retry", "tool:error"]),
        ("warning", ["provider:retry", "tool:error"]),
        ("error", ["tool:error"]),
    ],
)
async def test_events_below_the_level_are_left_out(
    tmp_path: Path, level: str | None, written: list[str]
) -> None:
    log = Log(tmp_path, **({"level": level} if level else {}))
    for event in ("content_block:delta", "tool:pre", "provider:retry", "tool:error"):
        await log.write(1, event=event)
    assert [line["event"] for line in log.lines()] == written
    assert [line["level"] for line in log.lines()] == [choose_level(event) for event in written]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("include", [("*",), ("tool:*", "x"), ()])
@pytest.mark.parametrize("exclude", [(), ("tool:p*",), ("*",)])
def test_events_are_selected_one_by_one(
    level: Level, include: tuple[str, ...], exclude: tuple[str, ...]
) -> None:
    """All at once, for the rows of a batch, and again with other settings."""
    names = (*ALL_EVENTS, "x", "x:error")
    alone = [name for name in names if select((name,), level, include, exclude)]
    assert list(select(names, level, include, exclude)) == alone
    expected = [
        name
        for name in names
        if any(fnmatchcase(name, pattern) for pattern in include)
        and not any(fnmatchcase(name, pattern) for pattern in exclude)
        and LEVELS.index(choose_level(name)) >= LEVELS.index(level)
    ]
    assert alone == expected
