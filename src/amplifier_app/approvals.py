"""Approval: asked of a person, or answered by a policy where there is none. Fails closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

Policy = Literal["ask", "deny", "allow"]

Ask = Callable[[str, list[str], float], Awaitable[str | None]]
"""Puts a question with its options to a person for so many seconds; None is a refusal.

Raises:
    TimeoutError: Nobody answered.
"""


class Approvals:
    """The session's `amplifier_core.approval.ApprovalSystem`.

    Args:
        policy: What to do; ``ask`` without anybody to ask is ``deny``.
        ask: How to ask; None when there is no person at a terminal.

    Attributes:
        denied: The questions that were denied, in order.
    """

    def __init__(self, policy: Policy, ask: Ask | None = None) -> None:
        self._policy = policy
        self._ask = ask
        self._always: dict[str, str] = {}
        self._one_at_a_time = asyncio.Lock()
        self.denied: list[str] = []

    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: Literal["allow", "deny"]
    ) -> str:
        """One of `options` (see `amplifier_core.approval.ApprovalSystem`).

        Raises:
            ApprovalTimeoutError: Nobody answered in `timeout` seconds.
        """
        answer = await self._answer(prompt, options, timeout, default)
        if not answer.lower().startswith("allow"):
            self.denied.append(prompt)
        return answer

    async def _answer(self, prompt: str, options: list[str], timeout: float, default: str) -> str:
        if self._policy == "allow":
            return _option(options, "allow")
        if self._policy == "deny" or self._ask is None:
            return _option(options, "deny")
        async with self._one_at_a_time:
            remembered = self._always.get(prompt)
            if remembered is not None:
                return remembered
            try:
                answer = await self._ask(prompt, options, timeout)
            except TimeoutError:
                from amplifier_core.approval import ApprovalTimeoutError

                if default != "allow":
                    self.denied.append(prompt)
                raise ApprovalTimeoutError(f"nobody answered in {timeout:g} s") from None
        answer = answer or _option(options, "deny")
        if answer.lower() == "allow always":
            self._always[prompt] = answer
        return answer


def _option(options: list[str], word: str) -> str:
    """The option that says `word`; the kernel understands the bare word where there is none."""
    return next((option for option in options if option.lower().startswith(word)), word.title())
