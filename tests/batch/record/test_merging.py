"""Batches of shards put together."""

import os
import shutil
import tracemalloc
from decimal import Decimal
from pathlib import Path

import pytest

from amplifier_app.base.errors import ConfigError, SessionError
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.record.merging import merge
from amplifier_batch.record.writer import writing
from amplifier_batch.scores import read_scores, store_score
from tests.batch.record.test_folder import result

FACTS = {"plan_digest": "p", "lock_digest": None, "input_digest": "i", "prompt": None, "rows": 1}


def part(folder: Path, row: str, number: int, *, ended: bool) -> BatchFolder:
    batch = BatchFolder.create(folder, {**FACTS, "input": "/rows.jsonl"}, "")
    for kind in ("sessions", "work"):
        (folder / kind / row).mkdir(parents=True)
        (folder / kind / row / "file").write_text(row)
    with writing(batch) as writer:
        writer.claim(row, 1, row)
        if ended:
            writer.end({**result(row), "number": number})
        else:
            writer.release(row, "stopped", Decimal("0.25"))
    return batch


def test_rows_that_have_not_ended_go_on_after_a_merge(tmp_path: Path) -> None:
    parts = [
        part(tmp_path / "1", "a", 1, ended=False),
        part(tmp_path / "2", "b", 2, ended=True),
    ]
    merged = merge(parts, tmp_path / "all")
    progress = merged.progress()
    assert (progress.of("a").begun, progress.of("a").outcome) == (True, None)
    assert progress.recorded["a"] == merged.counts()[0].cost == Decimal("0.25")
    assert progress.of("b").outcome == "ok"
    assert [result["row"] for result in merged.results()] == ["b"]
    assert sorted(path.name for path in merged.sessions.iterdir()) == ["a", "b"]
    assert [path.name for path in (merged.path / "work").iterdir()] == ["a"]


def test_a_merge_keeps_the_cost_of_earlier_attempts(tmp_path: Path) -> None:
    parts = [part(tmp_path / row, row, n, ended=n == 2) for n, row in enumerate("ab", 1)]
    with writing(parts[0]) as writer:
        for attempt in (1, 2):
            writer.claim("a", attempt, f"a.{attempt}")
            writer.end({**result("a"), "attempts": attempt, "cost": {"usd": 0.75}})
            writer.reopen(lambda line: line["attempts"] == 1)
    assert parts[0].counts()[0].cost == Decimal("1.5")
    merged = merge(parts, tmp_path / "all")
    assert merged.counts()[0].cost == merged.progress().counts.cost == Decimal("1.5")
    assert merged.counts()[0].ended == 2


def test_scores_are_kept_by_a_merge(tmp_path: Path) -> None:
    parts = [part(tmp_path / row, row, n, ended=True) for n, row in enumerate("ab", 1)]
    for number, batch in enumerate(parts, 1):
        run = {"number": number, "repeat": 1, "attempts": 1}
        store_score(batch.path, run, {"name": "x", "by": "d", "value": number, "reason": None})
    with (parts[0].path / "scores.jsonl").open("a") as file:
        file.write('{"number": 1, "rep')
    scores = read_scores(merge(parts, tmp_path / "all"))
    assert {key: score["x"].value for key, score in scores.items()} == {(1, 1): 1, (2, 1): 2}


def test_batches_with_the_same_row_or_that_run_are_not_merged(tmp_path: Path) -> None:
    parts = [part(tmp_path / str(n), "a", 1, ended=False) for n in (1, 2)]
    with pytest.raises(ConfigError, match="the row 'a' is in"):
        merge(parts, tmp_path / "all")
    with writing(parts[0]), pytest.raises(SessionError, match="is running"):
        merge(parts[:1], tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_a_merge_that_fails_leaves_no_folder_and_can_be_repeated(tmp_path: Path) -> None:
    parts = [part(tmp_path / str(n), f"row{n}", n, ended=n == 1) for n in (1, 2)]
    pipe = parts[1].sessions / "row2" / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(SessionError, match="is a named pipe"):
        merge(parts, tmp_path / "new" / "all")
    assert not (tmp_path / "new").exists()
    pipe.unlink()
    assert merge(parts, tmp_path / "new" / "all").counts()[0].ended == 1


def test_merging_keeps_the_order_of_the_rows_without_keeping_the_results(tmp_path: Path) -> None:
    text, parts = "x" * 100_000, list[BatchFolder]()
    for shard in (0, 1):
        parts.append(BatchFolder.create(tmp_path / str(shard), {**FACTS, "rows": 30}, ""))
        with writing(parts[-1]) as writer:
            for number in reversed(range(shard + 1, 61, 2)):
                row = f"row-{number}"
                writer.claim(row, 1, row)
                writer.end({**result(row), "number": number, "response": text})
    tracemalloc.start()
    try:
        merged = merge(parts, tmp_path / "all")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [one["number"] for one in merged.results()] == [*range(1, 61)]
    assert most < 30 * len(text)


def test_repeated_rows_are_merged_with_their_runs(tmp_path: Path) -> None:
    batch = BatchFolder.create(tmp_path / "1", {**FACTS, "input": "/rows.jsonl", "repeat": 2}, "")
    with writing(batch) as writer:
        for repeat in (2, 1):
            writer.claim(f"a:{repeat}", 1, f"a.r{repeat}")
        writer.end({**result("a"), "repeat": 2, "session_id": "a.r2"})
        writer.release("a:1", "stopped")
    (tmp_path / "1" / "work" / "a.r1").mkdir(parents=True)
    merged = merge([batch], tmp_path / "all")
    assert (merged.runs, merged.counts()[0].ended) == (2, 1)
    assert merged.progress().of("a:1").begun
    assert [path.name for path in (merged.path / "work").iterdir()] == ["a.r1"]
    single = part(tmp_path / "2", "b", 2, ended=True)
    with pytest.raises(ConfigError, match="different repeat"):
        merge([batch, single], tmp_path / "both")


def test_files_that_were_saved_in_a_part_are_copied(tmp_path: Path) -> None:
    files = {"input.txt": b"a\n\xff\n", "schema.json": b"{}"}
    (tmp_path / "1").mkdir()
    for name, content in files.items():
        (tmp_path / "1" / name).write_bytes(content)
    source, schema = (str(tmp_path / "1" / name) for name in files)
    facts = {**FACTS, "input": source, "request": {"schema": schema, "model": "m"}}
    merge([BatchFolder.create(tmp_path / "1", facts, "")], tmp_path / "all")
    shutil.rmtree(tmp_path / "1")
    (tmp_path / "all").rename(tmp_path / "moved")
    merged = BatchFolder(tmp_path / "moved")
    assert merged.facts["input"] == str(tmp_path / "moved" / "input.txt")
    assert merged.facts["request"] == {
        "schema": str(tmp_path / "moved" / "schema.json"),
        "model": "m",
    }
    assert {name: (tmp_path / "moved" / name).read_bytes() for name in files} == files
