"""The provider as a plan mounts it, in front of a scripted server."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from amplifier_core.testing import MockCoordinator
from amplifier_modules.provider_openai import mount
from amplifier_modules.provider_openai.provider import OpenAIProvider
from tests.support.fixtures import StartLLM
from tests.support.llm_server import ScriptedLLM

Mounted = Callable[..., Awaitable[OpenAIProvider]]


@pytest.fixture
def coordinator() -> MockCoordinator:
    return MockCoordinator()


@pytest.fixture
def heard(coordinator: MockCoordinator) -> list[tuple[str, dict[str, Any]]]:
    """What hooks hear of the provider's calls."""
    events: list[tuple[str, dict[str, Any]]] = []
    for event in ("llm:request", "llm:response", "provider:retry"):
        coordinator.hooks.register(event, lambda name, data: events.append((name, dict(data))))
    return events


@pytest.fixture
async def mounted(coordinator: MockCoordinator) -> AsyncIterator[Mounted]:
    """Factory: `provider = await mounted(server, **config)`; cleaned up after the test."""
    async with AsyncExitStack() as stack:

        async def start(server: ScriptedLLM | str, **config: Any) -> OpenAIProvider:
            url = server if isinstance(server, str) else server.base_url
            settings = {"base_url": url, "api_key": "k", "model": "m", "max_retries": 0, **config}
            cleanup = await mount(coordinator, settings)
            assert cleanup is not None
            stack.push_async_callback(cleanup)
            return coordinator.get("providers", "openai")

        yield start


def ask(text: str = "hi", **fields: Any) -> dict[str, Any]:
    """A request of one user message."""
    return {"messages": [{"role": "user", "content": text}], **fields}


@pytest.fixture
def answered(llm_server: StartLLM, mounted: Mounted) -> Callable[..., Awaitable[Any]]:
    """Factory: the whole answer of a server that plays one reply."""

    async def complete(reply: Any, **config: Any) -> Any:
        provider = await mounted(await llm_server([reply]), **config)
        return await provider.complete(ask())

    return complete
