"""Providers to use while another is unavailable: `fallbacks` of the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from amplifier_core.llm_errors import (
    LLMError,
    NotFoundError,
    ProviderUnavailableError,
    RateLimitError,
)
from amplifier_support.fields import mapping_of

PROVIDER_FALLBACK = "provider:fallback"
_PREFIX = "provider-"


class Fallbacks:
    """The fallback providers of one turn.

    A provider that was unavailable is not asked again in the turn: each attempt costs all its retries.

    Args:
        names: Names of providers in the order in which they are tried.
        providers: The mounted providers by name. Other names are skipped: their conditions may
            have excluded them.
    """

    def __init__(self, names: Sequence[str], providers: Mapping[str, Any]) -> None:
        mounted = (name if name in providers else name.removeprefix(_PREFIX) for name in names)
        self._chain = [name for name in dict.fromkeys(mounted) if name in providers]
        self._away: set[str] = set()

    def instead_of(self, name: str) -> str:
        """The provider to use for `name`: itself, unless it is known to be unavailable."""
        return self._next() or name if name in self._away else name

    def after(self, name: str, error: Exception) -> str | None:
        """The provider to use after `name` failed; None if the error ends the turn."""
        if not self._chain or not is_unavailable(error):
            return None
        self._away.add(name)
        return self._next()

    def _next(self) -> str | None:
        return next((name for name in self._chain if name not in self._away), None)


def is_unavailable(error: Exception) -> bool:
    """Whether another provider may answer the same request.

    True if the network or the service is down, overloaded or slow, if a rate limit or the credit is
    exhausted, or if the model is missing. False if the request, the key or the settings are wrong.
    """
    if not isinstance(error, LLMError):
        return False
    if error.retryable or isinstance(error, (RateLimitError, NotFoundError)):
        return True
    status = error.status_code or 0
    # A service may report that a retry is pointless.
    return isinstance(error, ProviderUnavailableError) and status >= 500


def fallbacks_of(coordinator: Any) -> list[str]:
    """`session.fallbacks` of a session's plan."""
    config = mapping_of(getattr(coordinator, "config", None))
    named = mapping_of(config.get("session")).get("fallbacks")
    if isinstance(named, str):
        return [named]
    items = cast("list[Any]", named) if isinstance(named, list) else []
    return [name for name in items if isinstance(name, str)]
