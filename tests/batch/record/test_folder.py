"""The folder of a batch knows how far it is, whatever was interrupted."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.base.errors import ConfigError, SessionError
from amplifier_batch.record.folder import RESULTS, BatchFolder
from amplifier_batch.record.merging import merge
from amplifier_batch.record.results import result_line
from amplifier_batch.record.writer import BatchWriter, writing
from amplifier_batch.statistics.pass_rates import pass_rates
from amplifier_support import journal

FACTS = {"rows": 3, "plan_digest": "p", "lock_digest": None, "input_digest": "i", "prompt": None}


def result(
    row: str, outcome: str = "ok", cost: float | None = None, attempt: int = 1
) -> dict[str, Any]:
    spent = None if cost is None else {"usd": cost}
    number = ord(row[0]) - 96
    run: dict[str, Any] = {
        "outcome": outcome,
        "exit_code": 0,
        "response": "",
        "cost": spent,
        "session_id": row,
        "model": None,
        "error": None,
        "steps": 1,
        "usage": {},
        "tools": [],
        "sub_sessions": [],
        "duration_ms": 1,
    }
    return result_line(row, number, attempt, run)


@pytest.fixture
def batch(tmp_path: Path) -> BatchFolder:
    return BatchFolder.create(tmp_path / "out", FACTS, "")


def rows(batch: BatchFolder) -> list[tuple[str, str]]:
    return [(one["row"], one["outcome"]) for one in batch.results()]


def test_cached_answers_and_times_are_summed_and_those_of_a_continued_session_count_once(
    batch: BatchFolder,
) -> None:
    with writing(batch) as writer:
        for outcome, cached in (("budget", 2), ("ok", 3)):
            writer.claim("a", 1, "a")
            usage = {"cached_calls": cached}
            writer.end({**result("a", outcome), "usage": usage, "duration_ms": 1500})
            if outcome == "budget":
                assert writer.reopen(lambda _: True) == 1
        writer.claim("b", 1, "b")
        writer.end({**result("b"), "duration_ms": 500})
    counts, _ = batch.counts()
    assert (counts.cached, counts.timed, counts.seconds) == (3, 3, 3.5)


def test_rows_that_ended_are_counted_and_others_wait(batch: BatchFolder) -> None:
    with writing(batch) as writer:
        writer.claim("a", 1, "a")
        writer.end(result("a", cost=0.25))
        writer.claim("b", 1, "b")
        writer.release("b", "stopped", Decimal("0.5"))
    counts, running = batch.counts()
    assert not running
    assert (dict(counts.outcomes), counts.running, counts.cost) == ({"ok": 1}, 0, Decimal("0.75"))
    with writing(batch) as writer:
        assert writer.progress.of("a").outcome == "ok"
        assert (writer.progress.of("b").begun, writer.progress.of("b").attempt) == (True, 1)
        assert writer.progress.of("c").attempt == 0


def test_what_a_session_had_cost_before_is_not_counted_twice(batch: BatchFolder) -> None:
    with writing(batch) as writer:
        writer.claim("a", 1, "a")
        writer.release("a", "stopped", Decimal("0.5"))
        writer.claim("a", 1, "a")
        writer.end(result("a", cost=0.75))
        assert writer.progress.counts.cost == Decimal("0.75")


def test_the_torn_end_of_either_file_is_repaired(batch: BatchFolder) -> None:
    with writing(batch) as writer:
        writer.claim("a", 1, "a")
        writer.end(result("a"))
    whole = {name: (batch.path / name).read_bytes() for name in ("journal.jsonl", RESULTS)}
    for name, content in whole.items():
        for cut in range(1, 40):
            (batch.path / name).write_bytes(content + content[:cut])
            with writing(batch) as writer:
                assert writer.progress.of("a").outcome == "ok"
            assert (batch.path / name).read_bytes() == content, (name, cut)


def test_a_result_that_the_journal_does_not_know_yet_has_ended(batch: BatchFolder) -> None:
    with writing(batch) as writer:
        writer.claim("a", 1, "a")
        writer.end(result("a", cost=0.25))
    journal = batch.path / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))
    (batch.path / "status.json").unlink()
    with writing(batch) as writer:
        assert writer.progress.of("a").outcome == "ok"
        assert writer.progress.counts.cost == Decimal("0.25")
    assert rows(batch) == [("a", "ok")]


def test_a_result_is_on_disk_before_the_next_row(
    batch: BatchFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(
        *(journal, "_sync_data", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))
    )
    with writing(batch) as writer:
        synced.clear()
        writer.claim("a", 1, "a")
        writer.end(result("a"))
        # The journal has it with its next record; until then, the result says it.
        assert [Path(path).name for path in synced] == ["journal.jsonl", RESULTS]
    # Commands that only read the batch need the last record.
    assert [Path(path).name for path in synced[2:]] == ["journal.jsonl"]


def test_sums_of_records_that_were_lost_with_the_machine_do_not_count(batch: BatchFolder) -> None:
    with writing(batch) as writer:
        writer.claim("a", 1, "a")
        writer.end(result("a"))
        writer.claim("b", 1, "b")
    journal = batch.path / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:2]))
    with writing(batch) as writer:
        # Longer than the records that were lost.
        writer.claim("c", 1, "c" * 1000)
        counts, _ = batch.counts()
        assert (dict(counts.outcomes), counts.running) == ({"ok": 1}, 1)


def test_a_row_that_ran_during_a_crash_waits(batch: BatchFolder) -> None:
    with writing(batch) as writer:
        writer.claim("a", 1, "a")
    with writing(batch) as writer:
        assert writer.progress.counts.running == 0
        assert writer.progress.of("a").begun


@pytest.mark.parametrize("crash", ["before", "between", None])
def test_reopened_rows_lose_their_results_at_one_moment(
    batch: BatchFolder, crash: str | None
) -> None:
    with writing(batch) as writer:
        for name, outcome in (("a", "provider"), ("b", "ok"), ("c", "budget")):
            writer.claim(name, 1, name)
            writer.end(result(name, outcome, 0.5))
        before = (batch.path / RESULTS).read_bytes()
        journal = (batch.path / "journal.jsonl").read_bytes()
        assert writer.reopen(lambda one: one["outcome"] != "ok") == 2
        after = (batch.path / RESULTS).read_bytes()
        reopening = json.loads((batch.path / "journal.jsonl").read_bytes().splitlines()[-1])
    if crash == "before":
        (batch.path / "journal.jsonl").write_bytes(journal)
    if crash is not None:
        (batch.path / "status.json").unlink()
        (batch.path / RESULTS).write_bytes(before)
        (batch.path / reopening["file"]).write_bytes(after)
    expected = (
        [("a", "provider"), ("b", "ok"), ("c", "budget")] if crash == "before" else [("b", "ok")]
    )
    assert rows(batch) == expected
    with writing(batch) as writer:
        assert writer.progress.counts.ended == len(expected)
        if crash != "before":
            a, c = writer.progress.of("a"), writer.progress.of("c")
            # A row that reached a limit goes on with its session.
            assert ((a.attempt, a.begun), (c.attempt, c.begun)) == ((1, False), (1, True))
    assert rows(batch) == expected
    assert not list(batch.path.glob("results-*"))


def test_only_one_process_writes(batch: BatchFolder) -> None:
    with writing(batch):
        assert batch.counts()[1]
        with pytest.raises(SessionError, match=r"the batch in .* is running \(process \d+\)"):
            writing(batch).__enter__()
    assert not batch.counts()[1]


def test_a_damaged_journal_is_named_with_its_line(batch: BatchFolder) -> None:
    with writing(batch) as writer:
        for name in "abc":
            writer.claim(name, 1, name)
    journal = batch.path / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    (batch.path / "status.json").unlink()
    journal.write_bytes(lines[0] + b"{damaged\n" + b"".join(lines[2:]))
    with pytest.raises(SessionError, match=r"journal\.jsonl is damaged at line 2"):
        batch.counts()


def test_a_row_that_is_not_named_by_a_string_is_damage(batch: BatchFolder) -> None:
    with writing(batch) as writer:
        writer.claim("a", 1, "a")
    journal = batch.path / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"id":"a"', b'"id":5'))
    with pytest.raises(SessionError, match=r"journal\.jsonl is damaged at line 2"):
        batch.progress()


@pytest.mark.parametrize(
    "edit",
    [
        *({"outcomes": {"ok": value}} for value in (None, "1", -5, 1.5)),
        *({"size": "12"}, {"replaced": 0.5}, {"cost": "NaN"}, {"running": -1}),
    ],
    ids=str,
)
def test_an_edited_status_is_counted_again(batch: BatchFolder, edit: dict[str, Any]) -> None:
    with writing(batch) as writer:
        writer.claim("a", 1, "a")
        writer.end(result("a"))
        writer.save_status()
    status = batch.path / "status.json"
    data = json.loads(status.read_bytes())
    data["counts"] |= edit
    status.write_text(json.dumps(data))
    counts, _ = batch.counts()
    assert (dict(counts.outcomes), counts.running) == ({"ok": 1}, 0)
    assert [one["row"] for one in batch.results()] == ["a"]


def test_the_status_is_read_without_the_journal_before_it(batch: BatchFolder) -> None:
    with writing(batch) as writer:
        for name in "abc":
            writer.claim(name, 1, name)
            writer.end(result(name, cost=0.5))
        writer.save_status()
        writer.claim("d", 1, "d")
        journal = batch.path / "journal.jsonl"
        content = journal.read_bytes()
        known = json.loads((batch.path / "status.json").read_bytes())["journal_size"]
        first = content.index(b"\n") + 1
        journal.write_bytes(content[:first] + b"x" * (known - first) + content[known:])
        counts, is_running = batch.counts()
    assert (dict(counts.outcomes), counts.running, is_running) == ({"ok": 3}, 1, True)
    assert counts.cost == Decimal("1.5")


def test_the_runs_of_each_row_are_counted_without_the_journal(tmp_path: Path) -> None:
    batch = BatchFolder.create(tmp_path / "out", {**FACTS, "repeat": 3}, "")

    def end(writer: BatchWriter, row: str, run: int, outcome: str) -> None:
        writer.claim(f"{row}:{run}", 1, f"{row}.r{run}")
        writer.end({**result(row, outcome), "repeat": run})

    with writing(batch) as writer:
        end(writer, "a", 1, "ok")
        end(writer, "b", 1, "provider")
        writer.save_status()
        end(writer, "a", 3, "provider")
        end(writer, "b", 2, "ok")
        end(writer, "c", 1, "ok")
        assert +batch.counts()[0].cells == {(2, 1): 2, (1, 1): 1}
        writer.reopen(lambda one: one["outcome"] == "provider")
        assert not batch.counts()[0].knows_cells
        assert [one[:2] for one in pass_rates(batch, batch.counts()[0])] == [(1, 1.0)]
    with writing(batch) as writer:
        end(writer, "a", 3, "ok")
    assert +batch.counts()[0].cells == {(2, 2): 1, (1, 1): 2}
    assert batch.counts()[0].knows_cells


def test_of_two_processes_one_begins_a_batch(tmp_path: Path) -> None:
    together = threading.Barrier(6)

    def create(number: int) -> str:
        together.wait()
        try:
            BatchFolder.create(tmp_path / "out", {**FACTS, "prompt": f"{number}"}, f"{number}")
        except ConfigError as error:
            return str(error)
        return f"{number}"

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(create, range(6)))
    (winner,) = [text for text in found if text.isdecimal()]
    batch = BatchFolder(tmp_path / "out")
    assert (batch.facts["prompt"], batch.plan) == (winner, winner)
    assert all(
        "already contains a batch" in text or "not empty" in text
        for text in found
        if text != winner
    )


def test_lines_are_counted_from_the_beginning_of_a_journal(batch: BatchFolder) -> None:
    with writing(batch) as writer:
        for name in "abc":
            writer.claim(name, 1, name)
    assert (batch.path / "status.json").exists()
    with open(batch.path / "journal.jsonl", "ab") as journal:
        journal.write(b'{"event": "other"}\n{damaged\n{"event": "other"}\n')
    with pytest.raises(SessionError, match=r"journal\.jsonl is damaged at line 6"):
        batch.counts()


@pytest.mark.parametrize(
    "record",
    [
        "{}",
        "[1]",
        '{"event": "claimed"}',
        '{"event": "ended", "id": "a", "attempt": "x", "outcome": "ok", "size": 1}',
        '{"event": "ended", "id": "a", "attempt": 1, "outcome": "ok", "cost": "much", "size": 1}',
        '{"event": "ended", "id": "a", "attempt": 1, "outcome": "unknown", "cost": "1", "size": 1}',
        '{"event": "ended", "id": "a", "attempt": 1, "outcome": "ok", "cost": "nan", "size": 1}',
        '{"event": "reopened", "rows": [], "file": "f", "size": 0}',
        '{"event": "reopened", "rows": {}, "file": "../results.jsonl", "size": 0}',
        '{"event": "released", "id": ["a"]}',
        '{"event": "sent", "key": "unknown", "id": "b_1"}',
    ],
)
def test_a_foreign_record_is_named_with_its_line_or_ignored(
    batch: BatchFolder, record: str
) -> None:
    with writing(batch) as writer:
        writer.claim("a", 1, "a")
    journal = batch.path / "journal.jsonl"
    journal.write_bytes(journal.read_bytes() + record.encode() + b"\n" + b'{"event": "x"}\n')
    if record == "{}":
        assert batch.counts()[0].running == 1
        return
    for read in (batch.progress, writing(batch).__enter__):
        with pytest.raises(SessionError, match=r"journal\.jsonl is damaged at line 3"):
            read()


def test_the_journal_of_another_batch_is_refused(batch: BatchFolder, tmp_path: Path) -> None:
    other = BatchFolder.create(tmp_path / "other", FACTS, "")
    for one in (batch, other):
        with writing(one) as writer:
            writer.claim("a", 1, "a")
    (batch.path / "journal.jsonl").write_bytes((other.path / "journal.jsonl").read_bytes())
    for read in (batch.counts, batch.progress, writing(batch).__enter__):
        with pytest.raises(SessionError, match=r"journal\.jsonl belongs to another batch"):
            read()


@pytest.mark.parametrize("edit", ["removed", "added", "truncated", "repeated", "missing"])
def test_edited_results_are_refused_and_not_touched(batch: BatchFolder, edit: str) -> None:
    with writing(batch) as writer:
        for name in "abc":
            writer.claim(name, 1, name)
            writer.end(result(name))
    file = batch.path / RESULTS
    lines = file.read_bytes().splitlines(keepends=True)
    edited = {
        "removed": [lines[0], lines[2]],
        "added": [lines[0], b"\n", *lines[1:]],
        "truncated": [*lines[:2], lines[2][:40]],
        "repeated": [*lines, lines[0]],
        "missing": [],
    }[edit]
    file.write_bytes(b"".join(edited))
    if edit == "missing":
        file.unlink()
    before = (batch.path / "journal.jsonl").read_bytes()
    with pytest.raises(SessionError, match=r"results\.jsonl (was changed|is damaged at line)"):
        writing(batch).__enter__()
    if edit != "repeated":  # what is behind the known lines is not read yet
        with pytest.raises(SessionError, match=r"results\.jsonl (was changed|is damaged at line)"):
            list(batch.results())
    assert (file.read_bytes() if file.exists() else b"") == b"".join(edited)
    assert (batch.path / "journal.jsonl").read_bytes() == before


@pytest.mark.parametrize("content", ["", "[]", '{"schema_version": 99}', "[" * 100_000])
def test_a_foreign_batch_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "batch.json").write_text(content)
    with pytest.raises(SessionError):
        BatchFolder(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("rows", "3"), ("rows", None), ("request", []), ("input", "a\0b"), ("plan_digest", 1)),
        *(("workers", "many"), ("deadline", "soon")),
    ],
)
def test_an_edited_batch_file_is_refused(batch: BatchFolder, name: str, value: Any) -> None:
    file = batch.path / "batch.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))
    with pytest.raises(SessionError, match=f"batch.json is damaged: '{name}'"):
        BatchFolder(batch.path)


def test_a_fact_that_was_edited_is_named_and_limits_may_change(batch: BatchFolder) -> None:
    batch.require_unedited()
    with writing(batch):
        pass
    batch.change({"workers": 2, "max_cost": "1", "deadline": 7.5, "stop_after": "5%"})
    batch.require_unedited()
    file = batch.path / "batch.json"
    facts = json.loads(file.read_text())
    edits = {"rows": 4, "repeat": 2, "prompt": "p", "economy": True, "plan_digest": "q", "more": 1}
    for name, value in edits.items():
        file.write_text(json.dumps(facts | {name: value}))
        with pytest.raises(ConfigError, match=f"'{name}' in .*batch.json changed since"):
            BatchFolder(batch.path).require_unedited()


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        BatchFolder.create(tmp_path, FACTS, "")
    with pytest.raises(ConfigError, match="there is no batch in") as raised:
        BatchFolder(tmp_path)
    assert str(raised.value.hint).endswith(f"-o {tmp_path}")
    with pytest.raises(ConfigError) as raised:
        BatchFolder(tmp_path / "notes.txt")
    assert "Pass the folder" in str(raised.value.hint)


def test_shards_are_merged_in_the_order_of_the_rows(tmp_path: Path) -> None:
    parts = [
        BatchFolder.create(tmp_path / name, {**FACTS, "rows": 1}, "") for name in ("one", "two")
    ]
    for part, name in zip(parts, "ba", strict=True):
        with writing(part) as writer:
            writer.claim(name, 1, name)
            writer.end(result(name))
            (part.sessions / name).mkdir(parents=True)
    merged = merge(parts, tmp_path / "all")
    assert rows(merged) == [("a", "ok"), ("b", "ok")]
    assert sorted(path.name for path in merged.sessions.iterdir()) == ["a", "b"]
    with pytest.raises(ConfigError, match="the row 'b' is in"):
        merge([parts[0], parts[0]], tmp_path / "twice")
    other = BatchFolder.create(tmp_path / "other", {**FACTS, "plan_digest": "q"}, "")
    with pytest.raises(ConfigError, match="have a different plan"):
        merge([parts[0], other], tmp_path / "mixed")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", ["batch.json", "journal.jsonl", RESULTS, "plan.yaml"])
def test_a_pipe_in_place_of_a_file_is_refused(name: str, batch: BatchFolder) -> None:
    with writing(batch) as writer:
        writer.claim("a", 1, "a")
        writer.end(result("a"))
    (batch.path / name).unlink()
    (batch.path / "status.json").unlink(missing_ok=True)
    os.mkfifo(batch.path / name)

    def read_all() -> None:
        again = BatchFolder(batch.path)
        assert again.plan == ""
        rows(again)

    with pytest.raises(SessionError, match=f"{name}.* not a regular file"):
        read_all()


def test_a_status_of_any_content_is_replaced_by_the_journal(batch: BatchFolder) -> None:
    with writing(batch) as writer:
        writer.claim("a", 1, "a")
        writer.end(result("a"))
    status = batch.path / "status.json"
    for content in (
        "[" * 200_000,
        "7",
        '{"journal_size": 0}',
        '{"journal_size": NaN, "counts": {}}',
    ):
        status.write_text(content)
        assert BatchFolder(batch.path).counts()[0].outcomes == {"ok": 1}, content[:40]
    status.unlink()
    if hasattr(os, "mkfifo"):
        os.mkfifo(status)
        assert BatchFolder(batch.path).counts()[0].outcomes == {"ok": 1}
