"""What a context and the history normaliser cost; compare with `--benchmark-compare`.

Run with ``pytest -n0 --benchmark-enable tests/bench/test_context_bench.py``. The floor next to the
cost of an add is an awaited coroutine that appends to a list; the floor of a request is the copy of
the list it returns. No figure is asserted: a shared machine cannot promise one.
"""

import asyncio
import json
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from amplifier_modules._shared.history.parsing import ParsedMessages
from amplifier_modules._shared.history.request import normalise, to_chat_request
from amplifier_modules.context_persistent.manager import (
    Journal,
    PersistentContextConfig,
    PersistentContextManager,
)
from amplifier_modules.context_simple.manager import SimpleContextManager
from tests.modules._shared.context.conversations import STRATEGIES, Summariser

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


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_compacting_request_at_two_thousand(
    benchmark: Any, run: Callable[..., Any], strategy: str
) -> None:
    messages = turns(500)

    def setup() -> tuple[tuple[SimpleContextManager], dict[str, Any]]:
        context = SimpleContextManager(max_tokens=20_000, strategy=strategy)
        run(context.set_messages(messages))
        return (context,), {}

    view = benchmark.pedantic(
        lambda context: run(context.get_messages_for_request(provider=Summariser())),
        setup=setup,
        rounds=20,
    )
    assert 0 < len(view) < 2_000


@pytest.mark.parametrize("max_tokens", [100_000, 10**9])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_hundred_requests_while_it_grows(
    benchmark: Any, run: Callable[..., Any], strategy: str, max_tokens: int
) -> None:
    """Growth to 100,000 messages compared with growth to 10,000: about ten times is expected."""
    few = 100 if benchmark.disabled else 10_000
    costs: dict[int, list[float]] = {few: [], 10 * few: []}

    async def grow(messages: list[dict[str, Any]]) -> None:
        context, provider = SimpleContextManager(strategy=strategy), Summariser()
        step = len(messages) // 100
        for start in range(0, len(messages), step):
            for message in messages[start : start + step]:
                await context.add_message(message)
            await context.get_messages_for_request(token_budget=max_tokens, provider=provider)

    def both() -> None:
        for count, seconds in costs.items():
            messages = turns(count // 4)
            begun = time.process_time()
            run(grow(messages))
            seconds.append(time.process_time() - begun)

    benchmark.pedantic(both, rounds=3)
    small, large = (min(seconds) for seconds in costs.values())
    benchmark.extra_info |= {"seconds": round(large, 3), "ratio": round(large / small, 1)}


def test_a_hundred_adds_to_a_file(benchmark: Any, run: Callable[..., Any], tmp_path: Path) -> None:
    journal = Journal(tmp_path / "context.jsonl")
    context = PersistentContextManager(PersistentContextConfig(), journal)
    run(context.set_messages(turns(2_500)))
    added = turns(25)

    async def add() -> None:
        for message in added:
            await context.add_message(message)

    benchmark(lambda: run(add()))
    context.close()


def test_a_hundred_adds_to_a_file_floor(benchmark: Any, tmp_path: Path) -> None:
    lines = [json.dumps(message).encode() + b"\n" for message in turns(25)]

    def append() -> None:
        with (tmp_path / "floor.jsonl").open("ab", buffering=0) as file:
            for line in lines:
                file.write(line)
                os.fdatasync(file.fileno())

    benchmark(append)


@pytest.mark.parametrize("count", [300, 3_000])
def test_a_request_from_stored_messages(benchmark: Any, count: int) -> None:
    messages = [*turns(count // 4)[:-1]]
    assert benchmark(lambda: to_chat_request(messages)).repairs == ()


@pytest.mark.parametrize("count", [300, 3_000])
def test_a_request_from_messages_read_before(benchmark: Any, count: int) -> None:
    messages, parsed = turns(count // 4)[:-1], ParsedMessages()
    assert benchmark(lambda: to_chat_request(messages, parsed=parsed)).repairs == ()


def test_normalising_what_is_normalised(benchmark: Any) -> None:
    request = to_chat_request(turns(75))
    assert benchmark(lambda: normalise(request)) is request
