"""A plan served as MCP tools over HTTP."""

import contextlib
import json
import re
import socket
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.support.cli import start_amplifier
from tests.support.plans import mock_plan
from tests.support.processes import processes_in
from tests.support.waiting import wait_until

TOKEN = "a token of the test"


@contextlib.contextmanager
def serving(folder: Path, plan: Path, token: str | None = TOKEN) -> Generator[tuple[str, str]]:
    """The URL of a server, and its token."""
    process = start_amplifier(
        *("serve", "mcp", "--http", "0", "-f", plan),
        cwd=folder,
        env={"AMPLIFIER_SERVE_TOKEN": token},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        found = re.search(r"http://\S+", process.stderr.readline().decode())
        assert found
        yield found[0], token or process.stderr.readline().decode().split()[-1]
    finally:
        process.terminate()
        assert process.wait(60) == 143
        assert process.stderr is not None
        process.stderr.close()


def post(url: str, body: Any, token: str = TOKEN, **headers: str) -> httpx2.Response:
    sent = {
        "Authorization": f"Bearer {token}",
        **{k.replace("_", "-"): v for k, v in headers.items()},
    }
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx2.post(url, content=content, headers=sent, timeout=60)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_tools_work_over_http(tmp_path: Path, mode: str) -> None:
    call = {"name": "bash", "input": {"command": "touch x"}}
    plan = mock_plan(
        tmp_path, [{"tool_calls": [call]}, "done"], tools=["tool-bash"], hooks=["hooks-approval"]
    )

    async def elicit(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"answer": "allow"})

    with serving(tmp_path, plan) as (url, token):
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            transport = streamable_http_client(url, http_client=http)
            async with Client(transport, mode=mode, elicitation_callback=elicit) as client:
                result = await client.call_tool("test", {"prompt": "touch it"})
    # The earlier eras would need a stream to ask.
    assert result.structured_content["outcome"] == ("ok" if mode == "auto" else "denied")
    assert (tmp_path / "x").exists() == (mode == "auto")


def test_only_callers_with_the_token_from_this_machine_are_answered(tmp_path: Path) -> None:
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    with serving(tmp_path, mock_plan(tmp_path, ["fine"]), token=None) as (url, token):
        assert len(token) > 40
        assert post(url, ping, token).json()["result"] == {}
        assert post(url, ping, "wrong").status_code == 401
        assert httpx2.post(url, json=ping).status_code == 401
        assert post(url, ping, token, Origin="https://example.com").status_code == 403
        assert post(url, ping, token, Origin="null").status_code == 403
        assert post(url, ping, token, Host="example.com").status_code == 403
        assert post(url, ping, token, Origin="http://localhost:1234").status_code == 200
        assert httpx2.get(url).status_code == 405


