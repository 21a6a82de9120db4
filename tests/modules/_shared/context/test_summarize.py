"""The strategy `summarize`: when the model is asked, for what, and what becomes of its answer."""

import asyncio
import json
from typing import Any

import pytest

from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.hooks import HookRegistry
from amplifier_core.message_models import ChatResponse, TextBlock
from amplifier_core.models import HookResult
from amplifier_modules._shared.context.summarize import CallFailed
from amplifier_modules._shared.loop.budget import Budget, BudgetConfig
from amplifier_modules._shared.loop.interrupt import Interrupted
from amplifier_modules.context_simple.manager import SimpleContextManager
from tests.modules._shared.context.conversations import (
    Summariser,
    answers,
    asks,
    assistant,
    filler,
    is_summary,
    size,
    user,
)

SYSTEM = {"role": "system", "content": "be brief"}


def summarizing(**settings: Any) -> SimpleContextManager:
    hooks = settings.pop("hooks", None)
    coordinator = settings.pop("coordinator", None)
    config = {"strategy": "summarize", "max_tokens": 4_000, "compaction_threshold": 1.0, **settings}
    return SimpleContextManager(config, hooks=hooks, coordinator=coordinator)


def lines_of(provider: Summariser, request: int = -1) -> list[dict[str, Any]]:
    """The messages the provider was given to sum up."""
    text = provider.requests[request].messages[-1].content
    assert isinstance(text, str)
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def summaries(view: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in view if is_summary(message)]


async def test_the_summary_replaces_missing_messages_and_is_not_stored():
    context, provider = summarizing(), Summariser("they built a parser")
    messages = [SYSTEM, *filler(40)]
    await context.set_messages(messages)
    view = await context.get_messages_for_request(provider=provider)
    assert view[:2] == messages[:2]
    assert "they built a parser" in view[2]["content"]
    assert view[2]["role"] == "user"
    assert view[3:] == messages[-len(view) + 3 :]
    assert size(view) <= 4_000
    assert await context.get_messages() == messages


async def test_what_is_asked_for_is_what_the_view_leaves_out():
    context, provider = summarizing(), Summariser()
    messages = [SYSTEM, *filler(20)]
    await context.set_messages(messages)
    view = await context.get_messages_for_request(provider=provider)
    (request,) = provider.requests
    assert not request.tools
    assert [message.role for message in request.messages] == ["system", "user"]
    reported = [line["text"] for line in lines_of(provider)]
    left_out = [message["content"] for message in messages if message not in view]
    assert reported == [text if isinstance(text, str) else text[0]["text"] for text in left_out]


async def test_a_summary_is_asked_for_once_and_then_continued_with_what_it_does_not_cover():
    context, provider = summarizing(), Summariser("first summary", "second summary")
    await context.set_messages(filler(20))
    first = await context.get_messages_for_request(provider=provider)
    covered = {line["text"] for line in lines_of(provider)}
    for message in filler(6, 20):
        await context.add_message(message)
        view = await context.get_messages_for_request(provider=provider)
        assert summaries(view) == summaries(first)
    assert len(provider.requests) == 1
    for message in filler(12, 26):
        await context.add_message(message)
        view = await context.get_messages_for_request(provider=provider)
    assert len(provider.requests) == 2
    assert "first summary" in str(provider.requests[1].messages[-1].content)
    assert covered.isdisjoint(line["text"] for line in lines_of(provider))
    assert "second summary" in summaries(view)[0]


async def test_calls_results_and_images_are_summarized_and_thinking_is_not():
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    blocks = [
        thinking,
        {"type": "text", "text": "I look."},
        {"type": "tool_call", "id": "b", "name": "grep", "input": {"pattern": "x"}},
    ]
    image = {"type": "image", "source": {"type": "url", "url": "https://example.test/a.png"}}
    result = {"type": "tool_result", "tool_call_id": "b", "output": {"found": 3}}
    odd = [
        asks("a", text="Reading."),
        answers("a", "x" * 40_000),
        {"role": "assistant", "content": blocks},
        {"role": "function", "content": [result, image]},
    ]
    context, provider = summarizing(keep_recent_turns=2), Summariser()
    await context.set_messages([user("go"), *odd, *filler(15)])
    await context.get_messages_for_request(provider=provider)
    asked, long, call, found = lines_of(provider)[:4]
    assert asked == {"role": "assistant", "text": "Reading.", "calls": ["read({})"]}
    assert "characters removed" in long["text"]
    assert len(long["text"]) < 4_200
    assert call["text"] == "I look."
    assert call["calls"] == ['grep({"pattern": "x"})']
    assert found["text"] == '{"found": 3}\n[image]'


