"""Sub-agents with real processes and a strict server: started, resumed, counted, shown."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.sessions.store import SessionStore
from tests.e2e.agent_scripts import (
    KEY,
    LEAD,
    plan_of,
    requests_of,
    running_agents,
    simultaneous,
    task,
    tasks,
)
from tests.support.cli import Finished, run_amplifier, succeed
from tests.support.llm_server import Reply, Request, ScriptedLLM, Status, ToolCall
from tests.support.plans import mock_plan, module_folder
from tests.support.schemas import RESULT, STREAM
from tests.support.terminal import Terminal

READ = Reply("Let me look.", [ToolCall("read_file", {"path": "notes.txt"})])
SHELL = Reply(tool_calls=[ToolCall("bash", {"command": "echo from the shell"})])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "notes.txt").write_text("the notes\n")
    return tmp_path


def run(plan: Path, *arguments: str) -> Finished:
    allowed = ("run", "-f", plan, "--approve", "allow")
    return run_amplifier(*allowed, *arguments, cwd=plan.parent, env=KEY)


def to_result(done: Finished, code: int = 0) -> dict[str, Any]:
    assert done.code == code, done.stderr
    assert "Traceback" not in done.stderr
    # An agent that may not delegate further lacks the tool; the module is not at fault.
    assert "'tool-task' was not mounted" not in done.stderr
    result = json.loads(done.stdout)
    RESULT.validate(result)
    return result


def saved(session_id: str) -> dict[str, Any]:
    shown = succeed("session", "show", session_id, "--output", "json")
    return json.loads(shown.stdout)


def tool_results(body: Any) -> list[str]:
    """Return the tool results in the last message of a request, as texts."""
    blocks = body["messages"][-1]["content"]
    return [json.dumps(block["content"]) for block in blocks if block["type"] == "tool_result"]


def test_two_agents_work_in_parallel_and_one_is_resumed(folder: Path) -> None:
    both = simultaneous(2)

    def again(request: Request) -> Reply:
        first, _ = tool_results(request.body)
        (session_id,) = re.findall(r"s1-[0-9a-f]+_reader", first)
        more = {"session_id": session_id, "instruction": "go on"}
        return Reply(tool_calls=[ToolCall("task", more)])

    lines: dict[str, list[Any]] = {
        LEAD: [tasks("reader", "sheller"), again, "All is done."],
        "reader": [both(READ), "It says: the notes.", "And nothing more."],
        "sheller": [both(SHELL), "It printed."],
    }
    agents = {"reader": {"tools": ["tool-filesystem"]}, "sheller": {}}
    with running_agents(lines) as server:
        plan = plan_of(folder, server, agents)
        result = to_result(run(plan, "Go.", "--session", "s1", "--output", "json"))
        assert server.rejections == []
        assert result["response"] == "All is done."
        (resumed,) = tool_results(server.completions[-1].body)
        assert "And nothing more." in resumed
        check_what_agents_had(server)
        check_totals(server, result)
        check_sessions(plan, result)


def test_a_fork_continues_the_agents_of_its_source(folder: Path) -> None:
    def again(request: Request) -> Reply:
        session_id = re.findall(r"[\w-]+-[0-9a-f]{16}\w*", json.dumps(request.body["messages"]))[-1]
        return Reply(tool_calls=[task("reader", "go on", session_id=session_id)])

    lines: dict[str, list[Any]] = {
        LEAD: [tasks("reader"), again, "All is done.", again, "Really."],
        "reader": ["first", "second", "third"],
    }

    def continued(session_id: str) -> list[str]:
        assert run(plan, "More.", "--resume", session_id).code == 0
        return tool_results(server.completions[-1].body)

    with running_agents(lines) as server:
        plan = plan_of(folder, server, {"reader": {}})
        assert run(plan, "Go.", "--session", "s1").code == 0
        [child] = [one for one in SessionStore().summaries() if one.parent == "s1"]
        before = (SessionStore().root / child.id / "transcript.jsonl").read_bytes()

        def fork(*arguments: str) -> str:
            done = succeed("session", "fork", *arguments, cwd=folder)
            return done.stdout.strip()

        early, late = fork("s1", "--at", "1"), fork("s1")
        assert '\\"response\\": \\"second\\"' in continued(early)[0], "as it was after the step"
        assert '\\"response\\": \\"third\\"' in continued(late)[0]
        # A fork of a fork takes over the copy, by the id that its transcript has.
        assert '\\"response\\": \\"third\\"' in continued(fork(early))[0]
        assert server.rejections == []
    assert (SessionStore().root / child.id / "transcript.jsonl").read_bytes() == before
    copies = [one for one in SessionStore().summaries() if one.agent and one.parent != "s1"]
    assert len(copies) == 3
    assert {one.parent for one in copies} >= {early, late}


def check_what_agents_had(server: ScriptedLLM) -> None:
    """Separate conversations, restricted tools, and no tool to delegate further."""
    reader, sheller = requests_of(server, "reader"), requests_of(server, "sheller")
    assert len(reader) == 3
    names = {tool["name"] for tool in reader[0]["tools"]}
    assert "read_file" in names
    assert not names & {"bash", "task"}
    assert "bash" in {tool["name"] for tool in sheller[0]["tools"]}
    assert "task" not in {tool["name"] for tool in sheller[0]["tools"]}
    assert [message["role"] for message in reader[0]["messages"]] == ["user"]
    assert "the notes" in json.dumps(reader[1])
    assert "from the shell" in json.dumps(sheller[1])
    said = json.dumps(reader[2])
    assert "It says: the notes." in said
    assert "go on" in said


def check_totals(server: ScriptedLLM, result: dict[str, Any]) -> None:
    subs = result["sub_sessions"]
    assert [(sub["agent"], sub["steps"]) for sub in subs if sub["agent"] == "reader"] == [
        ("reader", 2),
        ("reader", 1),
    ]
    assert {sub["parent_id"] for sub in subs} == {"s1"}
    assert result["steps"] == 3
    requests = len(server.completions)
    assert result["steps"] + sum(sub["steps"] for sub in subs) == requests == 8
    assert result["usage"]["output_tokens"] == 5 * requests
    each = result["cost"]["usd"] / requests
    assert each > 0
    assert [sub["cost"]["usd"] for sub in subs] == [
        pytest.approx(each * sub["steps"]) for sub in subs
    ]


def check_sessions(plan: Path, result: dict[str, Any]) -> None:
    reader = next(sub["session_id"] for sub in result["sub_sessions"] if sub["agent"] == "reader")
    output = run_amplifier("session", "list", "--all", "--output", "json").stdout
    (lead,) = json.loads(output)
    assert lead["id"] == "s1"
    agents = [(sub["agent"], sub["title"]) for sub in lead["sub_sessions"]]
    assert ("reader", "work") in agents
    shown = saved("s1")
    assert reader in shown["sub_sessions"]
    child = saved(reader)["metadata"]
    assert (child["parent"], child["agent"], child["depth"]) == ("s1", "reader", 1)
    assert child["prompts"] == 2
    assert f"sub-session {reader} (reader: work)" in run_amplifier("session", "show", "s1").stdout
    home = Path(run_amplifier("session", "list").home)
    events = (home / "sessions" / reader / "events.jsonl").read_text().splitlines()
    facts = [json.loads(line) for line in events]
    fork = next(fact for fact in facts if fact["event"] == "session:fork")
    assert "s1" in json.dumps(fork)
    assert all(reader in line and '"s1"' in line for line in events)
    # A turn of an agent is part of the tool call that waits for it.
    log = (home / "sessions" / "s1" / "events.jsonl").read_text().splitlines()
    calls = [fact for fact in map(json.loads, log) if fact["event"] == "tool:pre"]
    turns = [fact["data"] for fact in facts if fact["event"] == "prompt:submit"]
    spans = {fact["data"]["span_id"] for fact in calls if fact["data"]["tool_name"] == "task"}
    assert len(turns) == 2
    assert {turn["parent_span_id"] for turn in turns} < spans


def test_the_user_can_resume_a_sub_session(folder: Path, tmp_path: Path) -> None:
    lines = {
        LEAD: [tasks("worker"), "Done.", "Here I am."],
        "worker": ["I worked.", SHELL, "Still me."],
    }
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with running_agents(lines) as server:
        plan = plan_of(folder, server, {"worker": {"tools": ["tool-bash"]}})
        result = to_result(run(plan, "Go.", "--session", "s1", "--output", "json"))
        child = result["sub_sessions"][0]["session_id"]
        # The last session of the directory is not a sub-session.
        last = run(plan, "--continue", "Who?")
        assert (last.code, last.stdout) == (0, "Here I am.\n"), last.stderr
        again = run_amplifier(
            "run", "--resume", child, "--approve", "allow", "Who?", cwd=elsewhere, env=KEY
        )
        assert (again.code, again.stdout) == (0, "Still me.\n"), again.stderr
        offered = {tool["name"] for tool in requests_of(server, "worker")[-1]["tools"]}
        assert "bash" in offered
        assert not offered & {"read_file", "task"}
        assert server.rejections == []
    assert saved(child)["metadata"]["prompts"] == 2


def test_errors_of_an_agent_are_reported_to_its_parent(folder: Path) -> None:
    lines = {
        LEAD: [tasks("unknown", "broken", "refused", "fine"), "I see."],
        "refused": [Status(401)],
        "fine": ["Fine."],
    }
    agents = {
        "broken": {"tools": [{"module": "tool-bash", "config": {"tiemout": 3}}]},
        "refused": {},
        "fine": {},
    }
    with running_agents(lines) as server:
        plan = plan_of(folder, server, agents)
        result = to_result(run(plan, "Go.", "--output", "json"))
        unknown, broken, refused, fine = tool_results(requests_of(server, LEAD)[1])
        assert "unknown agent 'unknown'; available agents: broken, fine, refused" in unknown
        assert "tiemout" in broken
        assert "agent 'refused' failed" in refused
        assert "continue with session_id" in refused
        assert "Fine." in fine
        assert result["response"] == "I see."
        assert [tool["outcome"] for tool in result["tools"]] == ["error", "error", "error", "ok"]
        assert {(sub["agent"], sub["status"]) for sub in result["sub_sessions"]} == {
            ("refused", "error"),
            ("fine", "success"),
        }


def test_all_agents_share_one_budget(folder: Path) -> None:
    lines = {
        LEAD: [tasks("worker", "worker", "worker"), "Never said."],
        "worker": [SHELL] * 20,
    }
    with running_agents(lines) as server:
        plan = plan_of(folder, server, {"worker": {}}, session={"budget": {"max_steps": 7}})
        result = to_result(run(plan, "Go.", "--output", "json"), code=7)
        assert result["outcome"] == "budget"
        assert len(server.completions) == 7
        assert {sub["status"] for sub in result["sub_sessions"]} == {"incomplete"}


def test_denials_of_an_agent_count_for_the_run(folder: Path) -> None:
    touch = Reply(tool_calls=[ToolCall("bash", {"command": "touch made"})])
    lines = {LEAD: [tasks("worker"), "It was refused."], "worker": [touch, "I may not."]}
    rules = {"rules": [{"action": "allow", "tool": "task"}]}
    with running_agents(lines) as server:
        hooks = [{"module": "hooks-approval", "config": rules}]
        plan = plan_of(folder, server, {"worker": {}}, hooks=hooks)
        done = run_amplifier(
            "run", "-f", plan, "--approve", "deny", "Go.", "--output", "json", cwd=folder, env=KEY
        )
        assert to_result(done, code=8)["outcome"] == "denied"
        assert "denied" in tool_results(requests_of(server, "worker")[1])[0]


def test_the_event_stream_has_the_start_and_end_of_sub_sessions(folder: Path) -> None:
    lines = {LEAD: [tasks("worker"), "Done."], "worker": [SHELL, "I worked."]}
    with running_agents(lines) as server:
        plan = plan_of(folder, server, {"worker": {}})
        done = run(plan, "Go.", "--session", "s1", "--output", "stream-json")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    for event in events:
        STREAM.validate(event)
    kinds = [event["type"] for event in events]
    start, end = kinds.index("sub_session_start"), kinds.index("sub_session_end")
    assert kinds.index("tool_start") < start < end < kinds.index("tool_end")
    # Calls and text of the agent are not shown between those of the parent.
    assert end == start + 1
    assert (events[start]["parent_id"], events[start]["instruction"]) == ("s1", "work")
    ended = {key: value for key, value in events[end].items() if key != "type"}
    assert events[-1]["sub_sessions"] == [ended]


def test_changes_and_answers_of_an_agent_are_shown_like_those_of_the_session(
    tmp_path: Path,
) -> None:
    edit = {"file_path": "parse.py", "old_string": "None", "new_string": "{}"}
    answer = "I have fixed it.\n\nIt returns an empty mapping."
    fixing = [{"tool_calls": [{"name": "edit_file", "input": edit}]}, answer]
    asked = {"name": "task", "input": {"agent": "fixer", "instruction": "Fix it."}}
    plan = mock_plan(
        tmp_path,
        [{"tool_calls": [asked]}, "done here"],
        tools=["tool-filesystem", "tool-task"],
        hooks=["hooks-approval"],
        agents={
            "fixer": {
                "providers": [{"module": "provider-mock", "config": {"replies": fixing}}],
                "tools": ["tool-filesystem"],
            }
        },
    )
    (tmp_path / "parse.py").write_text("return None\n")
    with Terminal(
        "run", "-f", plan, "--mode", "auto", "--session", "s1", "go", cwd=tmp_path
    ) as terminal:
        terminal.until(r"✓ fixer: edit_file parse.py · \+1 −1")
        terminal.until(r"1 \+ return \{\}")
        terminal.until("1 file changed")
        assert terminal.finish() == 0
    (tmp_path / "parse.py").write_text("return None\n")
    done = run_amplifier("run", "-v", "-f", plan, "--mode", "auto", "go", cwd=tmp_path)
    assert "fixer: edit_file parse.py: ok" in done.stderr
    assert "1 file changed" in done.stderr
    for command in (
        ("session", "show", "s1"),
        ("session", "show", "s1", "--call", "1"),
        ("session", "export", "s1", "--html"),
        ("session", "search", "empty mapping"),
    ):
        shown = run_amplifier(*command, cwd=tmp_path).stdout
        assert "fixed it" in shown or "3 lines" in shown, command
        assert not re.search('("|&quot;)response', shown), command


def test_the_user_is_asked_to_approve_calls_of_an_agent(folder: Path) -> None:
    write = {"path": "made.txt", "content": "by the worker"}
    lines = {
        LEAD: [tasks("worker"), "Done."],
        "worker": [Reply(tool_calls=[ToolCall("write_file", write)]), "I wrote it."],
    }
    rules = {"rules": [{"action": "allow", "tool": "task"}]}
    with running_agents(lines) as server:
        hooks = [{"module": "hooks-approval", "config": rules}]
        plan = plan_of(folder, server, {"worker": {}}, hooks=hooks)
        with Terminal("run", "-f", plan, "Go.", cwd=folder, env=KEY) as terminal:
            terminal.until("worker: Write.*made.txt")
            terminal.until("[?] more")
            terminal.type("y")
            terminal.until(r"✓ (1 )?task worker: work")
            terminal.until("Done.")
            assert terminal.finish() == 0
    assert (folder / "made.txt").read_text() == "by the worker"


MARKING = """
from pathlib import Path

