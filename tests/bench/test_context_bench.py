"""What a context and the history normaliser cost; compare with `--benchmark-compare`.

Run with ``pytest -n0 --benchmark-enable tests/bench/test_context_bench.py``. The floor beside the
cost of an add is an awaited coroutine that appends to a list; the floor of a request is the copy of
the list it returns. No figure is asserted: a shared machine cannot promise one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from amplifier_modules._shared.history import Readings, normalise, to_chat_request
from amplifier_modules.context_simple.manager import SimpleContextManager

ADDS = 1_000


def turns(number: int) -> list[dict[str, Any]]:
    """`number` turns of four messages, with one tool call each."""
    messages: list[dict[str, Any]] = []
    for turn in range(number):
        call_id = f"call_{turn}"
        function = {"name": "read", "arguments": '{"path": "src/a.py"}'}
        blocks = [
            {"type": "text", "text": "Let me read it."},
            {"type": "tool_call", "id": call_id, "name": "read", "input": {"path": "src/a.py"}},
        ]
        messages += [
            {"role": "user", "content": "What does this file do? " * 10},
            {
                "role": "assistant",
                "content": blocks,
                "tool_calls": [{"id": call_id, "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": call_id, "name": "read", "content": "line\n" * 80},
            {"role": "assistant", "content": [{"type": "text", "text": "It parses. " * 20}]},
        ]
    return messages


@pytest.fixture
def run() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """Runs a coroutine to its end on a loop that is made once."""
    with asyncio.Runner() as runner:
        yield runner.run


def context_with(count: int, run: Callable[..., Any], **config: Any) -> SimpleContextManager:
    context = SimpleContextManager(config)
    run(context.set_messages(turns(count // 4)))
    return context


@pytest.mark.parametrize("stored", [100, 10_000])
def test_a_thousand_adds(benchmark: Any, run: Callable[..., Any], stored: int) -> None:
    added = turns(ADDS // 4)

    def setup() -> tuple[tuple[SimpleContextManager], dict[str, Any]]:
        return (context_with(stored, run, max_tokens=10**9),), {}

    async def add(context: SimpleContextManager) -> None:
        for message in added:
            await context.add_message(message)

    benchmark.pedantic(lambda context: run(add(context)), setup=setup, rounds=10)


def test_a_thousand_adds_floor(benchmark: Any, run: Callable[..., Any]) -> None:
    added = turns(ADDS // 4)

    async def add() -> None:
        stored: list[dict[str, Any]] = []

        async def append(message: dict[str, Any]) -> None:
            stored.append(message)

        for message in added:
            await append(message)

    benchmark(lambda: run(add()))


def test_a_request_of_ten_thousand_uncompacted(benchmark: Any, run: Callable[..., Any]) -> None:
    context = context_with(10_000, run, max_tokens=10**9)
    assert len(benchmark(lambda: run(context.get_messages_for_request()))) == 10_000


def test_a_request_of_ten_thousand_floor(benchmark: Any, run: Callable[..., Any]) -> None:
    messages = turns(2_500)

    async def copy() -> list[dict[str, Any]]:
        return list(messages)

    assert len(benchmark(lambda: run(copy()))) == 10_000


def test_a_compacting_request_at_two_thousand(benchmark: Any, run: Callable[..., Any]) -> None:
    messages = turns(500)

    def setup() -> tuple[tuple[SimpleContextManager], dict[str, Any]]:
        context = SimpleContextManager(max_tokens=20_000)
        run(context.set_messages(messages))
        return (context,), {}

    view = benchmark.pedantic(
        lambda context: run(context.get_messages_for_request()), setup=setup, rounds=20
    )
    assert 0 < len(view) < 2_000


@pytest.mark.parametrize("count", [10_000, 100_000])
def test_a_hundred_requests_while_it_grows(
    benchmark: Any, run: Callable[..., Any], count: int
) -> None:
    messages = turns(count // 4)
    step = count // 100

    async def grow() -> int:
        context = SimpleContextManager(max_tokens=100_000)
        for start in range(0, count, step):
            for message in messages[start : start + step]:
                await context.add_message(message)
            view = await context.get_messages_for_request()
        return len(view)

    assert benchmark.pedantic(lambda: run(grow()), rounds=2) < count


@pytest.mark.parametrize("count", [300, 3_000])
def test_a_request_from_stored_messages(benchmark: Any, count: int) -> None:
    messages = [*turns(count // 4)[:-1]]
    assert benchmark(lambda: to_chat_request(messages)).repairs == ()


@pytest.mark.parametrize("count", [300, 3_000])
def test_a_request_from_messages_read_before(benchmark: Any, count: int) -> None:
    messages, readings = turns(count // 4)[:-1], Readings()
    assert benchmark(lambda: to_chat_request(messages, readings=readings)).repairs == ()


def test_normalising_what_is_normalised(benchmark: Any) -> None:
    request = to_chat_request(turns(75))
    assert benchmark(lambda: normalise(request)) is request
