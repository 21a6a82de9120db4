"""The provider calls of a turn: building the request, applying hooks, and parsing the answer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

from amplifier_core._foreign import blame
from amplifier_core.cancellation import is_failure, task_cancel_count
from amplifier_core.llm_errors import (
    ConfigurationError,
    ContextLengthError,
    InvalidRequestError,
    LLMError,
)
from amplifier_core.message_models import Usage
from amplifier_modules._shared.history.request import to_chat_request
from amplifier_modules._shared.history.values import RESULT_ROLES
from amplifier_modules._shared.loop.answered import (
    PROVIDER_FALLBACK,
    PROVIDER_SWITCHED,
    Answered,
    Use,
    fallback_event,
    identify_model,
)
from amplifier_modules._shared.loop.budget import Ticket
from amplifier_modules._shared.loop.channel import Injection, TurnDenied, error_data
from amplifier_modules._shared.loop.conversation import measure_size, request_view, stored_messages
from amplifier_modules._shared.loop.interrupt import interruptible
from amplifier_modules._shared.loop.parts import TurnParts
from amplifier_modules._shared.loop.replies import (
    Call,
    apply_hook_changes,
    find_calls,
    is_response,
    lost_usage,
    read_blocks,
    read_usage,
    response_data,
    shown_to_hooks,
    with_lost,
)
from amplifier_modules._shared.loop.results import wrong_answer
from amplifier_modules._shared.loop.runner import offered_tools
from amplifier_modules._shared.module.spans import Span
from amplifier_modules._shared.providers.base import collecting
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.provider_order import find_model, first_mounted
from amplifier_support.session_capabilities import REQUEST_LOG, SentRequest

logger = logging.getLogger(__name__)


def choose_provider(providers: Mapping[str, Any], preference: str | None) -> tuple[str, Any]:
    """The provider to use, with the name it is mounted under.

    `preference` if given; otherwise see `amplifier_support.provider_order`.

    Raises:
        ValueError: There are no providers.
        amplifier_core.llm_errors.ConfigurationError: `preference` is not mounted.
    """
    name = first_mounted(providers, preference)
    if name is None:
        raise ValueError("At least one provider required: no provider is mounted")
    if preference not in (None, name):
        mounted = ", ".join(providers)
        raise ConfigurationError(
            f"default_provider '{preference}' is not mounted; mounted providers: {mounted}"
        )
    return name, providers[name]


def _with_injections(messages: list[Any], injections: list[Injection]) -> list[Any]:
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
    return isinstance(message, dict) and cast("dict[str, Any]", message).get("role") in RESULT_ROLES


def _with_text(message: dict[str, Any], text: str) -> dict[str, Any]:
    content: Any = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [*cast("list[Any]", content), {"type": "text", "text": text}]}
    return {**message, "content": f"{content}\n\n{text}" if content else text}


CONTEXT_OVERFLOW = "context:overflow"


class Reply(NamedTuple):
    """A provider's parsed answer.

    Attributes:
        response: The answer after hooks.
        blocks: Its content.
        calls: The tool calls it requests.
        usage: The usage the provider reported, regardless of changes by hooks.
        span: The span of the provider call.
        answered: The model that answered.
    """

    response: Any
    blocks: list[dict[str, Any]]
    calls: list[Call]
    usage: dict[str, Any]
    span: Span
    answered: Answered


class Target(NamedTuple):
    """The provider and model to call.

    Attributes:
        name: Name of the provider.
        provider: The provider.
        requested: The model to request; None for the provider's default.
        chosen: The provider that was chosen; another one than `name` if that is its fallback.
        chosen_model: The model that was chosen with it; None if unknown.
    """

    name: str
    provider: Any
    requested: str | None
    chosen: str
    chosen_model: str | None

    @property
    def model(self) -> str | None:
        """The model that will answer, if known."""
        return self.requested or find_model(self.provider)


class Exchanges:
    """The provider calls of one turn.

    Attributes:
        lost: Usage of the attempts of the current exchange that ended without an answer.
    """

    _ticket: Ticket

    def __init__(self, parts: TurnParts) -> None:
        self._parts = parts
        self._loop = parts.loop
        self._ask = parts.loop.ask
        self._providers = parts.providers
        self._tools = parts.tools
        self._channel = parts.channel
        self.lost: list[Usage] = []

    async def make(self, span: Span) -> Reply:
        """Request the next answer and count its usage.

        While the chosen provider is unavailable, a fallback answers.

        Raises:
            BudgetReached: The session's budget is exhausted.
            Interrupted: The cancellation token turned immediate in the meantime.
            TurnDenied: A hook denied the request or the answer.
            Exception: The provider or the context failed.
        """
        fallbacks = self._parts.fallbacks
        self._ticket = ticket = await self._parts.limits.admit(span.fields)
        self.lost.clear()
        try:
            chosen, model = await self._choose(span)
            name = fallbacks.substitute(chosen)
            chosen_model = model or find_model(self._providers[chosen])
            injections = self._channel.take_ephemeral()
            while True:
                # The requested model belongs to the chosen provider, not to the fallback.
                requested = model if name == chosen else None
                target = Target(name, self._providers[name], requested, chosen, chosen_model)
                try:
                    reply = await self._ask_target(target, injections, span)
                    await self._report_switch(reply)
                    return reply
                except LLMError as error:
                    following = None if self._is_over() else fallbacks.after(name, error)
                    if following is None:
                        raise
                    about = fallback_event(name, following, error, self._providers)
                await self._channel.emit_or_raise(PROVIDER_FALLBACK, {**about, **span.fields})
                name, span = following, span.again()
        finally:
            ticket.settle(lost_usage(self.lost) or None)

    async def _report_switch(self, reply: Reply) -> None:
        """Report that another model answers than before; a hook may refuse its answers."""
        answered, switches = reply.answered, self._loop.switches
        if not switches.has_begun:
            switches.begin(await stored_messages(self._parts.context))
        if switches.differs(answered):
            about = {**answered.as_event(), **reply.span.fields}
            await self._channel.emit_or_raise(PROVIDER_SWITCHED, about)
            switches.keep(answered)

    def _is_over(self) -> bool:
        """Return True if no other request can replace the one that failed.

        Output already shown cannot be retracted and must not be shown twice.
        """
        return self._channel.has_emitted or self._parts.stop_signal.is_cancelled

    async def _ask_target(self, target: Target, injections: list[Injection], span: Span) -> Reply:
        """The answer of one provider.

        A request that is too long is shortened once, and one whose form of the answer the service
        refuses is sent without it.
        """
        parts, shortened = self._parts, False
        budget = parts.loop.window.budget(target.name, target.model)
        view = await request_view(parts.context, target.provider, budget)
        while True:
            # Once more since its admission: the view may have needed a summary.
            await parts.limits.require_room(span.fields, turns=False)
            request, model = await self._request(target, view, injections, span)
            parts.limits.require_price(target.provider, model)
            call = self._call(target, model, request, span)
            try:
                return await interruptible(call, parts.stop_signal)
            except ContextLengthError as error:
                if shortened or self._is_over():
                    raise
                view, shortened = await self._shorten(target, view, error, span), True
            except InvalidRequestError as error:
                drop = parts.loop.answer_format.drop
                if self._is_over() or not drop(request, target.name, model, error):
                    parts.loop.checker.report_invalid_schemas(self._tools)
                    raise
                logger.debug("%s refuses the schema of the answer: %s", target.name, error)
            span = span.again()

    async def _shorten(
        self, target: Target, view: list[Any], error: ContextLengthError, span: Span
    ) -> list[Any]:
        """The conversation as a smaller view; raises `error` if there is none."""
        smaller = await self._loop.window.make_smaller(
            self._parts.context,
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
        await self._channel.emit_or_raise(CONTEXT_OVERFLOW, {**about, **span.fields})
        if smaller is None:
            raise error
        return smaller

    async def _choose(self, span: Span) -> tuple[str, str | None]:
        """The name of the provider to use, and the model if it is not its default."""
        name, _ = choose_provider(self._providers, self._loop.config.default_provider)
        return name, self._loop.config.default_model

    async def _offer_tools(self, name: str, span: Span) -> Mapping[str, Any]:
        """The tools for the request to provider `name`, by the name the model sees."""
        return self._tools

    async def _request(
        self, target: Target, view: list[Any], injections: list[Injection], span: Span
    ) -> tuple[Any, str | None]:
        """The request to the provider after hooks, and the model it will use."""
        name, provider, requested = target.name, target.provider, target.requested
        messages = _with_injections(view, injections)
        offer = await self._offer_tools(name, span)
        offer = await self._loop.tool_search.select(offer, self._parts.context)
        tools = offered_tools(provider, offer, self._loop.checker)
        model = target.model
        names = [tool.name for tool in tools]
        data = {"provider": name, "model": model, "messages": messages, "tools": names}
        final = await self._channel.emit_or_raise("provider:request", {**data, **span.fields})
        changes = [(hook, each.get("messages")) for hook, each in self._channel.changes]
        changed = final.get("messages")
        if isinstance(changed, list):
            messages = changed
        allowed = final.get("tools")
        if isinstance(allowed, list) and allowed != names:
            tools = [tool for tool in tools if tool.name in allowed]
        if isinstance(final.get("model"), str) and final["model"] != model:
            model = requested = final["model"]
        late = self._channel.take_ephemeral()
        messages = _with_injections(messages, late)
        texts = [(text.source, text.content) for text in (*injections, *late)]
        self._log(SentRequest(name, model, tools, view, messages, texts, changes))
        request = to_chat_request(
            messages,
            tools=tools or None,
            parsed=self._loop.messages,
            **({} if requested is None else {"model": requested}),
            **self._form(name, provider, model, has_tools=bool(tools)),
        )
        return request, model

    def _log(self, request: SentRequest) -> None:
        """Report a request to the app, if it asks for that."""
        coordinator = self._parts.coordinator
        if callable(getattr(coordinator, "get_capability", None)):
            log = REQUEST_LOG.of(coordinator)
            if log is not None:
                log.note(request)

    def _form(
        self, name: str, provider: Any, model: str | None, *, has_tools: bool
    ) -> dict[str, Any]:
        """The fields of a request for the form of its answer."""
        return self._loop.answer_format.fields(name, provider, model, has_tools=has_tools)

    async def _call(self, target: Target, model: str | None, request: Any, span: Span) -> Reply:
        """Call the provider; every `provider:request` is followed by a response or an error."""
        name, provider = target.name, target.provider
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
                raise wrong_answer(
                    "provider", name, provider, "complete", response, "a ChatResponse"
                )
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
            await self._channel.emit_and_apply(
                "provider:error", {**about, "error": error_data(failure)}
            )
            if failure is error:
                raise
            raise failure from error
        answered = identify_model(
            response,
            Use(target.chosen, target.chosen_model),
            Use(name, model),
            self._providers,
            self._parts.fallbacks.reason(target.chosen),
        )
        reply = Reply(response, blocks, calls, read_usage(response), span, answered)
        if not self._channel.has_listeners("provider:response"):
            return reply
        about["model"] = answered.model
        original = shown_to_hooks(response)
        if lost:
            about["lost_usage"] = lost_usage(lost)
        final = await self._channel.emit_or_raise(
            "provider:response",
            {**about, **response_data(original)},
        )
        changed = apply_hook_changes(response, original, final.get("response", original))
        if changed is response:
            return reply
        blocks = read_blocks(changed)
        calls = await find_calls(provider, changed, blocks)
        return Reply(changed, blocks, calls, read_usage(response), span, answered)
