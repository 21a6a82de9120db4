"""Lines of running tool calls and sub-agents."""

from __future__ import annotations

from typing import Any

from amplifier_app.render.activity import Activity, Line
from amplifier_app.runtime.observer import SubSessionFacts


def call(number: int, tool: str = "task", **given: Any) -> dict[str, Any]:
    return {
        "tool_name": tool,
        "tool_call_id": f"c{number}",
        "span_id": f"span{number}",
        "tool_input": given,
    }


def facts(number: int, agent: str = "reader", task: str = "look at it") -> SubSessionFacts:
    return SubSessionFacts(f"s1-{number}", "s1", agent, 1, False, task)


def texts(activity: Activity) -> list[str]:
    return [line.text for line in activity.lines()]


def test_a_sub_agent_and_its_waiting_call_share_one_line() -> None:
    activity = Activity()
    activity.call_started(call(1, agent="reader", instruction="look at it"))
    activity.call_started(call(2, agent="writer", instruction="write it"))
    activity.call_started(call(3, "bash", command="ls"))
    assert texts(activity) == ["task reader: look at it", "task writer: write it", "bash ls"]
    for number, agent in ((1, "reader"), (2, "writer")):
        activity.call_waits({"span_id": f"span{number}", "sub_session_id": f"s1-{number}"})
        activity.agent_started(facts(number, agent))
    activity.agent_doing("s1-1", "")
    activity.agent_doing("s1-1", "read_file a.txt")
    assert texts(activity) == [
        "reader · 1 step → read_file a.txt",
        "writer: look at it",
        "bash ls",
    ]
    activity.agent_doing("s1-1", "")
    activity.agent_doing("s1-1", "grep x")
    activity.agent_doing("s1-1", "")
    assert texts(activity)[0] == "reader · 2 steps"
    activity.agent_ended("s1-1")
    about, seconds = activity.call_ended(call(1))
    assert about == "task reader: look at it"
    assert seconds >= 0
    assert texts(activity) == ["writer: look at it", "bash ls"]


def test_a_sub_agent_without_a_known_call_has_its_own_line() -> None:
    activity = Activity()
    activity.call_started(call(1, "delegate"))
    activity.agent_started(facts(1, "re\x1b[31mader", "look\nat it"))
    assert texts(activity) == ["delegate", "reader: look at it"]
    activity.agent_doing("unknown", "x")
    activity.agent_ended("s1-1")
    assert texts(activity) == ["delegate"]


def test_the_last_output_line_of_a_command_is_below_it() -> None:
    activity = Activity()
    activity.call_started(call(1, "bash", command="make"))
    activity.call_wrote({"span_id": "span1", "text": "one\ntwo\n"})
    activity.call_wrote({"span_id": "other", "text": "three\n"})
    assert activity.lines() == [Line("bash make", "two")]
    activity.clear()
    assert activity.lines() == []
    assert activity.call_ended(call(9, "bash", command="ls"))[0] == "bash ls"
