"""The five methods, budgets, usage and events of context-simple."""

import asyncio
import copy
import threading
from typing import Any

import pytest

from amplifier_core.events import CONTEXT_POST_COMPACT, CONTEXT_PRE_COMPACT
from amplifier_core.hooks import HookRegistry
from amplifier_core.models import HookResult, ProviderInfo
from amplifier_modules._shared.module.spans import Span
from amplifier_modules.context_simple.manager import SimpleContextManager
from tests.modules._shared.context.conversations import answers, asks, assistant, filler, user


class Window:
    """A provider that reports its window."""

    name = "window"

    def __init__(self, **defaults: Any) -> None:
        self.defaults = defaults

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(id="window", display_name="Window", defaults=self.defaults)


class BrokenInfo:
    name = "broken"

    def get_info(self) -> ProviderInfo:
        raise ConnectionError("no network")


async def filled(*, tokens: int = 10_000, **settings: Any) -> SimpleContextManager:
    """A context with turns of 108 estimated tokens each, `tokens` of them in all."""
    context = SimpleContextManager(settings)
    for number in range(tokens // 108):
        await context.add_message(user(f"{number:06}" + "p" * 194))
        await context.add_message({"role": "assistant", "content": f"{number:06}" + "a" * 194})
    return context


# --- the contract ----------------------------------------------------------------------------------


async def test_messages_come_back_in_order_until_they_are_cleared():
    context = SimpleContextManager(max_tokens=1000)
    stored = [user("Hello"), assistant("Hi there!")]
    for message in stored:
        await context.add_message(message)
    assert await context.get_messages_for_request() == stored
    assert await context.get_messages() == stored
    await context.clear()
    assert await context.get_messages() == []
    assert await context.get_token_count() == 0


async def test_messages_are_stored_as_the_objects_they_are_and_never_changed():
    context = await filled(max_tokens=1000)
    odd = [
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"}]},
        {"role": "function", "content": [{"type": "tool_result", "output": 1}], "extra": {"a": 1}},
        user("o" * 100_000),
    ]
    before = copy.deepcopy(odd)
    for message in odd:
        await context.add_message(message)
    await context.get_messages_for_request()
    await context.compact()
    stored = await context.get_messages()
    assert all(a is b for a, b in zip(stored[-3:], odd, strict=True))
    assert odd == before


async def test_returned_lists_are_copies():
    context = await filled(max_tokens=1000)
    for get in (context.get_messages, context.get_messages_for_request):
        before = await get()
        (await get()).clear()
        assert await get() == before
    small = SimpleContextManager()
    await small.add_message(user("hi"))
    (await small.get_messages_for_request()).clear()
    assert await small.get_messages() == [user("hi")]


async def test_a_message_without_a_role_is_refused_and_changes_nothing():
    context = SimpleContextManager()
    await context.set_messages([user("hi")])
    with pytest.raises(ValueError, match="role"):
        await context.add_message({"content": "hi"})
    with pytest.raises(ValueError, match="role"):
        await context.set_messages([user("other"), {"content": "hi"}])
    assert await context.get_messages() == [user("hi")]


async def test_a_session_resumes_from_stored_messages():
    saved = [user("Previous conversation"), assistant("Previous response")]
    context = SimpleContextManager(max_tokens=1000)
    await context.add_message(user("other"))
    await context.set_messages(saved)
    saved.append(user("later"))
    assert await context.get_messages() == saved[:2]


def test_settings_come_as_mapping_or_as_keywords_and_keywords_win():
    context = SimpleContextManager({"max_tokens": 5, "compact_threshold": 0.5}, max_tokens=7)
    assert context.config.max_tokens == 7
    assert context.config.compaction_threshold == 0.5
    assert SimpleContextManager(None).config.keep_recent_turns == 4


# --- settings --------------------------------------------------------------------------------------


# --- budgets ---------------------------------------------------------------------------------------


async def view_tokens(context: SimpleContextManager, **request: Any) -> int:
    """Estimated tokens of what a request gets; turns of `filled` are 54 a message."""
    return 54 * len(await context.get_messages_for_request(**request))


async def test_a_providers_window_less_its_output_and_a_margin_is_the_budget():
    context = await filled(max_tokens=500, compaction_threshold=1.0)
    provider = Window(context_window=9_000, max_output_tokens=5_000)
    assert 1_500 < await view_tokens(context, provider=provider) <= 3_000
    roomy = Window(context_window=100_000, max_output_tokens=8_000)
    assert await view_tokens(context, provider=roomy) == await view_tokens(
        context, token_budget=10**6
    )


async def test_a_window_smaller_than_its_output_still_gives_a_budget():
    context = await filled(compaction_threshold=1.0)
    provider = Window(context_window=4_000, max_output_tokens=4_000)
    assert 1_000 < await view_tokens(context, provider=provider) <= 2_000


async def test_a_provider_that_does_not_tell_or_fails_leaves_max_tokens(caplog):
    context = await filled(max_tokens=2_000)
    expected = await view_tokens(context)
    assert await view_tokens(context, provider=Window()) == expected
    assert await view_tokens(context, provider=object()) == expected
    assert await view_tokens(context, provider=BrokenInfo()) == expected
    assert "broken did not report its context window" in caplog.text


async def test_automatic_compaction_can_be_off():
    context = await filled(max_tokens=100, auto_compact=False)
    assert await context.get_messages_for_request() == await context.get_messages()
    await context.compact()
    view = await context.get_messages_for_request()
    assert len(view) < len(await context.get_messages())
    await context.add_message(user("next"))
    assert await context.get_messages_for_request() == [*view, user("next")]


# --- usage -----------------------------------------------------------------------------------------


def with_usage(text: str, tokens: int) -> dict[str, Any]:
    usage = {"input_tokens": tokens, "output_tokens": 5, "total_tokens": tokens + 5}
    return {"role": "assistant", "content": text, "metadata": {"usage": usage, "model": "m"}}


async def test_counts_follow_the_usage_stored_with_an_answer():
    context = SimpleContextManager()
    await context.add_message(user("x" * 4_000))
    estimate = await context.get_token_count()
    assert estimate == 1_004
    await context.get_messages_for_request()
    await context.add_message(with_usage("", 1_804))
    assert await context.get_token_count() == 1_804 + 4


async def test_one_request_is_learnt_from_once():
    context = SimpleContextManager()
    await context.add_message(user("x" * 4_000))
    await context.get_messages_for_request()
    await context.on_provider_response("provider:response", {"usage": {"input_tokens": 1_804}})
    await context.add_message(with_usage("", 9_999))
    await context.on_provider_response("provider:response", {})
    assert await context.get_token_count() == 1_804 + 4


async def test_a_large_paste_after_a_short_first_turn_is_not_mistaken_for_an_overflow():
    context = SimpleContextManager(max_tokens=200_000)
    await context.add_message(user("hi"))
    await context.get_messages_for_request()
    await context.add_message(with_usage("hello", 5_000))  # nearly all of it tools
    await context.add_message(user("x" * 400_000))
    assert await context.get_messages_for_request() == await context.get_messages()


# --- events and reports ----------------------------------------------------------------------------


class Heard:
    """Records compaction events."""

    def __init__(self, hooks: HookRegistry) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        for event in (CONTEXT_PRE_COMPACT, CONTEXT_POST_COMPACT):
            hooks.register(event, self)

    async def __call__(self, event: str, data: dict[str, Any]) -> HookResult:
        self.events.append((event, dict(data)))
        return HookResult()


@pytest.mark.parametrize("strategy", ["truncate", "importance"])
async def test_a_compaction_is_announced_before_and_after_with_both_sets_of_keys(strategy):
    hooks = HookRegistry()
    heard = Heard(hooks)
    settings = {"max_tokens": 1_000, "keep_recent_turns": 2, "strategy": strategy}
    context = SimpleContextManager(settings, hooks=hooks)
    await context.set_messages([user("x" * 400) for _ in range(20)])
    view = await context.get_messages_for_request()
    (pre_event, pre), (post_event, post) = heard.events
    assert (pre_event, post_event) == ("context:pre_compact", "context:post_compact")
    pre.pop("timestamp")
    post.pop("timestamp")
    assert pre == {
        "before_tokens": 20 * 104,
        "before_messages": 20,
        "message_count": 20,
        "token_count": 20 * 104,
        "strategy": strategy,
    }
    assert post == {
        "before_tokens": 20 * 104,
        "before_messages": 20,
        "after_tokens": len(view) * 104,
        "after_messages": len(view),
        "removed_tokens": (20 - len(view)) * 104,
        "removed_messages": 20 - len(view),
        "message_count": len(view),
        "token_count": len(view) * 104,
        "strategy": strategy,
    }


async def test_compaction_events_say_which_turn_they_belong_to():
    hooks = HookRegistry()
    heard = Heard(hooks)
    context = SimpleContextManager(hooks=hooks, max_tokens=1_000)
    await context.set_messages([user("x" * 400) for _ in range(20)])
    span = Span.turn("s1")
    entered = span.enter()
    await context.get_messages_for_request()
    Span.leave(entered)
    assert len(heard.events) == 2
    assert all(data.items() >= span.fields.items() for _, data in heard.events)


async def test_a_message_stored_while_the_events_are_handled_is_in_the_request():
    hooks = HookRegistry()
    context = SimpleContextManager(hooks=hooks, max_tokens=1_000)
    late = user("late")

    async def add(event: str, data: dict[str, Any]) -> None:
        await context.add_message(late)

    hooks.register(CONTEXT_PRE_COMPACT, add)
    hooks.register(CONTEXT_POST_COMPACT, add)
    await context.set_messages([user("x" * 400) for _ in range(20)])
    assert (await context.get_messages_for_request())[-2:] == [late, late]


async def test_a_conversation_cleared_while_the_events_are_handled_is_not_in_the_request():
    hooks = HookRegistry()
    context = SimpleContextManager(hooks=hooks, max_tokens=1_000)

    async def clear(event: str, data: dict[str, Any]) -> None:
        await context.clear()

    hooks.register(CONTEXT_POST_COMPACT, clear)
    await context.set_messages([user("x" * 400) for _ in range(20)])
    assert await context.get_messages_for_request() == []


async def test_a_handler_may_ask_for_the_messages_of_a_request():
    hooks = HookRegistry()
    context = SimpleContextManager(hooks=hooks, max_tokens=1_000)
    seen: list[int] = []

    async def ask(event: str, data: dict[str, Any]) -> None:
        seen.append(len(await context.get_messages_for_request()))

    hooks.register(CONTEXT_PRE_COMPACT, ask)
    await context.set_messages([user("x" * 400) for _ in range(20)])
    assert [len(await context.get_messages_for_request())] == seen


async def test_what_cannot_be_made_to_fit_is_said_once(caplog):
    hooks = HookRegistry()
    heard = Heard(hooks)
    context = SimpleContextManager(hooks=hooks, max_tokens=100)
    await context.add_message({"role": "system", "content": "s" * 4_000})
    await context.add_message(user("hi"))
    for _ in range(3):
        assert len(await context.get_messages_for_request()) == 2
    assert caplog.text.count("may reject") == 1
    assert len(heard.events) == 2


# --- concurrency -----------------------------------------------------------------------------------


async def test_messages_added_by_many_tasks_are_all_kept():
    context = SimpleContextManager(max_tokens=2_000)

    async def turn(number: int) -> None:
        await context.add_message(asks(f"c{number}"))
        await asyncio.sleep(0)
        await context.get_messages_for_request()
        await context.add_message(answers(f"c{number}"))

    await asyncio.gather(*(turn(number) for number in range(100)))
    stored = await context.get_messages()
    assert len(stored) == 200
    assert {m["tool_call_id"] for m in stored if m["role"] == "tool"} == {
        f"c{number}" for number in range(100)
    }


def test_messages_added_by_many_threads_are_all_kept_and_counted():
    context = SimpleContextManager(max_tokens=2_000)

    def work(worker: int) -> None:
        async def add() -> None:
            for number in range(200):
                await context.add_message(asks(f"{worker}.{number}"))
                await context.add_message(answers(f"{worker}.{number}", "x" * 36))
                if number % 50 == 0:
                    await context.get_messages_for_request()

        asyncio.run(add())

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def check() -> None:
        alone = SimpleContextManager()
        await alone.set_messages(await context.get_messages())
        assert len(await context.get_messages()) == 3_200
        assert await context.get_token_count() == await alone.get_token_count()

    asyncio.run(check())


async def test_loops_that_compact_themselves_learn_when_to() -> None:
    context = SimpleContextManager(max_tokens=2000)
    assert await context.should_compact() is False
    await context.set_messages(filler(20))
    assert await context.should_compact() is True
    await context.compact()
    assert await context.should_compact() is False
    for message in filler(20, start=20):
        await context.add_message(message)
    assert await context.should_compact() is True
