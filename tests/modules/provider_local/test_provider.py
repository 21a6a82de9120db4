"""The provider around the engine: a scripted server replaces the model, over real HTTP."""

import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from amplifier_core.interfaces import Provider
from amplifier_core.llm_errors import ConfigurationError, InvalidRequestError
from amplifier_core.message_models import ChatResponse
from amplifier_core.testing import MockCoordinator
from amplifier_modules._shared.http.client import Endpoint
from amplifier_modules.provider_local import missing_offline, mount
from amplifier_modules.provider_local.config import LocalConfig
from amplifier_modules.provider_local.provider import LocalProvider, _Running
from amplifier_modules.provider_local.store import FetchNotices, Progress, catalogue, models_dir
from amplifier_support.installation import install_command
from amplifier_support.session_capabilities import WORKING_DIR
from tests.modules.provider_local.packages import build_weights
from tests.support.fixtures import StartLLM
from tests.support.llm.script import Item
from tests.support.llm_server import Reply, Request, ScriptedLLM, Status, ToolCall

QWEN = "qwen2.5-coder-1.5b"
TOOL = {
    "name": "read_file",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
}

Served = Callable[..., Awaitable[tuple[LocalProvider, ScriptedLLM]]]


class Idle:
    """An engine that is a scripted server's business."""

    stopped = False

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def coordinator() -> MockCoordinator:
    return MockCoordinator()


async def mounted(coordinator: MockCoordinator, **config: Any) -> LocalProvider:
    await mount(coordinator, config)
    provider = coordinator.get("providers", "local")
    assert isinstance(provider, LocalProvider)
    return provider


@pytest.fixture
async def served(coordinator: MockCoordinator, llm_server: StartLLM) -> AsyncIterator[Served]:
    """Factory: a mounted provider whose model is a scripted server with these replies."""
    async with AsyncExitStack() as stack:

        async def serve(*replies: Item, **config: Any) -> tuple[LocalProvider, ScriptedLLM]:
            server = await llm_server(list(replies), strict=False)
            stack.push_async_callback(await mount(coordinator, config))
            provider = coordinator.get("providers", "local")
            endpoint = Endpoint(
                server.openai_base_url, {"authorization": "Bearer k"}, provider="local"
            )
            provider._running[provider.model] = _Running(Idle(), endpoint)
            return provider, server

        yield serve


def ask(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}], **fields}


async def test_mounting_costs_next_to_nothing_and_needs_no_model(coordinator):
    cleanup = await mount(coordinator, {})
    provider = coordinator.get("providers", "local")
    assert isinstance(provider, Provider)
    assert (provider.name, provider.model, provider.priority) == ("local", "smollm2-135m", 100)
    await cleanup()


async def test_the_default_model_is_chat_only_and_says_so(coordinator):
    provider = await mounted(coordinator)
    assert provider.supports_tools is False
    info = provider.get_info()
    assert "tools" not in info.capabilities
    assert "local" in info.capabilities
    assert info.defaults["context_window"] > info.defaults["max_output_tokens"] + 1000


async def test_a_larger_model_has_tools(coordinator):
    provider = await mounted(coordinator, default_model=QWEN, priority=7)
    assert provider.supports_tools is True
    assert "tools" in provider.get_info().capabilities
    assert provider.priority == 7


async def test_config_decides_how_tools_are_called(coordinator):
    assert (await mounted(coordinator, model=QWEN, tool_calling="off")).supports_tools is False


async def test_models_are_listed_with_size_and_licence(coordinator, tmp_path):
    provider = await mounted(coordinator, model=str(tmp_path / "own.gguf"))
    listed = {m.id: m for m in await provider.list_models()}
    assert set(listed) == {"smollm2-135m", QWEN, str(tmp_path / "own.gguf")}
    assert listed["smollm2-135m"].defaults["licence"] == "Apache-2.0"
    assert listed["smollm2-135m"].defaults["size_bytes"] == 98362432
    assert "chat only" in listed["smollm2-135m"].defaults["note"]
    assert "tools" not in listed["smollm2-135m"].capabilities
    assert "tools" in listed[QWEN].capabilities


@pytest.mark.parametrize(
    ("config", "says"),
    [({"model": "smolm2"}, "did you mean"), ({"model": "gpt-4"}, "known:")],
)
async def test_an_unknown_model_is_refused_when_mounting(coordinator, config, says):
    with pytest.raises(ConfigurationError, match=says):
        await mount(coordinator, config)


async def test_without_xllamacpp_the_error_names_the_extra_and_nothing_is_fetched(
    coordinator, monkeypatch, tmp_path
):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    provider = await mounted(coordinator, cache_dir=str(tmp_path / "c"))
    with pytest.raises(ConfigurationError, match=re.escape(install_command("local"))):
        await provider.complete(ask())
    assert not (tmp_path / "c").exists()


