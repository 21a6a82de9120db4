"""A provider mounted onto a scripted server."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from amplifier_core.message_models import ChatResponse
from amplifier_core.testing import MockCoordinator
from amplifier_modules.provider_anthropic import mount
from amplifier_modules.provider_anthropic.provider import AnthropicProvider
from tests.support.llm_server import Item, ScriptedLLM

HELLO = {"messages": [{"role": "user", "content": "hello"}]}
READ = {"name": "read", "description": "Reads.", "input_schema": {"type": "object"}}


client: ContextVar[str] = ContextVar("client", default="builtin")
"""The `client` of the provider in these tests; see the fixture `each_client`."""

_EVENTS = ("llm:request", "llm:response", "provider:retry", "provider:tool_sequence_repaired")


@dataclass
class Setting:
    """A server, the provider that speaks to it, and what was emitted."""

    server: ScriptedLLM
    provider: AnthropicProvider
    coordinator: MockCoordinator
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def emitted(self, name: str) -> list[dict[str, Any]]:
        return [data for event, data in self.events if event == name]

    @property
    def body(self) -> dict[str, Any]:
        """The last request's body."""
        return self.server.requests[-1].body

    async def stream(
        self, request: Any = HELLO, **kwargs: Any
    ) -> tuple[list[dict[str, Any]], ChatResponse]:
        """All chunks but the last, and the last."""
        chunks: list[Any] = []
        await self.collect(chunks, request, **kwargs)
        return chunks[:-1], chunks[-1]

    async def collect(self, chunks: list[Any], request: Any = HELLO, **kwargs: Any) -> None:
        """Adds the chunks to the list as they come, so that a fault leaves those before it."""
        async for chunk in self.provider.stream_complete(request, **kwargs):
            chunks.append(chunk)  # noqa: PERF401


@asynccontextmanager
async def playing(
    *replies: Item, server: dict[str, Any] | None = None, **config: Any
) -> AsyncGenerator[Setting]:
    """The provider against a server that plays `replies`."""
    async with ScriptedLLM(replies, **(server or {})) as scripted:
        coordinator = MockCoordinator()
        own = {"api_key": "test-key", "base_url": scripted.base_url, "client": client.get()}
        settings = {**own, **config}
        cleanup = await mount(coordinator, settings)
        assert cleanup is not None
        setting = Setting(scripted, coordinator.get("providers", "anthropic"), coordinator)
        for name in _EVENTS:
            coordinator.hooks.register(name, _recorder(setting.events))
        try:
            yield setting
        finally:
            await cleanup()


def _recorder(events: list[tuple[str, dict[str, Any]]]) -> Any:
    async def record(event: str, data: dict[str, Any]) -> None:
        events.append((event, dict(data)))

    return record
