"""Settings and slash commands of a session, offered in the editor; and MCP servers that it brings."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.serve.acp.editor import Refused, running
from tests.support.llm_server import ScriptedLLM
from tests.support.plans import mock_plan
from tests.support.waiting import wait_until

SERVER = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("demo")


@server.tool()
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b


server.run()
"""


def values(options: list[dict[str, Any]]) -> dict[str, str]:
    return {option["id"]: option["currentValue"] for option in options}


def test_a_session_is_continued_with_another_budget_profile_and_mode(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, [], mock={"on_end": "echo"}, hooks=["hooks-approval"])
    with running("-f", plan) as editor:
        editor.initialize()
        opened = editor.call("session/new", cwd=str(tmp_path), mcpServers=[])
        session = opened["sessionId"]
        assert opened["modes"]["currentModeId"] == "ask"
        assert values(opened["configOptions"]) == {
            **{"mode": "ask", "model": "mock-model", "profile": "test", "budget": "none"}
        }
        editor.prompt(session, "first")
        for option, value in (("budget", "5"), ("mode", "edits"), ("budget", "none")):
            changed = editor.call(
                "session/set_config_option", sessionId=session, configId=option, value=value
            )
            assert values(changed["configOptions"])[option] == value
        assert values(changed["configOptions"])["mode"] == "edits"
        editor.prompt(session, "second")
        assert editor.text().endswith("You said: second")
        with pytest.raises(Refused, match="unknown value"):
            editor.call(
                "session/set_config_option", sessionId=session, configId="budget", value="-3"
            )
        with pytest.raises(Refused, match="mode"):
            editor.call("session/set_mode", sessionId=session, modeId="nonsense")


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
            editor.call(
                "session/set_config_option", sessionId=session, configId="model", value="large"
            )
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
    (tmp_path / "server.py").write_text(SERVER)
    server = {
        "name": "my demo",
        "command": sys.executable,
        "args": [str(tmp_path / "server.py")],
        "env": [{"name": "X", "value": "1"}],
    }
    call = {"name": "mcp_my-demo_add", "input": {"a": 2, "b": 3}}
    plan = mock_plan(tmp_path, [{"tool_calls": [call]}, "done"])
    with running("-f", plan) as editor:
        session = editor.open(tmp_path, mcpServers=[server])

        def is_mounted() -> bool:
            editor.prompt(session, "/tools")
            return "mcp_my-demo_add" in editor.text()

        wait_until(is_mounted)
        editor.prompt(session, "add")
        (ended,) = editor.wait_for("tool_call_update")
    assert ended["status"] == "completed", ended
    assert "5" in ended["rawOutput"]
