"""Requests that providers get answered in batches, and the batches of both vendors."""

import json
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.llm_errors import (
    InvalidRequestError,
    LLMError,
    NotFoundError,
    ProviderUnavailableError,
    RateLimitError,
    StreamError,
)
from amplifier_core.message_models import (
    ChatRequest,
    ChatResponse,
    Message,
    ToolCallBlock,
    ToolSpec,
)
from amplifier_modules._shared.providers.base import read_step
from amplifier_modules._shared.providers.catalogue import read_pages
from amplifier_modules.provider_anthropic.config import AnthropicConfig
from amplifier_modules.provider_anthropic.provider import AnthropicProvider, open_transport
from amplifier_modules.provider_openai.config import OpenAIConfig
from amplifier_modules.provider_openai.provider import OpenAIProvider
from amplifier_support.provider_access import Access
from amplifier_support.provider_batches import DeferredAnswer, DeferredRequest, ProviderBatches
from amplifier_support.session_capabilities import DEFERRAL
from tests.support.fixtures import StartLLM
from tests.support.llm.batches import Batch, Fate
from tests.support.llm_server import Raw, Reply, ScriptedLLM, Status, ToolCall

VENDORS = ("anthropic", "chat", "responses")
PRICES = {"input": "3", "output": "15"}
REPLY = Reply("I look.", thinking="hm", tool_calls=[ToolCall("read", {"path": "é"}, id="c1")])


class Deferred:
    """A deferral that sends each request in a batch of its own, or gives the answers it was given."""

    def __init__(self, answers: list[DeferredAnswer | None] | None = None) -> None:
        self.answers = answers
        self.requests: list[DeferredRequest] = []
        self.batches: ProviderBatches | None = None

    async def answer(self, request: DeferredRequest) -> DeferredAnswer | None:
        self.requests.append(request)
        if self.answers is not None:
            return self.answers.pop(0)
        assert self.batches is not None
        batch_id = await self.batches.submit("k", request.group, [request.body.encode()])
        while not (await self.batches.state(batch_id)).ended:
            pass
        ((number, answer),) = [one async for one in self.batches.answers(batch_id, "k")]
        assert number == 0
        return answer


def provider_of(vendor: str, server: ScriptedLLM, coordinator: Any = None) -> Any:
    config: dict[str, Any] = {"model": "m", "prices": PRICES, "max_retries": 1, "api_key": "k"}
    if vendor == "anthropic":
        settings = AnthropicConfig.model_validate({**config, "base_url": server.base_url})
        transport = open_transport(settings)
        assert transport is not None
        return AnthropicProvider(settings, transport, coordinator)
    settings = OpenAIConfig.model_validate({**config, "api": vendor})
    return OpenAIProvider(
        settings, Access({"api_key": "k"}, server.openai_base_url, "base_url"), coordinator
    )


def request(text: str = "go") -> ChatRequest:
    read = ToolSpec(name="read", description="Reads.", parameters={"type": "object"})
    return ChatRequest(messages=[Message(role="user", content=text)], tools=[read])


def deferring(vendor: str, server: ScriptedLLM, deferral: Deferred) -> Any:
    coordinator = ModuleCoordinator()
    DEFERRAL.register(coordinator, deferral)
    provider = provider_of(vendor, server, coordinator)
    deferral.batches = provider.batches
    return provider


def shown(response: ChatResponse) -> dict[str, Any]:
    content = [
        block.model_dump(exclude={"signature", "id", "encrypted_content"})
        for block in response.content
    ]
    calls = [call.model_dump() for call in response.tool_calls or []]
    return {"content": content, "calls": calls, "finish": response.finish_reason}


@pytest.mark.parametrize("vendor", VENDORS)
async def test_an_answer_of_a_batch_is_that_of_a_stream_at_half_the_price(
    llm_server: StartLLM, vendor: str
) -> None:
    server = await llm_server([REPLY], repeat_last=True)
    direct, deferral = provider_of(vendor, server), Deferred()
    later = deferring(vendor, server, deferral)
    streamed = await direct.complete(request())
    chunks = [chunk async for chunk in later.stream_complete(request())]
    assert shown(chunks[-1]) == shown(streamed)
    assert chunks[-1].usage.cost_usd == streamed.usage.cost_usd / 2 == Decimal("0.0000525")
    assert chunks[-1].metadata["service_tier"] == "batch"
    kinds = {chunk["block_type"] for chunk in chunks[:-1]}
    assert kinds == {"text", "thinking", "tool_call"}
    assert "stream" not in json.loads(deferral.requests[0].body)
    assert len(server.completions) == 1
    await direct.aclose()
    await later.aclose()


