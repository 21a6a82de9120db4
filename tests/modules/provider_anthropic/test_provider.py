"""Everything but the conversation: mounting, settings, models, counting, costs."""

import asyncio
import logging
from decimal import Decimal
from typing import Any

import pytest

from amplifier_core.interfaces import Provider
from amplifier_core.llm_errors import AuthenticationError, ConfigurationError, NotFoundError
from amplifier_core.models import ProviderInfo
from amplifier_core.testing import MockCoordinator
from amplifier_modules.provider_anthropic import mount
from amplifier_modules.provider_anthropic.request import (
    find_model,
    known_models,
    read_features,
    shipped_prices,
)
from amplifier_modules.provider_anthropic.stream import StreamAssembly
from amplifier_support.price_lists import Tokens
from tests.modules.provider_anthropic.support import HELLO, READ, playing
from tests.support.llm_server import Reply, ScriptedLLM, Status, Usage, closed_port

pytestmark = pytest.mark.usefixtures("each_client")

KEY = {"api_key": "test-key"}


# -- mounting --------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [None, {}, {"api_key": ""}, {"api_key": "  "}])
async def test_missing_credentials_skip_the_provider_with_a_warning(
    config: dict[str, Any] | None, caplog: pytest.LogCaptureFixture
):
    coordinator = MockCoordinator()
    with caplog.at_level(logging.WARNING):
        assert await mount(coordinator, config) is None
    assert coordinator.get("providers") == {}
    assert "ANTHROPIC_API_KEY" in caplog.text


async def test_mounting_registers_the_provider():
    coordinator = MockCoordinator()
    cleanup = await mount(coordinator, KEY)
    assert cleanup is not None
    provider = coordinator.get("providers", "anthropic")
    assert isinstance(provider, Provider)
    assert (provider.name, provider.model, provider.priority) == (
        "anthropic",
        "claude-sonnet-5-5",
        100,
    )
    await cleanup()


async def test_a_bad_setting_is_named():
    with pytest.raises(ValueError, match="did you mean 'max_tokens'"):
        await mount(MockCoordinator(), {**KEY, "max_token": 5})
    with pytest.raises(ValueError, match=r"thinking.*1024"):
        await mount(MockCoordinator(), {**KEY, "thinking": {"budget_tokens": 5}})
    with pytest.raises(ValueError, match="budget_tokens needs thinking"):
        await mount(
            MockCoordinator(), {**KEY, "thinking": {"type": "adaptive", "budget_tokens": 5000}}
        )


@pytest.mark.parametrize("key", ["two\nlines", "schlüssel"])
async def test_a_key_that_cannot_be_sent_is_refused_without_showing_it(key: str):
    with pytest.raises(ConfigurationError) as caught:
        await mount(MockCoordinator(), {"api_key": key})
    assert key not in str(caught.value)


async def test_settings_do_not_show_the_key():
    async with playing() as setting:
        assert "test-key" not in repr(vars(setting.provider))


async def test_model_and_priority_are_settings():
    async with playing("x", default_model="claude-opus-5", priority=5) as setting:
        assert (setting.provider.model, setting.provider.priority) == ("claude-opus-5", 5)
        await setting.provider.complete(HELLO)
        assert setting.body["model"] == "claude-opus-5"
        assert setting.provider.get_info().defaults["model"] == "claude-opus-5"


# -- credentials and addresses -----------------------------------------------------------------


async def headers_sent(config: dict[str, Any]) -> dict[str, str]:
    async with ScriptedLLM(["x"], require_key=False) as server:
        coordinator = MockCoordinator()
        cleanup = await mount(coordinator, {"base_url": server.base_url, **config})
        assert cleanup is not None
        await coordinator.get("providers", "anthropic").complete(HELLO)
        await cleanup()
        return server.requests[0].headers


@pytest.mark.parametrize(
    ("environment", "config", "key", "bearer"),
    [
        ({"ANTHROPIC_API_KEY": "env"}, {}, "env", None),
        ({"ANTHROPIC_API_KEY": " env \n"}, {}, "env", None),
        ({"ANTHROPIC_AUTH_TOKEN": "tok"}, {}, None, "Bearer tok"),
        ({"ANTHROPIC_API_KEY": "env", "ANTHROPIC_AUTH_TOKEN": "tok"}, {}, "env", None),
        ({"ANTHROPIC_API_KEY": "env"}, {"api_key": "own"}, "own", None),
        ({"ANTHROPIC_API_KEY": "env"}, {"auth_token": "own"}, None, "Bearer own"),
        ({"ANTHROPIC_AUTH_TOKEN": "tok"}, {"api_key": "own"}, "own", None),
    ],
)
async def test_credentials_come_from_config_before_environment(
    environment: dict[str, str],
    config: dict[str, Any],
    key: str | None,
    bearer: str | None,
    monkeypatch: pytest.MonkeyPatch,
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    headers = await headers_sent(config)
    assert headers.get("x-api-key") == key
    assert headers.get("authorization") == bearer


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
async def test_the_address_comes_from_the_environment_too(
    suffix: str, monkeypatch: pytest.MonkeyPatch
):
    async with ScriptedLLM(["x"]) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.base_url + suffix)
        coordinator = MockCoordinator()
        cleanup = await mount(coordinator, KEY)
        assert cleanup is not None
        await coordinator.get("providers", "anthropic").complete(HELLO)
        await cleanup()
        assert server.requests[0].path == "/v1/messages"


