"""Making data fit for logs: long strings shortened, secrets blanked. Both return copies."""

from collections.abc import Collection
from typing import Any, Final, cast

__all__ = ["SENSITIVE_KEYS", "redact_secrets", "truncate_values"]

SENSITIVE_KEYS: Final[frozenset[str]] = frozenset(
    {
        "api_key",
        "apikey",
        "api-key",
        "secret",
        "password",
        "token",
        "credential",
        "credentials",
        "private_key",
        "privatekey",
        "auth",
        "authorization",
    }
)
"""Keys, lower-case and whole, whose values are secrets."""

_REDACTED: Final = "[REDACTED]"


def truncate_values(obj: Any, max_length: int = 180) -> Any:
    """Shorten every string inside nested dicts and lists to ``max_length`` characters and a note of the rest.

    Everything else, tuples included, is passed through as it is.
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
    """Replace the values of sensitive keys inside nested dicts and lists by ``"[REDACTED]"``.

    A key is sensitive when its lower-case form is in ``sensitive_keys`` (whole, not in part); its value
    goes whatever its type. Everything else, tuples included, is passed through as it is.
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
