"""The rows of a batch: all of its input or a shard of it, each as often as it runs.

The values of Parquet files (extra `parquet`) become JSON values: numbers, texts, booleans and nulls stay as
they are; dates and times become texts of ISO 8601, with at most microseconds; durations become seconds,
decimals texts with all digits, bytes Base64, structs objects, lists arrays, and maps arrays of pairs. NaN
and infinity, which JSON lacks, become null.
"""

from __future__ import annotations

import base64
import bz2
import contextlib
import csv
import glob
import gzip
import hashlib
import io
import itertools
import json
import lzma
import math
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import IO, Any, cast

from amplifier_app.base.errors import ConfigError, Location, UsageError
from amplifier_app.base.json_text import value_text
from amplifier_app.runtime import describe
from amplifier_batch.key_table import KeyTable
from amplifier_support.fields import to_mapping
from amplifier_support.files import open_to_read
from amplifier_support.installation import install_command
from amplifier_support.named_tuple import NamedTuple

_ROWS_AT_ONCE = 1024


def _parquet_rows(file: IO[bytes], source: Path) -> Iterator[tuple[Location, dict[str, Any]]]:
    """The rows of a file, read in parts.

    Args:
        file: The file.
        source: Its path, for messages.

    Raises:
        ConfigError: It is not a Parquet file, two columns have the same name, or pyarrow is missing.
    """
    arrow, parquet = import_arrow(f"read the input {source}")
    number = 0
    try:
        opened = parquet.ParquetFile(file)
        names = opened.schema_arrow.names
        if len(set(names)) < len(names):
            raise ConfigError("two columns have the same name", location=Location(str(source)))
        for part in opened.iter_batches(batch_size=_ROWS_AT_ONCE):
            for row in _in_microseconds(arrow, part).to_pylist():
                number += 1
                yield Location(f"{source}[{number}]"), cast("dict[str, Any]", as_json(row))
    # ArrowInvalid is a ValueError; a damaged page can raise an OSError or any other error of Arrow.
    except (arrow.ArrowException, ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0][:200]
        message = f"the Parquet file cannot be read: {reason}"
        where = f"{source}[{number + 1}]" if number else str(source)
        raise ConfigError(message, location=Location(where)) from error


def import_arrow(purpose: str) -> tuple[Any, Any]:
    """Import `pyarrow` and `pyarrow.parquet`.

    Raises:
        ConfigError: They are not installed, so that it is not possible to `purpose`.
    """
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError(
            f"cannot {purpose}: pyarrow is not installed",
            hint=f"Install it with: {install_command('parquet')}",
        ) from error


def as_json(value: Any) -> Any:
    """A value of Parquet as JSON data."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        return {str(key): as_json(item) for key, item in mapping.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in cast("list[Any]", value)]
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _in_microseconds(arrow: Any, part: Any) -> Any:
    """The same rows without nanoseconds, which Python has no type for."""
    for index, column in enumerate(part.schema):
        kind = column.type
        if arrow.types.is_timestamp(kind) and kind.unit == "ns":
            coarser = arrow.timestamp("us", kind.tz)
            values = part.column(index).cast(coarser, safe=False)
            part = part.set_column(index, arrow.field(column.name, coarser), values)
    return part


STDIN = Path("-")

_PLAIN_ID = re.compile(r"(?!row-)[A-Za-z0-9][A-Za-z0-9_-]{0,79}")

_LONGEST = 64 * 1024 * 1024
"""Characters of a line or a cell: more would fill the memory."""

_ESCAPED = re.compile(r"\[([*?[])\]")
"""A wildcard that `glob.escape` has written."""

_JSON_LINES = (".jsonl", ".ndjson")
_PARQUET = ".parquet"
_COMPRESSED: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
_ENDINGS = ", ".join(_COMPRESSED)
_MAGIC = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")
_TABLES = {".csv": ",", ".tsv": "\t"}


class Row(NamedTuple):
    """One input.

    Attributes:
        number: Its position in the input, from 1.
        where: Where it is written.
        id: Its `id`, or else the path of its file in the input or a hash of its fields; unique in the input.
        fields: Its values by name.
        run: Which run of the row this is, from 1; 0 in a batch that runs each row once.
    """

    number: int
    where: Location
    id: str
    fields: dict[str, Any]
    run: int = 0

    @property
    def key(self) -> str:
        """The key of this run of the row in its batch."""
        return build_key(self.id, self.run)


def build_key(row_id: str, run: int) -> str:
    """The key of a run of a row: the row's id, with the number of the run if there are several."""
    return f"{row_id}:{run}" if run else row_id


