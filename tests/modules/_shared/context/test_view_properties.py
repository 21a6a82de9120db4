"""What holds of every view, whatever the conversation, the strategy and the budget."""

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amplifier_modules._shared.history.request import to_chat_request
from amplifier_modules._shared.history.values import call_ids, result_ids
from amplifier_modules.context_simple.manager import SimpleContextManager
from tests.modules._shared.context.conversations import (
    STRATEGIES,
    Summariser,
    conversations,
    is_summary,
    size,
)
from tests.modules._shared.history.history_rules import violations

PATIENT = settings(suppress_health_check=[HealthCheck.too_slow])


def as_text(messages: list[Any]) -> str:
    return json.dumps(messages)


@PATIENT
@given(
    messages=conversations(),
    budgets=st.lists(st.integers(0, 4_000), min_size=1, max_size=4),
    strategy=st.sampled_from(STRATEGIES),
    summary=st.sampled_from(["what happened", "s" * 9_000, None]),
    by_messages=st.booleans(),
)
async def test_views_are_ordered_whole_and_valid(messages, budgets, strategy, summary, by_messages):
    config: dict[str, Any] = {"keep_recent": 3} if by_messages else {"keep_recent_turns": 2}
    context = SimpleContextManager({"compaction_threshold": 0.9, "strategy": strategy, **config})
    provider = Summariser(summary)
    before = as_text(messages)
    position = {id(message): index for index, message in enumerate(messages)}
    calls = {i for message in messages for i in call_ids(message)}
    answered = {i for message in messages for i in result_ids(message)}
    step = max(1, len(messages) // len(budgets))
    view: list[dict[str, Any]] = []
    for number, budget in enumerate(budgets):
        last = number == len(budgets) - 1
        chunk = messages[number * step :] if last else messages[number * step : (number + 1) * step]
        for message in chunk:
            await context.add_message(message)
        view = await context.get_messages_for_request(token_budget=budget, provider=provider)
        stored = await context.get_messages()
        kept = [position[id(message)] for message in view if id(message) in position]
        assert kept == sorted(set(kept))
        assert {i for m in view for i in result_ids(m)} <= {i for m in view for i in call_ids(m)}
        systems = [m for m in stored if m["role"] == "system"]
        assert [m for m in view if m["role"] == "system"] == systems
        assert sum(map(is_summary, view)) <= (strategy == "summarize")
        if stored:
            assert [message for message in view if not is_summary(message)]
        assert list(violations(to_chat_request(view).messages)) == []
    kept_calls = {i for message in view for i in call_ids(message)}
    assert {i for m in view for i in result_ids(m)} == kept_calls & calls & answered
    stored = await context.get_messages()
    assert all(a is b for a, b in zip(stored, messages, strict=True))
    assert as_text(stored) == before


@PATIENT
@given(
    messages=conversations(),
    budget=st.integers(1_500, 6_000),
    strategy=st.sampled_from(STRATEGIES),
    summary=st.sampled_from(["what happened", "s" * 9_000, None]),
)
async def test_views_fit_every_budget_that_holds_the_calls(messages, budget, strategy, summary):
    context = SimpleContextManager(strategy=strategy, compaction_threshold=1.0)
    await context.set_messages(messages)
    provider = Summariser(summary)
    for _ in range(2):
        view = await context.get_messages_for_request(token_budget=budget, provider=provider)
        assert size(view) <= budget
    assert len(provider.requests) <= 1
