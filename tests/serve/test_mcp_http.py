"""A plan served as MCP tools over HTTP."""

from __future__ import annotations

import contextlib
import json
import re
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


def test_headers_must_match_the_message_of_the_newest_era(tmp_path: Path) -> None:
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


def test_wrong_messages_get_an_error(tmp_path: Path) -> None:
    with serving(tmp_path, mock_plan(tmp_path, ["fine"])) as (url, _):
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