__amplifier_module_type__ = "hook"


async def mount(coordinator, config=None):
    with open(config["file"], "a") as file:
        file.write(f"{coordinator.parent_id}\\n")
"""


def test_code_of_an_agent_runs_only_while_the_project_is_trusted(folder: Path) -> None:
    lines = {LEAD: [tasks("worker"), "Done."], "worker": ["I worked.", "Again."]}
    project, mark = folder / ".amplifier", folder / "mark"
    (project / "profiles").mkdir(parents=True)
    source = module_folder(project, MARKING, "amplifier_module_marking")
    hook = {"module": "marking", "source": str(source), "config": {"file": str(mark)}}
    ask = ("--approve", "allow", "--output", "json")
    with running_agents(lines) as server:
        plan = plan_of(folder, server, {"worker": {"hooks": [hook]}})
        plan.rename(project / "profiles" / "cast.yaml")

        def run_here(*arguments: str) -> Finished:
            return run_amplifier("run", *arguments, *ask, cwd=folder, env=KEY)

        assert run_here("-P", "cast", "Go.").code == 78
        assert not mark.exists()
        done = run_here("-P", "cast", "Go.", "--trust", "--session", "s1")
        child = to_result(done)["sub_sessions"][0]["session_id"]
        assert mark.read_text().count("s1") == 1
        code = source / "amplifier_module_marking" / "__init__.py"
        code.write_text(code.read_text() + "\n# changed\n")
        assert run_here("--resume", child, "Go on.").code == 78
        assert mark.read_text().count("s1") == 1
        assert to_result(run_here("--resume", child, "--trust", "Go on."))["response"] == "Again."
        assert mark.read_text().count("s1") == 2
