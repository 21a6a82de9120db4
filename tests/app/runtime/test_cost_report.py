"""What the parts of a session have cost: everything billed is charged to what caused it, exactly."""

import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier_app.base.errors import UsageError
from amplifier_app.runtime.cost_report import (
    Billed,
    By,
    Report,
    cost_report,
    find_prices,
    model_prices,
)
from amplifier_app.sessions.conversation import Conversation
from amplifier_app.sessions.store import SessionStore
from amplifier_support.journal import CLEAR, replacement
from amplifier_support.price_lists import Tokens
from tests.support.cli import run_amplifier

MODEL = "claude-sonnet-5-5"
KINDS: tuple[By, ...] = ("agent", "tool", "step", "message")


def usage(fresh: int, output: int, read: int = 0, write: int = 0, **other: Any) -> dict[str, Any]:
    tokens = Tokens(fresh, output, read, write)
    return {
        "input_tokens": fresh + read + write,
        "output_tokens": output,
        "total_tokens": fresh + read + write + output,
        "cache_read_tokens": read,
        "cache_write_tokens": write,
        "cost_usd": str(find_prices(MODEL).cost(tokens)),
        **other,
    }


def step(used: Mapping[str, Any], text: str = "x", *calls: str) -> dict[str, Any]:
    blocks = [{"type": "tool_call", "id": one, "name": one[:-1], "input": {}} for one in calls]
    content = [{"type": "text", "text": text}, *blocks]
    return {"role": "assistant", "content": content, "metadata": {"usage": used, "model": MODEL}}


