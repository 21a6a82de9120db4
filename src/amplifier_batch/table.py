"""The results of a batch as one table: the fields of the input, the answer, scores, cost and how each run ended."""

from __future__ import annotations

import contextlib
import glob
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from types import NoneType
from typing import Any, Literal, cast

from amplifier_app.base.errors import SessionError, UsageError
from amplifier_app.base.records import parse_record
from amplifier_app.runtime.export.parts import redactor
from amplifier_batch.input import Row, import_arrow, read_batch_rows, read_fields
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.record.journal import Record
from amplifier_batch.record.results import read_dollars, read_reason, read_seconds
from amplifier_batch.scores import read_scores, with_rows
from amplifier_support.fields import to_mapping
from amplifier_support.redaction import is_sensitive

_ROWS_AT_ONCE = 5_000
_FIRST = ("number", "row", "repeat", "outcome", "exit_code")
_LAST = (
    *("cost_usd", "seconds", "steps", "tokens", "model", "answered_model", "session_id"),
    "reason",
)

_FORMULA = frozenset("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""First characters that make a spreadsheet treat a cell as a formula; the last four are full-width."""

_PLAIN = {str, int, float, bool, NoneType}

_TAKEN = {*_FIRST, *_LAST, "response"}
_PREFIXES = ("data_", "score_", "input_")
_INT64 = 2**63

_CONDITION = re.compile(r'\s*([^=!\s][^=!]*?)\s*(!?=)\s*("[^"]*"|.*?)\s*(?:\s+and\s+|$)')

Cells = dict[str, Any]


class Table:
    """The table of a batch, one row for each run that has ended, in the order of the input.

    Args:
        folder: The batch.

    Attributes:
        columns: The names of the columns.

    Raises:
        SessionError: The results cannot be read.
    """

    def __init__(self, folder: BatchFolder) -> None:
        self._folder = folder
        self._redactor = redactor()
        self._scores = read_scores(folder)
        fields, data = dict[str, None](), dict[str, None]()
        source = str(folder.facts.get("input"))
        self._has_input = Path(source).exists() or glob.has_magic(source)
        if self._has_input:
            for _, row in read_fields(Path(source), files=folder.facts.get("files")):
                fields.update(dict.fromkeys(row))
        self._places = folder.index_results(lambda line: data.update(_read_data(line)))
        names = {name for scores in self._scores.values() for name in scores}
        self._fields = {
            name: f"input_{name}" if name in _TAKEN or name.startswith(_PREFIXES) else name
            for name in fields
        }
        self.columns = [
            *_FIRST,
            *self._fields.values(),
            "response",
            *(f"data_{name}" for name in data),
            *(f"score_{name}" for name in sorted(names)),
            *_LAST,
        ]
        self._empty: Cells = dict.fromkeys(self.columns)
        # Whatever their values look like.
        self._secret_columns = [name for name in self.columns if is_sensitive(name)]

    @property
    def note(self) -> str | None:
        """Why the fields of the input are missing; None if they are there."""
        source = self._folder.facts.get("input")
        return None if self._has_input else f"without the input's fields: {source} does not exist"

    def _input(self) -> Iterator[Row]:
        return read_batch_rows(self._folder.facts) if self._has_input else iter(())

    def rows(self, where: Where | None = None) -> Iterator[Cells]:
        """The rows, without secrets; only those that meet a condition, if there is one.

        Raises:
            SessionError: The results cannot be read.
            ConfigError: The input cannot be read.
        """
        results = self._folder.read_results(self._places)
        for result, row in with_rows(results, self._input()):
            cells = self._cells(result, {} if row is None else row.fields)
            if where is None or where(cells):
                yield cells

    def _cells(self, result: Record, fields: Mapping[str, Any]) -> Cells:
        cells: Cells = self._empty.copy()
        for name in (*_FIRST, "response", "session_id", "model", "steps"):
            cells[name] = result[name]
        for name, value in fields.items():
            cells[self._fields[name]] = value
        for name, value in to_mapping(result.get("data")).items():
            cells[f"data_{name}"] = value
        for name, score in self._scores.get((result["number"], result["repeat"]), {}).items():
            if score.attempts == result["attempts"]:
                cells[f"score_{name}"] = score.value
        cells["cost_usd"] = read_dollars(result)
        cells["seconds"] = read_seconds(result)
        cells["tokens"] = (result["usage"] or {}).get("total_tokens")
        models = to_mapping(result.get("answered_models"))
        cells["answered_model"] = ", ".join(models) or result["model"]
        cells["reason"] = read_reason(result)
        # One look at all texts is much faster than one at each.
        if not self._secret_columns and _PLAIN.issuperset(map(type, cells.values())):
            texts = [value for value in cells.values() if type(value) is str]
            if not self._redactor.may_change("\n".join(texts)):
                return cells
        texts = {k: v for k, v in cells.items() if isinstance(v, (str, list, dict))}
        return cells | cast("Cells", self._redactor.value(texts))


def _read_data(line: bytes) -> Mapping[str, Any]:
    """The answer with a schema in a line of results."""
    # Most have none, which shows without parsing the line; quotes in a text have backslashes.
    if b'"data":null' in line and line.count(b'"data":') == 1:
        return {}
    return to_mapping((parse_record(line) or {}).get("data"))


# -- conditions --------------------------------------------------------------------------


class Where:
    """A condition on the rows of a table: `FIELD=VALUE` and `FIELD!=VALUE`, joined with `and`; a value may be quoted.

    Args:
        text: The condition.
        columns: The names that it may use.

    Raises:
        UsageError: It is not a condition, or names something else.
    """

    def __init__(self, text: str, columns: Sequence[str]) -> None:
        self._parts: list[tuple[str, bool, str]] = []
        start = 0
        while start < len(text) or not self._parts:
            match = _CONDITION.match(text, start)
            if match is None:
                raise UsageError(
                    f"--where: cannot read {text[start:]!r}",
                    hint="Write FIELD=VALUE or FIELD!=VALUE, joined with 'and'.",
                )
            start = match.end()
            name, sign, value = match.groups()
            if name not in columns:
                hint = f"Columns: {', '.join(columns)}"
                raise UsageError(f"--where: there is no column {name!r}", hint=hint)
            is_quoted = len(value) > 1 and value.startswith('"')
            self._parts.append((name, sign == "=", value[1:-1] if is_quoted else value))

    def __call__(self, cells: Cells) -> bool:
        return all(_equals(cells[name], value) is same for name, same, value in self._parts)


def _equals(cell: Any, value: str) -> bool:
    if isinstance(cell, (int, float)) and not isinstance(cell, bool):
        # Exact, also for numbers that a float cannot hold.
        with contextlib.suppress(InvalidOperation):
            return Decimal(str(cell)) == Decimal(value)
    return _as_text(cell) == value


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if type(value) in (int, float):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


# -- files -------------------------------------------------------------------------------

Format = Literal["csv", "jsonl", "parquet"]


def as_csv(table: Table, where: Where | None = None) -> Iterator[str]:
    """The table as CSV; no cell is a formula for a spreadsheet."""
    yield _csv_line(table.columns)
    for cells in table.rows(where):
        yield _csv_line(cells.values())


def as_lines(table: Table, where: Where | None = None) -> Iterator[str]:
    """The table as lines of JSON."""
    for cells in table.rows(where):
        yield f"{json.dumps(cells, ensure_ascii=False)}\n"


def _csv_line(values: Iterable[Any]) -> str:
    # `csv.writer` looks at every character by itself, which takes longer than all the rest.
    cells = [
        "" if value is None else str(value) if type(value) in (int, float) else _csv_cell(value)
        for value in values
    ]
    return f"{','.join(cells)}\n"


def _csv_cell(value: Any) -> str:
    text = _as_text(value)
    if text[:1] in _FORMULA and isinstance(value, str):
        text = f"'{text}"
    # Faster than a regular expression in long texts.
    if "," in text or "\n" in text or '"' in text or "\r" in text:
        return '"{}"'.format(text.replace('"', '""'))
    return text


def write_parquet(table: Table, file: Path, where: Where | None = None) -> None:
    """Write the table as a Parquet file. A column with values of several types has text, as JSON.

    Raises:
        ConfigError: pyarrow is not installed.
        SessionError: The file cannot be written.
    """
    arrow, parquet = import_arrow("write Parquet")
    kinds: dict[str, set[type]] = {name: set() for name in table.columns}
    for cells in table.rows(where):
        for name in table.columns:
            value = cells[name]
            is_large = isinstance(value, int) and not -_INT64 <= value < _INT64
            kinds[name].add(list if is_large else type(value))
    chosen = {name: _arrow_type(arrow, types - {type(None)}) for name, types in kinds.items()}
    fields = [arrow.field(encodable(name), kind) for name, (kind, _) in chosen.items()]
    schema = arrow.schema(fields)
    partial = file.with_name(f".{file.name}.partial")
    try:
        with parquet.ParquetWriter(partial, schema) as writer:
            part: list[Cells] = []
            for cells in table.rows(where):
                values = (convert(cells[name]) for name, (_, convert) in chosen.items())
                part.append(dict(zip(schema.names, values, strict=True)))
                if len(part) == _ROWS_AT_ONCE:
                    writer.write_table(arrow.Table.from_pylist(part, schema))
                    part = []
            writer.write_table(arrow.Table.from_pylist(part, schema))
        partial.replace(file)
    except (OSError, arrow.ArrowException) as error:
        partial.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or error
        raise SessionError(f"cannot write {file}: {reason}") from error


def _arrow_type(arrow: Any, kinds: set[type]) -> tuple[Any, Callable[[Any], Any]]:
    for kind, make in ((bool, arrow.bool_), (int, arrow.int64)):
        if kinds == {kind}:
            return make(), lambda value: value
    if kinds and kinds <= {int, float}:
        return (
            arrow.float64(),
            lambda value: None if value is None or not math.isfinite(value) else float(value),
        )
    return arrow.string(), lambda value: None if value is None else encodable(_as_text(value))


def encodable(text: str) -> str:
    """The text without lone surrogates, which UTF-8 lacks."""
    return text.encode("utf-8", "replace").decode()
