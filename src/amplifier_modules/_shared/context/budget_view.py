"""The token budget of a request, from its provider's context window."""

from __future__ import annotations

import logging
from typing import Any

from amplifier_core._foreign import describe_exception
from amplifier_support.named_tuple import NamedTuple

logger = logging.getLogger(__name__)

SAFETY_MARGIN = 1000
"""Tokens kept free in addition to the answer (Context Contract, get_messages_for_request)."""

_USUAL_OUTPUT = 8_192


class Window(NamedTuple):
    """A model's context window in tokens, and the part of it reserved for the answer."""

    whole: int
    output: int

    @property
    def budget(self) -> int:
        """Tokens left for a request."""
        budget = self.whole - self.output - SAFETY_MARGIN
        return budget if budget > 0 else self.whole // 2


def find_window(provider: Any) -> Window | None:
    """The window of the provider's model, if it reports one.

    Read from `defaults` of its `get_info()`: `context_window` and `max_output_tokens`. If only the
    window is known, a common output size is used.
    """
    if provider is None:
        return None
    try:
        defaults = provider.get_info().defaults or {}
        whole, output = defaults.get("context_window"), defaults.get("max_output_tokens")
        if not whole:
            return None
        return Window(int(whole), int(output) if output else min(_USUAL_OUTPUT, int(whole) // 4))
    except Exception as error:  # third-party code; fall back to our own budget
        name, problem = getattr(provider, "name", provider), describe_exception(error, None)
        text = "Provider %s did not report its context window (%s); using max_tokens"
        logger.warning(text, name, problem)
        return None