async def test_a_history_far_beyond_the_window_is_asked_about_in_a_request_that_fits():
    context, provider = summarizing(), Summariser(window=6_000)
    await context.set_messages(filler(500))
    await context.get_messages_for_request(provider=provider)
    (request,) = provider.requests
    assert size(request.messages) <= 4_500
    assert "older steps were removed" in str(request.messages[-1].content)
    assert request.max_output_tokens == 500


async def test_a_long_summary_is_cut_to_its_share():
    context, provider = summarizing(summary_tokens=200), Summariser("w" * 40_000)
    await context.set_messages(filler(40))
    view = await context.get_messages_for_request(provider=provider)
    assert size([m for m in view if is_summary(m)]) <= 270
    assert size(view) <= 4_000


async def test_a_view_with_a_long_summary_never_outgrows_its_room():
    context, provider = summarizing(), Summariser("w" * 40_000, window=6_000)
    for message in filler(100):
        await context.add_message(message)
        assert size(await context.get_messages_for_request(provider=provider)) <= 4_500
    assert len(provider.requests) > 3
    assert all(size(request.messages) <= 4_500 for request in provider.requests)


async def test_compact_asks_too_and_without_a_request_the_mounted_provider():
    coordinator, provider = ModuleCoordinator(), Summariser("short")
    await coordinator.mount("providers", provider, name="summariser")
    context = summarizing(coordinator=coordinator, max_tokens=100_000)
    await context.set_messages(filler(40))
    result = await context.compact()
    assert (result.strategy, len(provider.requests)) == ("summarize", 1)
    assert "short" in summaries(await context.get_messages_for_request())[0]


async def test_the_user_can_say_what_a_summary_keeps_also_when_it_is_extended():
    coordinator, provider = ModuleCoordinator(), Summariser("short")
    await coordinator.mount("providers", provider, name="summariser")
    context = summarizing(coordinator=coordinator, max_tokens=100_000)
    await context.set_messages(filler(40))
    await context.compact("the names of files")
    for message in filler(8):
        await context.add_message(message)
    await context.compact("what is open")
    await context.compact()
    asked = [str(request.messages[0].content) for request in provider.requests]
    assert [text.rpartition("\n\n")[2] for text in asked[:2]] == [
        "The user asks to keep above all: the names of files",
        "The user asks to keep above all: what is open",
    ]
    assert not any("keep above all" in text for text in asked[2:])


async def test_nothing_is_asked_while_everything_fits():
    context, provider = summarizing(), Summariser()
    await context.set_messages(filler(3))
    await context.get_messages_for_request(provider=provider)
    await context.compact()
    assert provider.requests == []


# --- no summary to be had --------------------------------------------------------------------------


