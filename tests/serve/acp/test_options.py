"""Settings and slash commands of a session, offered in the editor; and MCP servers that it brings."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.serve.acp.editor import Refused, running
from tests.support.llm_server import ScriptedLLM
from tests.support.plans import mock_plan
from tests.support.warm_program import script_command

SERVER = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("demo")


@server.tool()
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b


server.run()
"""
WAITING_SERVER = f"""
import pathlib, time

while not pathlib.Path("go").exists():
    time.sleep(0.01)
{SERVER}
"""
"""A server that is not ready before there is a file `go` in its directory."""


def test_a_session_is_continued_with_another_budget_profile_and_mode(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, [], mock={"on_end": "echo"}, hooks=["hooks-approval"])
    with running("-f", plan) as editor:
        editor.initialize()
        opened = editor.call("session/new", cwd=str(tmp_path), mcpServers=[])
        session = opened["sessionId"]
        assert opened["modes"]["currentModeId"] == "ask"
        values = {one["id"]: one["currentValue"] for one in opened["configOptions"]}
        fresh = {"mode": "ask", "model": "mock-model", "profile": "test", "budget": "none"}
        assert values == fresh
        editor.prompt(session, "first")
        for option, value in (("budget", "5"), ("mode", "edits"), ("budget", "none")):
            changed = editor.set_option(session, option, value)
            assert changed[option] == value
        assert changed["mode"] == "edits"
        editor.prompt(session, "second")
        assert editor.text().endswith("You said: second")
        for option, value in (("budget", "-3"), ("budget", [5]), (["budget"], "5"), ({}, "5")):
            with pytest.raises(Refused, match="unknown") as refused:
                editor.set_option(session, option, value)
            assert refused.value.code == -32602
        with pytest.raises(Refused, match="mode"):
            editor.call("session/set_mode", sessionId=session, modeId="nonsense")


def test_a_setting_changed_before_the_first_prompt_keeps_the_session(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, [], mock={"on_end": "echo"}, hooks=["hooks-approval"])
    with running("-f", plan) as editor:
        session = editor.open(tmp_path)
        for budget in ("5", "none"):
            editor.set_option(session, "budget", budget)
        editor.prompt(session, "hello")
        assert editor.text(session) == "You said: hello"
        assert {id for id, _ in editor.updates} == {session}


def test_prompts_and_settings_are_handled_in_the_order_they_come(tmp_path: Path) -> None:
    # The prompt takes longer than the editor may need to send its next request.
    mock = {"on_end": "echo", "delay": 0.5}
    plan = mock_plan(tmp_path, [], mock=mock, hooks=["hooks-approval"])
    with running("-f", plan) as editor:
        session = editor.open(tmp_path)
        change = {"sessionId": session, "configId": "budget", "value": "none"}
        for number in range(3):
            budget = editor.begin("session/set_config_option", **change)
            # The session is open all the same, and the setting may be made already.
            if number == 1:
                editor.notify("$/cancel_request", requestId=editor.last_id)
            mode = editor.begin("session/set_mode", sessionId=session, modeId="edits")
            prompt = editor.begin_prompt(session, f"{number} ")
            with pytest.raises(Refused, match="while a prompt is running"):
                editor.call("session/set_config_option", **change)
            assert mode.result(60) == {}
            assert prompt.result(60)["stopReason"] == "end_turn"
            assert budget.exception(60) is None or number == 1
        assert editor.text() == "You said: 0 You said: 1 You said: 2 "


def test_the_answer_that_opens_a_session_lists_the_models_of_the_provider(tmp_path: Path) -> None:
    with ScriptedLLM.running(["hello"], models=["small", "large"]) as server:
        config = {"base_url": server.base_url, "api_key": "key", "model": "small"}
        provider = {"module": "provider-anthropic", "config": config}
        with running("-f", mock_plan(tmp_path, [], providers=[provider])) as editor:
            editor.initialize()
            opened = editor.call("session/new", cwd=str(tmp_path), mcpServers=[])
            (model,) = (one for one in opened["configOptions"] if one["id"] == "model")
            assert [choice["value"] for choice in model["options"]] == ["small", "large"]
            session = opened["sessionId"]
            editor.set_option(session, "model", "large")
            editor.prompt(session, "hello")
        assert [request.body["model"] for request in server.completions] == ["large"]


