"""Answers that must match a schema, and checks that must pass, in real runs."""

import json
import signal
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agent_scripts import LEAD, plan_of, running_agents, task
from tests.support.cli import Finished, run_amplifier, start_amplifier
from tests.support.llm_server import Reply, ScriptedLLM, ToolCall
from tests.support.plans import mock_plan
from tests.support.processes import processes_in
from tests.support.schemas import RESULT, STREAM
from tests.support.terminal import Terminal

SCHEMA = {
    "type": "object",
    "required": ["bugs"],
    "properties": {"bugs": {"type": "integer"}},
    "additionalProperties": False,
}
GOOD = '{"bugs": 2}'
WRONG = '{"bugs": "two"}'


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    return file


def to_result(done: Finished) -> dict[str, Any]:
    result = json.loads(done.stdout)
    RESULT.validate(result)
    assert done.code == result["exit_code"]
    return result


# -- schemas -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        GOOD,
        f"```json\n{GOOD}\n```",
        f"Here it is:\n\n{GOOD}\n\nDone [1].",
        f"not {WRONG} but {GOOD}",
    ],
)
def test_stdout_gets_exactly_the_json(answer: str, schema: Path, tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, [answer])
    done = run_amplifier("run", "-f", plan, "--schema", schema, "count")
    assert (done.code, done.stdout) == (0, f"{GOOD}\n"), done.stderr


def test_an_answer_is_corrected_with_the_errors_in_the_next_prompt(schema: Path) -> None:
    with ScriptedLLM.running(["I cannot.", WRONG, GOOD]) as server:
        options = ("-P", "minimal", "--schema", schema, "--output", "json")
        done = run_amplifier("run", *options, "count", env=server.env)
        result = to_result(done)
        last = [one.body["messages"][-1]["content"] for one in server.completions]
        sent = [json.dumps(content) for content in last]
    assert (result["data"], result["response"]) == ({"bugs": 2}, GOOD)
    assert (result["prompts"], result["steps"]) == (1, 3)
    assert all('"required' in text.replace("\\", "") for text in sent)
    # The cache ends before the schema, which is not part of the next request's prefix.
    assert [["cache_control" in block for block in content] for content in last] == [
        [True, False]
    ] * 3
    shown = run_amplifier("session", "show", result["session_id"], home=done.home).stdout
    assert shown.startswith("# count\n")
    assert "## › count\n\nI cannot.\n" in shown
    assert "JSON Schema below" not in shown
    assert "contains no JSON value" in sent[1]
    assert "$.bugs: 'two' is not of type 'integer'" in sent[2]


def test_a_schema_that_no_request_may_carry_is_an_error(schema: Path, tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, [GOOD])
    options = ("--schema", schema, "--set", "session.injection_size_limit=100")
    done = run_amplifier("run", "-f", plan, *options, "count")
    assert (done.code, done.stdout) == (2, "")
    assert "more than session.injection_size_limit (100)" in done.stderr


def test_an_answer_that_never_matches_ends_with_5_and_an_empty_stdout(
    schema: Path, tmp_path: Path
) -> None:
    plan = mock_plan(tmp_path, [WRONG], mock={"on_end": "repeat"})
    done = run_amplifier("run", "-f", plan, "--schema", schema, "--retries", "1", "count")
    assert (done.code, done.stdout) == (5, "")
    assert done.stderr.count("does not match the schema") == 2
    assert "--retries" in done.stderr
    result = to_result(
        run_amplifier("run", "-f", plan, "--schema", schema, "--output", "json", "count")
    )
    assert (result["exit_code"], result["data"], result["steps"]) == (5, None, 3)


def test_schemas_work_on_resume_in_events_and_on_a_terminal(schema: Path, tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["first", GOOD], mock={"on_end": "repeat"})
    run_amplifier("run", "-f", plan, "--session", "one", "hi")
    options = ("-f", plan, "--resume", "one", "--schema", schema)
    resumed = run_amplifier("run", *options, "--output", "stream-json", "count")
    events = [json.loads(line) for line in resumed.stdout.splitlines()]
    for event in events:
        STREAM.validate(event)
    assert events[-1]["data"] == {"bugs": 2}
    with Terminal("run", *options, "again") as terminal:
        terminal.until(r'\{"bugs": 2\}\r\n')
        assert terminal.finish() == 0


