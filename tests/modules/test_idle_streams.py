"""Streams that are alive but do not go on end at the idle limit, over every API."""

import time
from typing import Any

import pytest

from amplifier_core.llm_errors import LLMError
from amplifier_core.testing import MockCoordinator
from tests.modules.apis import APIS
from tests.support.llm_server import Raw, Reply, ScriptedLLM, Stall

REQUEST = {"messages": [{"role": "user", "content": "hello"}]}
IDLE = 0.4
PING = b'event: ping\ndata: {"type": "ping"}\n\n'
EMPTY = b'data: {"choices": [{"index": 0, "delta": {"content": ""}}]}\n\n'
EMPTY_TEXT = (
    b'event: content_block_delta\ndata: {"type": "content_block_delta", "index": 0, '
    b'"delta": {"type": "text_delta", "text": ""}}\n\n'
)
WORKING = b'data: {"type": "response.in_progress", "response": {"status": "in_progress"}}\n\n'
COMMENT = b": alive\n\n"


async def ask(api: str, server: ScriptedLLM) -> tuple[str, LLMError | None, float]:
    """The text of an answer, the error that ended it, and the seconds it took."""
    module, path, more = APIS[api]
    coordinator = MockCoordinator()
    config = {"base_url": server.base_url + path, "api_key": "k", "max_retries": 0, **more}
    cleanup = await module.mount(coordinator, {**config, "idle_timeout": IDLE})
    (provider,) = coordinator.get("providers").values()
    texts: list[str] = []
    begun = time.monotonic()
    error = None
    try:
        async for piece in provider.stream_complete(REQUEST):
            if isinstance(piece, dict):
                texts.append(piece.get("delta", ""))  # noqa: PERF401 - what came before an error
    except LLMError as caught:
        error = caught
    await cleanup()
    return "".join(texts), error, time.monotonic() - begun


@pytest.mark.parametrize(
    ("api", "beat", "after"),
    [
        ("anthropic", PING, 0),
        ("anthropic", PING, 5),
        ("anthropic", EMPTY_TEXT, 5),
        ("chat", COMMENT, 0),
        ("chat", EMPTY, 3),
        ("chat", b": a comment that never ends ", 3),
        ("responses", COMMENT, 3),
        ("responses", WORKING, 5),
    ],
)
async def test_signs_of_life_do_not_keep_a_stream_open(api: str, beat: bytes, after: int) -> None:
    reply = Reply("hello there", chars_per_delta=6, fault=Stall(after, seconds=20, beat=beat))
    async with ScriptedLLM([reply]) as server:
        text, error, seconds = await ask(api, server)
    assert text.strip() in ("", "hello", "hello there")
    assert error is not None
    assert f"for {IDLE:g} s" in str(error)
    assert error.retryable
    assert seconds < 10  # the server would go on for 20 s


@pytest.mark.parametrize("api", list(APIS))
async def test_a_slow_answer_is_not_idle(api: str) -> None:
    text = "a slow answer in many pieces"
    reply = Reply(text, chars_per_delta=2, event_delay=IDLE / 8)
    async with ScriptedLLM([reply]) as server:
        said, error, seconds = await ask(api, server)
    assert (said, error) == (text, None)
    assert seconds > IDLE


def _interim() -> Any:
    while True:
        yield b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100


@pytest.mark.parametrize("api", list(APIS))
async def test_the_number_of_interim_answers_is_limited(api: str) -> None:
    async with ScriptedLLM([Raw(_interim)]) as server:
        _, error, _ = await ask(api, server)
    assert error is not None
    assert "too many interim answers" in str(error)
