"""Messages for a running turn, sent through the capability `session.steer` of its orchestrator."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from amplifier_core.session_capabilities import STEER

logger = logging.getLogger(__name__)


class Steering:
    """Messages for the running turn.

    Third-party orchestrators may lack the capability, or have one that only accepts texts.
    """

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator

    def send(self, text: str) -> bool:
        """Queue `text` for the running turn; False if its orchestrator does not accept it."""
        steer = STEER.of(self._coordinator)
        if not callable(steer):
            return False
        try:
            steer(text)
        # An orchestrator may raise anything; do not lose the text.
        except Exception:
            logger.warning("The orchestrator did not accept a message", exc_info=True)
            return False
        return True

    def waiting(self) -> list[str]:
        """Return the queued messages, if the orchestrator lists them."""
        return self._texts("waiting")

    def take_back(self) -> list[str]:
        """Remove and return the messages that the finished turn did not use."""
        return self._texts("take_back")

    def _texts(self, method: str) -> list[str]:
        steer = STEER.of(self._coordinator)
        ask: Callable[[], Any] | None = getattr(steer, method, None)
        try:
            texts = ask() if callable(ask) else []
        # As above.
        except Exception:
            logger.warning("The orchestrator did not list its queued messages", exc_info=True)
            return []
        return [text for text in texts if isinstance(text, str)] if isinstance(texts, list) else []
