"""The providers and tools of one turn, counted against the budget."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from inspect import isawaitable
from typing import Any

from amplifier_core.llm_errors import LLMError
from amplifier_core.message_models import ChatRequest, Usage
from amplifier_core.models import ToolResult
from amplifier_modules._shared.loop.budget import Budget, BudgetReached, Ticket
from amplifier_modules._shared.loop.channel import Channel
from amplifier_modules._shared.loop.dispatch import NOT_ALLOWED
from amplifier_modules._shared.loop.fallback import PROVIDER_FALLBACK, Fallbacks
from amplifier_modules._shared.loop.limit_requests import LimitRequests
from amplifier_modules._shared.loop.limits import Reached
from amplifier_modules._shared.loop.replies import lost_usage, usage_of, with_lost
from amplifier_modules._shared.loop.turn_end import error_data
from amplifier_modules._shared.module.delegate import Delegate
from amplifier_modules._shared.providers.lost_usage import collecting
from amplifier_modules.hooks_loop_support.config import MODULE_ID

_STREAMS = ("stream", "stream_complete")
"""Methods of providers that return an answer in chunks."""


class Turn:
    """Admits and counts the requests and tool calls of one turn.

    Args:
        coordinator: The coordinator of the session.
        budget: The budget of the session.
        fallbacks: Names of the providers to use while another is unavailable, in order.
        session: The keyword arguments of the orchestrator's `execute`.

    Attributes:
        channel: The turn's hooks.
        reached: The limit that ended the turn, if one did.
        calls: Answered requests.
    """

    def __init__(
        self, coordinator: Any, budget: Budget, fallbacks: Sequence[str], session: Mapping[str, Any]
    ) -> None:
        self._budget = budget
        self._providers: Mapping[str, Any] = session["providers"]
        self._fallbacks = Fallbacks(fallbacks, self._providers)
        self.channel = Channel(session["hooks"], session["context"], coordinator, MODULE_ID)
        # Without the cancellation token: a stopped turn's task is cancelled.
        self._limits = LimitRequests(budget, self.channel, None)
        self.reached: Reached | None = None
        self.calls = 0

    async def may_start(self) -> bool:
        """Whether the budget allows a turn, or a hook raises the limit that does not."""
        while (reached := self._budget.reached(tools=True)) is not None:
            if not await self._limits.request_raise(reached, {}):
                self.reached = reached
                return False
        return True

    def is_over(self) -> bool:
        """Whether a limit has ended the turn; also if its time has just run out."""
        if self.reached is None and self._budget.time_is_up():
            self.reached = self._budget.reached()
        return self.reached is not None

    async def complete(self, name: str, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """The answer of a provider or, while it is unavailable, of a fallback.

        Args:
            name: The provider that the orchestrator chose.
            args: Positional arguments of its `complete`.
            options: Keyword arguments.

        Raises:
            LLMError: The provider failed, or the budget allows no further request.
            Exception: Any exception of the provider.
        """
        ticket = await self._admit()
        usage: dict[str, Any] | None = None
        lost: list[Usage] = []
        try:
            with collecting() as lost:
                response = await self._ask(name, args, options)
            usage = with_lost(usage_of(response), lost)
            self.calls += 1
            return response
        finally:
            ticket.settle(lost_usage(lost) or None if usage is None else usage)

    async def stream(
        self, method: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]
    ) -> AsyncGenerator[Any]:
        """The chunks of an answer; the last usage in them counts.

        Raises:
            LLMError: The provider failed, or the budget allows no further request.
            Exception: Any exception of the provider.
        """
        ticket = await self._admit()
        usage: dict[str, Any] | None = None
        try:
            chunks = method(*args, **options)
            async with aclosing(await chunks if isawaitable(chunks) else chunks) as stream:
                async for chunk in stream:
                    usage = usage_of(chunk) or usage or {}
                    yield chunk
            self.calls += 1
        finally:
            ticket.settle(usage)

    def take_tool_call(self) -> bool:
        """Whether the budget allows one more tool call, which is counted."""
        if self._budget.take_tool_calls(1):
            return True
        self.reached = self.reached or self._budget.reached(tools=True)
        return False

    async def _admit(self) -> Ticket:
        try:
            if self.reached is not None:
                raise BudgetReached(self.reached)
            return await self._limits.admit({})
        except BudgetReached as stop:
            self.reached = stop.reached
            raise LLMError(str(stop.reached)) from stop

    async def _ask(self, name: str, args: Sequence[Any], options: dict[str, Any]) -> Any:
        target = self._fallbacks.instead_of(name)
        while True:
            if target != name:
                # The requested model belongs to the chosen provider, not to the fallback.
                args = [_without_model(argument) for argument in args]
                options = {key: value for key, value in options.items() if key != "model"}
            try:
                return await self._providers[target].complete(*args, **options)
            except LLMError as error:
                following = self._fallbacks.after(target, error)
                if following is None:
                    raise
                about = {"provider": target, "fallback": following, "error": error_data(error)}
                if (await self.channel.ask(PROVIDER_FALLBACK, about)).denied is not None:
                    raise
            target = following


class MeteredProvider(Delegate):
    """A provider whose answers count against the budget.

    Args:
        inner: The provider.
        name: Its name.
        turn: The turn that it answers in.
    """

    def __init__(self, inner: Any, name: str, turn: Turn) -> None:
        super().__init__(inner, _name=name, _turn=turn)

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name not in _STREAMS or not callable(found):
            return found
        return lambda *args, **options: self._turn.stream(found, args, options)

    async def complete(self, *args: Any, **options: Any) -> Any:
        return await self._turn.complete(self._name, args, options)


class MeteredTool(Delegate):
    """A tool whose calls count against the budget.

    Args:
        inner: The tool.
        turn: The turn that calls it.
    """

    def __init__(self, inner: Any, turn: Turn) -> None:
        super().__init__(inner, _turn=turn)

    async def execute(self, *args: Any, **options: Any) -> Any:
        if not self._turn.take_tool_call():
            return ToolResult(
                success=False, error={"type": "BudgetReached", "message": NOT_ALLOWED}
            )
        return await self._inner.execute(*args, **options)


def _without_model(argument: Any) -> Any:
    if isinstance(argument, ChatRequest) and argument.model is not None:
        return argument.model_copy(update={"model": None})
    return argument
