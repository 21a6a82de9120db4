"""Parquet files as inputs of a batch. Most of it needs pyarrow, which CI installs for this file."""

from __future__ import annotations

import datetime
import importlib.util
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.base.errors import ConfigError
from amplifier_batch.input import as_json, compute_digest, read_rows
from amplifier_support.installation import install_command
from tests.support.cli import succeed

is_installed = importlib.util.find_spec("pyarrow") is not None
needs_pyarrow = pytest.mark.skipif(not is_installed, reason="needs pyarrow")


@pytest.mark.skipif(is_installed, reason="pyarrow is installed")
def test_without_pyarrow_the_error_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match="pyarrow is not installed") as caught:
        list(read_rows(tmp_path / "rows.parquet"))
    assert caught.value.hint == f"Install it with: {install_command('parquet')}"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, True),
        (2**60, 2**60),
        (float("nan"), None),
        (float("-inf"), None),
        (Decimal("12.50"), "12.50"),
        (Decimal("1E+3"), "1000"),
        (b"\xff\x00", "/wA="),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (datetime.datetime(2026, 1, 2, 3, 4, 5, 6), "2026-01-02T03:04:05.000006"),
        (datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), "2026-01-02T00:00:00+00:00"),
        (datetime.timedelta(minutes=1.5), 90.0),
        ({"a": [b"a", {"b": None}]}, {"a": ["YQ==", {"b": None}]}),
        ([("key", Decimal(1))], [["key", "1"]]),
    ],
)
def test_each_type_becomes_one_kind_of_json_value(value: Any, expected: Any) -> None:
    assert as_json(value) == expected


def written(path: Path, table: dict[str, Any], **options: Any) -> Path:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table(table), path, **options)
    return path


@needs_pyarrow
def test_rows_come_in_order_through_all_row_groups_with_json_values(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    table = {
        "id": [f"r{n}" for n in range(5000)],
        "n": list(range(5000)),
        "at": arrow.array([moment] * 5000, arrow.timestamp("ns", "UTC")),
        "price": arrow.array([Decimal("1.10")] * 5000, arrow.decimal128(10, 2)),
        "data": [b"\x00"] * 5000,
        "nested": [{"tags": ["a", None]}] * 5000,
    }
    source = written(tmp_path / "rows.parquet", table, row_group_size=700)
    rows = list(read_rows(source))
    assert [row.number for row in rows] == list(range(1, 5001))
    assert rows[4321].id == "r4321"
    assert rows[4321].fields == {
        "id": "r4321",
        "n": 4321,
        "at": "2026-01-02T03:04:05+00:00",
        "price": "1.10",
        "data": "AA==",
        "nested": {"tags": ["a", None]},
    }
    json.dumps([row.fields for row in rows])
    assert compute_digest(source).startswith("sha256:")


@needs_pyarrow
def test_nanoseconds_are_cut_and_rows_without_an_id_get_one(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    at = arrow.array([1_000_000_001_234_567_891], arrow.timestamp("ns"))
    (row,) = read_rows(written(tmp_path / "rows.parquet", {"at": at}))
    assert row.fields == {"at": "2001-09-09T01:46:41.234567"}
    assert len(row.id) == 12


@needs_pyarrow
@pytest.mark.parametrize("content", [b"", b"not Parquet", b"PAR1" + b"\0" * 100 + b"PAR1"])
def test_what_is_not_parquet_is_an_error_with_its_file(tmp_path: Path, content: bytes) -> None:
    source = tmp_path / "rows.parquet"
    source.write_bytes(content)
    with pytest.raises(ConfigError, match="the Parquet file cannot be read") as caught:
        list(read_rows(source))
    assert caught.value.location is not None
    assert caught.value.location.file == str(source)


@needs_pyarrow
def test_a_damaged_page_and_equal_ids_are_errors(tmp_path: Path) -> None:
    source = written(
        tmp_path / "rows.parquet",
        {"text": [f"text {n}" * 20 for n in range(3000)]},
        row_group_size=1500,
        compression="snappy",
        use_dictionary=False,
    )
    data = bytearray(source.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 2000] = b"\xff" * 2000
    source.write_bytes(data)
    with pytest.raises(ConfigError, match="the Parquet file cannot be read"):
        list(read_rows(source))
    twice = written(tmp_path / "twice.parquet", {"id": ["a", "a"]})
    with pytest.raises(ConfigError, match="the id 'a' is also that of row 1"):
        list(read_rows(twice))


@needs_pyarrow
def test_a_table_of_results_keeps_numbers_texts_and_mixed_values(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [
        {"id": "a", "size": 1, "share": 1, "mixed": "x", "list": [1, 2], "odd": "\ud800"},
        {"id": "b", "size": None, "share": 0.5, "mixed": 3, "list": None, "odd": ""},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for words in (
        ("run", "mock", "rows.jsonl", "-o", "out", "--prompt", "{{id}}"),
        ("results", "out", "--to", "results.parquet"),
    ):
        succeed("batch", *words, home=tmp_path / "home", cwd=tmp_path)
    found = parquet.read_table(tmp_path / "results.parquet").to_pylist()
    assert [(row["size"], row["share"], row["mixed"], row["list"]) for row in found] == [
        (1, 1.0, "x", "[1, 2]"),
        (None, 0.5, "3", None),
    ]
    assert [row["odd"] for row in found] == ["?", ""]
    assert [row["response"] for row in found] == ["You said: a", "You said: b"]
