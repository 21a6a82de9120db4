"""Clients and checks of others: acpx, the conformance suite of MCP, Claude Code, Codex, Harbor.

Their programs are found on PATH. `.ci/thorough` installs them, if the machine has npm and Python 3.12.
"""

import contextlib
import http.client
import json
import shutil
import subprocess
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.sessions.store import SessionStore
from tests.bench.peers import CODEX_CONFIG
from tests.serve.test_mcp_http import TOKEN
from tests.serve.test_mcp_http import serving as serving_mcp
from tests.support.cli import amplifier_command, child_environment, succeed
from tests.support.http_server import serving
from tests.support.llm_server import Reply, Request, ScriptedLLM, ToolCall
from tests.support.plans import mock_plan

pytestmark = pytest.mark.thorough

TASK = "touch the file"
ANSWER = "the answer of the plan"
GUARDED: dict[str, Any] = {"tools": ["tool-bash"], "hooks": ["hooks-approval"]}
CALLS: list[Any] = [{"tool_calls": [{"name": "bash", "input": {"command": "touch made"}}]}, ANSWER]


def program(name: str) -> str:
    """A program of others; the test is skipped without it."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def run(folder: Path, command: list[str], **env: str) -> subprocess.CompletedProcess[str]:
    environment = child_environment(folder / "home", {"HOME": str(folder), **env}, network=True)
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_acpx_gets_an_answer(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, CALLS, **GUARDED)
    agent = " ".join([*amplifier_command(), "serve", "acp", "-f", str(plan)])
    words = ["--approve-all", "--agent", agent, "--format", "json", "--json-strict", "exec", TASK]
    done = run(tmp_path, [program("acpx"), *words])
    assert done.returncode == 0, done.stderr
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    assert messages[-1]["result"]["stopReason"] == "end_turn"
    assert "session/request_permission" in [message.get("method") for message in messages]
    updates = [
        message["params"]["update"]
        for message in messages
        if "update" in str(message.get("params"))[:200]
    ]
    text = "".join(
        u["content"]["text"] for u in updates if u["sessionUpdate"] == "agent_message_chunk"
    )
    assert text == ANSWER
    assert (tmp_path / "made").exists()


NOT_APPLICABLE = (
    "Not testable",  # needs a diagnostic tool of the suite
    "unknown tool",
    "unknown method",
    "could not get initial InputRequiredResult",
    "Expected InputRequiredResult with inputRequests",
    "Tool 'json_schema_2020_12_tool' not found",
    "not available",
    "unavailable",
)
"""Messages of the suite about a tool, a resource or a prompt that it expects a server to have."""


class _WithToken(BaseHTTPRequestHandler):
    """Passes requests on with the token, which the suite cannot send."""

    protocol_version = "HTTP/1.1"
    address = ""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        connection = http.client.HTTPConnection(self.address, timeout=60)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() != "connection":
                connection.putheader(name, value)
        connection.putheader("Authorization", f"Bearer {TOKEN}")
        connection.endheaders(body)
        with contextlib.closing(connection):
            answer = connection.getresponse()
            content = answer.read()
        self.send_response(answer.status)
        for name in ("Content-Type", "Allow"):
            if (value := answer.getheader(name)) is not None:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_DELETE = do_OPTIONS = do_POST

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def test_the_scenarios_of_mcp_that_apply_pass(tmp_path: Path) -> None:
    conformance = program("conformance")
    with serving_mcp(tmp_path, mock_plan(tmp_path, [], mock={"on_end": "echo"})) as (url, _):
        address = url.removeprefix("http://").partition("/")[0]
        handler = type("Handler", (_WithToken,), {"address": address})
        with serving(handler) as proxy:
            words = ["server", "--url", f"{proxy}/mcp", "--requirements", "2026-07-28"]
            run(tmp_path, [conformance, *words, "-o", str(tmp_path / "results")])
    checks = [
        (file.parent.name.partition("-2026-")[0].removeprefix("server-"), check)
        for file in (tmp_path / "results").rglob("checks.json")
        for check in json.loads(file.read_text())
    ]
    failures = [
        f"{scenario}: {check['id']}: {check.get('errorMessage')}"
        for scenario, check in checks
        if check["status"] == "FAILURE"
        and not any(text in str(check.get("errorMessage")) for text in NOT_APPLICABLE)
        # Its calls are of tools of the suite, which it expects to become tasks.
        and not (scenario.startswith("tasks-") and "-32602" in str(check.get("errorMessage")))
    ]
    assert failures == []
    passed = {scenario for scenario, check in checks if check["status"] == "SUCCESS"}
    assert passed >= {"server-stateless", "tools-list", "http-header-validation", "caching"}
    assert passed >= {"dns-rebinding-protection", "tasks-capability-negotiation"}


def mcp_command(plan: Path) -> list[str]:
    return [*amplifier_command(), "serve", "mcp", "-f", str(plan), "--mode", "auto"]


def test_claude_code_calls_the_plan(tmp_path: Path) -> None:
    claude = program("claude")
    command, *arguments = mcp_command(mock_plan(tmp_path, CALLS, **GUARDED))
    server = {
        "command": command,
        "args": arguments,
        "env": {"AMPLIFIER_HOME": str(tmp_path / "home")},
    }
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"amplifier": server}}))
    tool = "mcp__amplifier__test"

    def answer(request: Request) -> Reply:
        if ANSWER in json.dumps(request.body["messages"]):
            return Reply("finished")
        if any(known["name"] == tool for known in request.body.get("tools", ())):
            return Reply(tool_calls=[ToolCall(tool, {"prompt": TASK})])
        # It begins before its servers are ready.
        return Reply(tool_calls=[ToolCall("Bash", {"command": "sleep 1", "description": "wait"})])

    with ScriptedLLM.running([answer], strict=False, repeat_last=True) as model:
        done = run(
            tmp_path,
            [
                *(claude, "-p", TASK, "--mcp-config", str(config), "--strict-mcp-config"),
                *("--allowedTools", f"{tool},Bash", "--max-turns", "60"),
            ],
            ANTHROPIC_API_KEY="sk-ant-test",
            ANTHROPIC_BASE_URL=model.base_url,
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
            IS_SANDBOX="1",
        )
    assert done.stdout.strip() == "finished", done.stderr
    assert (tmp_path / "made").exists()


_CODEX = (
    CODEX_CONFIG
    + """\
