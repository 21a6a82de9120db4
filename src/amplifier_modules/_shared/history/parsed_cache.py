"""What messages were read as, kept so that a conversation is not read anew for every request."""

from __future__ import annotations

import marshal
from collections.abc import Iterable
from typing import Any, cast

from amplifier_modules._shared.history.parsing import Reading, read

_WITHOUT_REFERENCES = 2
"""The version of marshal's format in which equal values are equal bytes."""


class Readings:
    """Reads messages, and remembers those of the last request.

    A message is known again by its content, to the byte and the type: a context may hand out the
    same objects or equal ones, and whoever holds one may change it. What is remembered was read
    from a copy that nobody else has.
    """

    def __init__(self) -> None:
        self._kept: dict[bytes, Reading] = {}

    def of(self, messages: Iterable[object]) -> list[Reading]:
        """The messages taken apart, in order; readings are shared and never changed.

        Raises:
            TypeError: Something in `messages` is no message.
        """
        before, self._kept = self._kept, {}
        return [self._one(raw, before) for raw in messages]

    def _one(self, raw: object, before: dict[bytes, Reading]) -> Reading:
        try:
            content = marshal.dumps(cast("Any", raw), _WITHOUT_REFERENCES)
        except ValueError:  # typed models, and whatever else JSON does not know
            return read(raw)
        reading = before.get(content) or self._kept.get(content)
        if reading is None or not reading.is_untouched():
            reading = read(marshal.loads(content))
        self._kept[content] = reading
        return reading
