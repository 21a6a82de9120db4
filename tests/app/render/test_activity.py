"""Lines of running tool calls and sub-agents."""

import time
from typing import Any

import pytest

from amplifier_app.render.ansi import cells, plain
from amplifier_app.render.call_lines import FinishedCall
from amplifier_app.render.terminal import MAX_LINES, Activity
from amplifier_app.runtime.observers.observer import SubSessionFacts


def call(number: int, tool: str = "task", **given: Any) -> dict[str, Any]:
    ids = {"tool_call_id": f"c{number}", "span_id": f"span{number}"}
    return {"tool_name": tool, **ids, "tool_input": given}


@pytest.fixture
def activity() -> Activity:
    return Activity()


def facts(number: int, agent: str = "reader", task: str = "look at it") -> SubSessionFacts:
    return SubSessionFacts(f"s1-{number}", "s1", agent, 1, False, task)


def texts(activity: Activity) -> list[str]:
    return [plain(line)[2:] for line in activity.lines(80)]


def test_a_sub_agent_and_its_waiting_call_share_one_line(activity: Activity) -> None:
    activity.call_started(call(1, agent="reader", instruction="look at it"))
    activity.call_started(call(2, agent="writer", instruction="write it"))
    activity.call_started(call(3, "bash", command="ls"))
    assert texts(activity) == ["task reader: look at it", "task writer: write it", "bash ls"]
    for number, agent in ((1, "reader"), (2, "writer")):
        activity.call_waits({"span_id": f"span{number}", "sub_session_id": f"s1-{number}"})
        activity.agent_started(facts(number, agent))
    activity.agent_doing("s1-1", "")
    activity.agent_doing("s1-1", "read_file a.txt")
    reading = "reader · 1 step → read_file a.txt"
    assert texts(activity) == [reading, "writer: look at it", "bash ls"]
    activity.agent_doing("s1-1", "")
    activity.agent_doing("s1-1", "grep x")
    activity.agent_doing("s1-1", "")
    assert texts(activity)[0] == "reader · 2 steps"
    activity.agent_ended("s1-1")
    assert activity.call_ended(FinishedCall(call(1), 0)) >= 0
    assert texts(activity) == ["writer: look at it", "bash ls"]


def test_a_sub_agent_without_a_known_call_has_its_own_line(activity: Activity) -> None:
    activity.call_started(call(1, "delegate"))
    activity.agent_started(facts(1, "re\x1b[31mader", "look\nat it"))
    assert texts(activity) == ["delegate", "reader: look at it"]
    activity.agent_doing("unknown", "x")
    activity.agent_ended("s1-1")
    assert texts(activity) == ["delegate"]


def test_a_sub_agent_that_waits_says_why(activity: Activity) -> None:
    activity.agent_started(facts(1))
    activity.agent_doing("s1-1", "rate limited, retrying in 4 s (1 of 4)", is_step=False)
    assert texts(activity) == ["reader · 0 steps → rate limited, retrying in 4 s (1 of 4)"]
    activity.agent_doing("s1-1", "grep x")
    assert texts(activity) == ["reader · 1 step → grep x"]


def test_the_duration_of_a_call_excludes_the_wait_for_approval(
    activity: Activity, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    activity.call_started(call(1, "bash", command="make"))
    now += 60
    activity.call_allowed(call(1))
    now += 5
    assert texts(activity) == ["bash make · 5.0 s"]


def test_the_last_output_line_of_a_command_is_below_it(activity: Activity) -> None:
    activity.call_started(call(1, "bash", command="make"))
    activity.call_wrote({"span_id": "span1", "text": "one\ntwo\n"})
    activity.call_wrote({"span_id": "other", "text": "three\n"})
    assert texts(activity) == ["bash make", "  two"]
    activity.clear()
    assert activity.lines(80) == []
    assert activity.call_ended(FinishedCall(call(9, "bash", command="ls"), 0)) == 0


def test_output_without_a_span_belongs_to_the_only_call_of_the_tool(activity: Activity) -> None:
    activity.call_started(call(1, "web_fetch", url="a"))
    activity.call_started(call(2, "bash", command="make"))
    activity.call_wrote({"tool_name": "web_fetch", "text": "1 of 3\n"})
    assert texts(activity) == ["web_fetch a", "  1 of 3", "bash make"]
    activity.call_started(call(3, "web_fetch", url="b"))
    activity.call_wrote({"tool_name": "web_fetch", "text": "2 of 3\n"})
    assert texts(activity) == ["web_fetch a", "  1 of 3", "bash make", "web_fetch b"]


def test_the_lines_are_few_and_fit(activity: Activity) -> None:
    todos = [{"content": f"item {n} " + "x" * 30, "status": "pending"} for n in range(20)]
    activity.call_ended(FinishedCall(call(0, "todo", todos=todos), 0))
    for number in range(1, 12):
        activity.call_started(call(number, "bash", command="word " * 50))
        activity.call_wrote({"span_id": f"span{number}", "text": "out " * 50})
    for width in (40, 80, 120):
        lines = activity.lines(width, "Esc stop")
        assert len(lines) == MAX_LINES
        assert all(cells(line) <= width for line in lines)
        assert plain(lines[0]).endswith("0/20")
        assert plain(lines[-1]) == "  … 8 more"


def test_the_keys_are_shown_next_to_a_long_call(activity: Activity) -> None:
    activity.call_started(call(1, "bash", command="x" * 200))
    wide, narrow = (plain(activity.lines(width, "Esc stop")[0]) for width in (60, 40))
    assert wide.endswith("…  Esc stop")
    assert len(wide) == 60
    assert narrow.endswith("x…")


def test_the_time_of_calls_begins_when_the_last_of_an_answer_is_allowed(activity: Activity) -> None:
    activity.call_started(call(1, "bash", command="ls"))
    activity.call_started(call(2, "bash", command="make"))
    time.sleep(0.05)
    activity.call_allowed(call(2))
    allowed = time.monotonic()
    assert activity.call_ended(FinishedCall(call(1), 0)) <= time.monotonic() - allowed + 0.04