async def test_offline_missing_weights_are_a_clear_error(coordinator):
    coordinator.register_capability("offline", True)
    provider = await mounted(coordinator)
    with pytest.raises(ConfigurationError, match=r"smollm2-135m.*offline"):
        await provider.complete(ask())


def test_missing_weights_are_reported_without_mounting(tmp_path):
    cache = str(tmp_path / "cache")
    assert missing_offline(None, cache) == ["the weights of smollm2-135m (98 MB)"]
    assert missing_offline({"model": QWEN}, cache) == [f"the weights of {QWEN} (1117 MB)"]
    assert missing_offline({"model": "./own.gguf"}, cache) == []
    weights = catalogue()[QWEN].weights
    there = tmp_path / "cache" / "models" / weights.file
    there.parent.mkdir(parents=True)
    with there.open("wb") as file:
        file.truncate(weights.size)
    assert missing_offline({"model": QWEN}, cache) == []
    other = {"model": QWEN, "cache_dir": str(tmp_path / "other")}
    assert missing_offline(other, cache) == [f"the weights of {QWEN} (1117 MB)"]
    with pytest.raises(ConfigurationError, match="did you mean"):
        missing_offline({"model": "smollm"}, cache)


@pytest.mark.parametrize("content", [None, b"no model"])
async def test_a_file_that_is_not_a_model_is_a_clear_error(coordinator, tmp_path, content):
    path = tmp_path / "own.gguf"
    if content is not None:
        path.write_bytes(content)
    provider = await mounted(coordinator, model=str(path))
    with pytest.raises(ConfigurationError, match=r"own\.gguf"):
        await provider.complete(ask())


async def test_a_relative_path_starts_at_the_working_directory_of_the_session(
    coordinator, tmp_path, monkeypatch
):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    WORKING_DIR.register(coordinator, str(tmp_path))
    (tmp_path / "own.gguf").write_bytes(b"no model")
    provider = await mounted(coordinator, model="own.gguf")
    with pytest.raises(ConfigurationError, match=f"{re.escape(str(tmp_path))}/own.gguf is not"):
        await provider.complete(ask())


async def test_a_damaged_model_is_a_clear_error_and_prints_nothing(coordinator, tmp_path, capfd):
    path = tmp_path / "own.gguf"
    path.write_bytes(b"GGUF" + bytes(1000))
    provider = await mounted(coordinator, model=str(path))
    with pytest.raises(ConfigurationError, match=r"llama\.cpp cannot run"):
        await provider.complete(ask())
    assert capfd.readouterr() == ("", "")


class TestWhereWeightsAre:
    def test_config_counts_most(self):
        config = LocalConfig(cache_dir="/from/config")
        assert models_dir(config, "/from/app") == Path("/from/config/models")

    def test_then_the_app(self):
        assert models_dir(LocalConfig(), "/from/app") == Path("/from/app/models")

    def test_then_the_home_of_the_program(self, monkeypatch):
        monkeypatch.setenv("AMPLIFIER_HOME", "/home/of/it")
        assert models_dir(LocalConfig(), None) == Path("/home/of/it/cache/models")

    def test_else_the_platforms_own(self, monkeypatch):
        monkeypatch.delenv("AMPLIFIER_HOME")
        monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
        assert models_dir(LocalConfig(), None).parent.name == "amplifier"


