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
        return await self._request(prompt, options, timeout, default, "")

    def for_agent(self, agent: str) -> AgentApprovals:
        """The same for a sub-agent: a person is told who asks; what was always allowed still is."""
        return AgentApprovals(self._request, agent)

    async def _request(
        self, prompt: str, options: list[str], timeout: float, default: str, agent: str
    ) -> str:
        answer = await self._answer(prompt, options, timeout, default, agent)
        if not answer.lower().startswith("allow"):
            self.denied.append(prompt)
        return answer

    async def _answer(
        self, prompt: str, options: list[str], timeout: float, default: str, agent: str
    ) -> str:
        if self._policy == "allow":
            return _option(options, "allow")
        if self._policy == "deny" or self._ask is None:
            return _option(options, "deny")
        async with self._one_at_a_time:
            remembered = self._always.get(prompt)
            if remembered is not None:
                return remembered
            try:
                shown = f"{agent}: {prompt}" if agent else prompt
                answer = await self._ask(shown, options, timeout)
            except TimeoutError:
                from amplifier_core.approval import ApprovalTimeoutError

                if default != "allow":
                    self.denied.append(prompt)
                raise ApprovalTimeoutError(f"nobody answered in {timeout:g} s") from None
        answer = answer or _option(options, "deny")
        if answer.lower() == "allow always":
            self._always[prompt] = answer
        return answer


class AgentApprovals:
    """The `amplifier_core.approval.ApprovalSystem` of a sub-agent.

    Args:
        request: Asks in the session above: prompt, options, timeout, default and who asks.
        agent: The name of the agent.
    """

    def __init__(
        self, request: Callable[[str, list[str], float, str, str], Awaitable[str]], agent: str
    ) -> None:
        self._request = request
        self._agent = agent

    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: Literal["allow", "deny"]
    ) -> str:
        """One of `options`.

        Raises:
            ApprovalTimeoutError: Nobody answered in `timeout` seconds.
        """
        return await self._request(prompt, options, timeout, default, self._agent)

    def for_agent(self, agent: str) -> AgentApprovals:
        """The same for an agent that this one gives a task to."""
        return AgentApprovals(self._request, f"{self._agent}/{agent}")


def _option(options: list[str], word: str) -> str:
    """The option that says `word`; the kernel understands the bare word where there is none."""
    return next((option for option in options if option.lower().startswith(word)), word.title())
