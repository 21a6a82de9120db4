"""What is said to a running turn, through the capability `session.steer` of its orchestrator."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

CAPABILITY = "session.steer"


class Steering:
    """Messages for the turn under way.

    Orchestrators of others may have no such capability, or one that only takes texts.
    """

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator

    def say(self, text: str) -> bool:
        """Queue `text` for the running turn; False if its orchestrator takes none."""
        steer = self._coordinator.get_capability(CAPABILITY)
        if not callable(steer):
            return False
        try:
            steer(text)
        # Orchestrators are foreign code; one that cannot be steered is no reason to lose the text.
        except Exception:
            logger.warning("The orchestrator did not take a message", exc_info=True)
            return False
        return True

    def waiting(self) -> list[str]:
        """What the turn has not come to yet, as far as its orchestrator tells."""
        return self._texts("waiting")

    def take_back(self) -> list[str]:
        """What the turn that has ended did not use; it is no longer queued."""
        return self._texts("take_back")

    def _texts(self, method: str) -> list[str]:
        steer = self._coordinator.get_capability(CAPABILITY)
        ask: Callable[[], Any] | None = getattr(steer, method, None)
        try:
            texts = ask() if callable(ask) else []
        # As above.
        except Exception:
            logger.warning("The orchestrator did not tell which messages wait", exc_info=True)
            return []
        return [text for text in texts if isinstance(text, str)] if isinstance(texts, list) else []
