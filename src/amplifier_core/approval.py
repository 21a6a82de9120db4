"""Approval by the user: the protocol that an app implements."""

from typing import Literal, Protocol, runtime_checkable


class ApprovalTimeoutError(Exception):
    """An approval request timed out."""


@runtime_checkable
class ApprovalSystem(Protocol):
    """Asks the user for approval; passed to the session by the app."""

    async def request_approval(
        self,
        prompt: str,
        options: list[str],
        timeout: float,
        default: Literal["allow", "deny"],
    ) -> str:
        """Ask the user and return the chosen one of `options`.

        Args:
            prompt: The question.
            options: The possible answers.
            timeout: Seconds to wait.
            default: What the kernel does after a timeout.

        Raises:
            ApprovalTimeoutError: There was no answer in time.
        """
        ...