async def truncated(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    context = summarizing(strategy="truncate")
    await context.set_messages(messages)
    return await context.get_messages_for_request()


async def test_a_failure_is_reported_and_the_oldest_are_left_out_without_a_summary(caplog):
    hooks, reported = HookRegistry(), []
    hooks.register("context:post_compact", lambda event, data: reported.append(dict(data)))
    hooks.register("provider:error", lambda event, data: reported.append(dict(data)))
    context, provider = summarizing(hooks=hooks), Summariser(None)
    await context.set_messages(filler(40))
    view = await context.get_messages_for_request(provider=provider)
    assert view == await truncated(filler(40))
    error, compacted = reported
    assert error["error"]["type"] == "ProviderUnavailableError"
    assert error["purpose"] == "context:summary"
    assert compacted["strategy"] == "truncate"
    assert "the service is down" in compacted["problem"]
    assert "No summary of the older messages" in caplog.text


async def test_after_a_failure_the_provider_is_left_in_peace_and_asked_again_later(caplog):
    context, provider = summarizing(), Summariser(None, None, "at last")
    await context.set_messages(filler(40))
    asked: list[int] = []
    for number in range(40, 160):
        for message in filler(1, number):
            await context.add_message(message)
        view = await context.get_messages_for_request(provider=provider)
        assert size(view) <= 4_000
        asked.append(len(provider.requests))
        if summaries(view):
            break
    assert asked[-1] == 3
    assert asked.count(1) > 12
    assert asked.count(2) > asked.count(1)
    assert caplog.text.count("No summary") == 2


async def test_an_earlier_summary_is_still_used_when_it_cannot_be_continued():
    context, provider = summarizing(), Summariser("the first part", None)
    await context.set_messages(filler(40))
    for message in filler(20, 40):
        await context.add_message(message)
        view = await context.get_messages_for_request(provider=provider)
        assert "the first part" in summaries(view)[0]
    assert len(provider.requests) > 1


class Slow(Summariser):
    def __init__(self, *texts: str | None) -> None:
        super().__init__(*texts)
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()

    async def complete(self, request: Any, **kwargs: Any) -> ChatResponse:
        self.begun.set()
        await self.go_on.wait()
        return await super().complete(request)


async def test_a_summary_that_takes_too_long_is_not_waited_for(caplog):
    context, provider = summarizing(summary_timeout=0.05), Slow()
    await context.set_messages(filler(40))
    assert await context.get_messages_for_request(provider=provider) == await truncated(filler(40))
    assert "no answer in summary_timeout (0.05 s)" in caplog.text


@pytest.mark.parametrize("text", ["", "  \n"])
async def test_an_answer_without_text_is_no_summary(text, caplog):
    context = summarizing()
    await context.set_messages(filler(40))
    view = await context.get_messages_for_request(provider=Summariser(text))
    assert summaries(view) == []
    assert "answered without text" in caplog.text


async def test_a_lack_of_room_for_a_summary_is_reported_once(caplog):
    context, provider = summarizing(max_tokens=400), Summariser()
    for message in filler(20):
        await context.add_message(message)
        view = await context.get_messages_for_request(provider=provider)
    assert (summaries(view), provider.requests) == ([], [])
    assert caplog.text.count("400 tokens are too few for one") == 1


async def test_without_any_provider_the_oldest_are_left_out(caplog):
    context = summarizing()
    await context.set_messages(filler(40))
    assert await context.get_messages_for_request() == await truncated(filler(40))
    assert "no provider is mounted" in caplog.text


# --- hooks -----------------------------------------------------------------------------------------


async def test_hooks_see_the_call_and_its_usage_and_the_estimates_learn_nothing_from_it():
    coordinator, reported = ModuleCoordinator(), []
    for event in ("provider:request", "provider:response"):
        coordinator.hooks.register(event, lambda event, data: reported.append((event, dict(data))))
    context = summarizing(hooks=coordinator.hooks, coordinator=coordinator)
    coordinator.hooks.register("provider:response", context.on_provider_response)
    await context.add_message(user("x" * 4_000))
    await context.get_messages_for_request(provider=Summariser())
    for message in filler(40):
        await context.add_message(message)
    count = await context.get_token_count()
    await context.get_messages_for_request(provider=Summariser())
    assert [event for event, _ in reported] == ["provider:request", "provider:response"]
    assert all(data["purpose"] == "context:summary" for _, data in reported)
    assert reported[1][1]["usage"].total_tokens == 77
    assert await context.get_token_count() == count


async def test_a_hook_may_refuse_the_call(caplog):
    hooks, provider = HookRegistry(), Summariser()
    deny = HookResult(action="deny", reason="too dear")
    hooks.register("provider:request", lambda event, data: deny)
    context = summarizing(hooks=hooks)
    await context.set_messages(filler(40))
    assert summaries(await context.get_messages_for_request(provider=provider)) == []
    assert provider.requests == []
    assert "too dear" in caplog.text


async def test_a_hook_may_change_what_is_asked_and_what_comes_back():
    hooks, provider = HookRegistry(), Summariser()

    def ask_this(event: str, data: dict[str, Any]) -> HookResult:
        return HookResult(action="modify", data={**data, "messages": [user("only this")]})

    def answer_that(event: str, data: dict[str, Any]) -> HookResult:
        response = ChatResponse(content=[TextBlock(text="masked")])
        return HookResult(action="modify", data={**data, "response": response})

    hooks.register("provider:request", ask_this)
    hooks.register("provider:response", answer_that)
    context = summarizing(hooks=hooks)
    await context.set_messages(filler(40))
    view = await context.get_messages_for_request(provider=provider)
    assert provider.requests[0].messages[0].content == "only this"
    assert "masked" in summaries(view)[0]


# --- the session's budget --------------------------------------------------------------------------


def sharing(budget: Budget) -> SimpleContextManager:
    coordinator = ModuleCoordinator()
    coordinator.register_capability("session.budget", budget)
    return summarizing(hooks=coordinator.hooks, coordinator=coordinator)


async def with_budget(**limits: Any) -> tuple[SimpleContextManager, Budget]:
    budget = Budget(BudgetConfig.model_validate(limits))
    context = sharing(budget)
    await context.set_messages(filler(40))
    return context, budget


async def test_a_title_is_requested_only_if_it_is_wanted_and_the_budget_allows_it():
    assert await summarizing().suggest_title("fix it", "done") is None
    provider, coordinator = Summariser("A title"), ModuleCoordinator()
    await coordinator.mount("providers", Summariser("not of this one"), name="first")
    await coordinator.mount("providers", provider, name="chosen")
    budget = Budget(BudgetConfig(max_steps=1))
    coordinator.register_capability("session.budget", budget)
    context = summarizing(coordinator=coordinator, titles="model", summary_model="small")
    await context.get_messages_for_request(provider=provider)
    assert await context.suggest_title("fix it", "done") == "A title"
    assert provider.requests[0].model == "small"
    assert [line["text"] for line in lines_of(provider)] == ["fix it", "done"]
    with pytest.raises(CallFailed, match="Budget reached"):
        await context.suggest_title("fix it", "done")


async def test_without_budget_left_there_is_no_summary(caplog):
    context, budget = await with_budget(max_steps=1)
    with budget.clock():
        assert budget.admit() is not None
        provider = Summariser()
        await context.get_messages_for_request(provider=provider)
    assert provider.requests == []
    assert "Budget reached: 1 of 1 model calls" in caplog.text


async def test_where_the_rest_of_the_budget_is_being_used_it_is_not_waited_for(caplog):
    first, budget = await with_budget(max_tokens=100)
    await first.get_messages_for_request(provider=Summariser())
    context, provider = sharing(budget), Summariser()
    await context.set_messages(filler(40))
    ticket = budget.admit()  # of the request that the view is for
    await context.get_messages_for_request(provider=provider)
    assert ticket is not None
    ticket.settle()
    assert provider.requests == []
    assert "may not allow another model call" in caplog.text


async def test_the_end_of_the_sessions_time_ends_the_call():
    context, budget = await with_budget(max_seconds=0.1)
    with budget.clock(), pytest.raises(Interrupted):
        await context.get_messages_for_request(provider=Slow())


# --- meanwhile -------------------------------------------------------------------------------------


async def while_asked(context: SimpleContextManager, *steps: Any) -> list[dict[str, Any]]:
    """The view of a request during whose call for a summary `steps` happen."""
    provider = Slow("the past")
    request = asyncio.create_task(context.get_messages_for_request(provider=provider))
    await provider.begun.wait()
    for step in steps:
        await step
    provider.go_on.set()
    return await request


async def test_messages_that_come_meanwhile_are_in_the_view():
    context = summarizing()
    await context.set_messages(filler(40))
    late = [user("one more thing"), assistant("yes?")]
    view = await while_asked(context, *(context.add_message(message) for message in late))
    assert view[-2:] == late
    assert summaries(view)


async def test_nothing_of_a_history_that_is_replaced_meanwhile_is_in_the_view():
    context = summarizing()
    await context.set_messages(filler(40))
    assert await while_asked(context, context.set_messages([user("new")])) == [user("new")]
    assert await context.get_messages_for_request(provider=Summariser()) == [user("new")]


async def test_who_asks_meanwhile_gets_a_view_without_another_call():
    context = summarizing()
    await context.set_messages(filler(40))
    provider = Summariser()
    views = [context.get_messages_for_request(provider=provider) for _ in range(2)]
    assert summaries(await while_asked(context, *views))
    assert provider.requests == []


async def test_a_request_that_is_cancelled_leaves_a_context_that_works():
    context, provider = summarizing(), Slow()
    await context.set_messages(filler(40))
    request = asyncio.create_task(context.get_messages_for_request(provider=provider))
    await provider.begun.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert summaries(await context.get_messages_for_request(provider=Summariser("fine")))
