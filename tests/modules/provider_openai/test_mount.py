"""Mounting: keys, addresses, environment and config, and what the provider says of itself."""

import subprocess
import sys
from decimal import Decimal

import pytest

from amplifier_core.llm_errors import ConfigurationError
from amplifier_core.models import ProviderInfo
from amplifier_modules.provider_openai import mount
from amplifier_modules.provider_openai.provider import (
    DEFAULT_MODEL,
    OPENAI_URL,
    find_model,
    is_openai,
    models,
)
from tests.modules.provider_openai.conftest import ask
from tests.support.llm_server import Reply, Usage, closed_port

PACKAGE = "amplifier_modules.provider_openai"


async def test_without_a_key_nothing_is_mounted_and_the_log_says_why(coordinator, caplog):
    assert await mount(coordinator, {}) is None
    assert coordinator.get("providers") == {}
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "OPENAI_API_KEY" in record.message


async def test_the_key_comes_from_the_environment(coordinator, monkeypatch, llm_server):
    server = await llm_server(["ok"], api_key="from-env")
    monkeypatch.setenv("OPENAI_API_KEY", "from-env")
    monkeypatch.setenv("OPENAI_BASE_URL", server.openai_base_url)
    cleanup = await mount(coordinator, {"model": "m"})
    response = await coordinator.get("providers", "openai").complete(ask())
    assert response.content[0].text == "ok"
    await cleanup()


async def test_config_wins_over_the_environment(coordinator, monkeypatch, llm_server):
    server = await llm_server(["ok"], api_key="from-config")
    monkeypatch.setenv("OPENAI_API_KEY", "from-env")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1")
    config = {"model": "m", "base_url": server.base_url, "api_key": "from-config"}
    cleanup = await mount(coordinator, config)
    await coordinator.get("providers", "openai").complete(ask())
    await cleanup()


async def test_another_server_needs_no_key(coordinator, llm_server):
    server = await llm_server(["ok"], require_key=False)
    cleanup = await mount(coordinator, {"base_url": server.base_url, "model": "m"})
    await coordinator.get("providers", "openai").complete(ask())
    assert "authorization" not in server.requests[0].headers
    await cleanup()


async def test_organization_and_project_are_sent(llm_server, mounted):
    server = await llm_server(["ok"])
    provider = await mounted(server, organization="org-1", project="proj-1")
    await provider.complete(ask())
    headers = server.requests[0].headers
    assert headers["openai-organization"] == "org-1"
    assert headers["openai-project"] == "proj-1"


@pytest.mark.parametrize(
    ("url", "own"),
    [
        (OPENAI_URL, True),
        ("https://eu.api.openai.com/v1", True),
        ("https://notopenai.com/v1", False),
        ("https://api.openai.com.evil.example/v1", False),
        ("http://localhost:11434/v1", False),
    ],
)
def test_only_openais_own_address_is_openai(url, own):
    assert is_openai(url) is own


async def test_an_invalid_address_is_refused(coordinator):
    with pytest.raises(ConfigurationError, match="base_url"):
        await mount(coordinator, {"base_url": "localhost:11434"})


async def test_default_model_is_another_name_for_model(coordinator):
    await mount(coordinator, {"api_key": "k", "default_model": "gpt-4.1", "priority": 3})
    provider = coordinator.get("providers", "openai")
    assert (provider.model, provider.priority, provider.name) == ("gpt-4.1", 3, "openai")


async def test_the_servers_first_model_is_used_if_none_is_set(llm_server, mounted):
    server = await llm_server(["ok", "ok"], models=["llama", "qwen"])
    provider = await mounted(server, model="")
    await provider.complete(ask())
    await provider.complete(ask())
    assert [r.body["model"] for r in server.completions] == ["llama", "llama"]
    assert len(server.requests) == 3
    assert provider.model == "llama"


async def test_a_server_without_models_is_a_configuration_error(llm_server, mounted):
    server = await llm_server([], models=[])
    provider = await mounted(server, model="")
    with pytest.raises(ConfigurationError, match="set 'model'"):
        await provider.complete(ask())


