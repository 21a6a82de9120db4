"""Make data safe for logs and terminals: shorten long strings, mask secrets, strip control characters.

Every function returns a copy.
"""

from collections.abc import Collection
from typing import Any, Final, cast

from amplifier_support.secret_shapes import SECRET_NAME, SENSITIVE_KEYS
from amplifier_support.text import lazy_pattern, without_sequences

__all__ = ["SECRET_NAME", "SENSITIVE_KEYS", "redact_secrets", "truncate_values"]

_REDACTED: Final = "[REDACTED]"
_CONTROL: Final = lazy_pattern(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_UNSAFE: Final = lazy_pattern(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


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