def test_wrong_messages_get_an_error_and_headers_must_match_the_newest_ones(tmp_path: Path) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    message = {
        **{"jsonrpc": "2.0", "id": 1, "method": "tools/call"},
        "params": {"_meta": meta, "name": "test", "arguments": {"prompt": "x"}},
    }
    right = {"MCP_Protocol_Version": "2026-07-28", "Mcp_Method": "tools/call", "Mcp_Name": "test"}
    with serving(tmp_path, mock_plan(tmp_path, ["fine"])) as (url, _):
        assert post(url, message, **right).json()["result"]["resultType"] == "complete"
        for name in right:
            wrong = post(url, message, **{**right, name: "other"})
            assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, -32020)
        assert (
            post(url, {**message, "params": {"name": "test"}}, **right).json()["error"]["code"]
            == -32602
        )
        encoded = {**right, "Mcp_Name": "=?base64?dGVzdA==?="}
        assert post(url, message, **encoded).status_code == 200
        for body, status, code in (
            (b"{", 400, -32700),
            (b"[]", 400, -32600),
            (b"null", 400, -32600),
            (b"[" * 100_000, 400, -32700),
            ({"id": 1, "method": "ping", "params": [1]}, 400, -32602),
            ({"id": 1, "method": "nothing"}, 404, -32601),
        ):
            answer = post(url, body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert post(url, b" " * (4 * 1024 * 1024 + 1)).status_code == 413


TASKS = "io.modelcontextprotocol/tasks"


class TaskClient:
    """A client of the extension for tasks; `call` returns what the server answered."""

    def __init__(self, url: str, **capabilities: Any) -> None:
        self.url = url
        self.capabilities = {"extensions": {TASKS: {}}, **capabilities}

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        version, key = "2026-07-28", "io.modelcontextprotocol"
        meta = {f"{key}/protocolVersion": version, f"{key}/clientCapabilities": self.capabilities}
        message = {"id": 1, "method": method, "params": {**params, "_meta": meta}}
        name = params.get("name") or params.get("taskId") or ""
        headers = {"MCP_Protocol_Version": version, "Mcp_Method": method, "Mcp_Name": name}
        return post(self.url, message, **headers).json()

    def begin(self) -> str:
        task = self.call("tools/call", name="test", arguments={"prompt": "go"})["result"]
        assert (task["resultType"], task["status"]) == ("task", "working")
        assert self.state(task["taskId"])["createdAt"] == task["createdAt"]
        return task["taskId"]

    def state(self, task: str) -> dict[str, Any]:
        result = self.call("tasks/get", taskId=task)["result"]
        assert (result["resultType"], result["taskId"]) == ("complete", task)
        return result

    def wait_for(self, task: str, status: str) -> dict[str, Any]:
        wait_until(lambda: self.state(task)["status"] == status)
        return self.state(task)


def test_a_call_is_a_task_for_clients_that_take_tasks(tmp_path: Path) -> None:
    calls = [{"name": "bash", "input": {"command": f"touch {name}"}} for name in ("x", "y")]
    replies = [*({"tool_calls": [call]} for call in calls), "done"]
    plan = mock_plan(tmp_path, replies, tools=["tool-bash"], hooks=["hooks-approval"])
    with serving(tmp_path, plan) as (url, _):
        client = TaskClient(url, elicitation={})
        assert TASKS in client.call("server/discover")["result"]["capabilities"]["extensions"]
        task = client.begin()
        [(first, request)] = client.wait_for(task, "input_required")["inputRequests"].items()
        assert "touch x" in request["params"]["message"]
        allowed = {first: {"action": "accept", "content": {"answer": "allow"}}}
        update = client.call("tasks/update", taskId=task, inputResponses=allowed)
        assert update["result"] == {"resultType": "complete"}
        wait_until(lambda: first not in client.state(task).get("inputRequests", {first: 0}))
        [second] = client.wait_for(task, "input_required")["inputRequests"]
        # The answer to the first question once more is none to the second.
        client.call("tasks/update", taskId=task, inputResponses=allowed)
        assert client.state(task)["status"] == "input_required"
        client.call("tasks/update", taskId=task, inputResponses={second: {"action": "decline"}})
        result = client.wait_for(task, "completed")["result"]
    assert (result["isError"], result["structuredContent"]["outcome"]) == (True, "denied")
    assert ((tmp_path / "x").exists(), (tmp_path / "y").exists()) == (True, False)


def test_a_task_is_cancelled_and_others_are_unknown(tmp_path: Path) -> None:
    call = {"name": "bash", "input": {"command": "touch begun; sleep 300"}}
    plan = mock_plan(tmp_path, [{"tool_calls": [call]}, "done"], tools=["tool-bash"])
    with serving(tmp_path, plan) as (url, _):
        client = TaskClient(url)
        task = client.begin()
        wait_until((tmp_path / "begun").exists)
        for _ in range(2):
            cancelled = client.call("tasks/cancel", taskId=task)
            assert cancelled["result"] == {"resultType": "complete"}
        client.wait_for(task, "cancelled")
        assert client.call("tasks/get", taskId="other")["error"]["code"] == -32602
        assert client.call("tasks/result", taskId=task)["error"]["code"] == -32601
        client.capabilities = {}
        assert client.call("tasks/get", taskId=task)["error"]["code"] == -32021


def test_a_client_that_closes_its_connection_cancels_the_call(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    call = {"name": "bash", "input": {"command": "cd work; touch begun; sleep 300"}}
    plan = mock_plan(tmp_path, [{"tool_calls": [call]}, "done"], tools=["tool-bash"])
    with serving(tmp_path, plan) as (url, _):
        params = {"name": "test", "arguments": {"prompt": "sleep"}}
        message = {"id": 1, "method": "tools/call", "params": params}
        body = json.dumps(message).encode()
        host = url.removeprefix("http://").partition("/")[0]
        with socket.create_connection(("127.0.0.1", int(host.rpartition(":")[2]))) as client:
            head = f"POST /mcp HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\n"
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            wait_until((tmp_path / "work" / "begun").exists)
            assert processes_in(tmp_path / "work")
        wait_until(lambda: not processes_in(tmp_path / "work"))
        assert post(url, {"id": 2, "method": "ping"}).status_code == 200
