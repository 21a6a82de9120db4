"""The provider calls of a turn: building the request, applying hooks, and parsing the answer."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from amplifier_core._foreign import blame, where_defined
from amplifier_core.cancellation import is_failure, task_cancel_count
from amplifier_core.llm_errors import ContextLengthError, InvalidRequestError, LLMError
from amplifier_core.message_models import Usage
from amplifier_modules._shared.history import Readings, to_chat_request
from amplifier_modules._shared.loop.answer_format import AnswerFormat
from amplifier_modules._shared.loop.budget import Ticket
from amplifier_modules._shared.loop.calls import Call, calls_of
from amplifier_modules._shared.loop.channel import Channel, Injection, TurnDenied
from amplifier_modules._shared.loop.config import LoopConfig
from amplifier_modules._shared.loop.conversation import view_of
from amplifier_modules._shared.loop.fallback import PROVIDER_FALLBACK, Fallbacks
from amplifier_modules._shared.loop.interrupt import interruptible
from amplifier_modules._shared.loop.limit_requests import LimitRequests
from amplifier_modules._shared.loop.offered_tools import offered_tools
from amplifier_modules._shared.loop.overflow import CONTEXT_OVERFLOW, Room, size_of
from amplifier_modules._shared.loop.replies import (
    apply_hook_changes,
    blocks_of,
    is_response,
    lost_usage,
    metadata_of,
    shown_to_hooks,
    usage_of,
    with_lost,
)
from amplifier_modules._shared.loop.requests import (
    choose_provider,
    with_injections,
)
from amplifier_modules._shared.loop.schema import InputChecker
from amplifier_modules._shared.loop.turn_end import error_data
from amplifier_modules._shared.module.spans import Span
from amplifier_modules._shared.providers.lost_usage import collecting
from amplifier_support.provider_order import model_of

logger = logging.getLogger(__name__)

Ask = Callable[[Any, Any, Channel, Span], Awaitable[Any]]
"""Calls a provider: (provider, request, channel, span) -> response; emits events for its blocks."""


class Reply(NamedTuple):
    """A provider's parsed answer.

    Attributes:
        response: The answer after hooks.
        blocks: Its content.
        calls: The tool calls it requests.
        usage: The usage the provider reported, regardless of changes by hooks.
        span: The span of the provider call.
    """

    response: Any
    blocks: list[dict[str, Any]]
    calls: list[Call]
    usage: dict[str, Any]
    span: Span


class Target(NamedTuple):
    """The provider and model to call.

    Attributes:
        name: Name of the provider.
        provider: The provider.
        wanted: The model to request; None for the provider's default.
    """

    name: str
    provider: Any
    wanted: str | None

    @property
    def model(self) -> str | None:
        """The model that will answer, if known."""
        return self.wanted or model_of(self.provider)


class Exchanges:
    """The provider calls of one turn.

    Args:
        ask: How the orchestrator calls a provider.
        config: Its settings.
        readings: Cache of parsed messages; outlives the turn.
        checker: Validates tool inputs; outlives the turn.
        context: See `amplifier_core.interfaces.ContextManager`.
        providers: Providers by name.
        tools: Tools by name.
        channel: The turn's hooks.
        token: Can stop the turn; see `StopSignal`.
        limits: Admits requests within the session's budget.
        fallbacks: Providers to use while another is unavailable.
        room: How much of the conversation fits; outlives the turn.
        answer_format: The form of the answers; outlives the turn.

    Attributes:
        lost: Usage of the attempts of the current exchange that ended without an answer.
    """

    _ticket: Ticket

    def __init__(
        self,
        *,
        ask: Ask,
        config: LoopConfig,
        readings: Readings,
        checker: InputChecker,
        context: Any,
        providers: Mapping[str, Any],
        tools: Mapping[str, Any],
        channel: Channel,
        token: Any,
        limits: LimitRequests,
        fallbacks: Fallbacks,
        room: Room,
        answer_format: AnswerFormat,
    ) -> None:
        self._ask = ask
        self._limits = limits
        self._config = config
        self._readings = readings
        self._checker = checker
        self._context = context
        self._providers = providers
        self._tools = tools
        self._channel = channel
        self._token = token
        self._fallbacks = fallbacks
        self._room = room
        self._answer_format = answer_format
        self.lost: list[Usage] = []

    async def make(self, span: Span) -> Reply:
        """Request the next answer and count its usage.

        Raises:
            BudgetReached: The session's budget is exhausted.
            Interrupted: The cancellation token turned immediate in the meantime.
            TurnDenied: A hook denied the request or the answer.
            Exception: The provider or the context failed.
        """
        self._ticket = ticket = await self._limits.admit(span.fields)
        self.lost.clear()
        try:
            return await self._ask_with_fallbacks(span)
        finally:
            ticket.settle(lost_usage(self.lost) or None)

    async def _ask_with_fallbacks(self, span: Span) -> Reply:
        """The answer of the chosen provider or, while it is unavailable, of a fallback."""
        meant, wanted = await self._choose(span)
        name = self._fallbacks.instead_of(meant)
        said = self._channel.take_ephemeral()
        while True:
            # The requested model belongs to the chosen provider, not to the fallback.
            target = Target(name, self._providers[name], wanted if name == meant else None)
            try:
                return await self._fitting(target, said, span)
            except LLMError as error:
                # Output already shown cannot be retracted and must not be shown twice.
                over = self._channel.has_emitted or self._token.is_cancelled
                following = None if over else self._fallbacks.after(name, error)
                if following is None:
                    raise
                about = {"provider": name, "fallback": following, "error": error_data(error)}
            await self._channel.step(PROVIDER_FALLBACK, {**about, **span.fields})
            name, span = following, span.again()

    async def _fitting(self, target: Target, said: list[Injection], span: Span) -> Reply:
        """The answer of one provider; a request that is too long is shortened once."""
        budget = self._room.budget(target.name, target.model)
        view = await view_of(self._context, target.provider, budget)
        try:
            return await self._ask_target(target, view, said, span)
        except ContextLengthError as error:
            if self._channel.has_emitted or self._token.is_cancelled:
                raise
            smaller = await self._room.make_smaller(
                self._context,
                target.name,
                target.provider,
                target.model,
                refused=view,
                reason=str(error),
            )
            about = {
                "provider": target.name,
                "model": target.model,
                "error": error_data(error),
                "before_tokens": size_of(view),
                "after_tokens": None if smaller is None else size_of(smaller),
            }
            await self._channel.step(CONTEXT_OVERFLOW, {**about, **span.fields})
            if smaller is None:
                raise
        return await self._ask_target(target, smaller, said, span.again())

    async def _ask_target(
        self, target: Target, view: list[Any], said: list[Injection], span: Span
    ) -> Reply:
        await self._limits.check(self._ticket, span.fields)
        request, model = await self._request(target, view, said, span)
        call = self._call(target.name, target.provider, model, request, span)
        try:
            return await interruptible(call, self._token)
        except InvalidRequestError as error:
            over = self._channel.has_emitted or self._token.is_cancelled
            if over or not self._answer_format.drop(request, target.name, model, error):
                raise
            logger.debug("%s refuses the schema of the answer: %s", target.name, error)
        return await self._ask_target(target, view, said, span.again())

    async def _choose(self, span: Span) -> tuple[str, str | None]:
        """The name of the provider to use, and the model if it is not its default."""
        name, _ = choose_provider(self._providers, self._config.default_provider)
        return name, self._config.default_model

    async def _offer_tools(self, name: str, span: Span) -> Mapping[str, Any]:
        """The tools for the request to provider `name`, by the name the model sees."""
        return self._tools

    async def _request(
        self, target: Target, view: list[Any], said: list[Injection], span: Span
    ) -> tuple[Any, str | None]:
        """The request to the provider after hooks, and the model it will use."""
        name, provider, wanted = target.name, target.provider, target.wanted
        messages = with_injections(view, said)
        tools = offered_tools(provider, await self._offer_tools(name, span), self._checker)
        model = target.model
        names = [tool.name for tool in tools]
        data = {"provider": name, "model": model, "messages": messages, "tools": names}
        final = await self._channel.step("provider:request", {**data, **span.fields})
        changed = final.get("messages")
        if isinstance(changed, list):
            messages = changed
        allowed = final.get("tools")
        if isinstance(allowed, list) and allowed != names:
            tools = [tool for tool in tools if tool.name in allowed]
        if isinstance(final.get("model"), str) and final["model"] != model:
            model = wanted = final["model"]
        request = to_chat_request(
            with_injections(messages, self._channel.take_ephemeral()),
            tools=tools or None,
            readings=self._readings,
            **({} if wanted is None else {"model": wanted}),
            **self._form(name, provider, model, has_tools=bool(tools)),
        )
        return request, model

    def _form(
        self, name: str, provider: Any, model: str | None, *, has_tools: bool
    ) -> dict[str, Any]:
        """The fields of a request for the form of its answer."""
        return self._answer_format.fields(name, provider, model, has_tools=has_tools)

    async def _call(
        self, name: str, provider: Any, model: str | None, request: Any, span: Span
    ) -> Reply:
        """Call the provider; every `provider:request` is followed by a response or an error."""
        span.enter()
        self._channel.has_emitted, self._channel.partial_text = False, ""
        about = {"provider": name, "model": model, **span.fields}
        cancels = task_cancel_count()
        lost: list[Usage] = []
        try:
            with collecting() as lost, self._ticket.counting():
                try:
                    response = await self._ask(provider, request, self._channel, span)
                finally:
                    self.lost += lost
            if not is_response(response):
                raise _no_response(name, provider, response)
            # The call is billed even if the answer is rejected.
            self._ticket.settle(with_lost(usage_of(response), self.lost))
            blocks = blocks_of(response)
            calls = await calls_of(provider, response, blocks)
        # Providers are foreign code and may raise anything.
        except BaseException as error:
            failure = error
            if not isinstance(error, Exception) and is_failure(error, cancels):
                failure = RuntimeError(f"provider '{name}' raised {type(error).__name__}: {error}")
            if isinstance(failure, Exception) and not isinstance(failure, (LLMError, TurnDenied)):
                fault = "" if failure is error else f"raised {type(error).__name__}: {error}"
                blame(failure, kind="provider", name=name, obj=provider, fault=fault)
            billed = lost_usage(lost)
            if billed:
                about["usage"] = billed
            await self._channel.ask("provider:error", {**about, "error": error_data(failure)})
            if failure is error:
                raise
            raise failure from error
        reply = Reply(response, blocks, calls, usage_of(response), span)
        if not self._channel.has_listeners("provider:response"):
            return reply
        about["model"] = metadata_of(response).get("model") or model
        shown = shown_to_hooks(response)
        if lost:
            about["lost_usage"] = lost_usage(lost)
        final = await self._channel.step(
            "provider:response",
            {
                **about,
                "response": shown,
                "usage": shown.get("usage") or {},
                "finish_reason": shown.get("finish_reason"),
            },
        )
        changed = apply_hook_changes(response, shown, final.get("response", shown))
        if changed is response:
            return reply
        blocks = blocks_of(changed)
        calls = await calls_of(provider, changed, blocks)
        return Reply(changed, blocks, calls, usage_of(response), span)


def _no_response(name: str, provider: Any, response: Any) -> TypeError:
    given = "None" if response is None else f"a value of type {type(response).__name__}"
    where = where_defined(getattr(provider, "complete", provider))
    fault = f"complete() returned {given}, expected a ChatResponse ({where})"
    error = TypeError(f"provider '{name}': {fault}")
    blame(error, kind="provider", name=name, obj=provider, fault=fault)
    return error
