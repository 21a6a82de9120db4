"""context-persistent in real runs of the program, alongside the session's own transcript."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cli import Finished, run_amplifier, start_amplifier, succeed
from tests.support.llm_server import Reply, ScriptedLLM, ToolCall
from tests.support.plans import mock_plan, module_folder

SESSION = {"orchestrator": "loop-basic", "context": "context-persistent"}


def plan_of(folder: Path, replies: list[Any], **more: Any) -> Path:
    return mock_plan(folder, replies, **{"session": SESSION, "instruction": "be brief", **more})


def run(plan: Path, prompt: str, *arguments: str, session: str = "s") -> Finished:
    done = succeed("run", "-f", plan, prompt, "--session", session, *arguments)
    return done


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def own_file(home: Path, session: str = "s") -> list[dict[str, Any]]:
    return lines(home / "sessions" / session / "context.jsonl")[1:]


def transcript(home: Path, session: str = "s") -> list[dict[str, Any]]:
    return lines(home / "sessions" / session / "transcript.jsonl")


def asked(home: Path, session: str = "s") -> list[Any]:
    """The roles and texts of the messages of each request, from the session's log."""
    events = lines(home / "sessions" / session / "events.jsonl")
    return [
        [message["content"] for message in event["data"]["messages"] if message["role"] == "user"]
        for event in events
        if event["event"] == "provider:request"
    ]


LOGGED = [{"module": "hooks-logging", "config": {"include_messages": True}}]


def test_a_resumed_session_doubles_nothing_and_loses_nothing(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, ["one", "two"], hooks=LOGGED)
    home = run(plan, "first").home
    run(plan, "second")
    run(plan, "third")
    stored = own_file(home)
    assert [m["role"] for m in stored] == ["system", *(["user", "assistant"] * 3)]
    assert transcript(home) == stored
    assert asked(home) == [["first"], ["first", "second"], ["first", "second", "third"]]


def test_where_its_file_knows_more_the_transcript_follows(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, ["one", "two"], hooks=LOGGED)
    home = run(plan, "first").home
    path = home / "sessions" / "s" / "transcript.jsonl"
    # As after a crash between the two files.
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    run(plan, "second")
    assert asked(home)[-1] == ["first", "second"]
    assert transcript(home) == own_file(home)
    assert len(own_file(home)) == 5


def test_a_conversation_cleared_in_its_file_alone_is_cleared_in_the_transcript(
    tmp_path: Path,
) -> None:
    plan = plan_of(tmp_path, ["one"], hooks=LOGGED)
    home = run(plan, "first").home
    # As after a crash between the two files, while /clear was carried out.
    with (home / "sessions" / "s" / "context.jsonl").open("a") as file:
        file.write('{"control":"clear"}\n')
    run(plan, "second")
    shown = run_amplifier("session", "show", "s", "--output", "json", home=home)
    users = [m["content"] for m in json.loads(shown.stdout)["messages"] if m["role"] == "user"]
    assert users == asked(home)[-1] == ["second"]


def test_an_unanswered_call_is_answered_once_in_both_files(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, ["one"])
    home = run(plan, "first").home
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    with (home / "sessions" / "s" / "context.jsonl").open("a") as file:
        file.write(json.dumps(message) + "\n")
    run(plan, "second")
    run(plan, "third")
    stored = own_file(home)
    assert sum(m.get("tool_call_id") == "c1" for m in stored) == 1
    assert transcript(home) == stored


def test_a_session_begun_with_another_context_goes_on_with_its_messages(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, ["one"], hooks=LOGGED)
    simple = {"orchestrator": "loop-basic", "context": "context-simple"}
    other = plan_of(tmp_path, ["one"], name="other.yaml", session=simple, hooks=LOGGED)
    home = run(other, "first").home
    assert not (home / "sessions" / "s" / "context.jsonl").exists()
    run(plan, "second")
    run(plan, "third")
    assert asked(home)[-1] == ["first", "second", "third"]
    run(other, "fourth")
    assert asked(home)[-1] == ["first", "second", "third", "fourth"]
    # Its file lacks the fourth prompt; a warning is shown, and the file takes precedence.
    reported = run(plan, "fifth").stderr
    assert asked(home)[-1] == ["first", "second", "third", "fifth"]
    assert "2 of those given are not among them" in reported


