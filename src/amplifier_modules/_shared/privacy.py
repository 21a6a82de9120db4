"""The secret values that are known in a session."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast

from pydantic import BaseModel

from amplifier_core.utils.truncate import redact_secrets
from amplifier_support.fields import to_mapping
from amplifier_support.redaction import Redactor, configured_secrets, secrets_in
from amplifier_support.session_capabilities import SECRET_VARIABLES

MAX_DEPTH = 32


def raw_data(data: Any) -> dict[str, Any]:
    """The values of an event's data themselves, not the copies that handlers get: only to be read."""
    if not isinstance(data, dict):
        return {"value": data}
    held = cast("dict[str, Any]", data)
    return {key: dict.__getitem__(held, key) for key in held}


def to_plain(value: Any, depth: int = 0) -> Any:
    """`value` made of JSON's own types."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        # Not str(value): an enumeration of strings would give its name.
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if depth >= MAX_DEPTH:
        return f"<{type(value).__name__} nested too deeply>"
    # Event data is foreign: an object that cannot be read is named instead.
    try:
        return _plain_object(value, depth + 1)
    except Exception as error:
        return f"<{type(value).__name__} not readable: {type(error).__name__}>"


def _plain_object(value: Any, depth: int) -> Any:
    if isinstance(value, BaseModel):
        value = {**value.__dict__, **(value.model_extra or {})}
        value = {key: item for key, item in value.items() if item is not None}
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {_key(key): to_plain(item, depth) for key, item in items}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_plain(item, depth) for item in cast("Iterable[Any]", value)]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name), depth) for field in fields(value)}
    if isinstance(value, (bytes, bytearray)):
        return f"<{len(value)} bytes>"
    return str(value)


def _key(key: Any) -> str:
    return key if isinstance(key, str) else str(key)


def to_json(data: Any, *, redactor: Redactor, max_chars: int) -> str:
    """`data` as one line of JSON, with secrets replaced and long strings cut.

    Never raises: what JSON does not know becomes text, what refers to itself is cut off.
    """
    # Secrets first: a string that was cut might end in the middle of one.
    return json.dumps(Cutter(redactor, max_chars).plain(redact_secrets(to_plain(data))))


class Cutter:
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
                # An image: not readable in a log, and many events of a conversation carry it.
                held = {**held, "data": f"<{len(data)} characters of base64>"}
            return {self._text(key): self.plain(item) for key, item in held.items()}
        if isinstance(value, list):
            return [self.plain(item) for item in cast("list[Any]", value)]
        return value

    def _text(self, text: str) -> str:
        text = self._redactor.text(text)
        excess = len(text) - self._max_chars
        return text if excess <= 0 else f"{text[: self._max_chars]}... (truncated {excess} chars)"


def session_secrets(coordinator: Any) -> list[str]:
    """Values of environment variables, and those in the config of the session's providers."""
    providers = to_mapping(getattr(coordinator, "config", None)).get("providers")
    names = SECRET_VARIABLES.of(coordinator) or ()
    return [*secrets_in(names=names), *configured_secrets(providers)]