class TestRequests:
    async def test_the_models_own_defaults_are_sent(self, served):
        provider, server = await served("fine")
        response = await provider.complete(ask())
        body = server.completions[0].body
        assert (body["model"], body["temperature"]) == ("smollm2-135m", 0)
        assert body["max_tokens"] == 1024
        assert body["messages"][0]["role"] == "system"
        assert response.usage.cost_usd == Decimal(0)
        assert response.degradation is None

    async def test_config_and_request_win_over_the_models_defaults(self, served):
        provider, server = await served("fine", max_tokens=5, temperature=0.5)
        await provider.complete(ask(temperature=0.7))
        body = server.completions[0].body
        assert (body["max_tokens"], body["temperature"]) == (5, 0.7)

    async def test_a_chat_only_model_is_sent_no_tools_and_the_answer_says_so(self, served):
        provider, server = await served("fine")
        response = await provider.complete(ask(tools=[TOOL], tool_choice="auto"))
        body = server.completions[0].body
        assert "tools" not in body
        assert "tool_choice" not in body
        assert "response_format" not in body
        assert response.degradation.requested == "tools"
        assert "chat only" in response.degradation.reason

    async def test_tools_are_called_by_constrained_output(self, served):
        written = json.dumps({"tool": "read_file", "arguments": {"path": "a"}})
        provider, server = await served(written, model=QWEN)
        response = await provider.complete(ask(tools=[TOOL]))
        body = server.completions[0].body
        assert "tools" not in body
        assert body["response_format"]["type"] == "json_schema"
        assert response.tool_calls[0].arguments == {"path": "a"}
        assert response.finish_reason == "tool_calls"
        assert response.usage.total_tokens == 15

    async def test_answers_stream_when_tools_are_offered(self, served):
        reply = Reply(json.dumps({"answer": "Hello there"}), chars_per_delta=5, event_delay=0.02)
        provider, _ = await served(reply, model=QWEN)
        *pieces, response = [c async for c in provider.stream_complete(ask(tools=[TOOL]))]
        assert isinstance(response, ChatResponse)
        assert "".join(piece.get("delta", "") for piece in pieces) == "Hello there"
        assert len([piece for piece in pieces if "delta" in piece]) > 1

    async def test_without_tools_the_same_model_writes_freely(self, served):
        provider, server = await served("fine", "fine", model=QWEN)
        await provider.complete(ask())
        await provider.complete(ask(tools=[TOOL], tool_choice="none"))
        assert ["response_format" in r.body for r in server.completions] == [False, False]

    async def test_a_schema_the_engine_cannot_hold_to_is_let_go(self, served):
        def answer(request: Request):
            shapes = request.body["response_format"]["json_schema"]["schema"]["anyOf"]
            if "properties" in shapes[0]["properties"]["arguments"]:
                return Status(400, message="Failed to parse JSON schema")
            return json.dumps({"tool": "read_file", "arguments": {}})

        provider, server = await served(answer, answer, answer, model=QWEN)
        for _ in range(2):
            response = await provider.complete(ask(tools=[TOOL]))
            assert response.tool_calls[0].name == "read_file"
        assert len(server.completions) == 3

    async def test_any_other_refusal_goes_up(self, served):
        provider, server = await served(Status(400, message="no"), model=QWEN)
        with pytest.raises(InvalidRequestError):
            await provider.complete(ask(tools=[TOOL]))
        assert len(server.completions) == 1

    async def test_a_model_of_ones_own_is_offered_tools_natively(self, served, tmp_path):
        reply = Reply(tool_calls=[ToolCall("read_file", {"path": "a"}, id="c")])
        provider, server = await served(reply, model=str(tmp_path / "own.gguf"))
        response = await provider.complete(ask(tools=[TOOL]))
        assert server.completions[0].body["tools"][0]["function"]["name"] == "read_file"
        assert response.tool_calls[0].id == "c"

    async def test_images_are_not_sent_and_the_answer_says_so(self, served):
        pixel = {"type": "base64", "media_type": "image/png", "data": "AA=="}
        content = [{"type": "text", "text": "see"}, {"type": "image", "source": pixel}]
        provider, server = await served("fine")
        request = {"messages": [{"role": "user", "content": content}]}
        response = await provider.complete(request)
        assert isinstance(server.completions[0].body["messages"][-1]["content"], str)
        assert response.degradation.requested == "images"


class Display:
    def __init__(self) -> None:
        self.messages: list[tuple[str, str, str]] = []

    def show_message(self, message: str, level: str, source: str = "hook") -> None:
        self.messages.append((message, level, source))


async def notice(coordinator: MockCoordinator, steps: list[Progress]) -> None:
    notices = FetchNotices(coordinator)
    for step in steps:
        await notices(step)


class TestNotices:
    @pytest.fixture
    def steps(self, tmp_path) -> list[Progress]:
        weights = build_weights(tmp_path)
        fetching = [Progress(weights, "fetching", -(-weights.size * p // 100), weights.size)
                    for p in (0, 10, 30, 40, 60, 80)]  # fmt: skip
        rest = [Progress(weights, stage, weights.size, weights.size)
                for stage in ("verifying", "ready")]  # fmt: skip
        return [*fetching, *rest]

    async def test_hooks_hear_every_step(self, coordinator, steps):
        heard: list[dict] = []
        coordinator.hooks.register("provider:resolve", lambda _, data: heard.append(dict(data)))
        await notice(coordinator, steps)
        assert len(heard) == len(steps)
        assert heard[-1]["status"] == "ready"
        assert heard[-1]["bytes"] == heard[-1]["total_bytes"]
        assert heard[0]["licence"] == "Apache-2.0"

    async def test_a_display_gets_a_few_messages(self, coordinator, steps, capfd):
        coordinator.display_system = Display()
        await notice(coordinator, steps)
        texts = [message for message, _, _ in coordinator.display_system.messages]
        assert "Apache-2.0" in texts[0]
        assert texts[1:] == ["Downloading tiny: 30 %", "Downloading tiny: 60 %", "tiny is ready"]
        assert capfd.readouterr() == ("", "")

    async def test_without_display_and_terminal_nothing_is_written(self, coordinator, steps, capfd):
        coordinator.display_system = None
        await notice(coordinator, steps)
        assert capfd.readouterr() == ("", "")
