"""The loops inside a real session: loaded by id, with the bundled context, provider and log."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from amplifier_core import AmplifierSession
from amplifier_core.testing import MockTool, wait_for
from tests.modules._shared.loop.rig import call, calls


def plan(loop: str, *replies: Any, **loop_config: Any) -> dict[str, Any]:
    return {
        "session": {
            "orchestrator": {"module": loop, "config": loop_config},
            "context": {"module": "context-simple"},
        },
        "providers": [{"module": "provider-mock", "config": {"replies": list(replies)}}],
        "hooks": [{"module": "hooks-logging"}],
    }


@pytest.fixture(params=["loop-basic", "loop-streaming"])
def loop(request: pytest.FixtureRequest) -> str:
    return request.param


async def test_a_turn_with_a_tool_is_stored_and_logged(loop: str, tmp_path: Path) -> None:
    session = AmplifierSession(plan(loop, calls(call("work", id="c1")), "all done"))
    session.coordinator.register_capability("session.dir", str(tmp_path))
    async with session:
        await session.coordinator.mount("tools", MockTool("work", "worked"))
        assert await session.execute("do it") == "all done"
        messages = await session.coordinator.get("context").get_messages()

    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[2]["content"] == "worked"
    logged = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    names = [line["event"] for line in logged]
    assert names[0] == "session:start"
    assert names[-1] == "session:end"
    assert names.count("llm:request") == names.count("provider:response") == 2
    assert names.count("tool:post") == names.count("orchestrator:complete") == 1
    assert "provider:stream" not in names
    assert {line["session_id"] for line in logged} == {session.session_id}
    reported = [line["data"] for line in logged if not line["event"].startswith("session:")]
    assert all({"turn_id", "span_id", "iteration"} <= data.keys() for data in reported)
    request = next(line["data"] for line in logged if line["event"] == "provider:request")
    assert request["message_count"] == 1
    assert "messages" not in request


async def test_turns_follow_each_other(loop: str) -> None:
    async with AmplifierSession(plan(loop, "one", "two")) as session:
        assert [await session.execute(p) for p in ("a", "b")] == ["one", "two"]
        provider = session.coordinator.get("providers", "mock")

    assert [m.content for m in provider.requests[1].messages if m.role == "user"] == ["a", "b"]


async def test_a_cancelled_session_can_go_on(loop: str) -> None:
    started = asyncio.Event()

    class Slow:
        name = "slow"
        description = "never ends"

        async def execute(self, input: dict[str, Any]) -> str:
            started.set()
            await asyncio.Event().wait()
            raise AssertionError

    async with AmplifierSession(plan(loop, calls(call("slow", id="c1")), "back")) as session:
        await session.coordinator.mount("tools", Slow())
        turn = asyncio.create_task(session.execute("go"))
        await started.wait()
        await session.coordinator.request_cancel(immediate=True)
        assert await wait_for(turn.done, timeout=10)
        assert await turn == ""

        session.coordinator.cancellation.reset()
        assert await session.execute("go on") == "back"
        provider = session.coordinator.get("providers", "mock")

    sent = provider.requests[-1].messages
    assert [m.role for m in sent] == ["user", "assistant", "tool", "user"]
    assert provider.requests[-1].repairs == ()
