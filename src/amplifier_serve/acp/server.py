"""The agent as an editor starts it: answers what concerns all sessions, and passes on the rest.

Every session is a process of its own, in the session's directory (`worker.py`): two sessions of an editor
need not share a directory, and one that fails takes none with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Awaitable
from typing import Any

from amplifier_app.base.errors import SessionError
from amplifier_app.base.json_rpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    NO_SUCH_METHOD,
    Peer,
    RpcError,
)
from amplifier_app.base.stdio import Output
from amplifier_app.commands.run.request import Request
from amplifier_app.sessions.index import ask_index
from amplifier_app.sessions.removal import remove_sessions, with_sub_sessions
from amplifier_app.sessions.store import SessionStore
from amplifier_serve.agent import agent_info
from amplifier_support.fields import to_mapping

PROTOCOL_VERSION = 1
NOT_FOUND = -32002
_WORKER = "amplifier_serve.acp.worker"
_PAGE = 50
"""Sessions of one answer to `session/list`."""
_END_SECONDS = 1.5
"""Seconds that sessions have to end once the editor is gone. What was said is on the disk already."""
_CLOSE_SECONDS = 10.0
"""Seconds that a session has to end when the editor closes it."""
_STUCK_SECONDS = 3.0
"""Seconds after which this process ends although the editor does not read what it gets."""


class Worker:
    """The process of one session.

    Args:
        cwd: The directory of the session.
        client: The connection to the editor, which its requests and notifications are passed to.
    """

    def __init__(self, cwd: str, client: Peer) -> None:
        self._process = subprocess.Popen(
            # -P: the directory may contain anything.
            [sys.executable, "-P", "-m", _WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=cwd,
            # Ctrl-C is for this process, which ends the others.
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._output = Output(self._process.stdin.fileno())

        def pass_on(method: str, params: dict[str, Any]) -> Awaitable[Any] | None:
            if method == "session/update":
                return client.notify(method, params)
            return client.request(method, params)

        ended = "the process of the session has ended: load the session again"
        self.peer = Peer(self._process.stdout.fileno(), self._output, pass_on, closed=ended)
        self._serving = asyncio.ensure_future(self._serve())

    async def _serve(self) -> None:
        await self.peer.serve()
        await self.peer.cancel_all()  # its questions to the editor
        self._end_input()
        with self._process:  # Closes the pipe, and waits.
            self._process.kill()

    async def wait(self) -> None:
        """Wait until it has ended."""
        await asyncio.shield(self._serving)

    async def close(self, seconds: float = _CLOSE_SECONDS) -> None:
        """End the process: what runs is stopped, and the session closes.

        Args:
            seconds: Seconds until it is killed.
        """
        self._end_input()
        try:
            async with asyncio.timeout(seconds):
                await self.wait()
        except TimeoutError:
            self._process.kill()
            await self.wait()

    def _end_input(self) -> None:
        assert self._process.stdin is not None
        # Its descriptor may soon belong to another session.
        self._output.fd = -1
        with contextlib.suppress(OSError):
            self._process.stdin.close()


class Server:
    """Answers an editor.

    Args:
        request: The plan and its options.
        source: The descriptor that messages are read from.
        output: Where they are written.
        uses_files: Read and change files through an editor that offers it.
    """

    def __init__(
        self, request: Request, source: int, output: Output, uses_files: bool = False
    ) -> None:
        self._request = request
        self._uses_files = uses_files
        self._workers: dict[str, Worker] = {}
        self._processes: set[Worker] = set()
        self._client: dict[str, Any] = {"files": {}, "terminals": False}
        self.peer = Peer(source, output, self._handle)

    async def serve(self) -> None:
        """Serve until the editor closes the connection."""
        try:
            await self.peer.serve(_STUCK_SECONDS)
        finally:
            await asyncio.gather(*(worker.close(_END_SECONDS) for worker in self._processes))

    def _handle(self, method: str, params: dict[str, Any]) -> Awaitable[Any] | Any:
        match method:
            case "initialize":
                return self._initialize(params)
            case "authenticate":
                return {}  # A session says what is missing.
            case "session/new" | "session/load" | "session/resume":
                return self._open(method, params)
            case "session/list":
                return asyncio.to_thread(_list_sessions, params)
            case "session/delete":
                return self._delete(_session_id(params))
            case "session/close":
                return self._close(params)
            case "session/cancel":
                return self._worker(params).peer.notify(method, params)
            case "session/prompt" | "session/set_mode" | "session/set_config_option":
                return self._worker(params).peer.request(method, params)
            case _:
                raise RpcError(NO_SUCH_METHOD, f"unknown method '{method}'")

    def _initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(params.get("protocolVersion"), int):
            raise RpcError(INVALID_PARAMS, "'protocolVersion' must be a whole number")
        setup = {
            "id": "init",
            "name": "Set up a provider",
            "description": "Run 'amplifier init' in a terminal",
        }
        client = to_mapping(params.get("clientCapabilities"))
        self._client = {
            "files": to_mapping(client.get("fs")) if self._uses_files else {},
            # The client's own terminals would run commands outside the sandbox.
            "terminals": to_mapping(client.get("_meta")).get("terminal_output") is True,
        }
        if to_mapping(client.get("auth")).get("terminal"):
            setup |= {"type": "terminal", "args": ["init"]}
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "agentCapabilities": {
                "loadSession": True,
                "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
                "mcpCapabilities": {"http": True, "sse": False},
                "sessionCapabilities": {"list": {}, "delete": {}, "resume": {}, "close": {}},
            },
            "authMethods": [setup],
            "agentInfo": agent_info(),
        }

    def _worker(self, params: dict[str, Any]) -> Worker:
        id = _session_id(params)
        worker = self._workers.get(id)
        if worker is None:
            raise RpcError(NOT_FOUND, f"session '{id}' is not open here")
        return worker

    async def _open(self, method: str, params: dict[str, Any]) -> Any:
        cwd = params.get("cwd")
        if not isinstance(cwd, str) or not os.path.isabs(cwd):
            raise RpcError(INVALID_PARAMS, "'cwd' must be an absolute path")
        if not os.path.isdir(cwd):
            raise RpcError(INVALID_PARAMS, f"'cwd' is not a directory: '{cwd}'")
        is_new = method == "session/new"
        if not is_new:
            id = _session_id(params)
            if SessionStore().get(id) is None:
                raise RpcError(NOT_FOUND, f"there is no session '{id}'")
            if open_before := self._workers.pop(id, None):
                await open_before.close()
        worker = Worker(cwd, self.peer)
        self._processes.add(worker)
        # It may end by itself at any time.
        asyncio.ensure_future(worker.wait()).add_done_callback(lambda _: self._forget(worker))
        try:
            opening = {"method": method, "params": params, "request": self._request.as_data()}
            result = await worker.peer.request("open", opening | self._client)
        except BaseException:
            await worker.close()
            raise
        id = result.pop("sessionId") if not is_new else result["sessionId"]
        self._workers[id] = worker
        # After the answer is written.
        asyncio.get_running_loop().call_soon(worker.peer.notify, "opened", {})
        return result

    def _forget(self, worker: Worker) -> None:
        self._processes.discard(worker)
        self._workers = {id: other for id, other in self._workers.items() if other is not worker}

    async def _close(self, params: dict[str, Any]) -> dict[str, Any]:
        worker = self._worker(params)
        del self._workers[_session_id(params)]
        await worker.close()
        return {}

    async def _delete(self, id: str) -> dict[str, Any]:
        if (worker := self._workers.pop(id, None)) is not None:
            await worker.close()
        await asyncio.to_thread(_delete_session, id)
        return {}


def _session_id(params: dict[str, Any]) -> str:
    id = params.get("sessionId")
    if not isinstance(id, str) or not id:
        raise RpcError(INVALID_PARAMS, "'sessionId' must be a text")
    return id


def _list_sessions(params: dict[str, Any]) -> dict[str, Any]:
    """The answer to `session/list`: saved sessions, last used first."""
    cwd, cursor = params.get("cwd"), params.get("cursor")
    if cwd is not None and (not isinstance(cwd, str) or not os.path.isabs(cwd)):
        raise RpcError(INVALID_PARAMS, "'cwd' must be an absolute path")
    if cursor is not None and not (isinstance(cursor, str) and re.fullmatch("[0-9]+", cursor)):
        raise RpcError(INVALID_PARAMS, f"unknown cursor {cursor!r}")
    start = int(cursor or 0)
    page, _ = ask_index(
        SessionStore().root, lambda index: index.page(cwd, min(start, 10**9) + _PAGE + 1)
    )
    listed = [entry.session for entry in page.listed][start:]
    sessions = [
        {
            "sessionId": session.id,
            "cwd": session.project,
            "title": session.about or None,
            "updatedAt": session.updated,
        }
        for session in listed[:_PAGE]
        if session.project
    ]
    more = {"nextCursor": str(start + _PAGE)} if len(listed) > _PAGE else {}
    return {"sessions": sessions, **more}


def _delete_session(id: str) -> None:
    # Deleting what does not exist is no error.
    if SessionStore().get(id) is None:
        return
    store = SessionStore()
    try:
        remove_sessions(store.root, with_sub_sessions(id, store.summaries()))
    except SessionError as error:
        raise RpcError(INTERNAL_ERROR, error.message) from error
