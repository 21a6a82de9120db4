"""The progress of opening a session, and its deadline."""

from __future__ import annotations

import time


class Opening:
    """Progress of opening a session.

    Args:
        deadline: When it must be open, by the monotonic clock; None for no limit.

    Attributes:
        module: The id of the module being imported or mounted; empty if none is.
    """

    def __init__(self, deadline: float | None = None) -> None:
        self.deadline = deadline
        self.module = ""

    def begin(self, module_id: str) -> None:
        """Set the current module, unless the deadline has passed."""
        if not self.expired:
            self.module = module_id

    @property
    def expired(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline


class OpeningTimedOut(Exception):
    """A session was not open by its deadline; the text names the current step."""