def result(call: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def billed(*records: dict[str, Any], name: str = "main", **metadata: Any) -> Billed:
    return Billed(name, Conversation(records), metadata)


def parts(report: Report) -> dict[str, int | None]:
    return {one.name: one.micro_dollars for one in report.shares}


LONG = [
    user("a" * 400),
    step(usage(1_000, 100), "", "read1"),
    result("read1", "r" * 40_000),
    step(usage(1_100, 100, read=10_000), "b" * 400, "bash1"),
    result("bash1", "s" * 400),
    step(usage(300, 50, read=11_100)),
]


def test_a_long_result_costs_again_in_each_later_step_less_the_cache() -> None:
    found = parts(cost_report(billed(*LONG), [], "tool"))
    # 900 of the first 1,000 tokens are no message; the result has 10,000 of about 10,200 others.
    assert found["read"] is not None
    assert found["bash"] is not None
    # Mostly read from the cache, at a twentieth of the price, twice.
    assert 2_000 < found["read"] < 5_500
    assert found["bash"] < 400
    assert found["answers"] is not None
    assert found["answers"] >= 2_500, "250 tokens of output at $10 per million"
    report = cost_report(billed(*LONG), [], "tool")
    read = next(one for one in report.shares if one.name == "read")
    assert 17_000 < read.tokens < 21_000


@pytest.mark.parametrize("by", KINDS)
def test_parts_add_up_to_what_the_session_counted(by: By) -> None:
    steps = [message["metadata"]["usage"]["cost_usd"] for message in LONG if "metadata" in message]
    total = sum(map(Decimal, steps))
    spent = {"cost_usd": str(total), "unpriced": 0}
    report = cost_report(billed(*LONG, spent=spent), [], by)
    assert report.total == round(total * 1_000_000)
    assert sum(one.micro_dollars or 0 for one in report.shares) == report.total
    assert sum(one.tokens for one in report.shares) == report.tokens == 23_750
    more = {"cost_usd": str(total + Decimal("0.5")), "unpriced": 0}
    report = cost_report(billed(*LONG, spent=more), [], by)
    assert parts(report)["other model calls, such as summaries"] == 500_000


def test_the_cost_is_unknown_if_the_session_counted_a_call_without_a_price() -> None:
    spent = {"cost_usd": "0.01", "unpriced": 1}
    assert cost_report(billed(*LONG, spent=spent), [], "tool").total is None
    assert cost_report(billed(*LONG, spent=spent), [], "tool", find_prices(MODEL)).total


def test_a_cost_without_tokens_is_charged_to_the_answer() -> None:
    report = cost_report(billed(user("x"), step({"cost_usd": "0.5"}, "Yes")), [], "message")
    assert (report.total, parts(report)) == (500_000, {"answer 1: Yes": 500_000})
    assert cost_report(billed(user("x"), step({"input_tokens": 0})), [], "tool").total is None


def test_steps_cost_what_the_provider_reported() -> None:
    found = parts(cost_report(billed(*LONG), [], "step"))
    assert list(found) == ["step 1", "step 2", "step 3"]
    assert found == {"step 1": 3_000, "step 2": 4_200, "step 3": 2_210}


def test_sub_agents_are_parts_of_their_own() -> None:
    agent = billed(user("task"), step(usage(500, 10)), name="reader s-1")
    found = parts(cost_report(billed(*LONG), [agent], "agent"))
    assert found == {"main": 9_410, "reader s-1": 1_100}
    assert parts(cost_report(billed(*LONG), [agent], "tool"))["agent reader s-1"] == 1_100


def test_a_fork_is_not_charged_for_what_it_took_over() -> None:
    point = {"session": "s", "step": 2, "bytes": 1}
    report = cost_report(billed(*LONG, forked_from=point), [], "step")
    assert parts(report) == {"step 3": 2_210}
    tools = parts(cost_report(billed(*LONG, forked_from=point), [], "tool"))
    assert tools["read"], "but for its context in later steps"


def test_a_cleared_context_costs_nothing_more() -> None:
    records = [*LONG[:3], CLEAR, user("again"), step(usage(100, 10))]
    report = cost_report(billed(*records), [], "tool")
    assert "read" not in parts(report)
    records = [*LONG[:3], replacement([user("summary")]), step(usage(100, 10))]
    assert parts(cost_report(billed(*records), [], "tool"))["context that replaced an earlier one"]


def test_an_unknown_price_is_not_zero() -> None:
    unknown = billed(user("x"), step(usage(10, 5, cost_usd=None)))
    report = cost_report(unknown, [], "tool")
    assert report.total is None
    assert {one.micro_dollars for one in report.shares} == {None}
    assert report.tokens == 15
    other = cost_report(unknown, [], "tool", find_prices("claude-opus-5-5"))
    assert other.total == 10 * 4 + 5 * 20
    assert cost_report(billed(user("x")), [], "tool") == Report(0, 0, [])


def test_other_prices_are_charged_for_the_same_tokens() -> None:
    haiku = find_prices("claude-haiku-5-5")
    report = cost_report(billed(*LONG, spent={"cost_usd": "9"}), [], "step", haiku)
    assert parts(report)["step 3"] == round(300 * 0.1 + 11_100 * 0.01 + 50 * 0.5)
    long = Tokens(200_000, 0)
    assert haiku.of(long).cost(long) == Decimal("0.1")
    with pytest.raises(UsageError, match="no price list has the model 'claude'"):
        find_prices("claude")
    assert model_prices()["gpt-5.4"].usual.cache_write == Decimal("2.5")


@given(
    st.lists(
        st.tuples(*[st.integers(0, 50_000)] * 4, st.integers(0, 9_000), st.booleans()), max_size=12
    ),
    st.sampled_from(KINDS),
)
def test_parts_always_add_up(turns: list[tuple[int, int, int, int, int, bool]], by: By) -> None:
    records: list[dict[str, Any]] = []
    total = Decimal(0)
    for number, (fresh, read, write, output, size, asks) in enumerate(turns):
        if asks:
            records.append(user("u" * size))
        used = usage(fresh, output, read, write)
        total += Decimal(used["cost_usd"])
        records += [step(used, "y" * (size // 7), f"t{number}0"), result(f"t{number}0", "z" * size)]
    report = cost_report(billed(*records), [], by)
    assert report.total == round(total * 1_000_000)
    assert sum(one.micro_dollars or 0 for one in report.shares) == report.total
    assert all((one.micro_dollars or 0) >= 0 and one.tokens >= 0 for one in report.shares)


@pytest.mark.parametrize("by", [pytest.param("tool", marks=pytest.mark.thorough), "message"])
def test_thousands_of_steps_are_divided(by: By) -> None:
    """Dividing each step among all parts before it would take minutes."""
    records = [user("go")]
    for number in range(3_000):
        used = usage(300, 50, read=100 * number)
        records += [step(used, "y", f"read{number}"), result(f"read{number}", "z" * 400)]
    report = cost_report(billed(*records), [], by)
    assert report.total == sum(one.micro_dollars or 0 for one in report.shares)
    cached = 100 * 2_999 * 1_500
    assert report.tokens == sum(one.tokens for one in report.shares) == 3_000 * 350 + cached


def test_the_command_prints_parts_and_total(tmp_path: Path) -> None:
    store = SessionStore(tmp_path / "home" / "sessions")
    saved = store.create("s", project="/p", spent={"cost_usd": "0.00941", "unpriced": 0})
    for record in LONG:
        saved.append(record)
    saved.close()
    home = tmp_path / "home"
    done = run_amplifier("session", "cost", "s", "--by", "step", home=home)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["COST", "SHARE", "TOKENS", "STEP"]
    assert lines[1] == ["$0.003000", "31.9", "%", "1,100", "step", "1"]
    assert lines[-1] == ["$0.009410", "100", "%", "23,750", "total"]
    asked = ("--what-if", "model=claude-opus-5-5", "--output", "json")
    data = json.loads(run_amplifier("session", "cost", "s", *asked, home=home).stdout)
    assert data["total_usd"] == "0.018820"
    assert sum(Decimal(one["cost_usd"]) for one in data["parts"]) == Decimal(data["total_usd"])
    wrong = run_amplifier("session", "cost", "s", "--what-if", "gpt", home=home)
    assert (wrong.code, wrong.stdout) == (2, "")


def test_tokens_that_a_loop_does_not_add_to_its_messages_are_reported_without_a_cost() -> None:
    answer = {"role": "assistant", "content": "x"}
    below = billed(user("b"), answer, id="s2", parent="s1", usage={"total_tokens": 50})
    lead = billed(user("a"), answer, id="s1", usage={"total_tokens": 220})
    report = cost_report(lead, [below], "tool")
    assert (report.total, report.tokens) == (None, 170)
    assert parts(report) == {"model calls without usage in their messages": None}
    assert cost_report(billed(user("a")), [], "tool") == (0, 0, [])
