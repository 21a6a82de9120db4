"""Messages of hooks to the user: the protocol that an app implements."""

from typing import Literal, Protocol, runtime_checkable


@runtime_checkable
class DisplaySystem(Protocol):
    """Shows messages to the user; passed to the session by the app."""

    def show_message(
        self, message: str, level: Literal["info", "warning", "error"], source: str = "hook"
    ) -> None:
        """Show one message; `source` names its origin (``hook:<name>``)."""
        ...
