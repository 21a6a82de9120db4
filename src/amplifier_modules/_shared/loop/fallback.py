"""Who is asked while a provider is not available: `fallbacks` of the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from amplifier_core.llm_errors import (
    LLMError,
    NotFoundError,
    ProviderUnavailableError,
    RateLimitError,
)

PROVIDER_FALLBACK = "provider:fallback"
_PREFIX = "provider-"


class Fallbacks:
    """The providers of one turn that stand in for others.

    Who was not available is not asked again in the turn: each try costs all of its retries.

    Args:
        names: Names of providers in the order in which they are asked.
        providers: The mounted providers by name. Names of others are passed over: their conditions
            may have left them out.
    """

    def __init__(self, names: Sequence[str], providers: Mapping[str, Any]) -> None:
        mounted = (name if name in providers else name.removeprefix(_PREFIX) for name in names)
        self._chain = [name for name in dict.fromkeys(mounted) if name in providers]
        self._away: set[str] = set()

    def instead_of(self, name: str) -> str:
        """Who is asked when `name` is meant: itself, unless it is known to be away."""
        return self._next() or name if name in self._away else name

    def after(self, name: str, error: Exception) -> str | None:
        """Who is asked now that `name` has failed; None if the error is the turn's."""
        if not self._chain or not is_unavailable(error):
            return None
        self._away.add(name)
        return self._next()

    def _next(self) -> str | None:
        return next((name for name in self._chain if name not in self._away), None)


def is_unavailable(error: Exception) -> bool:
    """Whether another provider may well answer the same request.

    The network or the service is down, overloaded or slow; requests or credit are used up; the
    model is not there. Not where the request, the key or the settings are wrong.
    """
    if not isinstance(error, LLMError):
        return False
    if error.retryable or isinstance(error, (RateLimitError, NotFoundError)):
        return True
    status = error.status_code or 0
    # A service may say that asking itself again is of no use.
    return isinstance(error, ProviderUnavailableError) and status >= 500


def fallbacks_of(coordinator: Any) -> list[str]:
    """`session.fallbacks` of a session's plan."""
    config: Any = getattr(coordinator, "config", None)
    session: Any = config.get("session") if isinstance(config, Mapping) else None
    named: Any = session.get("fallbacks") if isinstance(session, Mapping) else None
    if isinstance(named, str):
        return [named]
    items = cast("list[Any]", named) if isinstance(named, list) else []
    return [name for name in items if isinstance(name, str)]
