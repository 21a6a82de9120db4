"""An orchestrator of another author, within the budget of its session."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from amplifier_core.cancellation import CancellationToken, is_failure, task_cancel_count
from amplifier_core.llm_errors import LLMError
from amplifier_core.message_models import ChatRequest, Usage
from amplifier_core.models import ToolResult
from amplifier_modules._shared.loop.answered import (
    PROVIDER_FALLBACK,
    Fallbacks,
    fallback_event,
    find_fallbacks,
)
from amplifier_modules._shared.loop.budget import (
    BUDGET_REACHED,
    Budget,
    BudgetReached,
    LimitRequests,
    Reached,
    Ticket,
    open_budget,
)
from amplifier_modules._shared.loop.channel import OUT_OF_BUDGET, Channel
from amplifier_modules._shared.loop.conversation import last_answer
from amplifier_modules._shared.loop.dispatch import NOT_ALLOWED
from amplifier_modules._shared.loop.interrupt import interruptible
from amplifier_modules._shared.loop.replies import lost_usage, read_usage, with_lost
from amplifier_modules._shared.loop.turn import LoopOrchestrator
from amplifier_modules._shared.module.config import ModuleConfig
from amplifier_modules._shared.providers.base import collecting
from amplifier_support.delegate import Delegate
from amplifier_support.fields import read_field, to_mapping
from amplifier_support.provider_order import find_model

logger = logging.getLogger(__name__)


MODULE_ID = "hooks-loop-support"


class LoopSupportConfig(ModuleConfig):
    """Settings of hooks-loop-support.

    Attributes:
        budget: Apply `session.budget`.
        fallbacks: Apply `session.fallbacks`.
    """

    budget: bool = True
    fallbacks: bool = True


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
        providers: The providers for the orchestrator.
        tools: The tools for the orchestrator.
        reached: The limit that ended the turn, if one did.
        answer: The answer that the conversation already had when a request was refused; else empty.
        calls: Answered requests.
    """

    def __init__(
        self, coordinator: Any, budget: Budget, fallbacks: Sequence[str], session: Mapping[str, Any]
    ) -> None:
        self._budget = budget
        self._context = session["context"]
        self._mounted: Mapping[str, Any] = session["tools"]
        self._unmetered: Mapping[str, Any] = session["providers"]
        self._fallbacks = Fallbacks(fallbacks, self._unmetered)
        self.channel = Channel(session["hooks"], self._context, coordinator, MODULE_ID)
        # Not with the session's token: a stopped turn's task is cancelled.
        self._limits = LimitRequests(budget, self.channel, CancellationToken())
        self.providers = {
            name: MeteredProvider(provider, name, self)
            for name, provider in self._unmetered.items()
        }
        self.tools: dict[str, Any] = {}
        self._offered: dict[str, Any] = {}
        self._follow_mounted()
        self.reached: Reached | None = None
        self.answer = ""
        self.calls = 0

    async def may_start(self) -> bool:
        """Return True if the budget allows a turn, or a hook raises the limit that does not."""
        self.reached = await self._limits.find_reached({}, tools=True)
        return self.reached is None

    @property
    def is_immediate(self) -> bool:
        """True if the turn's time is up: it is a token that stops it, see `interruptible`."""
        is_up = self._budget.time_is_up()
        if is_up and self.reached is None:
            self.reached = self._budget.reached(turns=False)
        return is_up

    async def complete(
        self, name: str, method: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]
    ) -> Any:
        """The answer of a provider or, while it is unavailable, of a fallback.

        Args:
            name: The provider that the orchestrator chose.
            method: Its `complete`.
            args: The positional arguments of the call.
            options: The keyword arguments.

        Raises:
            asyncio.CancelledError: The budget allows no further request.
            Exception: Any exception of the provider.
        """
        if self._budget.is_counting():
            return await method(*args, **options)
        ticket = await self._admit(method, args, options)
        usage: dict[str, Any] | None = None
        lost: list[Usage] = []
        try:
            with collecting() as lost:
                response = await self._ask(name, method, args, options)
            usage = with_lost(read_usage(response), lost)
            self.calls += 1
            return response
        finally:
            ticket.settle(lost_usage(lost) or None if usage is None else usage)
            self._follow_mounted()

    def stream(
        self, method: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]
    ) -> Any:
        """The chunks of an answer, whose usage is what they report last.

        Raises, while it is read:
            asyncio.CancelledError: The budget allows no further request.
            Exception: Any exception of the provider.
        """
        if self._budget.is_counting():
            return method(*args, **options)
        return self._counted(method, args, options)

    async def _counted(
        self, method: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]
    ) -> AsyncGenerator[Any]:
        ticket = await self._admit(method, args, options)
        usage: dict[str, Any] | None = None
        lost: list[Usage] = []
        chunks: Any = None
        try:
            chunks = method(*args, **options)
            if isawaitable(chunks):
                chunks = await chunks
            stream = aiter(chunks)
            while True:
                # Not around the yield: what the orchestrator does meanwhile is not part of the call.
                with collecting() as attempts:
                    try:
                        chunk = await anext(stream)
                    except StopAsyncIteration:
                        break
                    finally:
                        lost += attempts
                usage = (usage or {}) | read_usage(chunk)
                yield chunk
            self.calls += 1
            ticket.settle(with_lost(usage or {}, lost))
        finally:
            with collecting() as attempts:
                close = getattr(chunks, "aclose", None)
                if close is not None:
                    await close()
            ticket.settle(lost_usage([*lost, *attempts]) or usage)

    async def run_tool(
        self, method: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]
    ) -> Any:
        """The result of a tool call, or an error if the budget does not allow it.

        Raises:
            asyncio.CancelledError: The time of the turn is up.
            Exception: Any exception of the tool.
        """
        if self.is_immediate:
            await self._end()
        if not self._budget.take_tool_calls(1):
            self.reached = self.reached or self._budget.reached(tools=True)
            error = {"type": "BudgetReached", "message": NOT_ALLOWED}
            return ToolResult(success=False, error=error)
        try:
            return await method(*args, **options)
        finally:
            self._follow_mounted()

    def parser(self, name: str) -> Any:
        """`parse_tool_calls` of the provider that answers for the provider `name`."""
        return self._unmetered[self._fallbacks.substitute(name)].parse_tool_calls

    async def _admit(
        self, method: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]
    ) -> Ticket:
        if self.reached is None and not self.is_immediate:
            provider = getattr(method, "__self__", None)
            requested = options.get("model") or read_field(next(iter(args), None), "model")
            try:
                self._limits.require_price(provider, requested or find_model(provider))
                return await self._limits.admit({})
            except BudgetReached as stop:
                self.reached = stop.reached
                if self.calls:
                    self.answer = await last_answer(self._context)
        return await self._end()

    async def _end(self) -> Any:
        """Make the orchestrator end its turn.

        By a cancellation: an error is something that it reports, answers to the user or tries again.
        """
        await asyncio.sleep(0)  # Others have to run even if it ignores that.
        raise asyncio.CancelledError(str(self.reached))

    async def _ask(
        self, name: str, method: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]
    ) -> Any:
        target = self._fallbacks.substitute(name)
        while True:
            if target != name:
                method = self._unmetered[target].complete
                # The requested model belongs to the chosen provider, not to the fallback.
                args = [_without_model(argument) for argument in args]
                options = {key: value for key, value in options.items() if key != "model"}
            try:
                return await method(*args, **options)
            except LLMError as error:
                following = self._fallbacks.after(target, error)
                if following is None:
                    raise
                about = fallback_event(target, following, error, self._unmetered)
                if (await self.channel.emit_and_apply(PROVIDER_FALLBACK, about)).denied is not None:
                    raise
            target = following

    def _follow_mounted(self) -> None:
        """Offer the tools that modules have mounted meanwhile, and no others.

        Orchestrators get the session's own tools otherwise, which change while they run.
        """
        for name in self._offered.keys() - self._mounted.keys():
            self.tools.pop(name, None)
        for name, tool in self._mounted.items():
            if self._offered.get(name) is not tool:
                self.tools[name] = MeteredTool(tool, self)
        self._offered = dict(self._mounted)


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
        member, turn, own = super().__getattr__(name), self._turn, self._name

        async def complete(*args: Any, **options: Any) -> Any:
            return await turn.complete(own, member, args, options)

        def stream(*args: Any, **options: Any) -> Any:
            return turn.stream(member, args, options)

        async def opened_stream(*args: Any, **options: Any) -> Any:
            chunks = turn.stream(member, args, options)
            return await chunks if isawaitable(chunks) else chunks

        # With the signatures of the provider, from which orchestrators see what it accepts.
        if name == "complete":
            return functools.wraps(member)(complete)
        if name in _STREAMS and callable(member):
            return functools.wraps(member)(opened_stream if iscoroutinefunction(member) else stream)
        return turn.parser(own) if name == "parse_tool_calls" else member


