"""Fallbacks: who is asked while a provider is not available."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from amplifier_core.llm_errors import AuthenticationError, LLMError, ProviderUnavailableError
from amplifier_core.models import HookResult
from amplifier_modules import provider_anthropic, provider_openai
from amplifier_modules._shared.module.config import parse_config
from amplifier_modules.provider_mock.provider import MockConfig, MockProvider, create
from tests.modules._shared.loop.rig import Rig, call, calls, echo_tool
from tests.modules._shared.loop.test_over_http import asks
from tests.support.llm_server import (
    Answer,
    Cut,
    Reply,
    Reset,
    ResetAfter,
    ScriptedLLM,
    Stall,
    Status,
)

LLMServer = Callable[..., Awaitable[ScriptedLLM]]


@asynccontextmanager
async def two_providers(
    rig: Rig, first: ScriptedLLM, second: ScriptedLLM, **more: Any
) -> AsyncIterator[Rig]:
    """Anthropic's dialect on the first server, and OpenAI's on the second to fall back on."""
    rig.plan["session"]["fallbacks"] = ["openai"]
    common = {"api_key": "k", "max_retries": 0, "idle_timeout": 1, **more}
    closes = [
        await provider_anthropic.mount(
            rig.coordinator,
            {"base_url": first.base_url, "model": "claude-sonnet-4-5", "priority": 1, **common},
        ),
        await provider_openai.mount(
            rig.coordinator, {"base_url": second.openai_base_url, "model": "gpt-4o", **common}
        ),
    ]
    rig.providers = rig.coordinator.get("providers")
    try:
        yield rig
    finally:
        for close in closes:
            await close()


AWAY: list[Answer] = [
    Status(429),
    Status(500),
    Status(503),
    Status(529),
    Status(408),
    Status(404, message="no such model"),
    Status(402, message="no credit"),
    Reset(),
    Reply("x", fault=Cut(after=0)),
    Reply("x", fault=ResetAfter(after=0)),
    Reply("x", fault=Stall(after=0)),
]


@pytest.mark.parametrize("answer", AWAY, ids=str)
async def test_the_next_provider_is_asked_while_one_is_not_available(
    rig: Rig, llm_server: LLMServer, answer: Answer
) -> None:
    first, second = await llm_server([answer]), await llm_server(["From the other one."])
    async with two_providers(rig, first, second):
        assert await rig.run("go") == "From the other one."

    assert (len(first.completions), len(second.completions)) == (1, 1)
    (reported,) = rig.of("provider:fallback")
    assert (reported["provider"], reported["fallback"]) == ("anthropic", "openai")
    assert reported["error"]["message"]
    assert [data["provider"] for data in rig.of("provider:request")] == ["anthropic", "openai"]
    assert [data["provider"] for data in rig.of("provider:error")] == ["anthropic"]
    assert rig.last("provider:response")["provider"] == "openai"
    assert rig.last("orchestrator:complete")["status"] == "success"


MISTAKES: list[Answer] = [Status(400), Status(401), Status(403), Status(413), Status(422)]


@pytest.mark.parametrize("answer", MISTAKES, ids=str)
async def test_mistakes_are_not_passed_on(rig: Rig, llm_server: LLMServer, answer: Answer) -> None:
    first, second = await llm_server([answer]), await llm_server(["never asked"])
    async with two_providers(rig, first, second):
        with pytest.raises(LLMError):
            await rig.run("go")
    assert second.completions == []
    assert rig.of("provider:fallback") == []


async def test_its_own_retries_come_first(rig: Rig, llm_server: LLMServer) -> None:
    again = Status(529, headers={"retry-after": "0.01"})
    first, second = await llm_server([again] * 9), await llm_server(["Here."])
    async with two_providers(rig, first, second, max_retries=2):
        assert await rig.run("go") == "Here."
    assert len(first.completions) == 3


@pytest.mark.parametrize("fault", [Cut(after=4), ResetAfter(after=4), Stall(after=4)], ids=str)
async def test_text_that_was_shown_is_not_shown_again_by_another(
    streaming_rig: Rig, llm_server: LLMServer, fault: Any
) -> None:
    half = Reply("half of an answer that goes on for a while", fault=fault)
    first, second = await llm_server([half]), await llm_server(["never asked"])
    async with two_providers(streaming_rig, first, second):
        with pytest.raises(LLMError):
            await streaming_rig.run("go")
    assert second.completions == []
    assert streaming_rig.last("orchestrator:complete")["status"] == "error"


async def test_who_was_away_is_asked_again_with_the_next_prompt_only(
    rig: Rig, llm_server: LLMServer
) -> None:
    rig.add_tool(echo_tool())
    first = await llm_server([Status(529), "Back again."])
    second = await llm_server([asks("a"), asks("b"), "Done."])
    async with two_providers(rig, first, second):
        assert await rig.run("go") == "Done."
        assert (len(first.completions), len(second.completions)) == (1, 3)
        assert await rig.run("go on") == "Back again."
    assert len(rig.of("provider:fallback")) == 1
    assert first.rejections == second.rejections == []


def mocks(rig: Rig, **replies: Any) -> dict[str, MockProvider]:
    """Scripted providers by name, the first one preferred."""
    for number, (name, script) in enumerate(replies.items()):
        config = {"replies": script, "priority": number, "model": f"{name}-model"}
        settings = parse_config(MockConfig, config, "provider-mock")
        rig.providers[name] = create(settings, settings.replies, rig.coordinator)
    return rig.providers


AWAY_REPLY = {"error": {"type": "ProviderUnavailableError", "message": "down"}}


async def test_the_chain_is_asked_in_its_order(rig: Rig) -> None:
    mocks(rig, a=[AWAY_REPLY], b=["never"], c=[AWAY_REPLY], d=["from d"])
    rig.plan["session"]["fallbacks"] = ["c", "provider-d", "b"]
    assert await rig.run() == "from d"
    reported = [(data["provider"], data["fallback"]) for data in rig.of("provider:fallback")]
    assert reported == [("a", "c"), ("c", "d")]


async def test_the_error_of_the_last_one_is_the_turns(rig: Rig) -> None:
    last = {"error": {"type": "AuthenticationError", "message": "no key"}}
    mocks(rig, a=[AWAY_REPLY], b=[last])
    rig.plan["session"]["fallbacks"] = ["b"]
    with pytest.raises(AuthenticationError, match="no key"):
        await rig.run()


async def test_once_all_are_away_the_one_that_is_meant_is_asked(rig: Rig) -> None:
    rig.add_tool(echo_tool())
    mocks(rig, a=[AWAY_REPLY], b=[calls(call(text="x")), AWAY_REPLY])
    rig.plan["session"]["fallbacks"] = ["b"]
    with pytest.raises(ProviderUnavailableError):
        await rig.run()
    asked = [data["provider"] for data in rig.of("provider:request")]
    assert asked == ["a", "b", "b"]


async def test_the_model_that_was_wanted_is_not_asked_of_another_vendor(rig: Rig) -> None:
    rig.config = {"default_model": "special"}
    providers = mocks(rig, a=[AWAY_REPLY], b=["done"])
    rig.plan["session"]["fallbacks"] = ["b"]
    assert await rig.run() == "done"
    assert providers["a"].requests[0].model == "special"
    assert providers["b"].requests[0].model is None
    assert [data["model"] for data in rig.of("provider:request")] == ["special", "b-model"]


async def test_names_that_are_not_mounted_are_passed_over(rig: Rig) -> None:
    mocks(rig, a=[AWAY_REPLY], b=["done"])
    rig.plan["session"]["fallbacks"] = ["absent", "a", "b"]
    assert await rig.run() == "done"


async def test_a_hook_may_keep_the_conversation_from_going_elsewhere(rig: Rig) -> None:
    providers = mocks(rig, a=[AWAY_REPLY], b=["never"])
    rig.plan["session"]["fallbacks"] = ["b"]
    rig.on("provider:fallback", HookResult(action="deny", reason="stays in the house"))
    assert await rig.run() == "Denied: stays in the house"
    assert providers["b"].requests == []


async def test_a_turn_that_is_to_stop_does_not_go_on_elsewhere(rig: Rig) -> None:
    providers = mocks(rig, a=[AWAY_REPLY], b=["never"])
    rig.plan["session"]["fallbacks"] = ["b"]

    def stop(data: dict[str, Any]) -> None:
        rig.coordinator.cancellation.request_graceful()

    rig.on("provider:error", stop)
    with pytest.raises(ProviderUnavailableError):
        await rig.run()
    assert providers["b"].requests == []


@pytest.mark.parametrize("order", [("anthropic", "openai"), ("openai", "anthropic")])
async def test_a_turn_that_is_under_way_goes_on_with_another_vendor(
    rig: Rig, llm_server: LLMServer, order: tuple[str, str]
) -> None:
    """Calls, results and thoughts made for the one are a valid request to the other."""
    rig.add_tool(echo_tool())
    first = await llm_server([asks("a", "b", thinking="Let me see."), asks("c"), Status(503)])
    second = await llm_server([asks("d"), "Done."])
    servers = dict(zip(order, (first, second), strict=True))
    async with two_providers(rig, servers["anthropic"], servers["openai"]):
        rig.config = {"default_provider": order[0]}
        rig.plan["session"]["fallbacks"] = [order[1]]
        assert await rig.run("go") == "Done."
    assert first.rejections == second.rejections == []
    assert rig.context.results() == {f"call_{x}": x.upper() for x in "abcd"}
