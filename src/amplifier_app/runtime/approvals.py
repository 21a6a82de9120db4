"""Approval: asked of a person, or answered by a policy where there is none. Fails closed."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal

from amplifier_app.base.errors import ModuleError
from amplifier_app.base.sanitize import visible

if TYPE_CHECKING:
    from amplifier_core.interfaces import ApprovalRequest, ApprovalResponse

Policy = Literal["ask", "deny", "allow", "policy"]

REGISTER_PROVIDER = "approval.register_provider"
"""Capability of a module that asks for approval itself: a function that takes what answers it."""

_ONCE, _ALWAYS, _DENY = "Allow once", "Allow always", "Deny"
_MOST_SHOWN = 4000

Ask = Callable[[str, list[str], float | None], Awaitable[str | None]]
"""Puts a question with its options to a person for so many seconds; None is a refusal.

Raises:
    TimeoutError: Nobody answered.
"""


class Approvals:
    """The session's `amplifier_core.approval.ApprovalSystem`.

    Args:
        policy: What to do; ``ask`` without anybody to ask is ``deny``, ``policy`` is the default
            of each request.
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
        self, prompt: str, options: list[str], timeout: float | None, default: str
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
        self, prompt: str, options: list[str], timeout: float | None, default: str, agent: str
    ) -> str:
        try:
            answer = await self._answer(prompt, options, timeout, default, agent)
        except asyncio.CancelledError:
            # What asks may have a time limit of its own.
            self.denied.append(prompt)
            raise
        if not answer.lower().startswith("allow"):
            self.denied.append(prompt)
        return answer

    async def _answer(
        self, prompt: str, options: list[str], timeout: float | None, default: str, agent: str
    ) -> str:
        if self._policy == "allow" or (self._policy == "policy" and default == "allow"):
            return _option(options, "allow")
        if self._policy != "ask" or self._ask is None:
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
                raise ApprovalTimeoutError(f"no answer within {timeout:g} s") from None
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
        self,
        request: Callable[[str, list[str], float | None, str, str], Awaitable[str]],
        agent: str,
    ) -> None:
        self._request = request
        self._agent = agent

    async def request_approval(
        self, prompt: str, options: list[str], timeout: float | None, default: str
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


class ApprovalAnswers:
    """The `amplifier_core.interfaces.ApprovalProvider` of a session: asks as its hooks do.

    Args:
        system: The session's approval system (`amplifier_core.approval.ApprovalSystem`).
    """

    def __init__(self, system: Any) -> None:
        self._system = system

    async def request_approval(self, request: ApprovalRequest) -> ApprovalResponse:
        """The answer to a request.

        Raises:
            TimeoutError: No answer within the request's time limit.
        """
        from amplifier_core.approval import ApprovalTimeoutError
        from amplifier_core.interfaces import ApprovalResponse

        question, whole = _question(request)
        # What is not shown whole can be agreed to only once.
        options = [_ONCE, _ALWAYS, _DENY] if whole else [_ONCE, _DENY]
        try:
            answer = await self._system.request_approval(question, options, request.timeout, "deny")
        except ApprovalTimeoutError as error:
            raise TimeoutError(str(error)) from None
        approved = answer.lower().startswith("allow")
        return ApprovalResponse(
            approved=approved,
            reason=None if approved else "approval was denied",
            remember=answer == _ALWAYS,
        )


async def give_approval_provider(coordinator: Any) -> None:
    """Hand what answers requests to the module that has registered `REGISTER_PROVIDER`, if any.

    Raises:
        ModuleError: The module did not take it.
    """
    register, system = coordinator.get_capability(REGISTER_PROVIDER), coordinator.approval_system
    if register is None or system is None:
        return
    try:
        taken = register(ApprovalAnswers(system))
        if inspect.isawaitable(taken):
            await taken
    # The boundary to a module: whatever it raises, there would be no approval.
    except Exception as error:
        raise ModuleError(
            f"the capability {REGISTER_PROVIDER!r} failed: {type(error).__name__}: {error}",
            hint="It must be a function that takes an approval provider; remove the module that "
            "registers it, or fix it.",
        ) from error


def _question(request: ApprovalRequest) -> tuple[str, bool]:
    """What a person is asked, and whether it shows all that is to be decided on."""
    details = [
        (name, value if isinstance(value, str) else json.dumps(value, default=str))
        for name, value in request.details.items()
    ]
    texts = [request.action] + [
        f"{name}: {value}" for name, value in details if value not in request.action
    ]
    whole = all(len(text) <= _MOST_SHOWN for text in texts)
    action, *more = (_marked(text) for text in texts)
    lines = [f"Allow {visible(request.tool_name, 60)}: {action}", *more]
    return "\n  ".join(lines) + f" ({visible(request.risk_level, 20)} risk)", whole


def _marked(text: str) -> str:
    """`text` with each of several lines marked, so that none passes for one of the question."""
    lines = text[:_MOST_SHOWN].splitlines() or [""]
    shown = [visible(line, _MOST_SHOWN) for line in lines]
    if len(text) > _MOST_SHOWN:
        shown.append(f"… and {len(text) - _MOST_SHOWN:,} more characters, not shown")
    return shown[0] if len(shown) == 1 else "".join(f"\n  | {line}" for line in shown)