def parse_key(key: str, runs: int) -> tuple[str, int]:
    """The id of the row and the number of its run, in a batch with this many runs of each row."""
    if runs == 1:
        return key, 0
    row_id, _, run = key.rpartition(":")
    return row_id, int(run)


def build_session_id(row_id: str, attempt: int, run: int = 0) -> str:
    """The id of the session of a row: the row's own id if a folder can have that name.

    Ids that differ only in case have different names, as a disk may ignore case.

    Args:
        row_id: The row.
        attempt: How many times it was begun.
        run: See `Row`.
    """
    digest = hashlib.sha256(row_id.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    name = f"row-{digest}"
    if _PLAIN_ID.fullmatch(row_id):
        name = row_id if row_id == row_id.lower() else f"{row_id}.{digest}"
    name = f"{name}.r{run}" if run else name
    return name if attempt == 1 else f"{name}.{attempt}"


def read_rows(
    source: Path, *, absolute: bool = False, files: Sequence[str] | None = None
) -> Iterator[Row]:
    """Return the rows of an input, one after the other.

    Args:
        source: A file, a folder or a pattern of files. The ending decides how a file is read: `.jsonl`,
            `.json` (an array), `.csv` and `.tsv` (with a heading), `.parquet`, otherwise lines of text;
            with `.gz`, `.bz2` or `.xz` after it, it is compressed.
        absolute: True for ids of files that depend on the place of the input, and for numbers that JSON lacks, as in
            batches of earlier versions.
        files: What `list_files` returned earlier; None for the files that are there now.

    Raises:
        ConfigError: It cannot be read, or a row is not valid, with its line.
    """
    seen = KeyTable()
    root = None if absolute or is_file(source) else _root(source)
    rows = read_fields(source, earlier=absolute, files=files)
    for number, (where, fields) in enumerate(rows, 1):
        row_id = _read_id(fields, where) if root is None else _relative(fields["path"], root)
        if (first := seen.get(row_id)) is not None:
            other = f"{'line' if where.line else 'row'} {first}"
            message, hint = f"the row is the same as {other}", "Remove one of them, or give each"
            if _given_id(fields) is not None:
                message, hint = f"the id {row_id[:80]!r} is also that of {other}", "Give every row"
            raise ConfigError(
                message, hint=f"{hint} its own value in a field 'id'.", location=where
            )
        seen[row_id] = where.line or number
        yield Row(number, where, row_id, fields)


def compute_digest(
    source: Path, *, absolute: bool = False, files: Sequence[str] | None = None
) -> str:
    """Return the `sha256:…` of an input: of the bytes of a file, or of the paths of files; see `read_rows`.

    Raises:
        ConfigError: It cannot be read.
    """
    digest = hashlib.sha256()
    if is_file(source):
        try:
            with open(open_to_read(source), "rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        except OSError as error:
            raise _unreadable(source, error) from error
    else:
        root = _root(source) if absolute else ""
        for name in list_files(source) if files is None else files:
            digest.update(os.fsencode(os.path.join(root, name)) + b"\0")
    return f"sha256:{digest.hexdigest()}"


def _read_id(fields: dict[str, Any], where: Location) -> str:
    row_id = _given_id(fields)
    if row_id is None:
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]
    if isinstance(row_id, bool) or not isinstance(row_id, (str, int)):
        raise ConfigError(
            f"invalid row id: {json.dumps(row_id)[:80]}",
            hint="Use a string or an integer.",
            location=where,
        )
    return str(row_id)


def _given_id(fields: dict[str, Any]) -> Any:
    return None if fields.get("id") == "" else fields.get("id")


# -- forms of input ----------------------------------------------------------------------


def read_fields(
    source: Path, *, earlier: bool = False, files: Sequence[str] | None = None
) -> Iterator[tuple[Location, dict[str, Any]]]:
    """Return the fields of each row and its place; see `read_rows`, which also checks the ids."""
    if files is not None or not is_file(source):
        root = _root(source)
        for name in list_files(source) if files is None else files:
            path = os.path.join(root, name)
            yield Location(path), {"path": path, "name": os.path.basename(path)}
        return
    ending = source.suffix.lower()
    is_compressed = ending in _COMPRESSED
    if is_compressed:
        ending = source.with_suffix("").suffix.lower()
    try:
        with open(open_to_read(source), "rb") as data, _decompressed(data, source) as plain:
            if ending == _PARQUET:
                yield from _parquet_rows(plain, source)
                return
            file = io.TextIOWrapper(plain, encoding="utf-8-sig", newline="")
            if ending in _JSON_LINES:
                yield from _json_lines(file, str(source), earlier)
            elif ending == ".json":
                yield from _json_array(file, str(source), earlier)
            elif ending in _TABLES:
                yield from _table(file, str(source), _TABLES[ending])
            else:
                yield from _text_lines(file, str(source))
    except UnicodeDecodeError as error:
        message, hint = f"it is not UTF-8 text (byte {error.start})", None
        if not is_compressed and error.object.startswith(_MAGIC):
            message, hint = (
                "it is compressed",
                f"Decompress it, or use the ending of its compression: {_ENDINGS}.",
            )
        raise ConfigError(message, hint=hint, location=Location(str(source))) from error
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise ConfigError(
            f"its compression is damaged: {error}", location=Location(str(source))
        ) from error
    except OSError as error:
        raise _unreadable(source, error) from error


def _decompressed(file: IO[bytes], source: Path) -> IO[bytes]:
    opened = _COMPRESSED.get(source.suffix.lower())
    return file if opened is None else opened(file)


def is_file(source: Path) -> bool:
    """Return True for an input that is one file, not a folder or a pattern."""
    return not source.is_dir() and not (glob.has_magic(str(source)) and not source.exists())


def list_files(source: Path) -> list[str]:
    """Return the files of a folder, without hidden ones, or those that match a pattern, by their paths in it.

    Those in the folders of batches below a folder, or a pattern with `**`, are left out.

    Raises:
        ConfigError: There are none.
    """
    pattern = os.path.join(glob.escape(str(source)), "**") if source.is_dir() else str(source)
    root = _root(source)
    left_out = {root: False, "": False, os.sep: False}

    def is_of_batch(folder: str) -> bool:
        if folder not in left_out:
            left_out[folder] = is_of_batch(os.path.dirname(folder)) or _has_batch(folder)
        return left_out[folder]

    paths = filter(os.path.isfile, glob.glob(pattern, recursive=True))
    if "**" in Path(pattern).parts:
        paths = (path for path in paths if not is_of_batch(os.path.dirname(path)))
    files = sorted(_relative(path, root) for path in paths)
    if not files:
        raise ConfigError(f"there are no files in {source}", hint="Check the path of the input.")
    return files


def _has_batch(folder: str) -> bool:
    with (
        contextlib.suppress(OSError, ValueError, RecursionError),
        open(open_to_read(os.path.join(folder, "batch.json")), "rb") as file,
    ):
        return "input_digest" in to_mapping(json.load(file))
    return False


def _root(source: Path) -> str:
    """The folder, or the part of a pattern before the first wildcard."""
    if source.is_dir():
        return str(source)
    fixed = itertools.takewhile(
        lambda part: not glob.has_magic(_ESCAPED.sub("", part)), source.parts
    )
    return os.path.join("", *(_ESCAPED.sub(r"\1", part) for part in fixed))


def _relative(path: str, root: str) -> str:
    return os.path.relpath(path, root or None).replace(os.sep, "/")


def _lines(file: IO[str], name: str) -> Iterator[str]:
    number = 0
    while line := file.readline(_LONGEST + 1):
        number += 1
        if len(line) > _LONGEST:
            raise ConfigError(
                f"the line has more than {_LONGEST:,} characters",
                hint="Write one row per line.",
                location=Location(name, number),
            )
        yield line


def _json_lines(
    file: IO[str], name: str, earlier: bool
) -> Iterator[tuple[Location, dict[str, Any]]]:
    for number, line in enumerate(_lines(file, name), 1):
        if line.strip():
            where = Location(name, number)
            yield where, _object(_parsed(line, where, earlier), where)


def _json_array(
    file: IO[str], name: str, earlier: bool
) -> Iterator[tuple[Location, dict[str, Any]]]:
    rows = _parsed(file.read(), Location(name), earlier)
    if not isinstance(rows, list):
        raise ConfigError(
            "it is not a JSON array",
            hint="Write [{…}, {…}], or one object per line in a .jsonl file.",
            location=Location(name),
        )
    for number, row in enumerate(rows, 1):
        where = Location(f"{name}[{number}]")
        yield where, _object(row, where)


def _parsed(text: str, where: Location, earlier: bool) -> Any:
    try:
        if earlier:  # Batches of earlier versions may have numbers that JSON lacks.
            return json.loads(text)
        return _STRICT.decode(text)
    except json.JSONDecodeError as error:
        at = where if where.line else Location(where.file, error.lineno, error.colno)
        raise ConfigError(f"invalid JSON: {error.msg}", location=at) from error
    except _NotFinite as error:
        raise ConfigError(
            f"invalid JSON: {error} is not a number in JSON", hint="Use null.", location=where
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            "invalid JSON: nested too deeply, or a number too long", location=where
        ) from error


class _NotFinite(ValueError):
    """`NaN`, `Infinity` or a number that is too large, which Python would read."""


def _refuse(text: str) -> float:
    raise _NotFinite(text)


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text[:40])