def test_slash_commands_are_announced_and_run(tmp_path: Path) -> None:
    with running("-f", mock_plan(tmp_path, ["one", "two"])) as editor:
        session = editor.open(tmp_path)
        listed = editor.wait_for("available_commands_update")[0]["availableCommands"]
        assert {"status", "compact", "review"} <= {command["name"] for command in listed}
        assert editor.prompt(session, "/status")["stopReason"] == "end_turn"
        assert session in editor.text()
        assert editor.prompt(session, "/review")["stopReason"] == "end_turn"
        assert editor.text().endswith("one")
        assert editor.prompt(session, "/usr/bin is a path")["stopReason"] == "end_turn"
        assert editor.text().endswith("two")
        with pytest.raises(Refused, match="takes no argument"):
            editor.prompt(session, "/status of what")


def test_the_mcp_servers_of_the_editor_are_mounted(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(WAITING_SERVER)
    command, *arguments = script_command(tmp_path / "server.py")
    server: dict[str, Any] = {
        "command": command,
        "args": arguments,
        "env": [{"name": "X", "value": "1"}],
    }
    servers = [{"name": name, **server} for name in ("my demo", "my-demo")]
    names = ("mcp_my-demo_add", "mcp_my-demo-2_add")
    calls = [{"name": name, "input": {"a": 2, "b": 3}} for name in names]
    own = {"module": "tool-mcp", "config": {"servers": {"own": {"command": "no-such-program"}}}}
    session_parts = {"orchestrator": "loop-basic", "context": "context-simple", "sandbox": "off"}
    replies = [{"tool_calls": calls}, "done"]
    plan = mock_plan(tmp_path, replies, tools=[own], session=session_parts)
    with running("-f", plan) as editor:
        session = editor.open(tmp_path, mcpServers=servers)
        prompt = editor.begin_prompt(session, "add")
        (thought,) = editor.wait_for("agent_thought_chunk")
        assert thought["content"]["text"] == "waiting for the MCP servers: my-demo, my-demo-2\n\n"
        (tmp_path / "go").touch()
        assert prompt.result(60)["stopReason"] == "end_turn"
        for ended in editor.wait_for("tool_call_update", 2):
            assert ended["status"] == "completed", ended
            assert "5" in ended["rawOutput"]
        editor.prompt(session, "/mcp")
        lines = editor.text().splitlines()
        assert [line.partition(": ")[0] for line in lines if line.count(": ")][-3:] == [
            *("own", "my-demo", "my-demo-2")
        ]
        assert "already exists" not in str(editor.updates)


def test_a_prompt_that_waits_for_a_server_can_be_cancelled(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(WAITING_SERVER)
    server = {"name": "x", "command": sys.executable, "args": [str(tmp_path / "server.py")]}
    with running("-f", mock_plan(tmp_path, ["done"])) as editor:
        session = editor.open(tmp_path, mcpServers=[server])
        prompt = editor.begin_prompt(session, "hello")
        editor.wait_for("agent_thought_chunk")
        editor.notify("session/cancel", sessionId=session)
        assert prompt.result(60)["stopReason"] == "cancelled"


def test_prompts_go_on_without_servers_that_fail_or_that_the_module_refuses(tmp_path: Path) -> None:
    failing = {"name": "broken", "command": sys.executable, "args": ["-c", "raise SystemExit(3)"]}
    refused = {"name": "x", "type": "http", "url": "ftp://127.0.0.1", "headers": []}
    with running("-f", mock_plan(tmp_path, ["done"])) as editor:
        for server, warnings in (
            (failing, ["warning: MCP server broken is not ready"]),
            (refused, ["warning: the MCP servers are not available: ", "must begin with http"]),
        ):
            session = editor.open(tmp_path, mcpServers=[server])
            assert editor.prompt(session, "hello")["stopReason"] == "end_turn"
            shown = str([update for id, update in editor.updates if id == session])
            assert [warning for warning in warnings if warning not in shown] == []


UNUSABLE_SERVERS: list[Any] = [
    "x",
    {"name": "x"},
    {"name": 7, "command": "x"},
    {"name": "x", "command": "x", "args": "-v"},
    {"name": "x", "command": "x", "args": [1]},
    {"name": "x", "command": "x", "args": [], "env": {"A": "b"}},
    {"name": "x", "command": "x", "args": [], "env": ["A=b"]},
    {"name": "x", "command": "x", "args": [], "env": [{"name": "A", "value": 1}]},
    {"name": "x", "type": "sse", "url": "http://127.0.0.1"},
    {"name": "x", "type": "http", "url": 7},
]


def test_servers_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with running("-f", mock_plan(tmp_path, ["done"])) as editor:
        for server in UNUSABLE_SERVERS:
            with pytest.raises(Refused) as refused:
                editor.open(tmp_path, mcpServers=[server])
            assert refused.value.code == -32602, server
