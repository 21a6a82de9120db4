"""How the kernel shows a hook's message: the protocol an app gives to a session."""

from typing import Literal, Protocol, runtime_checkable


@runtime_checkable
class DisplaySystem(Protocol):
    """Shows messages to the user; given to the session by the app."""

    def show_message(
        self, message: str, level: Literal["info", "warning", "error"], source: str = "hook"
    ) -> None:
        """Show one message; `source` says who it is from (``hook:<name>``)."""
        ...