[mcp_servers.amplifier]
command = {command}
args = {arguments}
startup_timeout_sec = 120
default_tools_approval_mode = "approve"
[mcp_servers.amplifier.env]
AMPLIFIER_HOME = {home}
"""
)


def _answering(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> type[BaseHTTPRequestHandler]:
    """A server of the Responses API whose answer is one item; the scripted one has no namespaces."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
            events: list[dict[str, Any]] = [
                {"type": "response.created", "response": {"id": "r"}},
                {"type": "response.output_item.done", "output_index": 0, "item": answer(body)},
                {"type": "response.completed", "response": {"id": "r", "usage": usage}},
            ]
            lines = (f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events)
            content = "".join(lines).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    return Handler


def test_codex_calls_the_plan(tmp_path: Path) -> None:
    codex = program("codex")
    command, *arguments = mcp_command(mock_plan(tmp_path, CALLS, **GUARDED))

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        if ANSWER in json.dumps(body["input"]):
            content = [{"type": "output_text", "text": "finished"}]
            return {"type": "message", "role": "assistant", "id": "m", "content": content}
        number = str(len(body["input"]))
        call = {"type": "function_call", "id": f"f{number}", "call_id": f"c{number}"}
        for space in (tool for tool in body["tools"] if tool.get("type") == "namespace"):
            if "amplifier" in space["name"]:
                given = {"name": "test", "arguments": json.dumps({"prompt": TASK})}
                return {**call, **given, "namespace": space["name"]}
        return {**call, "name": "exec_command", "arguments": json.dumps({"cmd": "sleep 1"})}

    (tmp_path / "codex").mkdir()
    with serving(_answering(answer)) as url:
        values = [json.dumps(value) for value in (command, arguments, str(tmp_path / "home"))]
        config = dict(zip(("command", "arguments", "home"), values, strict=True))
        (tmp_path / "codex" / "config.toml").write_text(_CODEX.format(url=url, **config))
        done = run(
            tmp_path,
            [codex, "exec", "--skip-git-repo-check", TASK],
            CODEX_HOME=str(tmp_path / "codex"),
            MOCK_KEY="test-key",
        )
    assert done.stdout.strip() == "finished", done.stderr
    assert (tmp_path / "made").exists()


def test_harbor_accepts_trajectories(tmp_path: Path) -> None:
    python = Path(program("harbor")).with_name("python")
    agents = {"helper": {"description": "Helps.", "instruction": "You help."}}
    task = {"name": "task", "input": {"agent": "helper", "instruction": "look"}}
    plan = mock_plan(tmp_path, [{"tool_calls": [task]}, "seen"], tools=["tool-task"], agents=agents)
    for words in (("--session", "one", "begin"), ("--fork", "one", "go on")):
        succeed("run", "-f", plan, *words, cwd=tmp_path)
    texts = ""
    for session in ("one", SessionStore().latest(str(tmp_path)).id):
        file = tmp_path / f"{session}.json"
        succeed("session", "export", session, "--atif", "--to", file, cwd=tmp_path)
        checked = run(tmp_path, [str(python), "-m", "harbor.utils.trajectory_validator", str(file)])
        assert checked.returncode == 0, checked.stdout + checked.stderr
        texts += file.read_text()
    assert "is_copied_context" in texts
    assert "subagent_trajectories" in texts
