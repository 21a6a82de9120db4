"""One turn: from a prompt through provider and tool cycles to its end.

    prompt:submit → execution:start → [ provider:request → … → provider:response → tools ]*
    → execution:end → prompt:complete → orchestrator:complete

(Orchestrator Contract, Execution Flow and Events.) What was opened is closed, whatever happens.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, NamedTuple

from amplifier_modules._shared.history import Readings, to_chat_request
from amplifier_modules._shared.loop.calls import Call, CallLedger, calls_of
from amplifier_modules._shared.loop.channel import Channel, TurnDenied
from amplifier_modules._shared.loop.config import LoopConfig
from amplifier_modules._shared.loop.dispatch import Dispatcher
from amplifier_modules._shared.loop.interrupt import Interrupted, interruptible
from amplifier_modules._shared.loop.reading import read
from amplifier_modules._shared.loop.replies import (
    UsageTotal,
    assistant_message,
    blocks_of,
    metadata_of,
    text_of,
    usage_of,
)
from amplifier_modules._shared.loop.requests import (
    choose_provider,
    model_of,
    offered_tools,
    view_of,
    with_injections,
)
from amplifier_modules._shared.loop.schema import InputChecker
from amplifier_modules._shared.loop.spans import Span

logger = logging.getLogger(__name__)

Status = Literal["success", "incomplete", "error"]
Ask = Callable[[Any, Any, Channel, Span], Awaitable[Any]]
"""Asks a provider: (provider, request, channel, span) -> response, telling of its blocks."""

MAX_ITERATIONS_REACHED = "Max iterations reached"
CUT_SHORT = ("length", "content_filter")
"""Finish reasons of an answer that is not whole."""


class Ending(NamedTuple):
    """How a turn ended: its status, the text returned, and why it is not a success."""

    status: Status
    response: str = ""
    reason: str | None = None
    error: BaseException | None = None


class Reply(NamedTuple):
    """A provider's answer taken apart."""

    response: Any
    blocks: list[dict[str, Any]]
    calls: list[Call]


