"""A model service that fails mid-stream: no text twice, no success for a partial answer."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import schemas
from tests.support.cli import Finished, run_amplifier
from tests.support.llm_server import (
    Cut,
    ErrorEvent,
    Item,
    Reply,
    Reset,
    ResetAfter,
    ScriptedLLM,
    Stall,
    Status,
    ToolCall,
)
from tests.support.terminal import Terminal

ANSWER = "One two three four five six seven."
KEYS = {"ANTHROPIC_API_KEY": "test-key", "OPENAI_API_KEY": "test-key"}


def reply(fault: Any = None) -> Reply:
    """An answer of nine events: start, block, ping, three deltas, end of block, delta, stop."""
    return Reply(ANSWER, chars_per_delta=12, fault=fault)


def plan_for(folder: Path, *servers: ScriptedLLM, **more: Any) -> Path:
    """A plan that asks the first server in one dialect and the second in the other."""
    common = {"max_retries": 1, "idle_timeout": 1}
    providers: list[dict[str, Any]] = [
        {
            "module": "provider-anthropic",
            "config": {"base_url": servers[0].base_url, "model": "claude-sonnet-4-5", **common},
        }
    ]
    for server in servers[1:]:
        config = {"base_url": server.openai_base_url, "model": "gpt-4o", **common}
        providers.append({"module": "provider-openai", "config": config})
    session = {"orchestrator": "loop-streaming", "context": "context-simple"}
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump({"session": session, "providers": providers, **more}))
    return path


def run(plan: Path, *options: str, prompt: str = "go") -> Finished:
    return run_amplifier("run", "-f", plan, "--session", "s", prompt, *options, env=KEYS)


def events_of(done: Finished) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in done.stdout.splitlines()]
    for event in events:
        schemas.STREAM.validate(event)
    return events


def stored(home: Path) -> list[dict[str, Any]]:
    lines = (home / "sessions" / "s" / "transcript.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


FAULTS = [Cut(after=2), ResetAfter(after=4), Stall(after=5), ErrorEvent(after=5)]
"""Some of the faults of `tests/app/render/test_answers_once.py`, here of a whole program."""


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_pipe_gets_the_answer_once_or_its_beginning_and_an_error(
    tmp_path: Path, fault: Any
) -> None:
    with ScriptedLLM.running([reply(fault), reply()]) as server:
        done = run(plan_for(tmp_path, server))
    if done.code == 0:
        assert done.stdout == ANSWER + "\n"
    else:
        assert done.code == 75
        assert ANSWER.startswith(done.stdout.rstrip("\n"))
        assert "Traceback" not in done.stderr
        assert [message["role"] for message in stored(done.home)] == ["user"]


def test_after_a_partial_answer_the_conversation_continues(tmp_path: Path) -> None:
    with ScriptedLLM.running([reply(Cut(after=5)), "Whole."]) as server:
        plan = plan_for(tmp_path, server)
        assert run(plan).code == 75
        again = run(plan, prompt="go on")
        assert server.rejections == []
        assert "One two" not in json.dumps(server.completions[1].body)
    assert (again.code, again.stdout) == (0, "Whole.\n")


def test_in_json_a_partial_answer_is_no_response_and_no_text_comes_twice(tmp_path: Path) -> None:
    with ScriptedLLM.running([reply(ResetAfter(after=5)), reply()]) as server:
        done = run(plan_for(tmp_path, server), "--output", "stream-json")
    events = events_of(done)
    text = "".join(event["delta"] for event in events if event["type"] == "text")
    assert ANSWER.startswith(text)
    result = events[-1]
    assert (done.code, result["outcome"], result["response"]) == (75, "unavailable", "")
    assert result["error"]["message"]


def test_a_fallback_provider_answers_and_the_user_is_notified(tmp_path: Path) -> None:
    replies: list[Item] = [Status(529, headers={"retry-after": "0"})] * 2
    with ScriptedLLM.running(replies) as first, ScriptedLLM.running(["Here I am."]) as second:
        done = run(plan_for(tmp_path, first, second, fallbacks=["openai"]))
        assert (len(first.completions), len(second.completions)) == (2, 1)
    assert (done.code, done.stdout) == (0, "Here I am.\n")
    assert "warning: anthropic is not available: " in done.stderr
    # One line: `provider:switched` adds no second one.
    assert "using openai instead (gpt-4o) until the next prompt" in done.stderr
    assert "answers instead" not in done.stderr
    shown = run_amplifier("session", "show", "s")
    assert "> gpt-4o answered instead of claude-sonnet-4-5 (fallback: " in shown.stdout
    assert "), until the next prompt\n" in shown.stdout
    by_model = run_amplifier("session", "cost", "s", "--by", "model", "--output", "json")
    (part,) = json.loads(by_model.stdout)["parts"]
    assert part["name"] == "gpt-4o instead of claude-sonnet-4-5"


def test_a_model_that_the_service_chose_is_one_line_and_one_event(tmp_path: Path) -> None:
    def rename(events: list[bytes]) -> list[bytes]:
        return [event.replace(b"claude-sonnet-4-5", b"claude-haiku-4-5") for event in events]

    with ScriptedLLM.running([Reply("Cheap.", edit=rename)]) as server:
        done = run(plan_for(tmp_path, server), "--output", "stream-json")
    line = "amplifier: claude-haiku-4-5 answers instead of claude-sonnet-4-5: the service chose it"
    assert [text for text in done.stderr.splitlines() if "instead" in text] == [line]
    events = events_of(done)
    (switched,) = [event for event in events if event["type"] == "switched"]
    assert switched == {
        "type": "switched",
        "provider": "anthropic",
        "model": "claude-haiku-4-5",
        "requested_provider": "anthropic",
        "requested_model": "claude-sonnet-4-5",
        "cause": "service",
        "reason": "the service answered with it when asked for claude-sonnet-4-5",
        "until": None,
        "price": None,
    }
    assert events[-1]["answered_models"] == {"claude-haiku-4-5": 1}


def test_the_fallback_is_in_the_event_stream(tmp_path: Path) -> None:
    with ScriptedLLM.running([Status(404)]) as first, ScriptedLLM.running(["Here."]) as second:
        plan = plan_for(tmp_path, first, second, fallbacks=["provider-openai"])
        done = run(plan, "--output", "stream-json")
    events = events_of(done)
    (fallback,) = [event for event in events if event["type"] == "fallback"]
    assert fallback == {
        "type": "fallback",
        "provider": "anthropic",
        "fallback": "openai",
        "error_type": "NotFoundError",
    }
    assert events[-1]["response"] == "Here."
    # The model that was asked for, and the one that answered.
    assert events[-1]["model"] == "claude-sonnet-4-5"
    assert events[-1]["answered_models"] == {"gpt-4o": 1}


def test_a_chat_shows_each_change_of_the_model_once(tmp_path: Path) -> None:
    busy: list[Item] = [Status(529, headers={"retry-after": "0"})] * 2
    with (
        ScriptedLLM.running([*busy, "Back.", "More."]) as first,
        ScriptedLLM.running(["Here."]) as second,
        Terminal(
            *("run", "-f", plan_for(tmp_path, first, second, fallbacks=["openai"])), env=KEYS
        ) as terminal,
    ):
        terminal.prompt()
        for prompt, answer in (("one", "Here."), ("two", "Back."), ("three", "More.")):
            terminal.type(f"{prompt}\r")
            terminal.until(re.escape(answer))
            terminal.prompt()
        terminal.type("/exit\r")
        assert terminal.finish() == 0
    shown = " ".join(terminal.shown.split())  # The line is wider than the terminal.
    assert shown.count("using openai instead (gpt-4o) until the next prompt") == 1
    assert shown.count("claude-sonnet-4-5 answers again") == 1
    assert "answers instead" not in shown


def test_a_partial_answer_on_stdout_is_not_followed_by_a_fallback(tmp_path: Path) -> None:
    with ScriptedLLM.running([reply(Cut(after=5))]) as first, ScriptedLLM.running() as second:
        done = run(plan_for(tmp_path, first, second, fallbacks=["openai"]))
        assert second.completions == []
    assert done.code == 75
    assert ANSWER.startswith(done.stdout.rstrip("\n"))


def test_an_unknown_fallback_is_an_error_in_the_plan(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("extends: default\nfallbacks: [opanai]\n")
    done = run_amplifier("run", "-f", plan, "hi")
    assert done.code == 78
    assert f"{plan}:2" in done.stderr
    assert "opanai" in done.stderr
    assert "did you mean 'openai'" in done.stderr


def test_a_fallback_with_an_unmet_condition_is_skipped(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "extends: mock\n"
        "fallbacks: [openai]\n"
        "providers:\n"
        "  - {module: provider-mock, config: {replies: [hello]}}\n"
        "  - {module: provider-openai, when: {env: OPENAI_API_KEY}}\n"
    )
    done = run_amplifier("run", "-f", plan, "hi")
    assert (done.code, done.stdout) == (0, "hello\n")


def test_a_conversation_that_is_too_long_is_retried_once_shortened(tmp_path: Path) -> None:
    too_long = Status(400, message="prompt is too long: 213000 tokens > 200000 maximum")
    talk: list[Item] = ["an answer " * 900, "another " * 900]
    with ScriptedLLM.running([*talk, too_long, "It fits.", too_long, too_long]) as server:
        plan = plan_for(tmp_path, server)
        for number in range(2):
            assert run(plan, prompt=f"question {number} " * 900).code == 0
        done = run(plan, prompt="the last question")
        assert (done.code, done.stdout) == (0, "It fits.\n")
        assert "the conversation is too long for claude-sonnet-4-5" in done.stderr
        failed = run(plan, prompt="one more")
        bodies = [json.dumps(request.body) for request in server.completions]
        assert len(bodies) == len(set(bodies)) == 6
        assert server.rejections == []
    assert (failed.code, failed.stdout) == (5, "")
    assert "prompt is too long" in failed.stderr
    assert "larger context window" in failed.stderr


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (Status(401), ["rejected the API key (401)", "Set a new key: amplifier init"]),
        (
            Status(401),
            ["A variable of the environment takes precedence", "amplifier provider list"],
        ),
        (Status(500), ["had a server error (500)", "Try again later, or use another model"]),
        (Status(529), ["is overloaded (529)", "Try again later, or use another model"]),
        (Status(429, headers={"retry-after": "0"}), ["rate limit (429)", "--model NAME"]),
        (Status(429, headers={"retry-after": "600"}), ["Retry in 10 minutes", "--model NAME"]),
        (Status(400), ["refused the request (400)", "--model NAME"]),
        (
            Status(400, message="tools.0.custom.input_schema: JSON schema is invalid"),
            ["Fix the input schema of the tool, or leave the tool out: --tools"],
        ),
        (
            Status(400, message="Invalid schema for function 'bash': array schema missing items"),
            ["Fix the input schema of the tool 'bash', or"],
        ),
        (
            Status(400, message="output_config.format.schema: Schema is too complex"),
            ["Fix the schema of the answer (--schema)"],
        ),
        (Reset(), ["closed the connection: connection reset by peer", "can be reached from here"]),
        (Status(200, "<html>"), ["answered with text/html", "no proxy or login page answers"]),
    ],
)
def test_errors_of_a_provider_end_with_a_next_step(reply: Item, expected: list[str]) -> None:
    with ScriptedLLM.running([reply]) as server:
        retries = "providers.provider-anthropic.config.max_retries=0"
        done = run_amplifier("run", "-P", "minimal", "--set", retries, "hi", env=server.env)
    assert done.stdout == ""
    for text in expected:
        assert text in done.stderr
    for unwanted in ("Errno", "Retry in 0", "Traceback"):
        assert unwanted not in done.stderr


def test_the_part_of_a_cut_answer_is_shown_where_only_answers_are() -> None:
    calls = Reply(text="Looking.", tool_calls=[ToolCall("read_file", {"file_path": "none"})])
    cut = Reply(text="half of it " * 50, fault=Cut(after=8))
    with (
        ScriptedLLM.running([calls, cut]) as server,
        Terminal("run", "-P", "minimal", "--screen", "answer", "hi", env=server.env) as terminal,
    ):
        assert terminal.finish() == 75
    part, _, after = terminal.shown.partition("[the answer was cut off here]")
    assert "half of it half of it" in part
    assert "Looking." not in terminal.shown
    assert "cut the answer off: the connection was closed" in after
