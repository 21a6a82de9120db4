"""The record of a batch at a URL. Most of it needs fsspec, which CI installs for this file."""

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.base.errors import ConfigError, SessionError
from amplifier_batch.record.folder import BatchFolder, new_folder
from amplifier_batch.record.remote import (
    Store,
    Unavailable,
    driving,
    encode_part,
    find_folder,
    find_new_folder,
    removing_unbegun,
)
from amplifier_batch.record.writer import BatchWriter, writing
from amplifier_support.installation import install_command
from tests.batch.record.test_folder import FACTS, result
from tests.batch.record.test_replica import contents
from tests.support.s3_server import IS_INSTALLED, S3Server
from tests.support.waiting import eventually

is_installed = importlib.util.find_spec("fsspec") is not None
needs_fsspec = pytest.mark.skipif(not is_installed, reason="needs fsspec")


@pytest.mark.skipif(is_installed, reason="fsspec is installed")
def test_without_fsspec_the_error_names_the_extra(tmp_path: Path) -> None:
    for scheme, extra in (("file", "fsspec"), ("s3", "s3"), ("gs", "gcs")):
        with pytest.raises(ConfigError, match="needs another package") as caught:
            find_folder(f"{scheme}://{tmp_path}")
        assert caught.value.hint == f"Install it with: {install_command(extra)}"


def test_a_file_system_without_exclusive_creation_is_refused() -> None:
    with pytest.raises(ConfigError, match="'sftp' cannot create a file exclusively"):
        find_new_folder("sftp://host/batch")


