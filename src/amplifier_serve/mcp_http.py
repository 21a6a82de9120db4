"""The Model Context Protocol over HTTP: one POST per message, on loopback, with a token.

Answers are JSON. Notifications to the client and calls of it, which need a stream, are left out: with an era
before 2026-07-28, calls that ask for approval are denied.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import inspect
import json
import os
import secrets
import select
import socket
from concurrent.futures import Future, wait
from typing import Any, cast

from amplifier_app.base.json_rpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    RpcError,
)
from amplifier_app.base.json_text import json_line
from amplifier_app.base.stdio import to_stderr
from amplifier_serve.local_http import LocalHandler, Refused, serving
from amplifier_serve.mcp_server import NEWEST, TASK_METHODS, VERSION_KEY, Caller, McpServer
from amplifier_support.fields import to_mapping

TOKEN_VARIABLE = "AMPLIFIER_SERVE_TOKEN"
HEADER_MISMATCH = -32020
_MAX_BODY, _LOOK_SECONDS = 4 * 1024 * 1024, 0.3
_ENCODED, _END = "=?base64?", "?="


async def serve_http(server: McpServer, port: int) -> None:
    """Serve in threads until the task is cancelled; requests run in the event loop.

    Args:
        server: Answers the requests.
        port: The port; 0 for any that is free.

    Raises:
        UsageError: The port cannot be used.
    """
    loop = asyncio.get_running_loop()

    class Handler(_Handler):
        token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(32)

        def call(self, method: str, params: dict[str, Any]) -> Future[Any]:
            return asyncio.run_coroutine_threadsafe(_answer(server, method, params), loop)

    try:
        with serving(Handler, port, "--http") as address:
            to_stderr(f"amplifier: serving {address}/mcp")
            if not os.environ.get(TOKEN_VARIABLE):
                to_stderr(f"amplifier: token {Handler.token}")
            await asyncio.Event().wait()
    finally:
        await server.close()


async def _answer(server: McpServer, method: str, params: dict[str, Any]) -> Any:
    result = server.handle(method, params, Caller())
    return await result if inspect.isawaitable(result) else result


class _Handler(LocalHandler):
    """One connection of a client."""

    token = ""

    def call(self, method: str, params: dict[str, Any]) -> Future[Any]:
        """Begin a request in the event loop."""
        raise NotImplementedError

    def do_POST(self) -> None:
        try:
            self._check_caller()
            body = self._body()
        except Refused as refused:
            self.close_connection = True
            self._send(refused.status, {"error": str(refused)})
            return
        id: Any = None
        try:
            message = _parse(body)
            id = message.get("id")
            self._check_headers(message)
            params = cast("dict[str, Any]", message.get("params") or {})
            result = self._wait(self.call(message["method"], params))
        except RpcError as error:
            status = 404 if error.code == -32601 else 400 if error.code <= -32020 else 200
            self._send(status, {"jsonrpc": "2.0", "id": id, "error": error.as_json()})
            return
        # Modules may raise anything; it is the answer to this request.
        except Exception as error:
            failed = RpcError(INTERNAL_ERROR, f"{type(error).__name__}: {error}")
            self._send(500, {"jsonrpc": "2.0", "id": id, "error": failed.as_json()})
            return
        if "id" in message:
            self._send(200, {"jsonrpc": "2.0", "id": id, "result": result})
        else:
            self._send(202, None)

    def _wait(self, running: Future[Any]) -> Any:
        """Return the result; a client that closes the connection cancels its request."""
        while not wait([running], _LOOK_SECONDS).done:
            if select.select([self.connection], [], [], 0)[0] and self._is_closed():
                running.cancel()
        return running.result()

    def _is_closed(self) -> bool:
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:  # The client has reset it.
            return True

    def do_GET(self) -> None:
        self._send(405, {"error": "only POST is served"}, Allow="POST")

    do_DELETE = do_PUT = do_GET

    def _check_caller(self) -> None:
        """Refuse pages in a browser, and everyone who does not have the token."""
        self.refuse_strangers()
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            raise Refused(401, "the token is missing or wrong")

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length") or ""
        if not length.isdecimal():
            raise Refused(411, "Content-Length is missing")
        if int(length) > _MAX_BODY:
            raise Refused(413, f"a message has at most {_MAX_BODY:,} bytes")
        return self.rfile.read(int(length))

    def _check_headers(self, message: dict[str, Any]) -> None:
        """In the newest era, headers repeat what proxies want to know of the body."""
        params = to_mapping(message.get("params"))
        version = to_mapping(params.get("_meta")).get(VERSION_KEY)
        header = self.headers.get("MCP-Protocol-Version")
        if version is None:
            if header is not None and header.strip() == NEWEST:
                raise RpcError(INVALID_PARAMS, f"'_meta' must have '{VERSION_KEY}'")
            return
        expected = {"MCP-Protocol-Version": version, "Mcp-Method": message["method"]}
        if message["method"] == "tools/call":
            expected["Mcp-Name"] = params.get("name")
        elif message["method"] in TASK_METHODS:
            expected["Mcp-Name"] = params.get("taskId")
        for name, value in expected.items():
            if _decoded(self.headers.get(name)) != value:
                text = f"the header {name} differs from the message"
                raise RpcError(HEADER_MISMATCH, text)

    def _send(self, status: int, answer: Any, **headers: str) -> None:
        body = b"" if answer is None else json_line(answer).encode()
        self.answer(status, body, "application/json", **headers)


def _decoded(value: str | None) -> str | None:
    """A header whose text may be encoded, because headers are ASCII."""
    value = None if value is None else value.strip()
    if value is None or not (value.startswith(_ENCODED) and value.endswith(_END)):
        return value
    try:
        return base64.b64decode(value[len(_ENCODED) : -len(_END)], validate=True).decode()
    except ValueError:
        return None


def _parse(body: bytes) -> dict[str, Any]:
    """
    Raises:
        RpcError: It is not a message.
    """
    try:
        message: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RpcError(PARSE_ERROR, "the message is not valid JSON") from error
    if not isinstance(message, dict) or not isinstance(message.get("method"), str):
        raise RpcError(INVALID_REQUEST, "expected one request")
    fields = cast("dict[str, Any]", message)
    if not isinstance(fields.get("params") or {}, dict):
        raise RpcError(INVALID_PARAMS, "'params' must be a JSON object")
    return fields