class Turn:
    """One turn of an orchestrator.

    Args:
        name: The orchestrator's module id.
        config: Its settings.
        ask: How it asks a provider.
        checker: Checks tool inputs; outlives the turn.
        readings: What messages were read as; outlives the turn.
        context: See `amplifier_core.interfaces.ContextManager`.
        providers: Providers by name.
        tools: Tools by name.
        hooks: The hook registry.
        coordinator: See `amplifier_core.coordinator.ModuleCoordinator`; may be None.
    """

    def __init__(
        self,
        *,
        name: str,
        config: LoopConfig,
        ask: Ask,
        checker: InputChecker,
        readings: Readings,
        context: Any,
        providers: Mapping[str, Any],
        tools: Mapping[str, Any],
        hooks: Any,
        coordinator: Any,
    ) -> None:
        self._name = name
        self._config = config
        self._ask = ask
        self._readings = readings
        self._context = context
        self._providers = providers
        self._tools = tools
        self._token = getattr(coordinator, "cancellation", None)
        self._channel = Channel(hooks, context, coordinator, name)
        self._dispatcher = Dispatcher(
            tools=tools,
            context=context,
            channel=self._channel,
            token=self._token,
            checker=checker,
            parallel=config.parallel_tools,
        )
        session_id = getattr(coordinator, "session_id", None)
        self.span = Span.turn(session_id if isinstance(session_id, str) else None)
        self._ledger = CallLedger()
        self._usage = UsageTotal()
        self._cycles = 0
        self._submitted = False
        self._started = False

    async def play(self, prompt: str) -> Ending:
        """Run the turn to its end.

        Raises:
            ValueError: The prompt is empty or there is no provider.
            Exception: A provider, the context or the processing of a hook's answer failed.
        """
        try:
            return await self._play(prompt)
        except TurnDenied as denial:
            logger.debug("Turn denied on %s: %s", denial.event, denial.reason)
            return Ending("incomplete", f"Denied: {denial.reason}", "denied")
        except Interrupted:
            return await self._cancelled()

    async def close(self, ending: Ending) -> str:
        """Emit what the turn still owes and return its final text."""
        response = ending.response
        error = {} if ending.error is None else {"error": _described(ending.error)}
        ids = self.span.fields
        if self._started:
            await self._channel.ask(
                "execution:end", {"status": ending.status, "response": response, **error, **ids}
            )
        if self._submitted:
            _, final = await self._channel.ask(
                "prompt:complete", {"response": response, **error, **ids}
            )
            changed = final.get("response")
            response = changed if isinstance(changed, str) else response
        summary: dict[str, Any] = {
            "orchestrator": self._name,
            "turn_count": self._cycles,
            "status": ending.status,
            "usage": self._usage.as_dict(),
            **ids,
        }
        if ending.reason is not None:
            summary["reason"] = ending.reason
        if ending.error is not None:
            summary["error"] = _described(ending.error)["message"]
        await self._channel.ask("orchestrator:complete", summary)
        return response

    async def _play(self, prompt: str) -> Ending:
        if not self._providers:
            raise ValueError("At least one provider required: no provider is mounted")
        _require_text(prompt)
        self._submitted = True
        final = await self._channel.step("prompt:submit", {"prompt": prompt, **self.span.fields})
        changed = final.get("prompt")
        prompt = changed if isinstance(changed, str) else prompt
        _require_text(prompt)
        self._started = True
        await self._channel.step("execution:start", {"prompt": prompt, **self.span.fields})
        await self._add({"role": "user", "content": prompt})
        limit = self._config.max_iterations
        while limit <= 0 or self._cycles < limit:
            if self._stopped():
                return await self._cancelled()
            ending = await self._cycle()
            if ending is not None:
                return ending
        return Ending("incomplete", MAX_ITERATIONS_REACHED, "max_iterations")

    async def _cycle(self) -> Ending | None:
        """One provider call and the tool calls it asks for; the ending if that was the last."""
        name, provider = choose_provider(self._providers, self._config.default_provider)
        span = self.span.child(iteration=self._cycles + 1)
        request, model = await self._request(name, provider, span)
        call = self._call(name, provider, model, request, span)
        reply = await interruptible(call, self._token)
        self._cycles += 1
        self._usage.add(usage_of(reply.response))
        calls, blocks = self._ledger.settle(reply.calls, reply.blocks)
        await self._add(assistant_message(reply.response, blocks, calls))
        if calls:
            await self._dispatcher.run(calls, span)
            return None
        text = text_of(blocks)
        finish_reason = read(reply.response, "finish_reason")
        if finish_reason in CUT_SHORT:
            return Ending("incomplete", text, finish_reason)
        return Ending("success", text)

    async def _request(self, name: str, provider: Any, span: Span) -> tuple[Any, str | None]:
        """What to ask the provider, as the hooks left it, and the model it will use."""
        messages = with_injections(
            await view_of(self._context, provider), self._channel.take_ephemeral()
        )
        tools = offered_tools(provider, self._tools)
        model = model_of(provider, self._config.default_model)
        names = [tool.name for tool in tools]
        data = {"provider": name, "model": model, "messages": messages, "tools": names}
        final = await self._channel.step("provider:request", {**data, **span.fields})
        changed = final.get("messages")
        if isinstance(changed, list):
            messages = changed
        allowed = final.get("tools")
        if isinstance(allowed, list) and allowed != names:
            tools = [tool for tool in tools if tool.name in allowed]
        wanted = self._config.default_model
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
            await self._channel.ask("provider:error", {**about, "error": _described(error)})
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

    async def _add(self, message: dict[str, Any]) -> None:
        added = self._context.add_message(message)
        if inspect.isawaitable(added):
            await added

    def _stopped(self) -> bool:
        return self._token is not None and self._token.is_cancelled

    async def _cancelled(self) -> Ending:
        """The ending of a turn that was asked to stop, after telling those who want to know."""
        if self._token is not None:
            await self._token.trigger_callbacks()
        return Ending("incomplete", "", "cancelled")


def _require_text(prompt: str) -> None:
    if not prompt or not prompt.strip():
        raise ValueError("Prompt cannot be empty")


def _described(error: BaseException) -> dict[str, Any]:
    """An error as event data."""
    if isinstance(error, asyncio.CancelledError):
        return {"type": "AbortError", "message": "interrupted", "retryable": False}
    return {
        "type": type(error).__name__,
        "message": str(error) or type(error).__name__,
        "retryable": bool(getattr(error, "retryable", False)),
    }
