"""A cache of parsed messages, so that a conversation is not parsed again for every request."""

from __future__ import annotations

import marshal
from collections.abc import Iterable
from typing import Any, cast

from amplifier_modules._shared.history.parsed_message import Reading
from amplifier_modules._shared.history.parsing import read

_WITHOUT_REFERENCES = 2
"""The version of marshal's format in which equal values have equal bytes."""


class Readings:
    """Parses messages and caches those of the last request.

    A message is recognized by its exact content and types: a context may return the same objects or
    equal ones, and their holders may change them. Cached results were parsed from a private copy.
    """

    def __init__(self) -> None:
        self._kept: dict[bytes, Reading] = {}

    def of(self, messages: Iterable[object]) -> list[Reading]:
        """The parsed messages, in order; readings are shared and never changed.

        Raises:
            TypeError: An item of `messages` is not a message.
        """
        before, self._kept = self._kept, {}
        return [self._one(raw, before) for raw in messages]

    def _one(self, raw: object, before: dict[bytes, Reading]) -> Reading:
        try:
            content = marshal.dumps(cast("Any", raw), _WITHOUT_REFERENCES)
        except ValueError:  # typed models and other values that JSON cannot represent
            return read(raw)
        reading = before.get(content) or self._kept.get(content)
        if reading is None or not reading.is_untouched():
            reading = read(marshal.loads(content))
        self._kept[content] = reading
        return reading