async def test_betas_and_version_are_headers():
    config = {**KEY, "beta": "a-1, b-2", "api_version": "2023-06-01", "model": "claude-haiku-4-5"}
    headers = await headers_sent(config)
    assert headers["anthropic-beta"] == "a-1,b-2"
    assert headers["anthropic-version"] == "2023-06-01"


async def test_an_unknown_model_is_not_found():
    async with playing(server={"models": ["other"]}) as setting:
        with pytest.raises(NotFoundError, match="check the model name"):
            await setting.provider.complete(HELLO)


# -- requests --------------------------------------------------------------------------------


async def test_a_time_limit_of_the_request_is_kept():
    from amplifier_core.llm_errors import LLMTimeoutError

    slow = Reply("x" * 1000, event_delay=0.02, chars_per_delta=1)
    async with playing(slow, max_retries=0) as setting:
        with pytest.raises(LLMTimeoutError, match="time limit"):
            await setting.provider.complete({**HELLO, "timeout": 0.1})


async def test_omitted_settings_are_reported():
    async with playing("x") as setting:
        response = await setting.provider.complete({**HELLO, "temperature": 0.2, "top_p": 0.5})
    assert response.degradation is not None
    assert response.degradation.requested == "temperature=0.2; top_p=0.5"
    assert response.degradation.reason == "not supported with thinking"


async def test_calls_at_the_same_time_do_not_mix():
    replies = [lambda r: Reply(r.body["messages"][0]["content"][0]["text"] * 50, delay=0.01)] * 8
    async with playing(*replies) as setting:
        answers = await asyncio.gather(
            *(
                setting.provider.complete({"messages": [{"role": "user", "content": str(n)}]})
                for n in range(8)
            )
        )
    assert [a.content[0].text for a in answers] == [str(n) * 50 for n in range(8)]


# -- usage and cost --------------------------------------------------------------------------


async def test_usage_counts_all_input_and_costs_by_kind():
    usage = Usage(100, 200, cache_read=1000, cache_creation=400)
    async with playing(Reply("x", usage=usage), list_prices=True) as setting:
        response = await setting.provider.complete(HELLO)
    found = response.usage
    assert found is not None
    assert (found.input_tokens, found.output_tokens, found.total_tokens) == (1500, 200, 1700)
    assert (found.cache_read_tokens, found.cache_write_tokens) == (1000, 400)
    # 100 × $2 + 200 × $10 + 1000 × $0.10 + 400 × $2.50, per million
    assert found.cost_usd == Decimal("0.0033")


async def test_searches_of_the_service_are_part_of_the_cost():
    start = {"type": "message_start", "message": {"model": "claude-sonnet-5-5", "usage": {}}}
    usage = {"input_tokens": 100, "output_tokens": 200}
    counted = {**usage, "server_tool_use": {"web_search_requests": 3}}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": counted}
    async with playing(list_prices=True) as setting:
        assembly = StreamAssembly(provider="anthropic", model=None)
        assembly.take((start, end, {"type": "message_stop"}))
        found = setting.provider._usage(assembly.usage, "claude-sonnet-5-5")  # pyright: ignore[reportPrivateUsage]
    assert found is not None
    assert found.cost_usd == Decimal("0.0022") + Decimal("0.03")


async def test_a_model_without_a_known_price_has_no_cost():
    async with playing("x", model="claude-next-9", list_prices=True) as setting:
        response = await setting.provider.complete(HELLO)
    assert response.usage is not None
    assert response.usage.cost_usd is None


async def test_another_address_has_a_bill_of_its_own():
    async with playing("x") as setting:
        response = await setting.provider.complete(HELLO)
        (listed,) = await setting.provider.list_models()
    assert response.usage is not None
    assert response.usage.cost_usd is None
    assert listed.pricing is None


async def test_the_plans_prices_count_for_every_model():
    prices = {"input": 1, "output": 0.1, "cache_read": "0.5"}
    usage = Usage(100, 200, cache_read=1000, cache_creation=400)
    async with playing(
        Reply("x", usage=usage),
        model="claude-next-9",
        prices=prices,
        server={"models": ["claude-next-9"]},
    ) as setting:
        response = await setting.provider.complete(HELLO)
        (listed,) = await setting.provider.list_models()
    assert response.usage is not None
    # 100 × $1 + 200 × $0.1 + 1000 × $0.5 + 400 × $1, which writing to the cache costs like input
    assert response.usage.cost_usd == Decimal("0.00102")
    assert listed.pricing is not None
    assert listed.pricing.cache_write_per_million == 1.0


