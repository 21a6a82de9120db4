"""What a context looks at: costs counted in looks, not in seconds."""

from collections.abc import Callable
from typing import Any

import pytest

from amplifier_modules.context_simple.manager import SimpleContextManager
from tests.bench.test_context_bench import turns
from tests.modules._shared.context.conversations import STRATEGIES, Summariser, is_summary


class Watched(dict[str, Any]):
    """A message that counts how often it is looked at, and cannot be copied.

    Attributes:
        looks: Of all watched messages together.
    """

    looks = 0

    def _counted(name: str) -> Callable[..., Any]:  # type: ignore[misc]
        original = getattr(dict, name)

        def method(self: Any, *args: Any) -> Any:
            Watched.looks += 1
            return original(self, *args)

        return method

    get = _counted("get")
    __getitem__ = _counted("__getitem__")
    __contains__ = _counted("__contains__")
    __iter__ = _counted("__iter__")
    __eq__ = _counted("__eq__")
    items = _counted("items")
    keys = _counted("keys")
    values = _counted("values")

    def _refused(self, *args: Any) -> Any:
        raise AssertionError("a stored message was copied")

    copy = __copy__ = __deepcopy__ = __reduce_ex__ = _refused


def watched(number: int) -> list[dict[str, Any]]:
    return [Watched(message) for message in turns(number // 4)]


async def looks_of(step: Any) -> int:
    before = Watched.looks
    await step
    return Watched.looks - before


async def test_a_request_that_fits_looks_at_no_message_and_copies_none():
    context = SimpleContextManager(max_tokens=10**9)
    stored = watched(10_000)
    await context.set_messages(stored)
    before = Watched.looks
    view = await context.get_messages_for_request()
    assert Watched.looks == before
    assert len(view) == 10_000
    assert all(a is b for a, b in zip(view, stored, strict=True))


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_adding_looks_as_often_at_a_late_message_as_at_an_early_one(strategy):
    context = SimpleContextManager(strategy=strategy, max_tokens=10**9)
    looks = [await looks_of(context.add_message(message)) for message in watched(4_000)]
    assert looks[:4] == looks[400:404] == looks[-4:]


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_request_served_by_a_view_looks_at_no_message(strategy):
    context, provider = SimpleContextManager(strategy=strategy, max_tokens=20_000), Summariser()
    await context.set_messages(watched(2_000))
    await context.get_messages_for_request(provider=provider)
    looks = 0
    for message in watched(8):
        await context.add_message(message)
        looks += await looks_of(context.get_messages_for_request(provider=provider))
    assert looks == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_views_of_a_long_conversation_look_no_more_than_those_of_a_short_one(strategy):
    most: list[int] = []
    for number in (800, 4_000):
        context, provider = SimpleContextManager(strategy=strategy, max_tokens=20_000), Summariser()
        await context.set_messages(watched(number))
        await context.get_messages_for_request(provider=provider)
        looks: list[int] = []
        for message in watched(800):
            await context.add_message(message)
            looks.append(await looks_of(context.get_messages_for_request(provider=provider)))
        most.append(max(looks))
    assert most[1] <= most[0] + 20


async def test_a_history_is_summed_up_once_however_many_views_it_takes():
    context, provider = SimpleContextManager(strategy="summarize", max_tokens=8_000), Summariser()
    for message in turns(500):
        await context.add_message(message)
        view = await context.get_messages_for_request(provider=provider)
    assert any(map(is_summary, view))
    reported = [
        line
        for request in provider.requests
        for line in str(request.messages[-1].content).splitlines()
        if line.startswith("{")
    ]
    assert 1_900 < len(reported) <= 2_000
    assert not any("missing here" in str(r.messages[-1].content) for r in provider.requests)