class MeteredTool(Delegate):
    """A tool whose calls count against the budget.

    Args:
        inner: The tool.
        turn: The turn that calls it.
    """

    def __init__(self, inner: Any, turn: Turn) -> None:
        super().__init__(inner, _turn=turn)

    def __getattr__(self, name: str) -> Any:
        member, turn = super().__getattr__(name), self._turn
        if name != "execute":
            return member

        @functools.wraps(member)
        async def execute(*args: Any, **options: Any) -> Any:
            return await turn.run_tool(member, args, options)

        return execute


def _without_model(argument: Any) -> Any:
    if isinstance(argument, ChatRequest) and argument.model is not None:
        return argument.model_copy(update={"model": None})
    return argument


class SupportedLoop(Delegate):
    """Runs an orchestrator with providers and tools that count against the budget.

    Other attributes are those of the orchestrator.

    Args:
        inner: The orchestrator.
        coordinator: The coordinator of the session.
        budget: The budget of the session.
        fallbacks: Names of the providers to use while another is unavailable, in order.
    """

    def __init__(
        self, inner: Any, coordinator: Any, budget: Budget, fallbacks: Sequence[str]
    ) -> None:
        # With the orchestrator's signature, from which the session sees what it accepts.
        @functools.wraps(inner.execute)
        async def execute(**session: Any) -> Any:
            return await self._execute(session)

        super().__init__(
            inner,
            execute=execute,
            _coordinator=coordinator,
            _budget=budget,
            _fallbacks=fallbacks,
        )

    async def _execute(self, session: dict[str, Any]) -> Any:
        """Run one turn.

        Returns:
            The answer; if a limit ends the turn before there is one, "Budget reached: …".

        Raises:
            Exception: Any exception of the orchestrator, unless a limit is its cause.
        """
        turn = Turn(self._coordinator, self._budget, self._fallbacks, session)
        answer: Any = ""
        with self._budget.clock():
            if await turn.may_start():
                answer = await self._run(turn, session)
        if turn.reached is None or self._coordinator.cancellation.is_cancelled:
            return answer
        answer = answer or turn.answer
        await turn.channel.emit_and_apply(
            "orchestrator:complete",
            {
                "orchestrator": _read_name(self._coordinator),
                "turn_count": turn.calls,
                "status": "success" if answer else "incomplete",
                "reason": OUT_OF_BUDGET,
                "budget": turn.reached._asdict(),
            },
        )
        return answer or str(turn.reached)

    async def _run(self, turn: Turn, session: dict[str, Any]) -> Any:
        """Return the orchestrator's result; nothing if a limit made it raise."""

        exits: list[SystemExit] = []

        async def execute() -> Any:
            inputs = {**session, "providers": turn.providers, "tools": turn.tools}
            try:
                return await self._inner.execute(**inputs)
            # From a task of its own it would end the event loop.
            except SystemExit as error:
                exits.append(error)

        cancels = task_cancel_count()
        try:
            answer = await interruptible(execute(), turn)
            if exits:
                raise exits[0]
            return answer
        # Foreign code: whatever the limit made it raise, the limit is the cause.
        except BaseException as error:
            if not is_failure(error, cancels) or turn.reached is None:
                raise
            logger.debug("The orchestrator ended with %r", error, exc_info=True)
            return ""


def _read_name(coordinator: Any) -> str:
    """The module id of the orchestrator, as in the plan."""
    entry = to_mapping(coordinator.config.get("session")).get("orchestrator")
    return str(to_mapping(entry).get("module") or entry or MODULE_ID)


async def mount(coordinator: Any, settings: LoopSupportConfig) -> None:
    """Mount a `SupportedLoop` in place of the orchestrator.

    Does nothing, with a warning in the log, without an orchestrator that needs it.

    Raises:
        ValueError: `session.budget` of the plan is not valid.
    """
    inner = coordinator.get("orchestrator")
    if inner is None or isinstance(inner, LoopOrchestrator):
        why = "the orchestrator applies them" if inner else "no orchestrator is mounted before it"
        logger.warning("%s does not apply budgets and fallbacks: %s", MODULE_ID, why)
        return
    budget = open_budget(coordinator) if settings.budget else Budget()
    if settings.budget:
        coordinator.register_contributor("session.stats", MODULE_ID, budget.stats)
    events = [BUDGET_REACHED, PROVIDER_FALLBACK]
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(events))
    names = find_fallbacks(coordinator) if settings.fallbacks else []
    await coordinator.mount("orchestrator", SupportedLoop(inner, coordinator, budget, names))
