"""Inputs of a batch become rows, or one clear error with its line."""

import bz2
import glob
import gzip
import hashlib
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.base.errors import ConfigError, Location, UsageError
from amplifier_app.sessions.summary import ID
from amplifier_batch.input import (
    RELATIVE,
    PromptTemplate,
    Row,
    build_session_id,
    compute_digest,
    read_batch_rows,
    read_rows,
)


def write(tmp_path: Path, name: str, text: str | bytes) -> Path:
    file = tmp_path / name
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def fields(file: Path) -> list[dict[str, Any]]:
    return [row.fields for row in read_rows(file)]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.jsonl", '{"x": 1}\n\n{"x": [2]}', [{"x": 1}, {"x": [2]}]),
        ("a.json", '[{"x": 1}, {"x": 2}]', [{"x": 1}, {"x": 2}]),
        ("a.csv", 'x,y\r\n1,"a,\nb"\r\n', [{"x": "1", "y": "a,\nb"}]),
        ("a.tsv", "x\ty\n1\t2\n", [{"x": "1", "y": "2"}]),
        ("a.txt", "one\n\ntwo\r\n", [{"text": "one", "line": 1}, {"text": "two", "line": 3}]),
        ("a.jsonl", b'\xef\xbb\xbf{"x": 1}\n', [{"x": 1}]),
        ("a.jsonl.gz", gzip.compress(b'{"x": 1}\n', mtime=0), [{"x": 1}]),
        ("a.CSV.BZ2", bz2.compress(b"x\n1\n"), [{"x": "1"}]),
        ("a.xz", lzma.compress(b"one\n"), [{"text": "one", "line": 1}]),
    ],
)
def test_each_form_of_input_gives_rows(
    tmp_path: Path, name: str, text: str | bytes, expected: list[dict[str, Any]]
) -> None:
    assert fields(write(tmp_path, name, text)) == expected


