"""A faster parser for the records of a journal (`amplifier_support.journal`), for readers of many records."""

from collections.abc import Callable
from functools import cache
from typing import Any

from amplifier_support.journal import Record, parse


def parse_record(line: bytes) -> Record | None:
    """The record of a line, as `journal.parse` returns it, in a quarter of the time once pydantic is imported.

    Equal short texts are one object.
    """
    try:
        record = _fast_decoder()(line)
    except ValueError:  # also for half a surrogate pair, and for what is nested deeply
        return parse(line)
    return record if isinstance(record, dict) else None


@cache
def _fast_decoder() -> Callable[[bytes], Any]:
    # The import takes longer than a thousand lines.
    from pydantic_core import from_json

    return from_json