def test_one_conversation_for_several_sessions(tmp_path: Path) -> None:
    context = {"module": "context-persistent", "config": {"path": str(tmp_path / "mine.jsonl")}}
    session = {"orchestrator": "loop-basic", "context": context}
    plan = plan_of(tmp_path, ["one"], session=session, hooks=LOGGED)
    run(plan, "first", session="a")
    home = run(plan, "second", session="b").home
    assert asked(home, "b") == [["first", "second"]]
    shown = run_amplifier("session", "show", "b", "--output", "json")
    users = [m["content"] for m in json.loads(shown.stdout)["messages"] if m["role"] == "user"]
    assert users == ["first", "second"]


ANOTHER = """
from amplifier_core.testing import MockContextManager

__amplifier_module_type__ = "context"


class Another(MockContextManager):
    async def add_message(self, message):
        await super().add_message({**message, "timestamp": len(self.messages)})


async def mount(coordinator, config=None):
    context = Another()
    for text in (config or {}).get("memory", []):
        await context.add_message({"role": "system", "content": text})
    await coordinator.mount("context", context)
"""


def test_another_module_of_this_name_takes_its_place_by_source(tmp_path: Path) -> None:
    folder = module_folder(tmp_path, ANOTHER, "amplifier_module_context_persistent")
    context = {
        "module": "context-persistent",
        "source": str(folder),
        "config": {"memory": ["use tabs"]},
    }
    session = {"orchestrator": "loop-basic", "context": context}
    plan = plan_of(tmp_path, ["one"], session=session, hooks=LOGGED)
    for prompt in ("first", "second", "third"):
        home = run(plan, prompt).home
    assert not (home / "sessions" / "s" / "context.jsonl").exists()
    assert asked(home) == [["first"], ["first", "second"], ["first", "second", "third"]]
    said = [(message["role"], message["content"]) for message in transcript(home)]
    assert said[:3] == [("system", "use tabs"), ("system", "be brief"), ("user", "first")]
    assert len(said) == 8


def test_a_damaged_file_ends_the_run_and_names_the_line(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, ["one"])
    home = run(plan, "first").home
    path = home / "sessions" / "s" / "context.jsonl"
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join([whole[0], "garbage\n", *whole[1:]]))
    done = run_amplifier("run", "-f", plan, "second", "--session", "s")
    assert done.code == 3
    assert "context.jsonl:2" in done.stderr
    assert "Fix or remove the line" in done.stderr


def test_no_save_leaves_no_file(tmp_path: Path) -> None:
    done = run_amplifier("run", "-f", plan_of(tmp_path, ["ok"]), "hi", "--no-save")
    assert (done.code, done.stdout, done.stderr.strip()) == (0, "ok\n", "")
    assert not (done.home / "sessions").exists()


def test_a_run_that_is_killed_can_be_gone_on_with(tmp_path: Path) -> None:
    commands = [{"name": "bash", "input": {"command": f"true {n}"}} for n in range(40)]
    steps = [{"tool_calls": [command]} for command in commands]
    plan = plan_of(tmp_path, [*steps, "done"], tools=[{"module": "tool-bash"}])
    home = tmp_path / "home"
    child = start_amplifier("run", "-f", plan, "go", "--session", "s", "--yes", home=home)
    time.sleep(0.8)
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    short = mock_plan(tmp_path, ["went on"], name="short.yaml", session=SESSION)
    done = run_amplifier("run", "-f", short, "more", "--session", "s", home=home)
    assert (done.code, done.stdout) == (0, "went on\n"), done.stderr
    stored = own_file(home)
    called = [call["id"] for m in stored for call in m.get("tool_calls") or ()]
    answered = [m["tool_call_id"] for m in stored if m["role"] == "tool"]
    assert sorted(called) == sorted(answered)
    shown = run_amplifier("session", "show", "s", "--output", "json", home=home)
    assert json.loads(shown.stdout)["messages"] == stored


