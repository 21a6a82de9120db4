"""Recording providers on a coordinator, and replaying them on another."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from amplifier_core.llm_errors import LLMError
from amplifier_core.message_models import ToolCall
from amplifier_core.models import ProviderInfo
from amplifier_core.testing import MockCoordinator
from amplifier_extras import provider_replay
from amplifier_modules import provider_mock

EVENTS = ("llm:request", "llm:response", "provider:retry")


def ask(*texts: str, **fields: Any) -> dict[str, Any]:
    """A request of messages by user and assistant in turn."""
    roles = ("user", "assistant")
    said = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts or ("hi",))]
    return {"messages": said, **fields}


def coordinator_in(folder: Path) -> MockCoordinator:
    coordinator = MockCoordinator()
    coordinator.register_capability("session.working_dir", str(folder))
    return coordinator


def heard_on(coordinator: MockCoordinator) -> list[tuple[str, dict[str, Any]]]:
    events: list[tuple[str, dict[str, Any]]] = []
    for name in EVENTS:
        coordinator.hooks.register(name, lambda event, data: events.append((event, dict(data))))
    return events


@asynccontextmanager
async def recording(
    folder: Path, *replies: Any, file: str = "rec.jsonl", mock: Any = None, provider: Any = None
) -> AsyncGenerator[MockCoordinator]:
    """A coordinator whose provider plays `replies`, or is `provider`, and is recorded."""
    coordinator = coordinator_in(folder)
    if provider is None:
        await provider_mock.mount(coordinator, {"replies": list(replies), **(mock or {})})
    else:
        await coordinator.mount("providers", provider, name=provider.name)
    cleanup = await provider_replay.mount(coordinator, {"record": file})
    assert cleanup is not None
    try:
        yield coordinator
    finally:
        await cleanup()


@asynccontextmanager
async def replaying(
    folder: Path, file: str = "rec.jsonl", **config: Any
) -> AsyncGenerator[MockCoordinator]:
    """A coordinator with the providers of a recording."""
    coordinator = coordinator_in(folder)
    cleanup = await provider_replay.mount(coordinator, {"replay": file, **config})
    assert cleanup is not None
    try:
        yield coordinator
    finally:
        await cleanup()


async def record(folder: Path, *requests: dict[str, Any]) -> None:
    """Record requests that are answered with `ok`."""
    async with recording(folder, *["ok"] * len(requests)) as coordinator:
        for request in requests:
            await coordinator.get("providers", "mock").complete(request)


async def replay(folder: Path, request: dict[str, Any], **config: Any) -> Any:
    """The answer of a recording to a request."""
    async with replaying(folder, **config) as coordinator:
        return await coordinator.get("providers", "mock").complete(request)


async def chunks_of(provider: Any, request: Any, **kwargs: Any) -> list[Any]:
    return [chunk async for chunk in provider.stream_complete(request, **kwargs)]


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class Foreign:
    """A provider as others write them: only `complete`, answers and errors of its own."""

    name = "foreign"
    priority = 7

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.extra = "reachable"

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(id="foreign", display_name="Foreign")

    async def list_models(self) -> list[Any]:
        return []

    async def complete(self, request: Any, **kwargs: Any) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def parse_tool_calls(self, response: Any) -> list[ToolCall]:
        return [ToolCall(id="x", name="read", arguments={})]


class OwnError(Exception):
    pass


class OwnLLMError(LLMError):
    pass


def called(call_id: str, result: str = "found") -> dict[str, Any]:
    """A request with a tool call and its result."""
    call = {"type": "tool_call", "id": call_id, "name": "read", "input": {"path": "a"}}
    return {
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [call]},
            {"role": "tool", "tool_call_id": call_id, "content": result},
        ]
    }
