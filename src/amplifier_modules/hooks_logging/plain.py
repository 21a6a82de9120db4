"""Event data as JSON that is safe to keep."""

from __future__ import annotations

import json
from typing import Any, cast

from amplifier_core.utils.truncate import redact_secrets
from amplifier_modules._shared.event_json import to_plain
from amplifier_modules._shared.redaction import Redactor


def to_json(data: Any, *, redactor: Redactor, max_chars: int) -> str:
    """`data` as one line of JSON, with secrets replaced and long strings cut.

    Never raises: what JSON does not know becomes text, what refers to itself is cut off.
    """
    # Secrets first: a string that was cut might end in the middle of one.
    return json.dumps(_Cutter(redactor, max_chars).plain(redact_secrets(to_plain(data))))


class _Cutter:
    """Replaces secrets inside strings and cuts strings that are too long."""

    def __init__(self, redactor: Redactor, max_chars: int) -> None:
        self._redactor = redactor
        self._max_chars = max_chars

    def plain(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            held = cast("dict[str, Any]", value)
            if held.get("type") == "base64" and isinstance(data := held.get("data"), str):
                # An image: nobody reads it here, and many events of a conversation carry it.
                held = {**held, "data": f"<{len(data)} characters of base64>"}
            return {self._text(key): self.plain(item) for key, item in held.items()}
        if isinstance(value, list):
            return [self.plain(item) for item in cast("list[Any]", value)]
        return value

    def _text(self, text: str) -> str:
        text = self._redactor.text(text)
        excess = len(text) - self._max_chars
        return text if excess <= 0 else f"{text[: self._max_chars]}... (truncated {excess} chars)"