def test_summaries_are_counted_and_not_stored(tmp_path: Path) -> None:
    config = {"strategy": "summarize", "keep_recent_turns": 1}
    session = {**SESSION, "context": {"module": "context-persistent", "config": config}}
    reply = {"text": "an answer", "usage": {"input_tokens": 1_000, "output_tokens": 10}}
    mock = {"context_window": 6_000, "max_output_tokens": 500, "on_end": "repeat"}
    plan = plan_of(tmp_path, [reply], session=session, hooks=LOGGED, mock=mock)
    prompts = [f"{number} " + "word " * 800 for number in range(4)]
    for prompt in prompts:
        done = run(plan, prompt, "--output", "json")
    usage = json.loads(done.stdout)["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (2_000, 20)
    events = lines(done.home / "sessions" / "s" / "events.jsonl")
    requests = [event["data"] for event in events if event["event"] == "provider:request"]
    assert [data.get("purpose") for data in requests[-2:]] == ["context:summary", None]
    assert requests[-2]["turn_id"] == requests[-1]["turn_id"]
    assert requests[-2]["span_id"] != requests[-1]["span_id"]
    assert "an answer" in [
        str(message["content"]).rpartition("]\n\n")[2] for message in requests[-1]["messages"]
    ]
    stored = own_file(done.home)
    assert [m["content"] for m in stored if m["role"] == "user"] == prompts
    assert transcript(done.home) == stored


def test_the_plans_instruction_is_given_also_where_the_file_begins_with_a_note(
    tmp_path: Path,
) -> None:
    own = tmp_path / "mine.jsonl"
    note = {"role": "system", "content": "use tabs"}
    own.write_text('{"format":"amplifier-context","version":1}\n' + json.dumps(note) + "\n")
    context = {"module": "context-persistent", "config": {"path": str(own)}}
    plan = plan_of(tmp_path, ["one"], session={"orchestrator": "loop-basic", "context": context})
    run(plan, "first", session="a")
    run(plan, "second", session="b")
    stored = lines(own)[1:]
    assert [m["content"] for m in stored if m["role"] == "system"] == ["use tabs", "be brief"]


@pytest.mark.parametrize(
    ("module", "strategy"),
    [("context-simple", "summarize"), ("context-persistent", "importance")],
)
def test_a_long_turn_over_http_stays_within_its_room(
    tmp_path: Path, module: str, strategy: str
) -> None:
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text(f"a line of notes {number}\n" * 500)
    config = {"strategy": strategy, "compaction_threshold": 0.015, "keep_recent_turns": 1}
    plan = tmp_path / "plan.yaml"
    content = {
        "session": {
            "orchestrator": "loop-streaming",
            "context": {"module": module, "config": config},
        },
        "providers": [{"module": "provider-anthropic"}],
        "tools": [{"module": "tool-filesystem"}],
        "instruction": "be brief",
    }
    plan.write_text(yaml.safe_dump(content))
    looks = [ToolCall("read_file", {"path": f"{number}.txt"}) for number in range(20)]
    script = [Reply(f"step {number}", [look]) for number, look in enumerate(looks)]
    with ScriptedLLM.running([*script, "done"]) as server:
        done = run_amplifier("run", "-f", plan, "go on reading", cwd=tmp_path, env=server.env)
        bodies = [completion.body for completion in server.completions]
    assert (done.code, done.stdout) == (0, "done\n"), done.stderr
    assert len(bodies) == 21
    asked = [body for body in bodies if not body.get("tools")]
    assert bool(asked) == (strategy == "summarize")
    if asked:
        assert "[Summary of earlier messages" in json.dumps(bodies[-1]["messages"])
    # Of about 270,000; the server counts half of what is estimated, which contexts learn.
    assert max(len(json.dumps(body["messages"])) for body in bodies) < 130_000
    assert "go on reading" in json.dumps(bodies[-1]["messages"])
