"""The inputs of a batch as rows: JSON lines, a JSON array, CSV, Parquet, lines of text, or files."""

from __future__ import annotations

import bz2
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.runtime import describe
from amplifier_batch.input.parquet import parquet_rows
from amplifier_support.readable_files import open_to_read

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
        return key_of(self.id, self.run)


def key_of(row_id: str, run: int) -> str:
    """The key of a run of a row: the row's id, with the number of the run if there are several."""
    return f"{row_id}:{run}" if run else row_id


def parse_key(key: str, runs: int) -> tuple[str, int]:
    """The id of the row and the number of its run, in a batch with this many runs of each row."""
    if runs == 1:
        return key, 0
    row_id, _, run = key.rpartition(":")
    return row_id, int(run)


def session_id_of(row_id: str, attempt: int, run: int = 0) -> str:
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


def read_rows(source: Path, *, absolute: bool = False) -> Iterator[Row]:
    """Return the rows of an input, one after the other.

    Args:
        source: A file, a folder or a pattern of files. The ending decides how a file is read: `.jsonl`,
            `.json` (an array), `.csv` and `.tsv` (with a heading), `.parquet`, otherwise lines of text;
            with `.gz`, `.bz2` or `.xz` after it, it is compressed.
        absolute: True for ids of files that depend on the place of the input, and for numbers that JSON lacks, as in
            batches of earlier versions.

    Raises:
        ConfigError: It cannot be read, or a row is not valid, with its line.
    """
    seen: dict[bytes, int] = {}
    root = None if absolute or _is_file(source) else _root(source)
    for number, (where, fields) in enumerate(_fields(source, earlier=absolute), 1):
        row_id = _id_of(fields, where) if root is None else _relative(fields["path"], root)
        digest = hashlib.blake2b(row_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        line = where.line or number
        if digest in seen:
            other = f"{'line' if where.line else 'row'} {seen[digest]}"
            message, hint = f"the row is the same as {other}", "Remove one of them, or give each"
            if _given_id(fields) is not None:
                message, hint = f"the id {row_id[:80]!r} is also that of {other}", "Give every row"
            raise ConfigError(
                message, hint=f"{hint} its own value in a field 'id'.", location=where
            )
        seen[digest] = line
        yield Row(number, where, row_id, fields)


def digest_of(source: Path, *, absolute: bool = False) -> str:
    """Return the `sha256:…` of an input: of the bytes of a file, or of the paths of files; see `read_rows`.

    Raises:
        ConfigError: It cannot be read.
    """
    digest = hashlib.sha256()
    if _is_file(source):
        try:
            with open(open_to_read(source), "rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        except OSError as error:
            raise _unreadable(source, error) from error
    else:
        root = _root(source)
        for path in _files(source):
            name = path if absolute else _relative(path, root)
            digest.update(os.fsencode(name) + b"\0")
    return f"sha256:{digest.hexdigest()}"


def _id_of(fields: dict[str, Any], where: Location) -> str:
    given = _given_id(fields)
    if given is None:
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]
    if isinstance(given, bool) or not isinstance(given, (str, int)):
        raise ConfigError(
            f"invalid row id: {json.dumps(given)[:80]}",
            hint="Use a string or an integer.",
            location=where,
        )
    return str(given)


def _given_id(fields: dict[str, Any]) -> Any:
    return None if fields.get("id") == "" else fields.get("id")


# -- forms of input ----------------------------------------------------------------------


def _fields(source: Path, *, earlier: bool = False) -> Iterator[tuple[Location, dict[str, Any]]]:
    if not _is_file(source):
        for path in _files(source):
            yield Location(path), {"path": path, "name": os.path.basename(path)}
        return
    ending = source.suffix.lower()
    is_compressed = ending in _COMPRESSED
    if is_compressed:
        ending = source.with_suffix("").suffix.lower()
    try:
        with open(open_to_read(source), "rb") as data, _decompressed(data, source) as plain:
            if ending == _PARQUET:
                yield from parquet_rows(plain, source)
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


def _is_file(source: Path) -> bool:
    return not source.is_dir() and not (glob.has_magic(str(source)) and not source.exists())


def _files(source: Path) -> list[str]:
    """The files of a folder, without hidden ones, or those that match a pattern."""
    pattern = os.path.join(glob.escape(str(source)), "**") if source.is_dir() else str(source)
    found = sorted(path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path))
    if not found:
        raise ConfigError(f"there are no files in {source}", hint="Check the path of the input.")
    return found


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
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
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
        head = next(lines, [])
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
