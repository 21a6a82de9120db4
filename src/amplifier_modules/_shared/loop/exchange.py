"""The provider calls of a turn: building the request, applying hooks, and parsing the answer."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, cast

from amplifier_core._foreign import blame, where_defined
from amplifier_core.cancellation import is_failure, task_cancel_count
from amplifier_core.llm_errors import (
    ConfigurationError,
    ContextLengthError,
    InvalidRequestError,
    LLMError,
)
from amplifier_core.message_models import Usage
from amplifier_modules._shared.history import Readings, to_chat_request
from amplifier_modules._shared.loop.budget import Ticket
from amplifier_modules._shared.loop.channel import Channel, Injection, TurnDenied, error_data
from amplifier_modules._shared.loop.config import LoopConfig
from amplifier_modules._shared.loop.conversation import request_view
from amplifier_modules._shared.loop.fallback import PROVIDER_FALLBACK, Fallbacks, LimitRequests
from amplifier_modules._shared.loop.interrupt import interruptible
from amplifier_modules._shared.loop.replies import (
    Call,
    apply_hook_changes,
    find_calls,
    is_response,
    lost_usage,
    read_blocks,
    read_metadata,
    read_usage,
    shown_to_hooks,
    with_lost,
)
from amplifier_modules._shared.loop.runner import offered_tools
from amplifier_modules._shared.loop.schema import InputChecker
from amplifier_modules._shared.loop.streaming import AnswerFormat
from amplifier_modules._shared.module.spans import Span
from amplifier_modules._shared.providers.base import collecting
from amplifier_modules._shared.providers.tokens import estimate_message
from amplifier_support.provider_order import find_model, first_mounted


def choose_provider(providers: Mapping[str, Any], wanted: str | None) -> tuple[str, Any]:
    """The provider to use, with the name it is mounted under.

    `wanted` if given; otherwise see `amplifier_support.provider_order`.

    Raises:
        ValueError: There are no providers.
        amplifier_core.llm_errors.ConfigurationError: `wanted` is not mounted.
    """
    name = first_mounted(providers, wanted)
    if name is None:
        raise ValueError("At least one provider required: no provider is mounted")
    if wanted not in (None, name):
        mounted = ", ".join(providers)
        raise ConfigurationError(
            f"default_provider '{wanted}' is not mounted; mounted providers: {mounted}"
        )
    return name, providers[name]


def with_injections(messages: list[Any], injections: list[Injection]) -> list[Any]:
    """A copy of `messages` with texts for this request only; the originals are not changed."""
    if not injections:
        return messages
    messages = list(messages)
    for text in injections:
        if text.append_to_last_tool_result and messages and _is_result(messages[-1]):
            messages[-1] = _with_text(messages[-1], text.content)
        else:
            messages.append({"role": text.role, "content": text.content})
    return messages


def _is_result(message: Any) -> bool:
    return isinstance(message, dict) and cast("dict[str, Any]", message).get("role") in (
        "tool",
        "function",
    )


def _with_text(message: dict[str, Any], text: str) -> dict[str, Any]:
    content: Any = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [*cast("list[Any]", content), {"type": "text", "text": text}]}
    return {**message, "content": f"{content}\n\n{text}" if content else text}


CONTEXT_OVERFLOW = "context:overflow"

_SMALLER = 0.9
"""A new view is worth a request if it is at most this fraction of the one that was too long."""

_LIKELY = 0.75
"""If the limit is unknown, a compacted view of at most this fraction is small enough."""

_MARGIN = 0.9
"""Fraction of the reported limit to use: a request has more than its messages."""

_TRIES = 3
"""Number of times a context is asked for a smaller view before its answer is used as it is."""

_COUNT = re.compile(r"\b\d{1,3}(?:,\d{3})+\b|\b\d{4,}\b")


class Room:
    """The part of a conversation that fits into requests, learned from rejected requests.

    It outlives turns, so that a size a model has rejected is not tried again.
    """

    def __init__(self) -> None:
        self._budgets: dict[tuple[str, str | None], int] = {}

    def budget(self, provider: str, model: str | None) -> int | None:
        """Token budget for the messages of a request; None leaves it to the context."""
        return self._budgets.get((provider, model))

    async def make_smaller(
        self,
        context: Any,
        name: str,
        provider: Any,
        model: str | None,
        *,
        refused: list[Any],
        reason: str,
    ) -> list[Any] | None:
        """A view of the conversation that is clearly smaller than the rejected one.

        The context compacts itself if it can. If that is not enough, it is asked for the size that
        fits, or for half if that is unknown, now and with every later request to the same model.

        Args:
            context: The conversation.
            name: Name of the provider that rejected the request.
            provider: That provider.
            model: The requested model.
            refused: The view that was too long.
            reason: The provider's error message.

        Returns:
            None if the context has no smaller view.
        """
        before, share = measure_size(refused), share_that_fits(reason)
        compact = getattr(context, "compact", None)
        if callable(compact):
            done: Any = compact()
            if inspect.isawaitable(done):
                await done
            view = await request_view(context, provider, self.budget(name, model))
            if measure_size(view) <= before * (share or _LIKELY):
                return view
        target = before * (share or 0.5)
        budget, view = target, refused
        for _ in range(_TRIES):
            # Contexts count in the vendor's tokens, as far as they have learned the ratio.
            self._budgets[name, model] = max(1, int(budget))
            view = await request_view(context, provider, max(1, int(budget)))
            if measure_size(view) <= target:
                break
            budget *= target / measure_size(view)
        return view if measure_size(view) <= before * _SMALLER else None


def measure_size(messages: list[Any]) -> int:
    """Estimated tokens of a view."""
    return sum(estimate_message(message) for message in messages)


def share_that_fits(reason: str) -> float | None:
    """The fraction of a request that fits, from the numbers in "213000 tokens > 200000 maximum".

    None if the message does not have two such numbers.
    """
    counts = {int(found.replace(",", "")) for found in _COUNT.findall(reason)}
    if len(counts) != 2:
        return None
    return min(counts) / max(counts) * _MARGIN


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
        return self.wanted or find_model(self.provider)


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
        name = self._fallbacks.substitute(meant)
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
        view = await request_view(self._context, target.provider, budget)
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
                "before_tokens": measure_size(view),
                "after_tokens": None if smaller is None else measure_size(smaller),
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
            self._ticket.settle(with_lost(read_usage(response), self.lost))
            blocks = read_blocks(response)
            calls = await find_calls(provider, response, blocks)
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
        reply = Reply(response, blocks, calls, read_usage(response), span)
        if not self._channel.has_listeners("provider:response"):
            return reply
        about["model"] = read_metadata(response).get("model") or model
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
        blocks = read_blocks(changed)
        calls = await find_calls(provider, changed, blocks)
        return Reply(changed, blocks, calls, read_usage(response), span)


def _no_response(name: str, provider: Any, response: Any) -> TypeError:
    given = "None" if response is None else f"a value of type {type(response).__name__}"
    where = where_defined(getattr(provider, "complete", provider))
    fault = f"complete() returned {given}, expected a ChatResponse ({where})"
    error = TypeError(f"provider '{name}': {fault}")
    blame(error, kind="provider", name=name, obj=provider, fault=fault)
    return error