_STRICT = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)


def _object(value: Any, where: Location) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(
            "a row must be a JSON object",
            hint='Write {"field": "value", …}, one per line.',
            location=where,
        )
    return value


def _table(file: IO[str], name: str, delimiter: str) -> Iterator[tuple[Location, dict[str, Any]]]:
    csv.field_size_limit(_LONGEST)
    lines = csv.reader(_lines(file, name), delimiter=delimiter, strict=True)
    try:
        head = next(lines, None)
        if head is None:
            return
        if not head or len(set(head)) < len(head) or "" in head:
            raise ConfigError(
                "the first line must name every column once", location=Location(name, 1)
            )
        for values in lines:
            where = Location(name, lines.line_num)
            if not values:
                continue
            if len(values) != len(head):
                message = f"expected {describe.count(len(head), 'value')}, found {len(values)}"
                raise ConfigError(message, location=where)
            yield where, dict(zip(head, values, strict=True))
    except csv.Error as error:
        raise ConfigError(
            f"invalid CSV: {error}", location=Location(name, lines.line_num)
        ) from error


def _text_lines(file: IO[str], name: str) -> Iterator[tuple[Location, dict[str, Any]]]:
    for number, line in enumerate(_lines(file, name), 1):
        text = line.rstrip("\r\n")
        if text.strip():
            yield Location(name, number), {"text": text, "line": number}