class Machine:
    """A machine with a home of its own, as long as it is `active`."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._home = home
        self._patch = monkeypatch

    def activate(self) -> None:
        self._patch.setenv("AMPLIFIER_HOME", str(self._home))

    def open(self, url: str) -> BatchFolder:
        self.activate()
        return BatchFolder(find_folder(url))

    @contextlib.contextmanager
    def drive(self, url: str, *, take_over: bool = False) -> Generator[BatchWriter]:
        batch = self.open(url)
        with driving(batch, take_over=take_over), writing(batch) as writer:
            yield writer


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Machine]:
    return [Machine(tmp_path / name, monkeypatch) for name in ("a", "b", "c")]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


def create(machine: Machine, url: str) -> BatchFolder:
    machine.activate()
    return BatchFolder.create(find_new_folder(url), FACTS, "plan")


def write_session(writer: BatchWriter, row: str, text: str) -> None:
    folder = writer.folder.sessions / row
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "transcript.jsonl").open("a") as file:
        file.write(f"{json.dumps({'content': text})}\n")


async def seal(writer: BatchWriter, row: str) -> None:
    async with asyncio.timeout(30):
        assert await writer.folder.sealer.seal(row) is None


def rows(batch: BatchFolder) -> list[str]:
    return [line["row"] for line in batch.results()]


@needs_fsspec
async def test_another_machine_gets_everything_and_goes_on(
    machines: list[Machine], url: str
) -> None:
    first, second, _ = machines
    batch = create(first, url)
    with driving(batch), writing(batch) as writer:
        writer.claim("a", 1, "a")
        write_session(writer, "a", "one")
        await seal(writer, "a")
        work = batch.path / "work" / "a"
        work.mkdir(parents=True)
        (work / "run.sh").write_text("echo")
        (work / "run.sh").chmod(0o700)
        (work / "link").symlink_to("run.sh")
        Path(os.fsdecode(bytes(work) + b"/\xff")).write_text("not UTF-8")
        write_session(writer, "a", "two")
        writer.end(result("a"))
        writer.claim("b", 1, "b")
        write_session(writer, "b", "begun")
        await seal(writer, "b")
        for left in (batch.path / "sessions").rglob("lock"):
            left.unlink()
    copy = second.open(url)
    assert copy.path != batch.path
    of_one_machine = {"lock": None, "status.json": None, "driver.json": None, "log.txt": None}
    here, there = (contents(folder.path) | of_one_machine for folder in (batch, copy))
    assert here == there
    assert rows(copy) == ["a"]
    assert copy.shown == url
    with second.drive(url) as writer:
        assert writer.progress.of("b").begun
        writer.claim("b", 1, "b")
        write_session(writer, "b", "ended")
        writer.end(result("b"))
    batch = first.open(url)
    assert rows(batch) == ["a", "b"]
    assert "ended" in (batch.sessions / "b" / "transcript.jsonl").read_text()


@needs_fsspec
async def test_what_a_driver_has_not_sealed_has_not_happened(
    machines: list[Machine], url: str
) -> None:
    first, second, _ = machines
    batch = create(first, url)
    with driving(batch), writing(batch) as writer:
        writer.claim("a", 1, "a")
    write_session(writer, "a", "after the end of its driver")
    copy = batch.path.parent / ".amplifier-copy.json"
    facts = json.loads(copy.read_text())
    # As a driver leaves it that was killed.
    copy.write_text(json.dumps({**facts, "first": None}))
    assert not (first.open(url).sessions / "a").exists()
    with second.drive(url):
        pass


@needs_fsspec
async def test_a_driver_that_wakes_up_after_another_took_over_is_stopped(
    machines: list[Machine], url: str
) -> None:
    first, second, third = machines
    batch = create(first, url)

    async def sleep_while_another_drives() -> None:
        with driving(batch), writing(batch) as writer:
            writer.claim("a", 1, "a")
            await seal(writer, "a")
            alive = f"process {os.getpid()} on .*, alive"
            with pytest.raises(SessionError, match=alive), second.drive(url):
                pass
            assert second.open(url).counts()[1]
            with second.drive(url, take_over=True) as other:
                # The writer has released the row of the first driver.
                assert not other.progress.running
                other.claim("a", 1, "a")
                await seal(other, "a")
                write_session(writer, "a", "wakes up")
                with pytest.raises(SessionError, match="another driver has taken over"):
                    await seal(writer, "a")
                other.end(result("a"))
            writer.end(result("b"))

    with pytest.raises(SessionError, match="another driver has taken over") as caught:
        await sleep_while_another_drives()
    assert caught.value.hint == f"Show its progress: amplifier batch status {url}"
    assert rows(third.open(url)) == ["a"]
    assert not third.open(url).counts()[1]


@needs_fsspec
async def test_parts_are_merged_and_still_stop_the_driver_before(
    machines: list[Machine], url: str
) -> None:
    first, second, third = machines
    store = Store(url)
    batch = create(first, url)

    async def sleep_while_another_merges() -> None:
        with driving(batch), writing(batch) as writer:
            writer.claim("a", 1, "a")
            await seal(writer, "a")
            third.open(url)
            with second.drive(url, take_over=True) as other:
                other.claim("a", 1, "a")
                for number in range(1_050):
                    write_session(other, "a", f"{number}")
                    await seal(other, "a")
                other.end(result("a"))
            # The first parts of both drivers are left.
            left = store.list("parts/000/000")
            assert len(left) == 2
            assert store.list("segments/000") == ["000"]
            for folder in store.list("parts/000"):
                assert len(store.list(f"parts/000/{folder}")) <= 1_000
            write_session(writer, "a", "wakes up")
            await seal(writer, "a")

    with pytest.raises(SessionError, match="another driver has taken over"):
        await sleep_while_another_merges()
    for machine in (second, third, first):
        batch = machine.open(url)
        assert rows(batch) == ["a"]
        assert (batch.sessions / "a" / "transcript.jsonl").read_text().count("\n") == 1_050


@needs_fsspec
async def test_a_driver_finishes_what_a_killed_one_began_to_merge(
    machines: list[Machine], url: str
) -> None:
    batch = create(machines[0], url)
    with driving(batch), writing(batch) as writer:
        writer.claim("a", 1, "a")
    store = Store(url)
    # Parts that were sealed by a driver that did not live to merge them.
    folder = Path(url.removeprefix("file://")) / "parts/000/000"
    for number in range(len(store.list("parts/000/000")), 1_000):
        (folder / f"{number:03}").write_bytes(encode_part(number, "killed", []))
    with machines[1].drive(url):
        pass
    assert store.list("parts/000/000") == ["000"]
    # The same after the merge, before all parts were deleted.
    assert store.create("parts/000/000/999", encode_part(999, "killed", []))
    with machines[2].drive(url) as writer:
        assert writer.progress.of("a").attempt == 1
    assert store.list("parts/000/000") == ["000"]


@pytest.mark.skipif(not IS_INSTALLED, reason="needs s3fs and moto")
async def test_merged_parts_on_s3_are_read(
    machines: list[Machine], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with S3Server.running() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, str(value))
        url = f"s3://{server.bucket}/batch"
        batch = create(machines[0], url)
        with driving(batch), writing(batch) as writer:
            writer.claim("a", 1, "a")
        store = Store(url)
        there = [f"parts/000/000/{name}" for name in store.list("parts/000/000")]
        parts = [part for part in store.read_all(there) if part is not None]
        merged = tmp_path / "merged"
        killed = (encode_part(number, "killed", []) for number in range(len(parts), 1_000))
        merged.write_bytes(b"".join([*parts, *killed]))
        store.put("segments/000/000", merged)
        store.remove(there[1:])
        with machines[1].drive(url) as writer:
            assert writer.progress.of("a").attempt == 1
            writer.end(result("a"))
        assert rows(machines[2].open(url)) == ["a"]


@needs_fsspec
async def test_changes_of_several_parts_count_together(
    machines: list[Machine], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amplifier_batch.record.replica._PIECE", 300)
    monkeypatch.setattr("amplifier_batch.record.replica._MAX_PART", 300)
    monkeypatch.setattr("amplifier_batch.record.remote._ALIVE_SECONDS", 0)
    first, second, third = machines
    batch, parts = create(first, url), Path(url.removeprefix("file://")) / "parts/000/000"

    alive = list[str]()

    class Noting(Store):
        def write(self, name: str, data: bytes) -> None:
            super().write(name, data)
            alive.append(name)

    monkeypatch.setattr("amplifier_batch.record.remote.Store", Noting)

    def run_until_interrupted() -> None:
        with driving(batch), writing(batch) as writer:
            for row in range(20):
                writer.claim(f"r{row}", 1, f"r{row}")
                write_session(writer, f"r{row}", "x" * 1_000)
                writer.end(result(f"r{row}", "ok" if row % 2 else "provider"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_until_interrupted()
    ended, before = rows(second.open(url)), len(list(parts.iterdir()))
    assert len(ended) == 20
    # Another driver must not take one for dead that seals many parts.
    assert len(alive) > 20
    with second.drive(url) as writer:
        assert writer.reopen(lambda line: line["outcome"] == "provider") == 10
    assert rows(third.open(url)) == ended[1::2]
    # As a driver leaves it that was killed before the last part of its changes.
    begun, last = before + 1, len(list(parts.iterdir())) - 1
    assert last > begun + 3
    (parts / f"{last:03}").unlink()
    shutil.rmtree(third.open(url).path.parent)
    assert rows(third.open(url)) == ended
    with third.drive(url, take_over=True) as writer:
        assert writer.reopen(lambda line: line["outcome"] == "ok") == 10
    for machine in machines:
        assert rows(machine.open(url)) == ended[::2]
        assert len(list(machine.open(url).sessions.iterdir())) == 20


@needs_fsspec
@pytest.mark.parametrize("is_merged", [False, True])
def test_a_driver_that_loses_a_race_reads_what_the_other_has_sealed(
    machines: list[Machine], url: str, monkeypatch: pytest.MonkeyPatch, is_merged: bool
) -> None:
    root = Path(url.removeprefix("file://"))
    with driving(create(machines[0], url)):
        pass
    changes = [
        {"path": f"work/{name}", "mode": 0o600, "at": 0, "data": "eA=="} for name in ("a", "b")
    ]
    texts = [
        encode_part(1, "other", changes[:1], has_more=not is_merged),
        encode_part(2, "other", changes[1:]),
        *(encode_part(number, "other", []) for number in range(3, 1_000)),
    ]
    store = Store(url)
    assert store.create("parts/000/000/001", texts[0])

    class Racing(Store):
        """Gets to know what another driver writes after the copy is up to date."""

        def write(self, name: str, data: bytes) -> None:
            super().write(name, data)
            if is_merged and not (root / "segments").exists():
                first = root / "parts/000/000/000"
                assert store.create("segments/000/000", b"".join([first.read_bytes(), *texts]))
                store.remove(["parts/000/000/001"])
            elif not is_merged:
                store.create("parts/000/000/002", texts[1])

    monkeypatch.setattr("amplifier_batch.record.remote.Store", Racing)
    for machine in machines[:2]:
        with machine.drive(url, take_over=True) as writer:
            assert sorted(os.listdir(writer.folder.path / "work")) == ["a", "b"]
    assert is_merged != (root / "parts/000/000/002").exists()


@needs_fsspec
async def test_a_damaged_part_is_named(machines: list[Machine], url: str) -> None:
    batch = create(machines[0], url)
    with driving(batch), writing(batch) as writer:
        writer.claim("a", 1, "a")
    last = Path(url.removeprefix("file://")) / "parts/000/000/001"
    content = last.read_bytes()
    bomb = encode_part(1, "driver", [{"path": "a" * 50_000_000}])
    flipped = content[:-1] + bytes([content[-1] ^ 1])
    for damaged in (
        b"",
        content[:-1],
        content + b"x",
        flipped,
        b"{}\n",
        b"[]\n",
        content.replace(b'"size": ', b'"size": -'),
        content.replace(b'"size": ', b'"size": true, "": '),
        b"x",
        b"[" * 100_000,
        bomb,
    ):
        last.write_bytes(damaged)
        with pytest.raises(SessionError, match=f"{url}/parts/000/000/001 is damaged"):
            machines[1].open(url)
    # Forged, of a terabyte: only what a part may have is read.
    os.truncate(last, 1 << 40)
    with pytest.raises(SessionError, match=f"{url}/parts/000/000/001 is damaged"):
        machines[1].open(url)
    last.write_bytes(content.replace(b'"more": false, ', b""))
    assert machines[1].open(url).progress().of("a").attempt == 1


@needs_fsspec
async def test_a_row_waits_while_the_url_cannot_be_written(
    machines: list[Machine], url: str, tmp_path: Path
) -> None:
    batch, notices = create(machines[0], url), list[str]()
    store, away = tmp_path / "store", tmp_path / "away"
    with driving(batch), writing(batch) as writer:
        batch.sealer.notice = notices.append
        writer.claim("a", 1, "a")
        await seal(writer, "a")
        store.rename(away)
        store.write_text("a file in its place")
        write_session(writer, "a", "one")
        waiting = asyncio.create_task(seal(writer, "a"))
        await eventually(lambda: notices)
        assert not waiting.done()
        store.unlink()
        away.rename(store)
        await waiting
        await eventually(lambda: len(notices) == 2)
    assert f"cannot write {url}" in notices[0]
    assert "rows wait" in notices[0]
    assert notices[1] == f"{url} works again"
    assert (machines[1].open(url).sessions / "a" / "transcript.jsonl").exists()


@needs_fsspec
async def test_a_batch_that_is_stopped_does_not_wait_for_a_url_that_cannot_be_written(
    machines: list[Machine], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amplifier_batch.record.remote._PATIENCE_SECONDS", 0.1)
    batch, store = create(machines[0], url), tmp_path / "store"

    async def stop_while_it_is_away() -> None:
        with driving(batch), writing(batch) as writer:
            writer.claim("a", 1, "a")
            await seal(writer, "a")
            store.rename(tmp_path / "away")
            store.write_text("a file in its place")
            write_session(writer, "a", "one")
            batch.sealer.hurry()
            await seal(writer, "a")

    with pytest.raises(SessionError, match=f"cannot write {url}") as caught:
        await stop_while_it_is_away()
    assert caught.value.hint == f"Rows continue from what is there: amplifier batch resume {url}"
    store.unlink()
    (tmp_path / "away").rename(store)
    assert not (machines[0].open(url).sessions / "a").exists()


@needs_fsspec
async def test_a_file_that_cannot_be_read_is_a_matter_of_its_row(
    machines: list[Machine], url: str
) -> None:
    batch = create(machines[0], url)
    with driving(batch), writing(batch) as writer:
        for row in ("a", "b"):
            writer.claim(row, 1, row)
        deep = batch.path / "work" / "a"
        deep.mkdir(parents=True)
        folder = os.open(deep, os.O_RDONLY)
        for _ in range(30):
            os.mkdir("d" * 200, dir_fd=folder)
            inner = os.open("d" * 200, os.O_RDONLY, dir_fd=folder)
            os.close(folder)
            folder = inner
        os.close(folder)
        write_session(writer, "b", "one")
        assert "File name too long" in (await batch.sealer.seal("a") or "")
        await seal(writer, "b")
        writer.end(result("a"))
    assert rows(machines[1].open(url)) == ["a"]


@needs_fsspec
def test_of_two_new_batches_at_a_url_one_begins(machines: list[Machine], url: str) -> None:
    first, second = machines[:2]
    batches = [create(machine, url) for machine in (first, second)]
    with driving(batches[0]):
        pass
    second.activate()
    with pytest.raises(ConfigError, match="already contains a batch"), driving(batches[1]):
        pass
    with pytest.raises(ConfigError, match="already contains a batch"):
        find_new_folder(url)


@needs_fsspec
@pytest.mark.parametrize("is_same_machine", [True, False])
def test_a_batch_begins_where_a_driver_was_killed_before_all_first_files_were_sealed(
    machines: list[Machine], url: str, monkeypatch: pytest.MonkeyPatch, is_same_machine: bool
) -> None:
    class Killed(Store):
        def create(self, name: str, data: bytes) -> bool:
            if name.endswith("001"):
                raise SystemExit
            return super().create(name, data)

    with monkeypatch.context() as patch:
        patch.setattr("amplifier_batch.record.remote.Store", Killed)
        patch.setattr("amplifier_batch.record.replica._MAX_PART", 10)
        with pytest.raises(SystemExit), driving(create(machines[0], url)):
            pass
    with pytest.raises(SessionError, match=r"the first files .* are incomplete"):
        machines[0].open(url)
    machine = machines[not is_same_machine]
    if not is_same_machine:
        machine.activate()
        with pytest.raises(ConfigError, match="already contains a batch"):
            find_new_folder(url)
        monkeypatch.setattr("amplifier_batch.record.folder._SECONDS_ALIVE", 0)
        find_new_folder(url)
        # A removal that was stopped may have left the parts alone.
        shutil.rmtree(Path(url.removeprefix("file://")) / "drivers")
    batch = create(machine, url)
    with driving(batch), writing(batch) as writer:
        writer.claim("a", 1, "a")
        writer.end(result("a"))
    assert rows(machines[2].open(url)) == ["a"]
    # The killed driver would find its next part there, and stop.
    assert not Store(url).create("parts/000/000/001", b"")
    with pytest.raises(ConfigError, match="already contains a batch"):
        find_new_folder(url)


@needs_fsspec
def test_a_copy_of_an_earlier_batch_at_the_url_is_not_used(
    machines: list[Machine], url: str, tmp_path: Path
) -> None:
    for row in ("a", "b"):
        batch = create(machines[0], url)
        with driving(batch), writing(batch) as writer:
            writer.claim(row, 1, row)
            writer.end(result(row))
        assert rows(machines[1].open(url)) == [row]
        (tmp_path / "store").rename(tmp_path / f"old-{row}")


@needs_fsspec
@pytest.mark.parametrize("part", ["001", "never"])
def test_a_batch_that_did_not_begin_leaves_nothing(
    machines: list[Machine], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    class Interrupted(Store):
        def create(self, name: str, data: bytes) -> bool:
            is_created = super().create(name, data)
            if name.endswith(part) and data:
                raise ConfigError("refused")
            return is_created

    monkeypatch.setattr("amplifier_batch.record.remote.Store", Interrupted)
    monkeypatch.setattr("amplifier_batch.record.replica._MAX_PART", 10)
    machines[0].activate()
    folder = find_new_folder(url)
    with (
        pytest.raises(ConfigError, match="refused"),
        removing_unbegun(folder),
        new_folder(folder),
        driving(BatchFolder.create(folder, FACTS, "")),
    ):
        raise ConfigError("refused")
    assert not (tmp_path / "store").exists()
    with pytest.raises(ConfigError, match="there is no batch"):
        find_folder(url)


@needs_fsspec
def test_a_batch_that_did_not_begin_leaves_what_another_driver_has_written(
    machines: list[Machine], url: str
) -> None:
    def end_after_another_took_over() -> None:
        with machines[1].drive(url, take_over=True):
            pass
        machines[0].activate()
        raise ConfigError("refused")

    machines[0].activate()
    folder = find_new_folder(url)
    with (
        pytest.raises(ConfigError, match="refused"),
        removing_unbegun(folder),
        new_folder(folder),
        driving(BatchFolder.create(folder, FACTS, "")),
    ):
        end_after_another_took_over()
    assert machines[2].open(url).facts.items() >= FACTS.items()


@needs_fsspec
def test_a_service_that_replaces_files_is_refused(tmp_path: Path) -> None:
    class Replacing(Store):
        def _create(self, path: str, data: bytes) -> None:
            Path(path).parent.mkdir(exist_ok=True)
            Path(path).write_bytes(data)

    with pytest.raises(ConfigError, match="no conditional writes"):
        Replacing(f"file://{tmp_path}/store").require_exclusive()


@needs_fsspec
def test_a_lost_answer_to_a_write_is_not_taken_for_another_driver(tmp_path: Path) -> None:
    class Losing(Store):
        def _create(self, path: str, data: bytes) -> None:
            super()._create(path, data)
            raise ConnectionResetError("connection reset")

    store = Losing(f"file://{tmp_path}/store")
    assert store.create("part", b"mine")
    assert not store.create("part", b"yours")
    assert Store(store.url).read("part") == b"mine"
    with pytest.raises(Unavailable):
        Store(f"file://{tmp_path}/store/part").create("below a file", b"")


@needs_fsspec
def test_a_killed_driver_of_this_machine_is_not_waited_for(
    machines: list[Machine], url: str
) -> None:
    first, second, _ = machines
    batch = create(first, url)
    with driving(batch):
        pass
    name = Store(url).list("drivers")[-1]
    alive: dict[str, Any] = json.loads(Store(url).read(f"drivers/{name}") or b"")
    # As it is after a kill.
    Store(url).write(
        f"drivers/{name}", json.dumps({**alive, "ended": False, "time": time.time()}).encode()
    )
    with pytest.raises(SessionError, match="another driver runs the batch"), second.drive(url):
        pass
    with first.drive(url):
        pass


@needs_fsspec
def test_files_of_another_machine_are_looked_for_in_the_current_directory(
    machines: list[Machine], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines[0].activate()
    folder = tmp_path / "checkout"
    facts: dict[str, Any] = {
        **FACTS,
        "working_dir": str(folder),
        "input": str(folder / "in" / "rows.jsonl"),
    }
    facts["request"] = {"plan": str(folder / "plan.yaml"), "schema": "/elsewhere/schema.json"}
    folder.mkdir()
    batch = BatchFolder.create(find_new_folder(url), facts, "")
    with driving(batch):
        pass
    assert machines[1].open(url).facts["input"] == str(folder / "in" / "rows.jsonl")
    folder.rename(tmp_path / "other")
    monkeypatch.chdir(tmp_path / "other")
    moved = machines[1].open(url)
    assert moved.facts["working_dir"] == str(tmp_path / "other")
    assert moved.facts["input"] == str(tmp_path / "other" / "in" / "rows.jsonl")
    assert moved.facts["request"]["plan"] == str(tmp_path / "other" / "plan.yaml")
    assert moved.facts["request"]["schema"] == "/elsewhere/schema.json"
    with driving(moved), writing(moved):
        moved.require_unedited()
