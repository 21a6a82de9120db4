"""How the kernel asks a person: the protocol an app gives to a session."""

from typing import Literal, Protocol, runtime_checkable


class ApprovalTimeoutError(Exception):
    """Nobody answered an approval request in time."""


@runtime_checkable
class ApprovalSystem(Protocol):
    """Asks for approval; given to the session by the app."""

    async def request_approval(
        self,
        prompt: str,
        options: list[str],
        timeout: float,
        default: Literal["allow", "deny"],
    ) -> str:
        """One of `options`, as chosen.

        Args:
            prompt: The question.
            options: What can be answered.
            timeout: Seconds to wait.
            default: What the kernel does when time runs out.

        Raises:
            ApprovalTimeoutError: Nobody answered in time.
        """
        ...
