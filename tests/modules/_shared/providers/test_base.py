"""What all HTTP providers share, with a provider whose attempts are written down."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from amplifier_core.llm_errors import (
    InvalidRequestError,
    LLMError,
    NetworkError,
    StreamError,
)
from amplifier_core.message_models import ChatRequest, ChatResponse, Degradation, TextBlock
from amplifier_modules._shared.providers import base as provider_base
from amplifier_modules._shared.providers.base import Chunk, HTTPProvider, combine_degradations
from amplifier_modules._shared.providers.settings import HTTPProviderConfig
from amplifier_support.price_lists import Prices, Tokens

ANSWER = ChatResponse(content=[TextBlock(text="hello")])
PIECE: Chunk = {"type": "content_block_delta", "index": 0, "block_type": "text", "delta": "he"}
REQUEST = {"messages": [{"role": "user", "content": "hi"}]}


class Written(HTTPProvider):
    """Each attempt gives the chunks of the next list, and raises what is an error."""

    def __init__(self, *attempts: Sequence[Chunk | LLMError], **config: Any) -> None:
        settings = HTTPProviderConfig.model_validate({"model": "m1", **config})
        super().__init__("written", settings)
        self.attempts = list(attempts)
        self.asked: list[ChatRequest] = []
        self.left: list[bool] = []

    async def _attempt(self, request: ChatRequest) -> AsyncGenerator[Chunk]:
        self.asked.append(request)
        finished = False
        try:
            for step in self.attempts.pop(0):
                if isinstance(step, LLMError):
                    raise step
                yield step
            finished = True
        finally:
            self.left.append(not finished)


@pytest.fixture(autouse=True)
def _no_long_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_base, "FIRST_DELAY", 0.001)


async def chunks_of(provider: HTTPProvider, **kwargs: Any) -> list[Chunk]:
    return [chunk async for chunk in provider.stream_complete(REQUEST, **kwargs)]


@pytest.mark.parametrize("attempt", [[], [PIECE]])
async def test_an_attempt_that_gives_no_answer_is_never_a_success(attempt: list[Any]):
    with pytest.raises(StreamError, match="without finishing"):
        await chunks_of(Written(attempt, max_retries=0))
    with pytest.raises(StreamError, match="without finishing"):
        await Written(attempt, max_retries=0).complete(REQUEST)


async def test_nothing_shown_is_tried_again_and_something_shown_is_not():
    assert await chunks_of(Written([NetworkError("x")], [], [ANSWER])) == [ANSWER]
    provider = Written([PIECE, NetworkError("gone")], [ANSWER])
    with pytest.raises(StreamError, match="gone") as caught:
        await chunks_of(provider)
    assert caught.value.retryable
    assert len(provider.asked) == 1


async def test_an_error_that_is_final_stays_what_it_is_in_the_middle_too():
    with pytest.raises(InvalidRequestError):
        await chunks_of(Written([PIECE, InvalidRequestError("no")]))


async def test_attempts_are_counted():
    provider = Written(*[[NetworkError("x")]] * 9, max_retries=3)
    with pytest.raises(NetworkError):
        await provider.complete(REQUEST)
    assert len(provider.asked) == 4


async def test_leaving_a_stream_leaves_its_attempt():
    provider = Written([PIECE, PIECE, ANSWER])
    stream = provider.stream_complete(REQUEST)
    await anext(stream)
    await stream.aclose()
    assert provider.left == [True]


async def test_model_and_time_limit_are_filled_in():
    provider = Written([ANSWER], [ANSWER], [ANSWER], timeout=5.0)
    await provider.complete(REQUEST)
    await provider.complete({**REQUEST, "model": "m2", "timeout": 2})
    await provider.complete(REQUEST, model="m3", timeout=3, tools="ignored", unknown=1)
    assert [(r.model, r.timeout) for r in provider.asked] == [("m1", 5.0), ("m2", 2), ("m3", 3)]
    assert provider.asked[2].tools is None


def test_degradations_are_joined():
    one = Degradation(requested="a", actual="b", reason="r")
    two = Degradation(requested="c", actual="d", reason="r")
    assert combine_degradations([]) is None
    assert combine_degradations([one]) is one
    assert combine_degradations([one, two]) == Degradation(
        requested="a; c", actual="b; d", reason="r"
    )


def test_a_cost_is_exact_or_unknown():
    from decimal import Decimal

    prices = Prices.read({"input": "0.1", "output": "0.5"})
    assert prices.cost(Tokens(input=3, output=0)) == Decimal("0.0000003")
    assert prices.cost(Tokens(input=3, output=0, cache_read=1)) is None
    assert Prices().cost(Tokens(input=0, output=0)) == 0
