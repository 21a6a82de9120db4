"""Secrets out of what the program itself writes for people: errors, notices, titles, reports.

Importing this is cheap; the rules are loaded with the first text that may have a secret in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakSet

_SHORTEST = 8
"""Characters of the shortest text with a secret."""

_names: set[str] = set()
_sessions: WeakSet[Any] = WeakSet()


def treat_as_secret(names: Iterable[str]) -> None:
    """Also replace the values of these environment variables, whatever their names look like."""
    _names.update(names)


def treat_keys_as_secret(coordinator: Any) -> None:
    """Also replace the keys in the configs of a session's providers, as long as the session is open."""
    _sessions.add(coordinator)


def redact(text: str) -> str:
    """`text` with its secrets replaced by ``[REDACTED:kind]``."""
    if len(text) < _SHORTEST or text.isspace():
        return text
    from amplifier_support.redaction import Redactor, configured_secrets, secrets_in

    known = set(secrets_in(names=_names))
    for session in _sessions:
        known.update(configured_secrets((session.config or {}).get("providers")))
    return Redactor(known).text(text)
