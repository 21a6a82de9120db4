"""loop-events with two real providers, each asking a scripted server of its own."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from amplifier_core.models import HookResult
from amplifier_extras.loop_events.turn import EventsOrchestrator
from amplifier_modules import provider_anthropic, provider_openai
from tests.modules._shared.loop.rig import Rig
from tests.support.llm_server import ScriptedLLM


class Events(Rig):
    """A session with loop-events.

    `main` is the server of the provider that is asked by default, `other` that of the other one.
    """

    main: ScriptedLLM
    other: ScriptedLLM

    def __init__(self) -> None:
        super().__init__(EventsOrchestrator)
        self._open = AsyncExitStack()

    async def says(self, *replies: Any, other: tuple[Any, ...] = ()) -> None:
        """Mount `provider-anthropic` with these replies, and `provider-openai` with `other`."""
        self.main = await self._open.enter_async_context(ScriptedLLM(list(replies)))
        self.other = await self._open.enter_async_context(ScriptedLLM(list(other)))
        for module, server, path, config in (
            (provider_anthropic, self.main, "", {"model": "claude-sonnet-5-5", "priority": 1}),
            (provider_openai, self.other, "/v1", {"model": "gpt-4o", "priority": 2}),
        ):
            config = {"base_url": server.base_url + path, "api_key": "test-key-1", **config}
            self._open.push_async_callback(await module.mount(self.coordinator, config))
        self.providers = self.coordinator.get("providers")

    def change(self, event: str, change: Any) -> None:
        """Have a handler of `event` change its data: `change(data)` gives new values, or None."""

        def answer(data: dict[str, Any]) -> HookResult | None:
            values = change(data)
            return values and HookResult(action="modify", data={**data, **values})

        self.on(event, answer)

    async def close(self) -> None:
        await self._open.aclose()
        assert self.main.rejections == []
        assert self.other.rejections == []

    # What came of it

    def decisions(self) -> list[str]:
        """Names of the events of plan, steps and requests, in order."""
        of = ("plan:", "step:", "provider:request", "loop:", "tool:post")
        return [name for name, _ in self.events if name.startswith(of)]

    def steps_run(self) -> list[str]:
        return [data["step"]["name"] for data in self.of("step:start")]

    def said(self) -> list[str]:
        """What the user messages of the conversation say."""
        return [m["content"] for m in self.context.messages if m["role"] == "user"]

    def ending(self) -> tuple[str, str | None]:
        done = self.last("orchestrator:complete")
        return done["status"], done.get("reason")


@pytest.fixture
async def rig() -> AsyncIterator[Events]:
    rig = Events()
    yield rig
    await rig.close()