@pytest.mark.parametrize("vendor", VENDORS)
async def test_an_answer_that_was_counted_before_costs_nothing(
    llm_server: StartLLM, vendor: str
) -> None:
    server = await llm_server([REPLY], repeat_last=True)
    deferral = Deferred()
    provider = deferring(vendor, server, deferral)
    await provider.complete(request())
    answer = await deferral.answer(deferral.requests[0])
    assert answer is not None
    deferral.answers = []
    deferral.answers.append(answer._replace(is_counted=True))
    assert (await provider.complete(request())).usage.cost_usd == 0
    await provider.aclose()


@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (DeferredAnswer(429, {"error": {"message": "slow"}}), RateLimitError),
        (DeferredAnswer(503, {"error": {"message": "ended"}}), ProviderUnavailableError),
        (DeferredAnswer(None, {"error": {"type": "overloaded_error"}}), ProviderUnavailableError),
        (DeferredAnswer(None, {"error": {"type": "invalid_request_error"}}), InvalidRequestError),
        (DeferredAnswer(200, {"unexpected": True}), StreamError),
        (DeferredAnswer(200, {"content": [7], "output": [7], "choices": [7]}), StreamError),
    ],
)
async def test_failed_answers_are_typed_errors_and_only_temporary_ones_are_asked_again(
    llm_server: StartLLM, vendor: str, answer: DeferredAnswer, error: type[LLMError]
) -> None:
    server = await llm_server([])
    deferral = Deferred([answer, answer])
    provider = deferring(vendor, server, deferral)
    with pytest.raises(error) as raised:
        await provider.complete(request())
    assert len(deferral.requests) == (2 if raised.value.retryable else 1)
    assert not server.completions
    await provider.aclose()


def test_a_step_is_the_same_whatever_the_user_says_and_another_after_an_answer() -> None:
    said = Message(role="assistant", content=[ToolCallBlock(id="c1", name="read", input={})])
    first = request("12:00")
    assert read_step(first) == read_step(request("13:00"))
    second = request()
    second.messages.append(said)
    third = request()
    third.messages += [said, Message(role="user", content="Continue.")]
    assert read_step(second) == read_step(third) != read_step(first)


async def sent(batches: ProviderBatches, vendor: str, key: str, number: int) -> str:
    group = {"anthropic-version": "2023-06-01"}
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
    if vendor == "anthropic":
        body["max_tokens"] = 10
    else:
        group = {"url": "/v1/chat/completions"}
    return await batches.submit(key, json.dumps(group), [json.dumps(body).encode()] * number)


@pytest.mark.parametrize("vendor", ["anthropic", "chat"])
async def test_answers_are_read_by_number_and_cancelled_requests_have_none(
    llm_server: StartLLM, vendor: str
) -> None:
    fates: list[Fate] = ["answered", "errored", "expired", "cancelled"]

    def fate(batch: Batch, custom_id: str) -> Fate:
        return fates[int(custom_id[-1])]

    server = await llm_server(["yes"], repeat_last=True)
    server.batches.fate = fate
    provider = provider_of(vendor, server)
    batch_id = await sent(provider.batches, vendor, "key", 4)
    state = await provider.batches.state(batch_id)
    assert state.ended
    answers = {n: answer async for n, answer in provider.batches.answers(batch_id, "key")}
    assert {n: answer.status for n, answer in answers.items()} == {
        0: 200,
        1: None if vendor == "anthropic" else 500,
        2: 503,
    }
    assert not [one async for one in provider.batches.answers(batch_id, "other")]
    with pytest.raises(NotFoundError):
        await provider.batches.state("unknown")
    await provider.aclose()


