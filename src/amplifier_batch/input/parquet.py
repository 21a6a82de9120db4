"""Parquet files as rows, with the extra `parquet`.

Values become JSON values: numbers, texts, booleans and nulls stay as they are; dates and times become texts of
ISO 8601, with at most microseconds; durations become seconds, decimals texts with all digits, bytes Base64,
structs objects, lists arrays, and maps arrays of pairs. NaN and infinity, which JSON lacks, become null.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import IO, Any, cast

from amplifier_app.base.errors import ConfigError, Location

_ROWS_AT_ONCE = 1024


def parquet_rows(file: IO[bytes], source: Path) -> Iterator[tuple[Location, dict[str, Any]]]:
    """The rows of a file, read in parts.

    Args:
        file: The file.
        source: Its path, for messages.

    Raises:
        ConfigError: It is not a Parquet file, two columns have the same name, or pyarrow is missing.
    """
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError(
            f"cannot read the input {source}: pyarrow is not installed",
            hint="Install it with: pip install 'amplifier[parquet]'",
        ) from error
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


def as_json(value: Any) -> Any:
    """A value of Parquet as JSON data."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        return {str(key): as_json(one) for key, one in mapping.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(one) for one in cast("list[Any]", value)]
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
