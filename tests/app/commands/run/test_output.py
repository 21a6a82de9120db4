"""The output of `run`: the answer on stdout, everything else on stderr."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import run_amplifier, start_amplifier, succeed
from tests.support.plans import NOISY_TOOL, mock_plan, module_folder
from tests.support.schemas import RESULT, STREAM
from tests.support.terminal import Terminal
from tests.support.thorough import Scale


def events_of(stdout: str) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in stdout.splitlines()]
    for event in events:
        STREAM.validate(event)
    assert [event["type"] for event in events].count("session") == 1
    assert [event["type"] for event in events].count("result") == 1
    assert (events[0]["type"], events[-1]["type"]) == ("session", "result")
    result = {name: value for name, value in events[-1].items() if name != "type"}
    RESULT.validate(result)
    return events


def test_a_pipe_gets_the_raw_answer(tmp_path: Path) -> None:
    answer = "# Not rendered\n\n- [red]brackets[/red] <b>html</b> ünï\n"
    done = run_amplifier("run", "-f", mock_plan(tmp_path, [answer]), "hi")
    assert (done.code, done.stdout, done.stderr) == (0, answer, "")


def test_text_is_streamed_while_the_model_generates(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["one two three"], mock={"chunk_size": 4, "chunk_delay": 2})
    with start_amplifier("run", "-f", plan, "hi") as process:
        assert process.stdout is not None
        assert process.stdout.read(4) == b"one "
        assert process.poll() is None
        process.kill()
        assert process.stdout.read() == b""


def test_commentary_before_a_tool_call_is_not_the_answer(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("content")
    replies = [
        {"text": "Let me look.", "tool_calls": [{"name": "read_file", "input": {"path": "a.txt"}}]},
        "It says content.",
    ]
    plan = mock_plan(tmp_path, replies, tools=[{"module": "tool-filesystem"}])
    done = run_amplifier("run", "-f", plan, "what is in a.txt?", cwd=tmp_path)
    assert (done.code, done.stdout) == (0, "It says content.\n")


def test_nothing_a_module_prints_reaches_stdout(tmp_path: Path) -> None:
    source = str(module_folder(tmp_path, NOISY_TOOL))
    replies = [{"tool_calls": [{"name": "noisy"}]}, "quiet answer"]
    plan = mock_plan(tmp_path, replies, tools=[{"module": "noisy", "source": source}])
    done = run_amplifier("run", "-f", plan, "hi")
    assert (done.code, done.stdout) == (0, "quiet answer\n")
    for place in ("import", "mount", "print", "original stdout", "descriptor 1", "a child"):
        assert f"noise {'at' if place in ('import', 'mount') else 'from'}" in done.stderr
        assert place in done.stderr


def test_escape_sequences_of_the_model_are_removed(tmp_path: Path) -> None:
    answer = "a\x1b]0;owned\x07b\x1b[31mc\x9bd"
    done = run_amplifier("run", "-f", mock_plan(tmp_path, [answer], mock={"chunk_size": 1}), "hi")
    assert done.stdout == "abcd\n"


def test_json_is_one_object_with_the_whole_result(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("content")
    call = {"name": "read_file", "input": {"path": "a.txt"}, "id": "c1"}
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15, "cost_usd": "0.25"}
    replies = [
        {"tool_calls": [call], "usage": usage},
        {"text": "esc \x1b[31m", "usage": usage},
    ]
    plan = mock_plan(tmp_path, replies, tools=[{"module": "tool-filesystem"}])
    done = run_amplifier("run", "-f", plan, "hi", "--output", "json", cwd=tmp_path)
    result = json.loads(done.stdout)
    RESULT.validate(result)
    assert result["outcome"] == "ok"
    assert result["response"] == "esc \x1b[31m"
    assert "\x1b" not in done.stdout
    assert (result["steps"], result["usage"]["total_tokens"], result["cost"]) == (
        2,
        30,
        {"usd": 0.5},
    )
    assert [(tool["id"], tool["name"], tool["outcome"]) for tool in result["tools"]] == [
        ("c1", "read_file", "ok")
    ]
    assert (done.home / "sessions" / result["session_id"]).is_dir()


def test_stream_json_starts_with_the_session_and_ends_with_the_result(tmp_path: Path) -> None:
    replies = [
        {"thinking": "hm", "tool_calls": [{"name": "list_directory", "input": {"path": "."}}]},
        "one two three four five",
    ]
    plan = mock_plan(tmp_path, replies, tools=[{"module": "tool-filesystem"}])
    done = run_amplifier("run", "-f", plan, "hi", "--output", "stream-json", cwd=tmp_path)
    events = events_of(done.stdout)
    kinds = [event["type"] for event in events]
    assert kinds.index("thinking") < kinds.index("tool_start") < kinds.index("tool_end")
    text = "".join(event["delta"] for event in events if event["type"] == "text")
    assert text == events[-1]["response"] == "one two three four five"
    assert events[0]["session_id"] == events[-1]["session_id"]


@pytest.mark.parametrize(
    ("reply", "code", "outcome"),
    [
        ({"error": {"type": "AuthenticationError"}}, 4, "authentication"),
        ({"error": {"type": "InvalidRequestError"}}, 5, "provider"),
        ({"error": {"type": "RateLimitError", "retry_after": 3}}, 75, "unavailable"),
        ({"text": "cut", "finish_reason": "length"}, 7, "budget"),
        ({"text": "cut", "finish_reason": "content_filter"}, 5, "provider"),
    ],
)
def test_a_failed_turn_is_reported_in_exit_code_json_and_stderr(
    tmp_path: Path, reply: dict[str, Any], code: int, outcome: str
) -> None:
    plan = mock_plan(tmp_path, [reply], mock={"on_end": "repeat"})
    done = run_amplifier("run", "-f", plan, "hi", "--output", "stream-json")
    result = events_of(done.stdout)[-1]
    assert (done.code, result["outcome"], result["exit_code"]) == (code, outcome, code)
    assert result["session_id"] is not None
    assert result["error"]["message"] in done.stderr
    assert "Traceback" not in done.stderr


def test_max_turns_exits_with_the_budget_code(tmp_path: Path) -> None:
    call = {"tool_calls": [{"name": "list_directory", "input": {"path": "."}}]}
    plan = mock_plan(
        tmp_path, [call], mock={"on_end": "repeat"}, tools=[{"module": "tool-filesystem"}]
    )
    done = run_amplifier("run", "-f", plan, "hi", "--max-steps", "2", "--output", "json")
    result = json.loads(done.stdout)
    assert (done.code, result["outcome"], result["steps"]) == (7, "budget", 2)
    assert "--max-steps" in done.stderr
    done = run_amplifier("run", "-f", plan, "hi", "--max-turns", "2")
    assert (done.code, done.stdout) == (7, "")


def test_a_timeout_exits_with_the_budget_code_and_saves_the_session(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, [{"text": "late", "delay": 60}])
    done = run_amplifier("run", "-f", plan, "hi", "--timeout", "0.3s", "--output", "json")
    result = json.loads(done.stdout)
    assert (done.code, result["outcome"]) == (7, "budget")
    assert "time limit" in done.stderr
    # The short id, which `--resume` takes.
    assert f"--resume {result['session_id'][-6:]} " in f"{done.stderr} ".replace("\n", " ")


def test_a_closed_pipe_ends_the_run_quietly_and_saves_the_session(
    tmp_path: Path, scale: Scale
) -> None:
    """Once by default, 200 times in a thorough run."""
    plan = mock_plan(tmp_path, ["line\n" * 20_000], mock={"chunk_delay": 0.01})
    count = scale(1, 200)
    for number in range(count):
        close_pipe_early(plan, f"left-{number}")
    shown = succeed("session", "show", f"left-{count - 1}", "--output", "json")
    assert json.loads(shown.stdout)["messages"][0]["content"] == "hi"


def close_pipe_early(plan: Path, session_id: str) -> None:
    with start_amplifier("run", "-f", plan, "hi", "--session", session_id) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(5) == b"line\n"
        process.stdout.close()
        stderr = process.stderr.read().decode()
        assert process.wait(30) in (0, 141)
    assert "Traceback" not in stderr
    assert "rror" not in stderr


def test_the_chosen_provider_is_reported_once_with_the_reason(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "session: {orchestrator: loop-basic, context: context-simple}\n"
        "providers:\n"
        "  - {module: provider-anthropic, when: {env: ANTHROPIC_API_KEY}}\n"
        "  - {module: provider-mock, config: {replies: [ok], on_end: repeat}}\n"
    )
    with Terminal("run", "-f", plan, "hi", "-p", "mock") as terminal:
        assert terminal.finish() == 0
    assert "using" not in terminal.raw
    with Terminal("run", "-f", plan, "hi") as terminal:
        assert terminal.finish() == 0
    notice = " ".join(terminal.shown.split())
    assert notice.count("using mock") == 1
    assert "because ANTHROPIC_API_KEY is not set; change with --provider" in notice


def test_the_provider_that_a_plan_adds_itself_needs_no_notice(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "extends: default\nproviders: [{module: provider-mock, config: {replies: [ok]}}]\n"
    )
    with Terminal("run", "-f", plan, "hi") as terminal:
        assert terminal.finish() == 0
    assert "ok" in terminal.shown
    assert "using" not in terminal.shown


def test_without_a_provider_the_reason_is_given_for_each(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "session: {orchestrator: loop-basic, context: context-simple}\n"
        "providers: [{module: provider-anthropic}, {module: provider-openai}]\n"
    )
    done = run_amplifier("run", "-f", plan, "hi")
    assert done.code == 78
    assert "\n  provider-anthropic skipped: " in done.stderr
    assert "\n  provider-openai skipped: " in done.stderr
    assert "ANTHROPIC_API_KEY" in done.stderr
    assert not list((done.home / "sessions").iterdir())


def test_a_module_that_cannot_be_found_stops_the_run_with_its_error(tmp_path: Path) -> None:
    tools = [{"module": "tool-that-is-not-there"}]
    done = run_amplifier("run", "-f", mock_plan(tmp_path, ["x"], tools=tools), "hi")
    assert (done.code, done.stdout) == (3, "")
    assert "tool-that-is-not-there" in done.stderr
    assert done.stderr.count("\namplifier:") == 0
    assert "Traceback" not in done.stderr