def _unreadable(source: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot read the input {source}: {(error.strerror or str(error)).lower()}")


_FIELD = re.compile(r"\\?\{\{\s*([^{}]*?)\s*\}\}")
_PLAIN = re.compile(r"(?<!\{)\{([^{}]+)\}(?!\})")
_NAME = re.compile(r"[^.{}\s][^.{}]*(\.[^.{}]+)*")

_PLAIN_BRACES = r"Write {{field}}; for plain braces write \{{."

_DEFAULT_FIELDS = ("prompt", "text")
"""Fields that are the whole prompt if there is no template."""


class PromptTemplate:
    r"""The prompt of every row.

    `{{field}}` is replaced by a field of the row, `{{field.inner}}` by a value inside it; `\{{` is a plain `{{`.
    Texts are inserted as they are, other values as JSON; what is inserted is not expanded again.

    Args:
        text: The template; None for the row's field `prompt` or `text`.

    Raises:
        UsageError: It contains `{{…}}` that does not name a field.
    """

    def __init__(self, text: str | None) -> None:
        self._text = text
        for match in _FIELD.finditer(text or ""):
            if not match[0].startswith("\\") and not _NAME.fullmatch(match[1]):
                raise UsageError(
                    f"the prompt contains {match[0]!r}, which names no field",
                    hint=_PLAIN_BRACES,
                )
        rest = _FIELD.sub("", text or "").replace(r"\{{", "")
        if "{{" in rest:
            excerpt = rest[rest.index("{{") :][:20]
            raise UsageError(f"the prompt contains {excerpt!r} without '}}}}'", hint=_PLAIN_BRACES)

    def render(self, row: Row) -> str:
        """The prompt of a row.

        Raises:
            ConfigError: The row lacks a field, or the prompt is empty.
        """
        if self._text is None:
            name = next(
                (field for field in _DEFAULT_FIELDS if field in row.fields), _DEFAULT_FIELDS[0]
            )
            value = _value(row, name)
            prompt = "" if value is None else value_text(value)
        else:
            prompt = _FIELD.sub(lambda match: _replaced(match, row), self._text)
        if not prompt.strip():
            raise ConfigError(f"the prompt of row {row.id!r} is empty", location=row.where)
        return prompt

    def find_plain_field(self, row: Row) -> str | None:
        """The first field of a row that is in single braces, and so not replaced; None without one."""
        return next((name for name in _PLAIN.findall(self._text or "") if name in row.fields), None)


def _replaced(match: re.Match[str], row: Row) -> str:
    if match[0].startswith("\\"):
        return match[0][1:]
    return value_text(_value(row, match[1]))


def _value(row: Row, path: str) -> Any:
    # A column may have a dot in its name.
    if path in row.fields:
        return row.fields[path]
    value: Any = row.fields
    for name in path.split("."):
        if isinstance(value, dict) and name in value:
            value = cast("dict[str, Any]", value)[name]
        elif isinstance(value, list) and name in map(str, range(len(cast("list[Any]", value)))):
            value = cast("list[Any]", value)[int(name)]
        else:
            raise ConfigError(
                f"the row has no field {path!r}",
                hint=f"Its fields: {', '.join(row.fields) or 'none'}. Refer to them as {{{{field}}}} in --prompt.",
                location=row.where,
            )
    return value


_INDEXES = ("JOB_COMPLETION_INDEX", "SLURM_ARRAY_TASK_ID", "AWS_BATCH_JOB_ARRAY_INDEX")
"""Environment variables with the index of a job in Kubernetes, SLURM and AWS Batch."""
_SHARD = re.compile(r"([1-9]\d{0,5})/([1-9]\d{0,5})")


RELATIVE = "relative"
"""The fact `ids` of batches whose rows from files are named by the path inside the input."""


def read_batch_rows(facts: Mapping[str, Any]) -> Iterator[Row]:
    """The rows of a batch, in order: those of its shard, each as often as it runs.

    Raises:
        ConfigError: The input cannot be read.
    """
    shard = parse_shard(facts.get("shard"))
    repeat = facts.get("repeat") or 1
    source, files = Path(facts["input"]), facts.get("files")
    for row in read_rows(source, absolute=has_absolute_ids(facts), files=files):
        if shard is None or row.number % shard[1] == (shard[0] + 1) % shard[1]:
            if repeat == 1:
                yield row
            else:
                yield from (row._replace(run=run) for run in range(1, repeat + 1))


def has_absolute_ids(facts: Mapping[str, Any]) -> bool:
    """Return True for a batch of an earlier version, whose ids of files depend on the place of the input."""
    return facts.get("ids") != RELATIVE


def choose_shard(text: str | None, environment: Mapping[str, str]) -> str | None:
    """The shard of an option, with the number of this job in place of `auto`.

    Raises:
        UsageError: It is not a shard, or this is not a job of an array.
    """
    number, slash, of = (text or "").partition("/")
    if number == "auto" and slash:
        names = [name for name in _INDEXES if environment.get(name, "").isdecimal()]
        if not names:
            raise UsageError(
                f"--shard {text}: this is not a job of an array",
                hint=f"It must have one of {', '.join(_INDEXES)}, which count from 0.",
            )
        text = f"{int(environment[names[0]]) + 1}/{of}"
    parse_shard(text)
    return text


def parse_shard(text: str | None) -> tuple[int, int] | None:
    """The shard `2/16` as its number from 0 and how many there are.

    Raises:
        UsageError: It is not a shard.
    """
    if text is None:
        return None
    match = _SHARD.fullmatch(text)
    number, of = (int(match[1]), int(match[2])) if match else (2, 1)
    if number > of:
        raise UsageError(f"--shard: expected K/N with K from 1 to N, got {text!r}")
    return number - 1, of
