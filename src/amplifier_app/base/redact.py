"""Secrets out of what the program itself writes for people: errors, notices, titles, reports.

Importing this is cheap; the rules are loaded with the first text that may have a secret in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    from amplifier_support.redaction import Redactor

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
    return text if len(text) < _SHORTEST or text.isspace() else redactor().text(text)


def redactor(more: Iterable[str] = ()) -> Redactor:
    """Return the redactor of `redact`, for many texts or for data; also replaces the values in `more`."""
    from amplifier_support.fields import content_key
    from amplifier_support.redaction import configured_secrets, secrets_in, shared_redactor

    known, read = {*secrets_in(names=_names), *more}, b""
    for session in _sessions:
        providers = (session.config or {}).get("providers")
        # The rows of a batch have equal providers, and sessions stay for a while after their end.
        if (content := content_key(providers)) is None or content != read:
            known.update(configured_secrets(providers))
            read = content
    return shared_redactor(frozenset(known))
