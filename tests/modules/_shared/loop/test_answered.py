"""The model that answered a step: recorded with every answer, and reported when it changes."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from amplifier_core.llm_errors import InvalidRequestError
from amplifier_core.models import HookResult
from amplifier_modules._shared.loop.answered import is_same_model
from tests.modules._shared.loop.rig import Rig, echo_tool
from tests.modules._shared.loop.test_fallback import mocks, two_providers
from tests.modules._shared.loop.test_over_http import asks
from tests.support.llm_server import Reply, ScriptedLLM, Status

LLMServer = Callable[..., Awaitable[ScriptedLLM]]


def from_model(name: str, reply: Reply) -> Reply:
    """The reply of a service that answers with another model than it was asked for."""

    def rename(events: list[bytes]) -> list[bytes]:
        return [event.replace(b"claude-sonnet-4-5", name.encode()) for event in events]

    return replace(reply, edit=rename)


def recorded(rig: Rig) -> list[dict[str, Any]]:
    """The metadata of each answer without its usage."""
    answers = [m["metadata"] for m in rig.context.messages if m["role"] == "assistant"]
    return [{key: value for key, value in about.items() if key != "usage"} for about in answers]


async def test_each_answer_records_the_requested_and_the_answering_model_and_its_price(
    rig: Rig, llm_server: LLMServer
) -> None:
    first, second = await llm_server(["Hello."]), await llm_server([])
    async with two_providers(rig, first, second, list_prices=True):
        await rig.run("go")
    assert recorded(rig) == [
        {
            "provider": "anthropic",
            "model": "claude-sonnet-4-5",
            "requested_model": "claude-sonnet-4-5",
            "price": {"input": 3.0, "output": 15.0},
        }
    ]
    assert rig.of("provider:switched") == []


async def test_a_fallback_is_recorded_with_its_reason_and_end(
    rig: Rig, llm_server: LLMServer
) -> None:
    rig.add_tool(echo_tool())
    first = await llm_server([Status(529, message="too busy"), "Back again."])
    second = await llm_server([asks("a"), "Done."])
    async with two_providers(rig, first, second, list_prices=True):
        await rig.run("go")
        again = rig.loop
        rig.make_loop = lambda: again  # A session keeps its loop.
        await rig.run("go on")

    *substituted, returned = recorded(rig)
    assert len(substituted) == 2
    for about in substituted:
        assert (about["model"], about["requested_model"]) == ("gpt-4o", "claude-sonnet-4-5")
        assert about["price"] == {"input": 2.5, "output": 10.0}
        assert about["switched"]["requested_provider"] == "anthropic"
        assert about["switched"]["cause"] == "fallback"
        assert "too busy" in about["switched"]["reason"]
        assert about["switched"]["until"] == "next_prompt"
    assert "switched" not in returned

    there, back = rig.of("provider:switched")
    assert (there["provider"], there["model"], there["until"]) == (
        "openai",
        "gpt-4o",
        "next_prompt",
    )
    assert there["requested_price"] == {"input": 3.0, "output": 15.0}
    assert (back["model"], back["cause"]) == ("claude-sonnet-4-5", None)
    (fallback,) = rig.of("provider:fallback")
    assert (fallback["fallback_model"], fallback["until"]) == ("gpt-4o", "next_prompt")


async def test_the_return_to_the_requested_model_is_reported_after_a_resume(
    rig: Rig, llm_server: LLMServer
) -> None:
    first = await llm_server([Status(529), "Back again.", "Still here."])
    async with two_providers(rig, first, await llm_server(["Instead."])):
        await rig.run("go")
        for _ in range(2):
            await rig.run("go on")  # With a new loop, as in another process.
    there, back = rig.of("provider:switched")
    assert (there["model"], there["cause"]) == ("gpt-4o", "fallback")
    assert (back["model"], back["cause"]) == ("claude-sonnet-4-5", None)


async def test_a_refused_request_names_tools_with_invalid_schemas(
    rig: Rig, llm_server: LLMServer, caplog: pytest.LogCaptureFixture
) -> None:
    for name, rule in (("typo", {"type": "objekt"}), ("open", {"pattern": "("})):
        tool = echo_tool(name)
        tool.input_schema = {"type": "object", "properties": {"a": rule}}
        rig.add_tool(tool)
    rig.add_tool(echo_tool())
    first = await llm_server([Status(400, message="tools.0.input_schema: JSON schema is invalid")])
    async with two_providers(rig, first, await llm_server([])):
        with pytest.raises(InvalidRequestError):
            await rig.run("go")
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    typo, regex = (message for message in warnings if "schema" in message)
    assert "Tool 'typo'" in typo
    assert "'objekt' is not valid" in typo
    assert "Tool 'open'" in regex
    assert "'(' is not a 'regex'" in regex


async def test_a_hook_that_chooses_the_model_is_the_reason(rig: Rig) -> None:
    mocks(rig, a=["one"])
    rig.on(
        "provider:request",
        lambda data: HookResult(action="modify", data={**data, "model": "small"}),
    )
    await rig.run("go")
    (switched,) = rig.of("provider:switched")
    assert (switched["requested_model"], switched["cause"]) == ("a-model", "hook")
    assert switched["until"] == "next_request"


async def test_a_hook_can_refuse_the_answers_of_another_model(
    rig: Rig, llm_server: LLMServer
) -> None:
    first = await llm_server([from_model("claude-haiku-4-5", Reply("Cheap."))])
    rig.on("provider:switched", HookResult(action="deny", reason="not this model"))
    async with two_providers(rig, first, await llm_server([])):
        assert await rig.run("go") == "Denied: not this model"
    assert rig.context.roles() == ["user"]


@pytest.mark.parametrize(
    ("requested", "answered", "same"),
    [
        ("gpt-5.4", "gpt-5.4-2026-03-05", True),
        ("claude-haiku-4-5", "claude-haiku-4-5-20251001", True),
        ("claude-haiku-4-5-latest", "claude-haiku-4-5@20251001", True),
        ("us.anthropic.claude-haiku-4-5-20251001-v1:0", "claude-haiku-4-5", True),
        ("openai/gpt-5.4", "gpt-5.4", True),
        ("llama3", "llama3:latest", True),
        (None, "anything", True),
        ("gpt-5.4", "gpt-5.4-mini", False),
        ("claude-opus-4-5", "claude-opus-4-6", False),
        ("gpt-5.4-2026-03-05", "openai/gpt-5.4@20260305", True),
        ("gpt-5.4-2026-03-05", "gpt-5.4-2026-05-01", False),
        ("gpt-4.1", "gpt-4", False),
    ],
)
def test_names_of_a_model(requested: str | None, answered: str, same: bool) -> None:
    assert is_same_model(requested, answered) is same
