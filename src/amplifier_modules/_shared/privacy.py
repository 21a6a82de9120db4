"""The secret values that are known in a session."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast

from pydantic import BaseModel

from amplifier_support.fields import to_mapping
from amplifier_support.redaction import (
    Redactor,
    configured_secrets,
    is_repeated,
    secrets_in,
    shared_redactor,
)
from amplifier_support.secret_shapes import SENSITIVE_KEYS
from amplifier_support.session_capabilities import SECRET_VARIABLES

MAX_DEPTH = 32
_REDACTED = "[REDACTED]"


def raw_data(data: Any) -> dict[str, Any]:
    """The values of an event's data themselves, not the copies that handlers get: only to be read."""
    if not isinstance(data, dict):
        return {"value": data}
    held = cast("dict[str, Any]", data)
    return {key: dict.__getitem__(held, key) for key in held}


class PlainCopy:
    """Copies values as JSON's own types; subclasses change strings and mappings on the way.

    Never raises: what JSON does not know becomes text, what refers to itself is cut off.
    """

    def of(self, value: Any, above: tuple[int, ...] = ()) -> Any:
        """The copy of `value`; `above` has the ids of the values that contain it."""
        kind = type(value)
        if kind is str:
            return self.text(value)
        if value is None or kind is bool or kind is int:
            return value
        if isinstance(value, str):
            # Not str(value): an enumeration of strings would give its name.
            return self.text(str.__str__(value))
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else str(value)
        if len(above) >= MAX_DEPTH or is_repeated(value, above):
            return f"<{kind.__name__} nested too deeply>"
        above = (*above, id(value))
        if kind is list:
            return [self.of(item, above) for item in value]
        # Event data is foreign: an object that cannot be read is named instead.
        try:
            if kind is dict:
                return self.mapping(value, above)
            return self._object(value, above)
        except Exception as error:
            return f"<{kind.__name__} not readable: {type(error).__name__}>"

    def text(self, text: str) -> str:
        """The copy of a string."""
        return text

    def mapping(self, value: Mapping[Any, Any], above: tuple[int, ...]) -> dict[str, Any]:
        """The copy of a mapping; `above` as for its values."""
        return {self.text(_key(key)): self.of(item, above) for key, item in value.items()}

    def _object(self, value: Any, above: tuple[int, ...]) -> Any:
        if isinstance(value, BaseModel):
            value = {**value.__dict__, **(value.model_extra or {})}
            value = {key: item for key, item in value.items() if item is not None}
        if isinstance(value, Mapping):
            return self.mapping(cast("Mapping[Any, Any]", value), above)
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self.of(item, above) for item in cast("Iterable[Any]", value)]
        if is_dataclass(value) and not isinstance(value, type):
            return self.mapping({f.name: getattr(value, f.name) for f in fields(value)}, above)
        if isinstance(value, (bytes, bytearray)):
            return f"<{len(value)} bytes>"
        return self.text(str(value))


def _key(key: Any) -> str:
    return key if isinstance(key, str) else str(key)


class LogCopy(PlainCopy):
    """Replaces secrets, cuts strings that are too long, and leaves out images.

    Args:
        redactor: Finds secrets in strings; values of sensitive keys are replaced as well.
        max_chars: Length at which a string is cut.
    """

    def __init__(self, redactor: Redactor, max_chars: int) -> None:
        self._redactor = redactor
        self._max_chars = max_chars

    def text(self, text: str) -> str:
        # Secrets first: a string that was cut might end in the middle of one.
        text = self._redactor.text(text)
        excess = len(text) - self._max_chars
        return text if excess <= 0 else f"{text[: self._max_chars]}... (truncated {excess} chars)"

    def mapping(self, value: Mapping[Any, Any], above: tuple[int, ...]) -> dict[str, Any]:
        if value.get("type") == "base64" and isinstance(data := value.get("data"), str):
            # An image: not readable in a log, and many events of a conversation carry it.
            value = {**value, "data": f"<{len(data)} characters of base64>"}
        copied: dict[str, Any] = {}
        for key, item in value.items():
            name = key if type(key) is str else _key(key)
            is_secret = name.lower() in SENSITIVE_KEYS
            copied[self.text(name)] = _REDACTED if is_secret else self.of(item, above)
        return copied


def session_secrets(coordinator: Any) -> list[str]:
    """Values of environment variables, and those in the config of the session's providers."""
    providers = to_mapping(getattr(coordinator, "config", None)).get("providers")
    names = SECRET_VARIABLES.of(coordinator) or ()
    return [*secrets_in(names=names), *configured_secrets(providers)]


def session_redactor(coordinator: Any) -> Redactor:
    """Return what replaces the secrets that are known in a session."""
    return shared_redactor(frozenset(session_secrets(coordinator)))