async def test_the_info_has_the_limits_context_managers_need(coordinator):
    await mount(coordinator, {"api_key": "k"})
    info = coordinator.get("providers", "openai").get_info()
    assert isinstance(info, ProviderInfo)
    assert info.defaults["model"] == DEFAULT_MODEL
    assert info.defaults["context_window"] > info.defaults["max_output_tokens"] > 0
    assert "tools" in info.capabilities
    assert info.credential_env_vars == ["OPENAI_API_KEY"]


async def test_configured_limits_count_for_any_server(mounted):
    provider = await mounted("http://127.0.0.1:1", context_window=9000, max_output_tokens=700)
    defaults = provider.get_info().defaults
    assert (defaults["context_window"], defaults["max_output_tokens"]) == (9000, 700)


def test_the_price_list_is_dated_and_whole():
    catalogue = models()
    file, prices = catalogue.price_list
    assert file.as_of
    assert file.source
    assert catalogue.find([DEFAULT_MODEL]) is not None
    for model in catalogue:
        assert model.context_window > model.max_output_tokens > 0
        assert prices[model.id].usual.input is not None
        assert prices[model.id].usual.output is not None


@pytest.mark.parametrize(
    "name",
    [
        "gpt-4o-mini",
        "gpt-4o-mini-2024-07-18",
        "openai/gpt-4o-mini",
        "openai/gpt-4o-mini-2024-07-18",
    ],
)
def test_a_model_is_found_by_all_its_names(name):
    found = find_model(name)
    assert found is not None
    assert found.id == "gpt-4o-mini"


async def test_the_vendors_list_counts_at_another_address_where_the_plan_says_so(
    llm_server, mounted
):
    usage = Usage(input_tokens=70, output_tokens=5, cache_read=30)
    replies = [Reply(text="ok", usage=usage)] * 3
    server = await llm_server(replies, models=["gpt-4o-mini", "m"])
    provider = await mounted(server, list_prices=True)
    response = await provider.complete(ask(model="gpt-4o-mini"))
    # 70 × $0.15 + 30 × $0.075 + 5 × $0.6, per million
    assert response.usage.cost_usd == Decimal("0.00001575")
    assert (await provider.complete(ask(model="m"))).usage.cost_usd is None
    known, unknown = await provider.list_models()
    assert known.pricing.input_per_million == 0.15
    assert unknown.pricing is None


async def test_the_plans_prices_count_for_every_model(llm_server, mounted):
    usage = Usage(input_tokens=70, output_tokens=5, cache_read=30)
    server = await llm_server([Reply(text="ok", usage=usage)], models=["m"])
    provider = await mounted(server, prices={"input": 2, "output": "8"})
    response = await provider.complete(ask())
    # what is read from a cache costs like input where the plan does not say
    assert response.usage.cost_usd == Decimal("0.00024")
    [listed] = await provider.list_models()
    assert listed.pricing.output_per_million == 8.0


async def test_prices_below_zero_or_by_halves_are_refused(coordinator):
    with pytest.raises(ValueError, match=r"'prices\.output' is required"):
        await mount(coordinator, {"api_key": "k", "prices": {"input": 1}})
    with pytest.raises(ValueError, match=r"'prices\.input'"):
        await mount(coordinator, {"api_key": "k", "prices": {"input": -1, "output": 1}})


def test_the_key_is_in_no_representation(coordinator):
    from amplifier_modules.provider_openai.config import OpenAIConfig

    assert "secret-key" not in repr(OpenAIConfig(api_key="secret-key"))


def test_mounting_imports_no_http_client():
    program = (
        "import asyncio, sys\n"
        "from amplifier_core.testing import MockCoordinator\n"
        f"from {PACKAGE} import mount\n"
        "asyncio.run(mount(MockCoordinator(), {'api_key': 'k'}))\n"
        "print([m for m in ('httpx', 'openai', 'anthropic', 'jsonschema') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


async def test_a_local_server_is_not_requested_through_a_proxy(answered, monkeypatch):
    with closed_port() as port:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{port}")
        response = await answered("ok")
    assert response.content[0].text == "ok"