def test_a_corrected_answer_is_replayed_with_its_sub_agent(schema: Path, tmp_path: Path) -> None:
    lines = {
        LEAD: [Reply(tool_calls=[task("worker", "count")]), WRONG, GOOD],
        "worker": ["two bugs"],
    }
    options = ("--schema", schema, "--output", "json", "--approve", "allow")
    with running_agents(lines) as server:
        plan = plan_of(tmp_path, server, {"worker": {}})
        command = ("run", "-f", plan, *options)
        env = {"ANTHROPIC_API_KEY": "test-key"}
        first = to_result(
            run_amplifier(*command, "--record", "r.jsonl", "go", cwd=tmp_path, env=env)
        )
    replayed = to_result(run_amplifier(*command, "--replay", "r.jsonl", "go", cwd=tmp_path))
    # Only the answer of the main session has this form, not that of the sub-agent.
    assert [form is not None for form in asked_with(server)] == [True, False, True, True]
    for name in ("data", "steps", "usage"):
        assert first[name] == replayed[name]
    assert (first["data"], first["steps"], len(first["sub_sessions"])) == ({"bugs": 2}, 3, 1)


def test_an_unusable_schema_is_a_usage_error(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    plan = mock_plan(tmp_path, [GOOD])
    for text, message in (
        (None, "cannot read"),
        ("{", "is not valid JSON"),
        ('{"type": "objct"}', "is not a valid JSON Schema: $.type"),
        ('{"$ref": "https://example.invalid/o.json"}', "refers to 'https://example.invalid/"),
    ):
        if text is not None:
            file.write_text(text)
        done = run_amplifier("run", "-f", plan, "--schema", file, "count")
        assert (done.code, done.stdout) == (2, "")
        assert message in done.stderr
        assert "Traceback" not in done.stderr


# -- checks --------------------------------------------------------------------------------


MAKE = {"tool_calls": [{"name": "bash", "arguments": {"command": "touch made.txt"}}]}
CHECKS = ["test -e made.txt || { echo made.txt is missing; exit 3; }"]


def checked_plan(folder: Path, replies: list[Any], checks: list[Any] | None = None) -> Path:
    return mock_plan(folder, replies, checks=checks or CHECKS, tools=[{"module": "tool-bash"}])


def test_a_failed_check_is_sent_to_the_model_which_corrects_its_work(tmp_path: Path) -> None:
    plan = checked_plan(tmp_path, ["It is done.", MAKE, "Now it is done."])
    done = run_amplifier("run", "-f", plan, "--check", "true", "make it", cwd=tmp_path)
    assert (done.code, done.stdout) == (0, "Now it is done.\n"), done.stderr
    assert "failed (exit code 3); retry 1 of 2" in done.stderr
    (session,) = (done.home / "sessions").glob("*/transcript.jsonl")
    assert f"$ {CHECKS[0]}\\nmade.txt is missing\\n[exit code 3]" in session.read_text()


def test_a_check_that_still_fails_ends_with_9_and_is_in_result_and_reports(tmp_path: Path) -> None:
    check = {"run": CHECKS[0], "name": "made <it>"}
    plan = checked_plan(tmp_path, ["It is done."], [check, "true"])
    reports = ("--report", "junit=checks.xml", "--report", "md=checks.md")
    options = (*reports, "--retries", "0", "--output", "stream-json")
    done = run_amplifier("run", "-f", plan, *options, "make it", cwd=tmp_path)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    for event in events:
        STREAM.validate(event)
    result = {key: value for key, value in events[-1].items() if key != "type"}
    RESULT.validate(result)
    assert (done.code, result["outcome"], result["response"]) == (9, "check_failed", "It is done.")
    failed, passed = result["checks"]
    assert (failed["name"], failed["exit_code"], failed["runs"]) == ("made <it>", 3, 1)
    assert (failed["passed"], passed["passed"]) == (False, True)
    assert "made.txt is missing" in failed["output"]
    assert [event["name"] for event in events if event["type"] == "check"] == ["made <it>", "true"]
    suite = ElementTree.parse(tmp_path / "checks.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "0")
    case = suite.find("testcase[@name='made <it>']/failure")
    assert case is not None
    assert case.text == "made.txt is missing\n"
    page = (tmp_path / "checks.md").read_text()
    assert "| `made <it>` | exit code 3 |" in page
    assert "It is done." in page


def test_reports_are_written_when_the_run_fails_before_its_checks(tmp_path: Path) -> None:
    plan = checked_plan(tmp_path, [{"error": {"type": "AuthenticationError"}}])
    done = run_amplifier("run", "-f", plan, "--report", "junit=x.xml", "hi", cwd=tmp_path)
    assert done.code == 4
    suite = ElementTree.parse(tmp_path / "x.xml").getroot()
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1")


def test_a_check_gets_the_answer_and_no_keys_and_ends_at_its_time_limit(tmp_path: Path) -> None:
    checks = [
        'grep -q "the answer" "$AMPLIFIER_ANSWER_FILE"',
        'test -z "$ANTHROPIC_API_KEY"',
        {"run": "sleep 600 & sleep 600", "timeout": 0.2},
    ]
    plan = checked_plan(tmp_path, ["the answer"], checks)
    done = run_amplifier(
        *("run", "-f", plan, "--retries", "0", "--output", "json", "hi"),
        cwd=tmp_path,
        env={"ANTHROPIC_API_KEY": "sk-secret-0123456789"},
    )
    states = [(one["passed"], one["exit_code"]) for one in to_result(done)["checks"]]
    assert states == [(True, 0), (True, 0), (False, None)]
    assert "time limit reached" in done.stderr


def test_ctrl_c_during_a_check_ends_it_and_the_run(tmp_path: Path) -> None:
    plan = checked_plan(tmp_path, ["done"], ["touch started; sleep 600"])
    with start_amplifier("run", "-f", plan, "hi", cwd=tmp_path) as process:
        while not (tmp_path / "started").exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    assert processes_in(tmp_path) == []


def test_contradicting_options_are_usage_errors(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["x"])
    for options, message in (
        (["--report", "pdf=x"], "--report: expected junit=FILE or md=FILE, got 'pdf=x'"),
        (["--stream", "--check", "true"], "--stream cannot be used with --schema or --check"),
        (["--retries", "-1"], "--retries"),
    ):
        done = run_amplifier("run", "-f", plan, *options, "hi")
        assert (done.code, done.stdout) == (2, "")
        assert message in done.stderr


def test_problems_in_the_checks_of_a_plan_are_reported_with_their_lines(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("extends: mock\nchecks:\n- true\n- {name: x}\n- {run: ls, timout: 3}\n")
    done = run_amplifier("plan", "check", "-f", plan)
    assert done.code == 78
    for line, message in ((3, "'checks.0' is a boolean"), (4, "no command"), (5, "timeout")):
        assert any(f":{line}:" in one and message in one for one in done.stderr.splitlines())


# -- the provider's own means ----------------------------------------------------------------


def asked_with(server: ScriptedLLM) -> list[Any]:
    """The form of the answer in each request, as the service's API has it."""
    found: list[Any] = []
    for request in server.completions:
        body = request.body
        form = (body.get("output_config") or body.get("text") or {}).get("format")
        found.append(form or body.get("response_format"))
    return found


def run_with_schema(
    server: ScriptedLLM, provider: str, schema: Path, *, tools: str, config: str = ""
) -> dict[str, Any]:
    base_url = server.base_url if provider == "anthropic" else server.openai_base_url
    plan = schema.with_name("plan.yaml")
    plan.write_text(
        "session: {orchestrator: loop-streaming, context: context-simple}\n"
        f"tools: {tools}\nproviders:\n"
        f"  - {{module: provider-{provider}, config: {{base_url: '{base_url}', api_key: k{config}}}}}\n"
    )
    arguments = ("-f", plan, "--schema", schema, "--approve", "allow", "--output", "json", "count")
    return to_result(run_amplifier("run", *arguments, cwd=schema.parent))


def test_anthropic_gets_the_schema_with_every_request_that_has_tools_too(schema: Path) -> None:
    look = Reply(tool_calls=[ToolCall("bash", {"command": "echo 2"})])
    with ScriptedLLM.running([look, GOOD]) as server:
        result = run_with_schema(server, "anthropic", schema, tools="[{module: tool-bash}]")
        assert asked_with(server) == [{"type": "json_schema", "schema": SCHEMA}] * 2
        assert not server.rejections
    assert result["data"] == {"bugs": 2}


def test_openai_gets_the_schema_to_enforce(schema: Path) -> None:
    form = {"json_schema": {"name": "response", "schema": SCHEMA, "strict": True}}
    with ScriptedLLM.running([WRONG, GOOD, GOOD]) as server:
        config = ", api: chat, model: gpt-5.4"
        result = run_with_schema(server, "openai", schema, tools="[]", config=config)
        assert result["data"] == {"bugs": 2}
        assert asked_with(server) == [{"type": "json_schema", **form}] * 2
        # A server of another vendor may let no tool be called then.
        tools = "[{module: tool-bash}]"
        result = run_with_schema(server, "openai", schema, tools=tools, config=config)
        assert asked_with(server)[2:] == [None]
        assert not server.rejections


def test_a_schema_that_the_service_refuses_is_left_out_from_then_on(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    form = {"type": "object", "properties": {"bugs": {"type": "integer", "minimum": 0}}}
    file.write_text(json.dumps({**form, "required": ["bugs"]}))
    with ScriptedLLM.running([WRONG, GOOD]) as server:
        result = run_with_schema(server, "anthropic", file, tools="[]")
        assert [form is not None for form in asked_with(server)] == [True, False, False]
        [refused] = server.rejections
        assert "'minimum' is not supported" in str(refused)
    assert result["data"] == {"bugs": 2}