def test_a_folder_and_a_pattern_give_one_row_per_file(tmp_path: Path) -> None:
    for name in ("b.py", "sub/a.py", "sub/c.txt", ".hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    names = [row.fields["name"] for row in read_rows(tmp_path)]
    assert names == ["b.py", "a.py", "c.txt"]
    assert [one["name"] for one in fields(tmp_path / "**/*.py")] == ["b.py", "a.py"]


def test_the_files_of_batches_are_no_rows(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for name in ("a.json", "data/batch.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    (folder / "out" / "sessions").mkdir(parents=True)
    (folder / "out" / "sessions" / "b.json").touch()
    (folder / "out" / "batch.json").write_text('{"input_digest": "d"}')
    assert [row.id for row in read_rows(folder)] == ["a.json", "data/batch.json"]
    assert [row.id for row in read_rows(folder / "**" / "*.json")] == ["a.json", "data/batch.json"]
    # A pattern that names its folders, or a folder in a batch, is meant.
    named = [row.id for row in read_rows(folder / "*" / "*.json")]
    assert named == ["data/batch.json", "out/batch.json"]
    assert [row.id for row in read_rows(folder / "out" / "sessions")] == ["b.json"]


def test_the_same_files_in_two_checkouts_have_the_same_ids(tmp_path: Path) -> None:
    digests: list[list[str]] = []
    for checkout in (tmp_path / "one [1]", tmp_path / "two"):
        for name in ("src/a.py", "src/sub/b.py"):
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            (checkout / name).touch()
        inside = Path(glob.escape(str(checkout)))
        sources = {
            checkout: ["src/a.py", "src/sub/b.py"],
            inside / "src/**/*.py": ["a.py", "sub/b.py"],
            inside / "s*/sub/*": ["src/sub/b.py"],
        }
        for source, expected in sources.items():
            rows = list(read_rows(source))
            assert [row.id for row in rows] == expected
            assert [row.fields["path"].startswith(str(checkout)) for row in rows] == [True] * len(
                rows
            )
        digests.append([compute_digest(source) for source in sources])
    assert digests[0] == digests[1]


def test_batches_of_earlier_versions_keep_the_ids_of_their_files(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "")
    path = str(tmp_path / "a.py")
    (row,) = read_batch_rows({"input": str(tmp_path)})
    data = json.dumps({"name": "a.py", "path": path}, separators=(",", ":"))
    assert row.id == hashlib.sha256(data.encode()).hexdigest()[:12]
    digest = hashlib.sha256(path.encode() + b"\0").hexdigest()
    assert compute_digest(tmp_path, absolute=True) == f"sha256:{digest}"
    (row,) = read_batch_rows({"input": str(tmp_path), "ids": RELATIVE})
    assert row.id == "a.py"
    numbers = write(tmp_path, "n.jsonl", '{"x": NaN}')
    assert len(list(read_batch_rows({"input": str(numbers)}))) == 1


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"x": 1}\n{"x": \n', "a.jsonl:2: invalid JSON"),
        ("a.jsonl", '{"x": 1}\n[1]\n', "a.jsonl:2: a row must be a JSON object"),
        ("a.jsonl", '{"id": "a"}\n{"id": "b"}\n{"id": "a"}\n', "the id 'a' is also that of line 1"),
        ("a.jsonl", '{"id": [1]}\n', "a.jsonl:1: invalid row id: [1]"),
        ("a.jsonl", '{"x":' + "[" * 100_000, "a.jsonl:1: invalid JSON: nested too deeply"),
        ("a.json", '{"x": 1}', "it is not a JSON array"),
        ("a.json", "[{},\n}]", "a.json:2:1: invalid JSON"),
        ("a.csv", "x,x\n1,2\n", "a.csv:1: the first line must name every column once"),
        ("a.csv", "x,y\n1,2\n1\n", "a.csv:3: expected 2 values, found 1"),
        ("a.txt", b"\xff\xfe", "it is not UTF-8 text"),
        ("a.jsonl", '{"x": 1}\n{"x": NaN}\n', "a.jsonl:2: invalid JSON: NaN is not a number"),
        ("a.json", '[{"x": -Infinity}]', "-Infinity is not a number in JSON"),
        ("a.jsonl", '{"x": 1e999}', "1e999 is not a number in JSON"),
        ("a.jsonl", gzip.compress(b'{"x": 1}', mtime=0), "it is compressed"),
        ("a.jsonl.gz", gzip.compress(b'{"x": 1}' * 99, mtime=0)[:-9], "its compression is damaged"),
        ("a.jsonl.gz", b'{"x": 1}', "not a gzipped file"),
        ("a.jsonl.gz", gzip.compress(b'{"x": 1}\n{"x": \n', mtime=0), "a.jsonl.gz:2: invalid JSON"),
        ("a.jsonl.xz", b"\xfd7zXZ\0no", "its compression is damaged"),
    ],
)
def test_an_invalid_input_is_an_error_with_its_line(
    tmp_path: Path, name: str, text: str | bytes, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        fields(write(tmp_path, name, text))
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv", "a.txt"])
def test_an_empty_file_has_no_rows(tmp_path: Path, name: str) -> None:
    assert fields(write(tmp_path, name, "")) == []


@pytest.mark.parametrize("name", ["missing.jsonl", "missing/*.py"])
def test_a_missing_input_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        fields(tmp_path / name)


def test_equal_rows_without_ids_are_reported_with_both_lines(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"jsonl:2: the row is the same as line 1"):
        fields(write(tmp_path, "a.jsonl", '{"x": 1}\n{"x": 1}\n'))


def test_the_id_of_a_row_depends_on_its_fields_only(tmp_path: Path) -> None:
    first = [
        row.id for row in read_rows(write(tmp_path, "a.jsonl", '{"x": 1, "y": 2}\n{"x": 2}\n'))
    ]
    second = [
        row.id for row in read_rows(write(tmp_path, "b.jsonl", '{"x": 2}\n{"y": 2, "x": 1}\n'))
    ]
    assert first == second[::-1]


def test_the_digest_follows_the_content(tmp_path: Path) -> None:
    file = write(tmp_path, "a.txt", "one")
    before = compute_digest(file)
    assert compute_digest(file) == before
    file.write_text("two")
    assert compute_digest(file) != before


# -- prompts -----------------------------------------------------------------------------


def row(**values: Any) -> Row:
    return Row(1, Location("rows.jsonl", 7), "r", values)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("Say {{x}}.", "Say one."),
        ("{{ x }}{{x}}", "oneone"),
        ("{{data.a.1}}", "20"),
        ("{{data}}", '{"a": [10, 20]}'),
        ("{{a.b}}", "dotted"),
        (r"\{{x}} {x}", "{{x}} {x}"),
        ("{{hostile}}", "{{x}} ${HOME} %s"),
    ],
)
def test_fields_are_inserted_and_not_expanded_again(template: str, expected: str) -> None:
    values = {"x": "one", "data": {"a": [10, 20]}, "a.b": "dotted", "hostile": "{{x}} ${HOME} %s"}
    assert PromptTemplate(template).render(row(**values)) == expected


def test_without_a_template_the_field_prompt_or_text_is_the_prompt() -> None:
    assert PromptTemplate(None).render(row(prompt="p", text="t")) == "p"
    assert PromptTemplate(None).render(row(text="t")) == "t"


def test_a_missing_field_names_the_row_and_its_fields() -> None:
    with pytest.raises(ConfigError) as caught:
        PromptTemplate("{{y}}").render(row(x=1))
    assert "rows.jsonl:7: the row has no field 'y'" in str(caught.value)
    assert "Its fields: x." in str(caught.value)


@pytest.mark.parametrize(
    ("template", "said"),
    [("{{}}", "names no field"), ("{{.a}}", "names no field"), (r"\{{ {{a}} {{b", "'{{b' without")],
)
def test_braces_without_a_field_are_refused(template: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        PromptTemplate(template)


def test_a_prompt_that_is_null_is_empty() -> None:
    with pytest.raises(ConfigError, match="is empty"):
        PromptTemplate(None).render(row(prompt=None))


@pytest.mark.parametrize(
    "row_id",
    ["../../etc", "a/b", "", "é", "x" * 10_000_000, ".", "a.2", "\ud800", "C:\\x", "A", "row-1"],
)
def test_any_id_of_a_row_gives_a_session_id_of_its_own(row_id: str) -> None:
    first, second = build_session_id(row_id, 1), build_session_id(row_id, 2)
    assert first != second
    assert first != build_session_id("a", 2)
    assert ID.fullmatch(first)
    assert ID.fullmatch(second)


def test_ids_that_differ_only_in_case_have_sessions_that_do_not() -> None:
    names = {build_session_id(name, 1).lower() for name in ("swe-1", "SWE-1", "Swe-1")}
    assert len(names) == 3
    assert build_session_id("swe-1", 1) == "swe-1"
