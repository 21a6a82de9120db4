"""The provider calls of a turn: what is asked, as the hooks leave it, and the answer taken apart."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from amplifier_modules._shared.history import Readings, to_chat_request
from amplifier_modules._shared.loop.budget import Budget
from amplifier_modules._shared.loop.calls import Call, calls_of
from amplifier_modules._shared.loop.channel import Channel
from amplifier_modules._shared.loop.config import LoopConfig
from amplifier_modules._shared.loop.ending import described
from amplifier_modules._shared.loop.interrupt import interruptible
from amplifier_modules._shared.loop.reading import read
from amplifier_modules._shared.loop.replies import blocks_of, metadata_of, usage_of
from amplifier_modules._shared.loop.requests import (
    choose_provider,
    model_of,
    offered_tools,
    view_of,
    with_injections,
)
from amplifier_modules._shared.loop.spans import Span

Ask = Callable[[Any, Any, Channel, Span], Awaitable[Any]]
"""Asks a provider: (provider, request, channel, span) -> response, telling of its blocks."""


class Reply(NamedTuple):
    """A provider's answer taken apart."""

    response: Any
    blocks: list[dict[str, Any]]
    calls: list[Call]


class Exchanges:
    """The provider calls of one turn.

    Args:
        ask: How the orchestrator asks a provider.
        config: Its settings.
        readings: What messages were read as; outlives the turn.
        context: See `amplifier_core.interfaces.ContextManager`.
        providers: Providers by name.
        tools: Tools by name.
        channel: The turn's hooks.
        token: What can stop the turn; see `Brake`.
        budget: What the session may use.
    """

    def __init__(
        self,
        *,
        ask: Ask,
        config: LoopConfig,
        readings: Readings,
        context: Any,
        providers: Mapping[str, Any],
        tools: Mapping[str, Any],
        channel: Channel,
        token: Any,
        budget: Budget,
    ) -> None:
        self._ask = ask
        self._budget = budget
        self._config = config
        self._readings = readings
        self._context = context
        self._providers = providers
        self._tools = tools
        self._channel = channel
        self._token = token

    async def make(self, span: Span) -> Reply:
        """Ask for the next answer, and count what it takes.

        Raises:
            BudgetReached: The session may not ask any more.
            Interrupted: The cancellation token turned immediate meanwhile.
            TurnDenied: A hook refused the request or the answer.
            Exception: The provider or the context failed.
        """
        ticket = self._budget.admit_now()
        if ticket is None:
            ticket = await interruptible(self._budget.admit(), self._token)
        try:
            name, wanted = await self._choose(span)
            provider = self._providers[name]
            request, model = await self._request(name, provider, wanted, span)
            call = self._call(name, provider, model, request, span)
            reply = await interruptible(call, self._token)
            ticket.settle(usage_of(reply.response))
            return reply
        finally:
            ticket.settle()

    async def _choose(self, span: Span) -> tuple[str, str | None]:
        """The name of the provider to ask, and the model if not its own default."""
        name, _ = choose_provider(self._providers, self._config.default_provider)
        return name, self._config.default_model

    async def _offered(self, name: str, span: Span) -> Mapping[str, Any]:
        """The tools for the request to the provider `name`, by the name the model sees."""
        return self._tools

    async def _request(
        self, name: str, provider: Any, wanted: str | None, span: Span
    ) -> tuple[Any, str | None]:
        """What to ask the provider, as the hooks left it, and the model it will use."""
        messages = with_injections(
            await view_of(self._context, provider), self._channel.take_ephemeral()
        )
        tools = offered_tools(provider, await self._offered(name, span))
        model = model_of(provider, wanted)
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
        )
        return request, model

    async def _call(
        self, name: str, provider: Any, model: str | None, request: Any, span: Span
    ) -> Reply:
        """Ask the provider; every `provider:request` is followed by a response or an error."""
        span.enter()
        about = {"provider": name, "model": model, **span.fields}
        try:
            response = await self._ask(provider, request, self._channel, span)
            blocks = blocks_of(response)
            calls = await calls_of(provider, response, blocks)
        except BaseException as error:
            await self._channel.ask("provider:error", {**about, "error": described(error)})
            raise
        about["model"] = metadata_of(response).get("model") or model
        final = await self._channel.step(
            "provider:response",
            {
                **about,
                "response": response,
                "usage": read(response, "usage") or {},
                "finish_reason": read(response, "finish_reason"),
            },
        )
        changed = final.get("response", response)
        if changed is response or not (isinstance(changed, Mapping) or hasattr(changed, "content")):
            return Reply(response, blocks, calls)
        blocks = blocks_of(changed)
        return Reply(changed, blocks, await calls_of(provider, changed, blocks))