@pytest.mark.parametrize(
    ("base_url", "own"),
    [
        (None, True),
        ("https://api.anthropic.com/v1", True),
        ("https://anthropic.com.evil.example", False),
        ("https://notanthropic.com", False),
        ("http://localhost:4000", False),
    ],
)
async def test_the_vendors_list_counts_at_its_own_address_alone(base_url: str | None, own: bool):
    coordinator = MockCoordinator()
    config = {**KEY, "model": "claude-haiku-4-5"} | ({"base_url": base_url} if base_url else {})
    await mount(coordinator, config)
    provider = coordinator.get("providers", "anthropic")
    assert (provider.model_pricing("claude-haiku-4-5") is not None) is own


def test_long_prompts_and_long_cache_lives_have_their_prices():
    haiku = shipped_prices().models["claude-haiku-5-5"]
    assert haiku.cost(Tokens(input=100_000, output=0)) == Decimal("0.01")
    assert haiku.cost(Tokens(input=100_001, output=0)) == Decimal("0.0500005")
    assert haiku.cost(Tokens(input=0, output=0, cache_write_1h=1000)) == Decimal("0.0002")


# -- models ----------------------------------------------------------------------------------


def test_the_catalogue_is_whole():
    models = list(known_models())
    assert models[0].id == "claude-sonnet-5-5"
    assert len({model.id for model in models}) == len(models)
    for model in models:
        features = read_features(model)
        assert set(features.thinking) <= {"adaptive", "enabled", "disabled", "between_tools"}
        prices = shipped_prices().models[model.id].usual
        ranked = [prices.cache_read, prices.input, prices.cache_write, prices.output]
        assert None not in ranked
        assert ranked == sorted(ranked, key=lambda price: price or 0)
        assert model.max_output_tokens < model.context_window


@pytest.mark.parametrize(
    "spelling",
    [
        "claude-haiku-4-5",
        "claude-haiku-4-5-20251001",
        "claude-haiku-4-5@20251001",
        "claude-haiku-4-5-latest",
        "anthropic.claude-haiku-4-5-20251001-v1:0",
        "us.anthropic.claude-haiku-4-5-20251001-v1:0",
        "anthropic.claude-haiku-4-5-v1",
        "anthropic/claude-haiku-4-5",
    ],
)
def test_a_model_is_found_by_all_its_names(spelling: str):
    model = find_model(spelling)
    assert model is not None
    assert model.id == "claude-haiku-4-5"


async def test_info_describes_the_configured_model():
    async with playing(model="claude-haiku-4-5", max_tokens=5000) as setting:
        info = setting.provider.get_info()
    assert isinstance(info, ProviderInfo)
    assert (info.id, info.display_name) == ("anthropic", "Anthropic")
    assert info.credential_env_vars == ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"]
    assert info.defaults == {
        "model": "claude-haiku-4-5",
        "max_tokens": 5000,
        "max_output_tokens": 5000,
        "context_window": 200_000,
    }
    assert {item.id for item in info.config_fields} == {"api_key", "base_url", "model"}
    assert next(f for f in info.config_fields if f.id == "api_key").field_type == "secret"


async def test_models_are_listed_by_the_service():
    async with playing(
        server={"models": ["claude-opus-5", "claude-next-9"]}, list_prices=True
    ) as setting:
        known, unknown = await setting.provider.list_models()
        assert setting.server.requests[0].query == "limit=1000"
    assert (known.id, known.context_window, known.max_output_tokens) == (
        "claude-opus-5",
        200_000,  # the service's own word
        64_000,
    )
    assert known.pricing is not None
    assert known.pricing.input_per_million == 5.0
    assert unknown.pricing is None


async def test_pages_of_models_are_joined():
    from tests.support.raw_http import Request, Write, answer, raw_server

    async def handler(request: Request, write: Write) -> None:
        if "after_id" in request.path:
            page = '{"data": [{"id": "b"}], "has_more": false}'
        else:
            page = '{"data": [{"id": "a"}], "has_more": true, "last_id": "a"}'
        await write(answer(200, page))

    async with raw_server(handler) as server:
        coordinator = MockCoordinator()
        cleanup = await mount(coordinator, {**KEY, "base_url": server.url})
        assert cleanup is not None
        models = await coordinator.get("providers", "anthropic").list_models()
        await cleanup()
    assert [model.id for model in models] == ["a", "b"]
    assert models[0].display_name == "a"


async def test_without_a_service_the_known_models_are_listed(caplog: pytest.LogCaptureFixture):
    with closed_port() as port:
        async with playing(base_url=f"http://127.0.0.1:{port}") as setting:
            models = await setting.provider.list_models()
    assert [model.id for model in models] == [model.id for model in known_models()]
    assert "known to this version" in caplog.text


async def test_a_wrong_key_lists_nothing():
    async with playing(server={"api_key": "right"}) as setting:
        with pytest.raises(AuthenticationError):
            await setting.provider.list_models()


async def test_tokens_are_counted_by_the_service():
    request = {**HELLO, "tools": [READ], "max_output_tokens": 5, "stop": ["x"], "temperature": 0.1}
    async with playing(Status(200)) as setting:
        count = await setting.provider.count_tokens(request)
        asked = setting.server.requests[0]
    assert asked.path == "/v1/messages/count_tokens"
    assert count == len(asked.raw) // 4
    assert set(asked.body) == {"model", "messages", "tools", "thinking"}
