"""Make data safe for logs and terminals: shorten long strings, mask secrets, strip control characters.

Every function returns a copy.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, cast

from amplifier_support.secret_shapes import SECRET_NAME, SENSITIVE_KEYS, is_secret_name
from amplifier_support.text import without_sequences

__all__ = [
    "SECRET_NAME",
    "SENSITIVE_KEYS",
    "redact_config",
    "redact_secrets",
    "truncate_values",
]

_REDACTED: Final = "[REDACTED]"
_USERINFO: Final = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_SHORTEST_SECRET: Final = 8
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_UNSAFE: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def strip_control_characters(text: str) -> str:
    """`text` without C0 and C1 control characters, except tab, line feed and carriage return."""
    return _CONTROL.sub("", text)


def sanitize_text(text: str) -> str:
    """`text` without terminal escape sequences, such as colours, without control characters (as above)
    and without lone surrogates."""
    return _UNSAFE.sub("", without_sequences(text))


def truncate_values(obj: Any, max_length: int = 180) -> Any:
    """Truncate strings in nested dicts and lists to ``max_length`` characters plus a note.

    Other values, including tuples, are not changed.
    """
    if isinstance(obj, str):
        excess = len(obj) - max_length
        return obj if excess <= 0 else f"{obj[:max_length]}... (truncated {excess} chars)"
    if isinstance(obj, dict):
        entries = cast("dict[Any, Any]", obj).items()
        return {key: truncate_values(value, max_length) for key, value in entries}
    if isinstance(obj, list):
        return [truncate_values(item, max_length) for item in cast("list[Any]", obj)]
    return obj


def redact_secrets(obj: Any, sensitive_keys: Collection[str] = SENSITIVE_KEYS) -> Any:
    """Replace the values of sensitive keys in nested dicts and lists with ``"[REDACTED]"``.

    A key is sensitive if its lower-case form is in ``sensitive_keys`` (complete match); its value is
    replaced regardless of type. Other values, including tuples, are not changed.
    """
    if isinstance(obj, dict):
        return {
            key: _REDACTED
            if isinstance(key, str) and key.lower() in sensitive_keys
            else redact_secrets(value, sensitive_keys)
            for key, value in cast("dict[Any, Any]", obj).items()
        }
    if isinstance(obj, list):
        return [redact_secrets(item, sensitive_keys) for item in cast("list[Any]", obj)]
    return obj


def redact_config(config: Any, secrets: Iterable[str] = ()) -> Any:
    """A copy of a mount plan that can be shown and logged.

    Replaces the values of sensitive keys, strings whose keys match `SECRET_NAME`, user names and
    passwords in URLs, and all occurrences of `secrets` that have at least 8 characters.
    """
    known = sorted({one for one in secrets if len(one) >= _SHORTEST_SECRET}, key=len, reverse=True)

    def redacted(value: Any, key: str = "") -> Any:
        if key.lower() in SENSITIVE_KEYS or (isinstance(value, str) and is_secret_name(key)):
            return _REDACTED
        if isinstance(value, Mapping):
            entries = cast("Mapping[Any, Any]", value).items()
            return {name: redacted(inner, str(name)) for name, inner in entries}
        if isinstance(value, (list, tuple)):
            return [redacted(inner, key) for inner in cast("list[Any]", value)]
        if isinstance(value, str):
            value = _USERINFO.sub(_REDACTED, value)
            for secret in known:
                value = value.replace(secret, _REDACTED)
        return value

    return redacted(config)
