"""How many tokens a request has, as its provider tells."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

SAFETY_MARGIN = 1000
"""Tokens left free beside a provider's answer (Context Contract, get_messages_for_request)."""

_USUAL_OUTPUT = 8_192


class Window(NamedTuple):
    """A model's window in tokens: all it reads, and what of that its answer may take."""

    whole: int
    output: int

    @property
    def budget(self) -> int:
        """What is left for a request."""
        budget = self.whole - self.output - SAFETY_MARGIN
        return budget if budget > 0 else self.whole // 2


def window_of(provider: Any) -> Window | None:
    """The window of the provider's model, if it tells.

    That is `defaults` of its `get_info()`: `context_window` and `max_output_tokens`, for which
    something usual stands in where only the window is known.
    """
    if provider is None:
        return None
    try:
        defaults = provider.get_info().defaults or {}
        whole, output = defaults.get("context_window"), defaults.get("max_output_tokens")
        if not whole:
            return None
        return Window(int(whole), int(output) if output else min(_USUAL_OUTPUT, int(whole) // 4))
    except Exception:  # foreign code; a budget of our own is better than no request
        name = getattr(provider, "name", provider)
        logger.warning(
            "Provider %s does not tell its context window; using max_tokens", name, exc_info=True
        )
        return None