@pytest.mark.parametrize("vendor", ["anthropic", "chat"])
@pytest.mark.parametrize("seconds", [0.0, None], ids=["ended", "running"])
async def test_a_batch_is_found_among_many_by_its_key(
    llm_server: StartLLM, vendor: str, seconds: float | None
) -> None:
    server = await llm_server(["yes"], repeat_last=True)
    server.batches.seconds = seconds
    provider = provider_of(vendor, server)
    batches: ProviderBatches = provider.batches
    now = time.time()
    wanted = await sent(batches, vendor, "wanted", 2)
    others = [await sent(batches, vendor, f"other-{n}", 1) for n in range(101)]
    same_size = await sent(batches, vendor, "same-size", 2)
    found = await batches.find("wanted", 2, now, {*others, same_size})
    assert found is not None
    assert found.id == wanted
    assert found.is_certain == (vendor != "anthropic" or seconds is not None)
    assert await batches.find("wanted", 2, now, {wanted, same_size}) is None
    # Only a batch that is still running can be taken for another.
    guess = await batches.find("wanted", 2, now, ())
    assert guess is not None
    assert guess.is_certain == (guess.id == wanted)
    assert await batches.find("wanted", 2, now + 3600, {same_size}) is None or vendor == "chat"
    await provider.aclose()


async def test_a_refused_file_is_reported_with_the_reasons(llm_server: StartLLM) -> None:
    server = await llm_server([])
    server.batches.enqueued = 1
    provider = provider_of("chat", server)
    state = await provider.batches.state(await sent(provider.batches, "chat", "key", 2))
    assert state.refused == "Enqueued token limit reached for this model."
    await provider.aclose()


JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"


@pytest.mark.parametrize("vendor", ["anthropic", "chat"])
@pytest.mark.parametrize("content", [b"[]", b"{}", b'{"id": 7, "status": 7, "data": 7}', b"<html>"])
async def test_a_service_that_is_none_is_named(
    llm_server: StartLLM, vendor: str, content: bytes
) -> None:
    server = await llm_server([])
    answer = Raw(lambda: [JSON % (len(content), content)])
    server.batches.fault = lambda request: answer
    provider = provider_of(vendor, server)
    batches: ProviderBatches = provider.batches
    calls: list[Callable[[], Any]] = [
        lambda: sent(batches, vendor, "key", 1),
        lambda: batches.state("id"),
        lambda: batches.find("key", 1, time.time(), ()),
    ]
    for call in calls:
        with pytest.raises(ProviderUnavailableError, match="check base_url") as raised:
            await call()
        assert not raised.value.retryable
    await provider.aclose()


async def test_answers_that_break_off_can_be_read_again(llm_server: StartLLM) -> None:
    server = await llm_server([])
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n"
    lines = b'{"custom_id": "key-0", "result": {"type": "expired"}}\n{"custom'
    server.batches.fault = lambda request: Raw(lambda: [head + lines])
    provider = provider_of("anthropic", server)
    numbers: list[int] = []
    answers = provider.batches.answers("id", "key")
    numbers.append((await anext(answers))[0])
    with pytest.raises(StreamError) as raised:
        await anext(answers)
    assert raised.value.retryable
    assert numbers == [0]
    server.batches.fault = lambda request: Status(529)
    with pytest.raises(ProviderUnavailableError):
        _ = [one async for one in provider.batches.answers("id", "key")]
    await provider.aclose()


async def test_a_batch_whose_files_are_not_shown_yet_is_looked_at_again(
    llm_server: StartLLM,
) -> None:
    server = await llm_server([])
    state = {"id": "b", "status": "completed", "request_counts": {"completed": 2}}
    content = json.dumps(state).encode()
    server.batches.fault = lambda request: Raw(lambda: [JSON % (len(content), content)])
    batches = provider_of("chat", server).batches
    with pytest.raises(ProviderUnavailableError, match="no files of answers for batch b") as caught:
        [one async for one in batches.answers("b", "k")]
    assert caught.value.retryable


async def test_pages_of_services_without_the_id_of_the_last_entry_are_read() -> None:
    asked: list[dict[str, Any]] = []

    async def get(params: dict[str, Any]) -> dict[str, Any]:
        asked.append(params)
        return {"data": [{"id": str(len(asked))}], "has_more": len(asked) < 3}

    pages = [page async for page in read_pages(get, 1, "p", "after")]
    assert [entry["id"] for page in pages for entry in page] == ["1", "2", "3"]
    assert [params.get("after") for params in asked] == [None, "1", "2"]
