"""The Model Context Protocol: a plan and its agents as tools of other agents.

Three eras of the protocol: 2026-07-28, whose requests stand alone, and two before it, which begin with
`initialize`. A question for approval reaches the caller as an elicitation: in the newest era the call ends with
`input_required`, and goes on when it is made again with the answer; before that, the server asks the client.
With the extension for tasks, a call returns at once: the client asks for its state, and answers there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from amplifier_app import api
from amplifier_app.base.errors import AppError, UsageError
from amplifier_app.base.json_rpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MCP_CANCELLATION,
    NO_SUCH_METHOD,
    Peer,
    RpcError,
)
from amplifier_app.base.stdio import Output
from amplifier_app.commands.run.choose import Chosen
from amplifier_app.commands.run.request import Request
from amplifier_app.plan.agent_plan import agent_plan
from amplifier_app.runtime import describe
from amplifier_app.sessions.store import SessionStore
from amplifier_serve.agent import agent_info
from amplifier_support.clock import utc_now
from amplifier_support.fields import to_mapping

NEWEST = "2026-07-28"
EARLIER = ("2025-11-25", "2025-06-18")
MISSING_CAPABILITY, UNSUPPORTED_VERSION = -32021, -32022
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
_CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
_SERVER_KEY = "io.modelcontextprotocol/serverInfo"
_TASKS_KEY = "io.modelcontextprotocol/tasks"
TASK_METHODS = ("tasks/get", "tasks/update", "tasks/cancel")
_TASK_SECONDS, _POLL_SECONDS = 24 * 3600, 1
"""Seconds that the result of a task is kept, and between two requests for its state."""
_WAIT_SECONDS = 600.0
"""Seconds that a call waits for the answer to its question; then it is denied."""
_LIST_MILLISECONDS = 60_000
"""Milliseconds that a client may keep the list of tools."""
_APPROVAL = "approval"
# The answer is a required field, because some clients accept a form without any in the user's place.
_ANSWER_SCHEMA = {
    "type": "object",
    "properties": {
        "answer": {"type": "string", "enum": ["allow", "deny"], "description": "Allow the call?"}
    },
    "required": ["answer"],
}
_INPUT_SCHEMA = {
    "type": "object",
    "properties": {
        "prompt": {"type": "string", "description": "The task, complete in itself."},
        "session_id": {"type": "string", "description": "A session to continue."},
    },
    "required": ["prompt"],
    "additionalProperties": False,
}
_OUTPUT_SCHEMA = {
    "type": "object",
    "properties": {
        "response": {"type": "string", "description": "The answer."},
        "session_id": {"type": "string", "description": "Pass it to continue the conversation."},
        "outcome": {"type": "string", "description": "'ok', or why there is no complete answer."},
        "error": {"type": ["string", "null"]},
        "cost": {"type": ["number", "null"], "description": "US dollars."},
    },
    "required": ["response", "session_id", "outcome", "error", "cost"],
}

Notify = Callable[[str, Mapping[str, Any]], None]
AskClient = Callable[[str, Mapping[str, Any]], Awaitable[Any]]


class Caller:
    """The side that a request comes from.

    Attributes:
        notify: Sends it a notification; None if it cannot get one.
        ask: Calls it; None if it cannot be called.
        capabilities: What it said that it can do.
    """

    def __init__(self, notify: Notify | None = None, ask: AskClient | None = None) -> None:
        self.notify = notify
        self.ask = ask
        self.capabilities: Mapping[str, Any] = {}

    @property
    def takes_tasks(self) -> bool:
        return _TASKS_KEY in to_mapping(self.capabilities.get("extensions"))


class _Call:
    """A running prompt.

    Attributes:
        id: Identifies it to the client: as a task, or while it waits for an answer.
        running: Its result.
        asked: Set while a question waits for an answer.
        requests: That question by its id, which no other question of the call has.
        updated: When it last did something.
    """

    def __init__(self) -> None:
        self.id = secrets.token_urlsafe(16)
        self.running: asyncio.Task[dict[str, Any]]
        self.asked = asyncio.Event()
        self.requests: dict[str, Any] = {}
        self.created = self.updated = utc_now().isoformat()
        self._answer: asyncio.Future[bool]

    def touch(self) -> None:
        self.updated = utc_now().isoformat()

    def as_task(self) -> dict[str, Any]:
        """Its state, with the result at the end."""
        task: dict[str, Any] = {"taskId": self.id, "status": "working"}
        task |= {"createdAt": self.created, "lastUpdatedAt": self.updated}
        task |= {"ttlMs": _TASK_SECONDS * 1000, "pollIntervalMs": _POLL_SECONDS * 1000}
        if not self.running.done():
            waits = {"status": "input_required", "inputRequests": self.requests}
            return task | (waits if self.asked.is_set() else {})
        if self.running.cancelled():
            return {**task, "status": "cancelled"}
        if (error := self.running.exception()) is not None:
            failed = RpcError(INTERNAL_ERROR, f"{type(error).__name__}: {error}")
            return {**task, "status": "failed", "error": failed.as_json()}
        return {**task, "status": "completed", "result": self.running.result()}

    def take_answer(self, responses: Mapping[str, Any]) -> None:
        """Answer the question that waits; answers to others are ignored."""
        for id in responses.keys() & self.requests.keys():
            if self.asked.is_set() and not self._answer.done():
                self._answer.set_result(_is_yes(responses[id]))
                self.asked.clear()

    async def ask(self, question: str) -> bool:
        """Ask in the result of the request that waits for the prompt, or in the state of the task."""
        request = {"method": "elicitation/create", "params": _elicitation(question)}
        self.requests = {f"{_APPROVAL}-{secrets.token_hex(4)}": request}
        self._answer = asyncio.get_running_loop().create_future()
        self.touch()
        self.asked.set()
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                return await self._answer
        except TimeoutError:
            return False
        finally:
            self.asked.clear()


class McpServer:
    """Answers requests, whatever brings them.

    Args:
        request: The options of the plan.
        chosen: The plan.
        notice: Something that the client should know; empty for nothing.
    """

    def __init__(self, request: Request, chosen: Chosen, notice: str = "") -> None:
        self._notice = notice
        self._plans = _plans_by_tool(request, chosen)
        self._calls: dict[str, _Call] = {}
        self._tasks: dict[str, _Call] = {}
        self._working_dir = os.getcwd()

    def handle(self, method: str, params: dict[str, Any], caller: Caller) -> Awaitable[Any] | Any:
        """Answer a request, or take a notification.

        Raises:
            RpcError: The error to answer with; also when what it returns is awaited.
        """
        meta = to_mapping(params.get("_meta"))
        version = meta.get(VERSION_KEY)
        if version is not None:
            caller.capabilities = to_mapping(meta.get(_CAPABILITIES_KEY))
            if version != NEWEST and version not in EARLIER:
                supported = {"supported": [NEWEST, *EARLIER], "requested": version}
                message = f"unsupported protocol version {version!r}"
                raise RpcError(UNSUPPORTED_VERSION, message, supported)
        is_newest = version == NEWEST
        if is_newest and not isinstance(meta.get(_CAPABILITIES_KEY), Mapping):
            raise RpcError(INVALID_PARAMS, f"'_meta' must have '{_CAPABILITIES_KEY}'")
        match method:
            case "server/discover":
                return self._discover()
            case "initialize" if not is_newest:
                return self._initialize(params, caller)
            case "ping" if not is_newest:
                return {}
            case "tools/list":
                return _complete({"tools": self._tools()}, is_newest, is_list=True)
            case "tools/call":
                return self._call(params, caller, is_newest)
            case _ if is_newest and method in TASK_METHODS:
                return _complete(self._task(method, params, caller), is_newest)
            case _ if method.startswith("notifications/"):
                return None
            case _:
                raise RpcError(NO_SUCH_METHOD, f"unknown method '{method}'")

    async def close(self) -> None:
        """Stop the prompts that wait for an answer, and tasks."""
        running = {call.running for call in (*self._calls.values(), *self._tasks.values())}
        for prompt in running:
            prompt.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _discover(self) -> dict[str, Any]:
        about = {
            "supportedVersions": [NEWEST, *EARLIER],
            "capabilities": {"tools": {}, "extensions": {_TASKS_KEY: {}}},
            "instructions": self._instructions,
            "_meta": {_SERVER_KEY: agent_info()},
        }
        return _complete(about, True, is_list=True)

    def _initialize(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        caller.capabilities = to_mapping(params.get("capabilities"))
        requested = params.get("protocolVersion")
        return {
            "protocolVersion": requested if requested in EARLIER else EARLIER[0],
            "capabilities": {"tools": {}},
            "serverInfo": agent_info(),
            "instructions": self._instructions,
        }

    @property
    def _instructions(self) -> str:
        return (
            "Each tool sends a prompt to an agent of Amplifier, which works on its own in "
            f"{self._working_dir} and returns its answer. It sees nothing of your conversation: the "
            "prompt has to say everything it needs. Pass session_id of an answer to continue. "
            f"{self._notice}"
        ).rstrip()

    def _tools(self) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "description": description,
                "inputSchema": _INPUT_SCHEMA,
                "outputSchema": _OUTPUT_SCHEMA,
            }
            for name, (_, description) in self._plans.items()
        ]

    # Calls

    async def _call(
        self, params: dict[str, Any], caller: Caller, is_newest: bool
    ) -> dict[str, Any]:
        state = params.get("requestState")
        if state is not None:
            call = self._answered(state, to_mapping(params.get("inputResponses")))
        else:
            try:
                call = self._begin(params, caller, is_newest)
            except UsageError as error:  # The model can correct it.
                return _complete(_failed(error), is_newest)
            if is_newest and caller.takes_tasks:
                self._tasks[call.id] = call
                loop = asyncio.get_running_loop()
                loop.call_later(_TASK_SECONDS, self._tasks.pop, call.id, None)
                return {"resultType": "task", **call.as_task()}
        asked = asyncio.create_task(call.asked.wait())
        try:
            await asyncio.wait({call.running, asked}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            call.running.cancel()
            await asyncio.wait({call.running})
            raise
        finally:
            asked.cancel()
        if call.running.done():
            return _complete(call.running.result(), is_newest)
        self._calls[call.id] = call
        call.running.add_done_callback(lambda _: self._calls.pop(call.id, None))
        state = {"inputRequests": call.requests, "requestState": call.id}
        return {"resultType": "input_required", **state}

    def _task(self, method: str, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        if not caller.takes_tasks:
            required = {"requiredCapabilities": {"extensions": {_TASKS_KEY: {}}}}
            raise RpcError(MISSING_CAPABILITY, f"{method} needs {_TASKS_KEY}", required)
        call = self._tasks.get(str(params.get("taskId")))
        if call is None:
            raise RpcError(INVALID_PARAMS, f"unknown task {params.get('taskId')!r}")
        if method == "tasks/get":
            return call.as_task()
        if method == "tasks/cancel":
            call.running.cancel()
        else:
            call.take_answer(to_mapping(params.get("inputResponses")))
        return {}

    def _answered(self, state: Any, responses: Mapping[str, Any]) -> _Call:
        call = self._calls.pop(state, None) if isinstance(state, str) else None
        if call is None:
            raise RpcError(INVALID_PARAMS, "unknown 'requestState': the call has ended")
        # A client that answers nothing denies.
        call.take_answer(dict.fromkeys(call.requests) | {**responses})
        return call

    def _begin(self, params: dict[str, Any], caller: Caller, is_newest: bool) -> _Call:
        plan, _ = self._plans.get(str(params.get("name")), (None, ""))
        if plan is None:
            raise RpcError(INVALID_PARAMS, f"unknown tool {params.get('name')!r}")
        arguments = to_mapping(params.get("arguments"))
        prompt, session_id = arguments.get("prompt"), arguments.get("session_id")
        if not isinstance(prompt, str) or not prompt.strip():
            raise UsageError("'prompt' must be a text that is not empty")
        if session_id is not None:
            self._check_session(session_id)
        call = _Call()
        can_ask = "elicitation" in caller.capabilities

        async def approve(question: api.Approval) -> str:
            text, is_allowed = _question(question), False
            if can_ask and is_newest:
                is_allowed = await call.ask(text)
            elif can_ask and caller.ask is not None:
                with contextlib.suppress(RpcError):
                    is_allowed = _is_yes(await caller.ask("elicitation/create", _elicitation(text)))
            return "allow" if is_allowed else "deny"

        progress = to_mapping(params.get("_meta")).get("progressToken")
        notify = caller.notify if isinstance(progress, str | int) else None

        def report(number: int, message: str) -> None:
            call.touch()
            if notify is not None:
                about = {"progressToken": progress, "progress": number, "message": message}
                notify("notifications/progress", about)

        call.running = asyncio.create_task(_run(plan, prompt, session_id, approve, report))
        call.running.add_done_callback(lambda _: call.touch())
        return call

    def _check_session(self, session_id: Any) -> None:
        """Refuse sessions of other directories: the caller works in this one."""
        session = SessionStore().get(session_id)
        if session is not None and session.metadata.get("project") == self._working_dir:
            return
        raise UsageError(f"no session {session_id!r} of {self._working_dir}")


async def _run(
    plan: api.Plan,
    prompt: str,
    session_id: str | None,
    approve: api.Approver,
    report: Callable[[int, str], None],
) -> dict[str, Any]:
    """Send the prompt, and return the result of the tool."""
    steps = 0
    try:
        async with api.open_session(plan, session_id=session_id, approve=approve) as session:
            result: Mapping[str, Any] = {}
            async for event in session.stream(prompt):
                if event["type"] == "tool_start":
                    steps += 1
                    report(steps, describe.call(event["name"] or "", event["input"]))
                result = event
            answer, id = api.to_answer(result), session.id
    except AppError as error:
        return _failed(error)
    data = {"response": answer.text, "session_id": id, "outcome": answer.outcome}
    data |= {"error": answer.error, "cost": answer.cost}
    parts = [answer.text] if answer.is_ok else [str(answer.error), answer.text]
    # Some clients pass on nothing but the first text, at least of errors.
    text = "\n\n".join(filter(None, [*parts, f"session_id: {id}"]))
    content = [{"type": "text", "text": text}]
    return {"content": content, "structuredContent": data, "isError": not answer.is_ok}


def _failed(error: AppError) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": str(error)}], "isError": True}


def _plans_by_tool(request: Request, chosen: Chosen) -> dict[str, tuple[api.Plan, str]]:
    """The plan and the description of each tool: of the plan itself, and of each of its agents."""
    name = chosen.plan.name
    about = _description(chosen.plan.data, f"Runs the plan '{name}'.")
    text = f"Send a prompt to an agent with tools. {about}"
    plans = {_tool_name(name): (api.Plan(chosen, request), text)}
    for agent, config in chosen.plan.mount_plan().get("agents", {}).items():
        narrowed = api.Plan(chosen._replace(plan=agent_plan(chosen.plan, agent)), request)
        about = _description(config, f"The agent '{agent}'.")
        plans.setdefault(_tool_name(agent), (narrowed, f"Send a prompt to an agent. {about}"))
    return plans


def _description(config: Any, default: str) -> str:
    description = to_mapping(config).get("description")
    return description if isinstance(description, str) else default


def _tool_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[:64] or "agent"


def _complete(result: dict[str, Any], is_newest: bool, *, is_list: bool = False) -> dict[str, Any]:
    """A result as the era of the request has it."""
    if not is_newest:
        return result
    cached = {"ttlMs": _LIST_MILLISECONDS, "cacheScope": "private"} if is_list else {}
    return {"resultType": "complete", **cached, **result}


def _question(question: api.Approval) -> str:
    # It gives the reason, too.
    agent, text = question.get("agent"), str(question["question"])
    return f"{agent}: {text}" if agent else text


def _elicitation(question: str) -> dict[str, Any]:
    return {"mode": "form", "message": question, "requestedSchema": _ANSWER_SCHEMA}


def _is_yes(result: Any) -> bool:
    fields = to_mapping(result)
    content = to_mapping(fields.get("content"))
    return fields.get("action") == "accept" and content.get("answer") == "allow"


async def serve_stdio(server: McpServer, source: int, output: Output) -> None:
    """Serve one client until it closes the connection."""
    caller = Caller()

    def handle(method: str, params: dict[str, Any]) -> Awaitable[Any] | Any:
        return server.handle(method, params, caller)

    peer = Peer(source, output, handle, MCP_CANCELLATION)
    caller.notify, caller.ask = peer.notify, peer.request
    await peer.serve()
    await peer.cancel_all()
    await server.close()
