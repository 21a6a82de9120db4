"""All servers of a session: started in parallel, their tools mounted when they are ready."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
import logging
import mimetypes
import os
import re
import secrets
from collections.abc import Awaitable, Callable, Collection, Container, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from amplifier_core.events import SESSION_RESUME, SESSION_START
from amplifier_core.models import HookResult, ToolResult
from amplifier_core.utils.truncate import sanitize_text
from amplifier_extras.tool_mcp.config import MODULE_ID, McpConfig, ServerConfig
from amplifier_extras.tool_mcp.connection import (
    CannotStart,
    Connection,
    Offers,
    ServerProblem,
    Way,
    read_pages,
    shorten,
)
from amplifier_extras.tool_mcp.server import Listener, Server
from amplifier_extras.tool_mcp.skills import ServedSkill, ServerSkills
from amplifier_extras.tool_mcp.transports import ErrorLog, LocalWay, RemoteWay
from amplifier_modules._shared.module.spans import event_ids
from amplifier_modules._shared.module.tools import (
    InvalidInput,
    failure,
    object_schema,
    parameter,
    read_input,
)
from amplifier_modules._shared.output import OutputCapture, output_dir
from amplifier_support.files import open_private_in
from amplifier_support.images import image_type
from amplifier_support.installation import install_command
from amplifier_support.redaction import Redactor, configured_secrets, secrets_in
from amplifier_support.session_capabilities import ACCEPTED_TOOLS, OFFLINE, SKILLS_CHANNEL

if TYPE_CHECKING:
    from amplifier_extras.tool_mcp.client import SkillsClient

logger = logging.getLogger(__name__)


_SPILL_LIMIT = 64 * 1024 * 1024
_PIECE = 1 << 20
_LARGEST_IMAGE = 5 * 1024 * 1024
_MAX_IMAGES = 20

Block = dict[str, Any]


class Results:
    """Create results.

    Args:
        max_output: Bytes of text in one result.
        folder: Returns the folder for long results and other data.
        redact: Removes secrets from a text.
    """

    def __init__(
        self, max_output: int, folder: Callable[[], Path], redact: Callable[[str], str] = str
    ) -> None:
        self._max_output = max_output
        self._folder = folder
        self._redact = redact

    def of_call(self, answer: Any) -> ToolResult:
        """The result of a call."""
        blocks = [self._block(content) for content in answer.content]
        structured = answer.structured_content
        if not blocks and structured is not None:
            text = json.dumps(structured, ensure_ascii=False, indent=1, default=str)
            blocks = [_text(text)]
        return self._result(blocks, failed=bool(answer.is_error))

    def of_resource(self, answer: Any) -> ToolResult:
        """The result of reading a resource."""
        return self._result([self._resource(contents) for contents in answer.contents])

    def of_prompt(self, answer: Any) -> ToolResult:
        """The result of filling in a prompt: the messages by role."""
        blocks: list[Block] = [_text(answer.description)] if answer.description else []
        for message in answer.messages:
            blocks += [_text(f"[{message.role}]"), self._block(message.content)]
        return self._result(blocks)

    def of_text(self, text: str) -> ToolResult:
        return self._result([_text(text)])

    # -- parts -------------------------------------------------------------------------

    def _result(self, blocks: list[Block], *, failed: bool = False) -> ToolResult:
        more = sum(block["type"] == "image" for block in blocks) - _MAX_IMAGES
        if more > 0:
            blocks = [*blocks, _text(f"[{more} more images left out]")]
        text = self._shortened(
            self._redact("\n".join(b["text"] for b in blocks if b["type"] == "text"))
        )
        error = {"message": text or "the tool failed", "type": "ToolError"} if failed else None
        images = [block for block in blocks if block["type"] == "image"][:_MAX_IMAGES]
        content: Any = [*([_text(text)] if text else []), *images] if images else None
        output = text if text or images else "(no output)"
        return ToolResult(success=not failed, output=output, error=error, content=content)

    def _shortened(self, text: str) -> str:
        if (
            len(text) <= self._max_output
            and len(text.encode("utf-8", "replace")) <= self._max_output
        ):
            return text
        capture = OutputCapture(
            limit=self._max_output,
            spill_limit=_SPILL_LIMIT,
            new_file=lambda: self._new_file("txt"),
        )
        for start in range(0, len(text), _PIECE):
            capture.feed(text[start : start + _PIECE].encode("utf-8", "replace"))
        capture.close()
        piece = capture.captured()
        kept = f"its full text is in {piece.file}" if piece.file else f"not kept: {piece.problem}"
        return f"{piece.text}\n[the result has {piece.total} bytes; {kept}]"

    def _block(self, content: Any) -> Block:
        match content.type:
            case "text":
                return _text(content.text)
            case "image" | "audio":
                return self._media(content.data, content.mime_type)
            case "resource":
                return self._resource(content.resource)
            case "resource_link":
                about = ", ".join(filter(None, (content.name, content.mime_type)))
                return _text(f"[resource {content.uri}: {about}]")
            case other:
                return _text(f"[content of the unknown type {other!r}]")

    def _resource(self, contents: Any) -> Block:
        text = getattr(contents, "text", None)
        if text is not None:
            return _text(f"[resource {contents.uri}]\n{text}")
        return self._media(contents.blob, contents.mime_type or "application/octet-stream")

    def _media(self, encoded: str, mime_type: str) -> Block:
        """Return an image as such; save other media in a file."""
        kind = mime_type.partition(";")[0].strip().lower()
        try:
            data = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            return _text(f"[{kind}: its data is not valid base64]")
        # A service refuses a request with invalid data, and every later one.
        if image_type(data[:16]) == kind and len(data) <= _LARGEST_IMAGE:
            source = {"type": "base64", "media_type": kind, "data": encoded}
            return {"type": "image", "source": source}
        try:
            path = self._saved(data, kind)
        except OSError as error:
            return _text(f"[{kind}, {len(data)} bytes, could not be saved: {error.strerror}]")
        return _text(f"[{kind}, {len(data)} bytes, saved as {path}]")

    def _saved(self, data: bytes, kind: str) -> Path:
        path = self._new_file((mimetypes.guess_extension(kind) or ".bin").lstrip("."))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(open_private_in(path.parent, path.name, flags), "wb") as file:
            file.write(data)
        return path

    def _new_file(self, extension: str) -> Path:
        return self._folder() / f"mcp-{secrets.token_hex(6)}.{extension}"


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


Emit = Callable[[str, dict[str, Any]], Awaitable[None]]
Run = Callable[[dict[str, Any]], Awaitable[ToolResult]]
_Described = tuple[str, dict[str, Any], Run]
"""The description, the input schema and the function of a tool."""

MCP_PROGRESS = "mcp:progress"

_MAX_DESCRIPTION = 8000
_MAX_NAME = 64
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_-]")
_MAX_LISTED = 200
MAX_SENT = 30
"""Tools of the servers that are sent with every request; if there are more, they are deferred."""

_MAX_PAGES = 20


class MountedTool:
    """A tool of a server (Tool Contract): a failure is a result, never an exception.

    Args:
        name: Its mounted name.
        description: Its description for the model.
        input_schema: JSON schema of its input.
        server: The server that runs it.
        run: Returns the result for an input; may raise `InvalidInput` and `ServerProblem`.

    Attributes:
        deferrable: Whether requests leave it out until the model searches for it.
        is_catalogue: Whether its description is what the model needs, so that it is never left out.
    """

    deferrable = False
    is_catalogue = False

    def __init__(
        self, name: str, description: str, input_schema: dict[str, Any], server: Server, run: Run
    ) -> None:
        self.name = name
        self.description = description
        self.input_schema = input_schema
        self.server = server
        self._run = run

    def get_schema(self) -> dict[str, Any]:
        """JSON schema of the input."""
        return self.input_schema

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        """Run the tool; `error` of a failure has `message` and `type`."""
        before = len(self.server.unanswered)
        arguments: Any = input
        try:
            if not isinstance(arguments, Mapping):
                raise InvalidInput(f"the input must be an object, not {type(arguments).__name__}")
            return await self._run(dict(cast("Mapping[str, Any]", arguments)))
        except InvalidInput as error:
            return failure(error)
        except ServerProblem as error:
            error.args = (self.server.redact(str(error)),)
            return failure(error)
        finally:
            await self.server.report_unanswered(self.name, before)


def _remote_tool(
    name: str, server: Server, results: Results, remote: Any, emit: Emit
) -> MountedTool:
    """A tool that runs on the server.

    Args:
        name: Its mounted name.
        server: The server that runs it.
        results: Creates results from responses.
        remote: The tool as the SDK describes it.
        emit: Emits events.
    """

    async def run(values: dict[str, Any]) -> ToolResult:
        arguments = _sendable(values)
        ids = event_ids()

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            note = None if message is None else server.redact(shorten(message))
            data = {"server": server.name, "tool": name, "progress": progress}
            await emit(MCP_PROGRESS, {**data, "total": total, "message": note, **ids})

        async def call(client: SkillsClient) -> Any:
            return await client.call_tool(remote.name, arguments, progress_callback=on_progress)

        return results.of_call(await server.call(call))

    text = remote.description or remote.title or f"The tool {remote.name} of {server.name}."
    schema = {**remote.input_schema, "type": "object"}
    return MountedTool(name, text[:_MAX_DESCRIPTION], schema, server, run)


def _resource_tools(
    server: Server, results: Results, skills: ServerSkills | None = None
) -> Iterator[tuple[str, _Described]]:
    """Yield the tools for the resources of a server, by the ends of their names.

    Args:
        server: The server.
        results: Creates results from responses.
        skills: Its skills, if it lists directories.
    """
    about = "List the resources in the directory with this URI only"
    directory = {} if skills is None else {"directory": parameter("string", about)}
    which = object_schema(**directory)
    uri = parameter("string", "The URI of the resource")
    one_uri = object_schema("uri", uri=uri)

    async def list_resources(values: dict[str, Any]) -> ToolResult:
        directory = read_input(which, values).get("directory")
        if directory is None or skills is None:
            return results.of_text("\n".join(await server.call(_resource_lines)))
        uri, known = sanitize_text(directory), list(skills.skills.values())
        lines = await server.call(lambda client: _directory_lines(client, uri, known))
        return results.of_text("\n".join(lines))

    async def read_resource(values: dict[str, Any]) -> ToolResult:
        uri: str = sanitize_text(read_input(one_uri, values)["uri"])
        return results.of_resource(await server.call(lambda client: client.read_resource(uri)))

    about = f"List the resources of the MCP server {server.name}, with their URIs."
    yield "list_resources", (about, which, list_resources)
    about = f"Read a resource of the MCP server {server.name} by its URI."
    yield "read_resource", (about, one_uri, read_resource)


def _prompt_tools(server: Server, results: Results) -> Iterator[tuple[str, _Described]]:
    """Yield the tools for the prompts of a server, by the ends of their names."""
    nothing = object_schema()

    async def list_prompts(values: dict[str, Any]) -> ToolResult:
        read_input(nothing, values)
        return results.of_text("\n".join(await server.call(_prompt_lines)))

    async def get_prompt(values: dict[str, Any]) -> ToolResult:
        name, arguments = values.get("name"), values.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(arguments, Mapping):
            raise InvalidInput("'name' must be a string, and 'arguments' an object of strings")
        filled = cast("Mapping[str, Any]", arguments)
        texts = _sendable({key: str(value) for key, value in filled.items()})
        return results.of_prompt(await server.call(lambda client: client.get_prompt(name, texts)))

    about = f"List the prompts of the MCP server {server.name}, with their arguments."
    yield "list_prompts", (about, nothing, list_prompts)
    about = f"Get a prompt of the MCP server {server.name}, filled in with arguments."
    prompt = parameter("string", "The name of the prompt")
    arguments = {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "description": "Its arguments by name",
    }
    yield "get_prompt", (about, object_schema("name", name=prompt, arguments=arguments), get_prompt)


def _sendable(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments as JSON can carry them: without lone surrogates."""
    text = json.dumps(arguments, ensure_ascii=False, default=str)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.loads(sanitize_text(text))
    return arguments


async def _resource_lines(client: SkillsClient) -> list[str]:
    resources = [
        resource
        async for page in read_pages(client.list_resources, _MAX_PAGES)
        for resource in page.resources
    ]
    lines = [_line(r.uri, r.name, r.mime_type, r.description) for r in resources]
    templates = (await client.list_resource_templates()).resource_templates
    lines += [_line(t.uri_template, t.name, t.mime_type, t.description) for t in templates]
    return _most(lines, "resource")


async def _directory_lines(
    client: SkillsClient, uri: str, skills: Collection[ServedSkill]
) -> list[str]:
    """List a directory, without files in the folder of a skill that it did not have when it was accepted."""
    pages = read_pages(partial(client.read_directory, uri), _MAX_PAGES)
    resources = [resource async for page in pages for resource in page.resources]
    return _most(
        [
            _line(one.uri, one.name, one.mime_type, one.description)
            for one in resources
            if not any(skill.hides(one.uri) for skill in skills)
        ],
        "resource",
    )


async def _prompt_lines(client: SkillsClient) -> list[str]:
    lines: list[str] = []
    async for page in read_pages(client.list_prompts, _MAX_PAGES):
        for item in page.prompts:
            arguments = [a.name if a.required else f"{a.name}?" for a in item.arguments or ()]
            called = f"{item.name}({', '.join(arguments)})"
            lines.append(_line(called, None, None, item.description))
    return _most(lines, "prompt")


def _line(address: str, name: str | None, kind: str | None, description: str | None) -> str:
    about = ", ".join(" ".join(part.split()) for part in (name, kind, description) if part)
    return f"{address}: {about}" if about else address


def _most(lines: list[str], what: str) -> list[str]:
    if not lines:
        return [f"[the server has no {what}s]"]
    left = len(lines) - _MAX_LISTED
    return [*lines[:_MAX_LISTED], f"[and {left} more]"] if left > 0 else lines


def tool_name(server: str, tool: str, taken: Container[str], servers: Collection[str] = ()) -> str:
    """A name for a tool of a server that is not in `taken`.

    Characters that services refuse become `_`. A name that is too long or taken, or looks like one of another of the
    `servers`, ends with a digest of the original, so that it is the same in every session.
    """
    name = _NOT_ALLOWED.sub("_", f"mcp_{server}_{tool}")
    looks_like_others = any(
        len(other) > len(server) and name.startswith(f"mcp_{other}_") for other in servers
    )
    if len(name) <= _MAX_NAME and name not in taken and not looks_like_others:
        return name
    digest = hashlib.sha256(f"{server}\n{tool}".encode()).hexdigest()[:8]
    return f"{name[: _MAX_NAME - len(digest) - 1]}_{digest}"


MCP_CONNECTED = "mcp:connected"
MCP_DISCONNECTED = "mcp:disconnected"
MCP_FAILED = "mcp:failed"
MCP_LOG = "mcp:log"
TOOL_UNANSWERED = "tool:unanswered"
SKILL_LOADED = "skill:loaded"
MCP_EVENTS = (
    *(MCP_CONNECTED, MCP_DISCONNECTED, MCP_FAILED, MCP_LOG, MCP_PROGRESS),
    *(TOOL_UNANSWERED, SKILL_LOADED),
)
"""Events this module emits in addition to the kernel's."""

_MAX_LOG = 10_000
_MAX_PROBLEMS = 10
"""Invalid tools and skills of a server that are reported one by one."""
_MAX_UNTOLD = 100


class Hub(Listener):
    """The servers of a session.

    Args:
        coordinator: The session's.
        config: The module's settings.
    """

    def __init__(self, coordinator: Any, config: McpConfig) -> None:
        self._coordinator = coordinator
        self._config = config
        self._mounted: dict[str, dict[str, MountedTool]] = {}
        self._offers: dict[str, Offers] = {}
        self._digests: dict[str, dict[str, str]] = {}
        self._skills: dict[str, ServerSkills] = {}
        self._is_pinned = False
        self._left_out: set[str] = set()
        accepted = ACCEPTED_TOOLS.of(coordinator)
        self._accepted: dict[str, dict[str, str]] = {} if accepted is None else accepted
        ACCEPTED_TOOLS.register(coordinator, self._accepted)
        self._logs: list[ErrorLog] = []
        self._started = False
        self._one_question = asyncio.Lock()
        self._sdk: asyncio.Task[None] | None = None
        self._untold: list[tuple[str, dict[str, Any]]] | None = []
        self._servers = [
            self._server(name, settings)
            for name, settings in config.servers.items()
            if settings.enabled
        ]

    def describe(self) -> Iterator[str]:
        """Yield a line for each server, with its state and the names of its tools."""
        for server in self._servers:
            tools = self._list_tools(server)
            names = ", ".join(tool.name for tool in tools)
            state = "ready" if server.is_ready else server.problem
            deferred = sum(tool.deferrable for tool in tools)
            state += f", {deferred} of {len(tools)} tools deferred" if deferred else ""
            refused = [*self._list_refused(server)]
            state += f", refused as changed: {', '.join(refused)}" if refused else ""
            yield f"{server.name}: {state}{f': {names}' if names else ''}"

    async def start(self) -> None:
        """Start all servers, and wait for those that are required.

        Raises:
            RuntimeError: A required server is not ready.
        """
        if not self._servers:
            return
        if OFFLINE.of(self._coordinator):
            self._leave_out_remote_ones()
            if not self._servers:
                return
        # Most hooks are mounted after tools: earlier events are emitted when the session begins.
        for event in (SESSION_START, SESSION_RESUME):
            self._coordinator.hooks.register(event, self._emit_pending, name=MODULE_ID)
        # The SDK takes seconds to import, so import it only if needed.
        self._sdk = asyncio.create_task(asyncio.to_thread(_import_sdk))
        for server in self._servers:
            server.start()
        try:
            await self._wait()
        except BaseException:
            await self.close()
            raise
        self._started = True

    async def close(self) -> None:
        """Stop all servers."""
        for log in self._logs:
            log.stop_creating()
        await asyncio.gather(*(server.close() for server in self._servers))
        for log in self._logs:
            log.close()

    async def _wait(self) -> None:
        required = [server for server in self._servers if server.config.required]
        others = [asyncio.create_task(candidate.tried.wait()) for candidate in self._servers]
        needed = [asyncio.create_task(candidate.settled.wait()) for candidate in required]
        try:
            await asyncio.wait(others, timeout=self._config.wait)
            for server in self._servers:
                if not (server.is_ready or server.settled.is_set() or server.config.required):
                    text = "MCP server %s is not ready (%s): the model gets its tools once it is"
                    logger.warning(text, server.name, server.problem)
            if needed:
                await asyncio.wait(needed)
        finally:
            for task in (*others, *needed):
                task.cancel()
        missing = [server for server in required if not server.is_ready]
        if missing:
            problems = "; ".join(f"{server.name}: {server.problem}" for server in missing)
            raise RuntimeError(f"{MODULE_ID}: required servers are not ready: {problems}")

    def _leave_out_remote_ones(self) -> None:
        remote = [server for server in self._servers if server.config.url is not None]
        for server in remote:
            if server.config.required:
                raise RuntimeError(f"{MODULE_ID}: {server.name} is unavailable offline")
            logger.warning("MCP server %s skipped: this session runs offline", server.name)
        self._servers = [server for server in self._servers if server not in remote]
        self._left_out = {server.name for server in remote}

    # -- server notifications ----------------------------------------------------------

    async def connected(self, server: Server, offers: Offers, seconds: float) -> None:
        known = self._offers.get(server.name)
        problems = offers.problems if known is None or known.problems != offers.problems else ()
        for problem in problems[:_MAX_PROBLEMS]:
            logger.warning("MCP server %s: left out %s", server.name, problem)
        if (left := len(problems) - _MAX_PROBLEMS) > 0:
            logger.warning("MCP server %s: left out %d more tools or skills", server.name, left)
        await self._take(server, offers)
        data = {
            "transport": "stdio" if server.config.command else "http",
            "tools": list(self._mounted[server.name]),
            "late": self._started,
            "duration_ms": round(seconds * 1000),
        }
        await self._emit(MCP_CONNECTED, {"server": server.name, **data})

    async def _take(self, server: Server, offers: Offers) -> None:
        """Mount what a server offers, except for what it has changed."""
        self._offers[server.name] = offers
        digests = self._digests[server.name] = _digests(offers)
        self._accepted.setdefault(_identity(server), dict(digests))
        await self._mount(server.name, self._build_tools(server, offers))
        if refused := [shorten(name) for name in self._list_refused(server)]:
            text = "MCP server %s has changed since the session began; these are refused: %s"
            logger.warning(
                f"{text}; to use them: /mcp accept %s",
                *(server.name, ", ".join(refused), server.name),
            )

    async def _note_skill(self, server: Server, skill: ServedSkill) -> None:
        """Take the current entry of a skill; one that was not listed is accepted unless a lock pins the list."""
        offers = self._offers[server.name]
        others = [other for other in offers.skills if other.uri != skill.uri]
        if len(others) == len(offers.skills) and not self._is_pinned:
            self._accepted[_identity(server)].setdefault(skill.uri, _digest(skill))
        if skill not in offers.skills:
            await self._take(server, offers._replace(skills=[*others, skill]))

    def list_skills(self) -> list[dict[str, Any]]:
        """Return the skills of the servers: name, origin, description, and whether it was loaded."""
        return [
            {
                "name": skill.path,
                "origin": f"mcp {name}",
                "description": skill.description,
                "loaded": skill.name in served.loaded,
            }
            for name, served in self._skills.items()
            for skill in served.skills.values()
        ]

    async def disconnected(self, server: Server, problem: str) -> None:
        logger.info("lost the MCP server %s: %s", server.name, problem)
        await self._emit(MCP_DISCONNECTED, {"server": server.name, "error": problem})

    async def failed(self, server: Server, problem: str, final: bool) -> None:
        if final and not (server.config.required and not self._started):
            logger.warning("MCP server %s is unavailable: %s", server.name, problem)
        data = {"error": problem, "final": final, "required": server.config.required}
        await self._emit(MCP_FAILED, {"server": server.name, **data})

    async def asked(self, server: Server, params: Any) -> Any:
        from amplifier_extras.tool_mcp.elicitation import ask_user

        async with self._one_question:
            answer = await ask_user(self._coordinator.approval_system, server.name, params)
        if answer.action != "accept":
            server.unanswered.append(
                f"declined what {server.name} asked: {shorten(params.message)}"
            )
        return answer

    async def unanswered(self, tool: str, question: str) -> None:
        await self._emit(TOOL_UNANSWERED, {"tool_name": tool, "reason": question})

    async def logged(self, server: Server, level: str, name: str | None, data: Any) -> None:
        text = server.redact(data if isinstance(data, str) else repr(data))
        fields = {"level": level, "logger": name and shorten(name), "data": text[:_MAX_LOG]}
        await self._emit(MCP_LOG, {"server": server.name, **fields})

    async def _emit(self, event: str, data: dict[str, Any]) -> None:
        data = {**event_ids(), **data}
        if self._untold is None:
            await self._coordinator.hooks.emit(event, data)
        elif len(self._untold) < _MAX_UNTOLD:
            self._untold.append((event, data))

    async def _emit_pending(self, event: str, data: dict[str, Any]) -> HookResult:
        untold, self._untold = self._untold, None
        for name, held in untold or ():
            await self._coordinator.hooks.emit(name, held)
        return HookResult()

    async def accept(self, name: str) -> bool:
        """Use the tools of a server as they are now; False if the server does not exist or has no changes."""
        for server in self._servers:
            if server.name == name and any(self._list_refused(server)):
                self._accepted[_identity(server)] = dict(self._digests[name])
                await self._mount(name, self._build_tools(server, self._offers[name]))
                return True
        return False

    async def list_pins(self) -> dict[str, dict[str, str]]:
        """Return the tools and the files of skills by their server, once every server has answered or is given up."""
        for server in self._servers:
            server.is_awaited = True
        await asyncio.gather(*(server.settled.wait() for server in self._servers))
        self._is_pinned = True
        pins = {f"mcp {server.name}": dict(self._list_pins(server)) for server in self._servers}
        left_out = {f"mcp {name}": {"problem": "unavailable offline"} for name in self._left_out}
        return pins | left_out

    def _list_pins(self, server: Server) -> Iterator[tuple[str, str]]:
        offers = self._offers.get(server.name)
        if offers is None:
            yield "problem", server.problem
            return
        for tool in offers.tools:
            if _is_wanted(tool.name, server.config):
                for key, value in _definition(tool).items():
                    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
                    yield f"{tool.name} {key}", text
        for skill in offers.skills:
            yield f"{skill.uri} frontmatter", json.dumps(skill.frontmatter, sort_keys=True)
            for path, file in skill.files.items():
                yield f"{skill.uri} {path}", file.digest

    # -- tools -------------------------------------------------------------------------

    def _list_refused(self, server: Server) -> Iterator[str]:
        """Tools and skills that the server has added or changed since the session accepted it."""
        accepted = self._accepted.get(_identity(server), {})
        for name, digest in self._digests.get(server.name, {}).items():
            if accepted.get(name) != digest:
                skills = self._offers[server.name].skills
                if _is_wanted(name, server.config) or any(skill.uri == name for skill in skills):
                    yield name

    def _build_tools(self, server: Server, offers: Offers) -> dict[str, MountedTool]:
        """A server's tools by their mounted names."""
        own = self._mounted.get(server.name, {})
        others = self._coordinator.get("tools").keys() - own.keys()
        results = Results(
            self._config.max_output, lambda: output_dir(self._coordinator), server.redact
        )
        tools: dict[str, MountedTool] = {}
        refused = [*self._list_refused(server)]
        for remote in offers.tools:
            if _is_wanted(remote.name, server.config) and remote.name not in refused:
                taken = {*others, *tools}
                name = tool_name(server.name, remote.name, taken, self._config.servers)
                tools[name] = _remote_tool(name, server, results, remote, self._emit)
        extra: list[tuple[str, _Described]] = []
        skills = self._update_skills(server, offers, refused)
        if offers.has_resources and server.config.resources:
            directories = skills if offers.reads_directories else None
            extra += _resource_tools(server, results, directories)
        if offers.has_prompts and server.config.prompts:
            extra += _prompt_tools(server, results)
        for ending, (about, schema, run) in extra:
            name = tool_name(server.name, ending, {*others, *tools})
            tools[name] = MountedTool(name, about, schema, server, run)
        if skills is not None:

            async def load(given: dict[str, Any]) -> ToolResult:
                return results.of_text(await skills.run(given))

            name = tool_name(server.name, "skill", {*others, *tools})
            about, schema = skills.description, skills.input_schema
            tools[name] = MountedTool(name, about, schema, server, load)
            tools[name].is_catalogue = True
        return tools

    def _update_skills(
        self, server: Server, offers: Offers, refused: Container[str]
    ) -> ServerSkills | None:
        """Note which skills of a server may be used; None if it offers none."""
        if not (offers.has_skills and self._config.skills and server.config.skills):
            return None
        if server.name not in self._skills:
            self._skills[server.name] = ServerSkills(
                server.name,
                server.call,
                partial(self._note_skill, server),
                lambda name: self._emit(SKILL_LOADED, {"name": name, "server": server.name}),
            )
        skills = self._skills[server.name]
        skills.skills = {one.name: one for one in offers.skills if one.uri not in refused}
        return skills

    async def _mount(self, server: str, tools: dict[str, MountedTool]) -> None:
        for name, tool in self._mounted.get(server, {}).items():
            if name not in tools and self._coordinator.get("tools", name) is tool:
                await self._coordinator.unmount("tools", name=name)
        for name, tool in tools.items():
            await self._coordinator.mount("tools", tool, name=name)
        self._mounted[server] = tools
        self._defer()

    def _defer(self) -> None:
        """Decide which tools are deferrable; the tools of the plan's first servers come first."""
        mounted = [tool for server in self._servers for tool in self._list_tools(server)]
        by_default = len(mounted) > MAX_SENT if self._config.defer is None else self._config.defer
        for tool in mounted:
            own = tool.server.config.defer
            tool.deferrable = (by_default if own is None else own) and not tool.is_catalogue
        deferred = [tool for tool in mounted if tool.deferrable]
        keep = self._config.keep
        if isinstance(keep, int):
            kept = deferred[:keep]
        else:
            kept = [tool for tool in deferred if any(fnmatchcase(tool.name, name) for name in keep)]
        for tool in kept:
            tool.deferrable = False

    def _list_tools(self, server: Server) -> Collection[MountedTool]:
        return self._mounted.get(server.name, {}).values()

    # -- transports --------------------------------------------------------------------

    def _server(self, name: str, config: ServerConfig) -> Server:
        if config.url is None:
            return Server(name, config, self._after_sdk(self._local_way(name, config)), self)
        way = RemoteWay(name, config, self._coordinator)
        return Server(name, config, self._after_sdk(way), self, way.secrets)

    def _after_sdk(self, way: Way) -> Way:
        async def connect(lost: Callable[[], None]) -> Connection:
            if self._sdk is not None:
                await asyncio.shield(self._sdk)
            return await way(lost)

        return connect

    def _local_way(self, name: str, config: ServerConfig) -> LocalWay:
        plan_secrets = configured_secrets(self._coordinator.config)
        known = [*secrets_in(), *secrets_in(config.env), *plan_secrets]
        redactor = Redactor(known)
        log = ErrorLog(lambda: output_dir(self._coordinator), f"mcp-{name}.log", redactor)
        self._logs.append(log)
        return LocalWay(config, self._coordinator, log)


def _identity(server: Server) -> str:
    """Return what tells a server from another one that a sub-agent has under the same name."""
    way = [server.config.command, server.config.args, server.config.url]
    return f"{server.name} {_hash(way)}"


def _digests(offers: Offers) -> dict[str, str]:
    """Return a digest of each tool and skill, by its name or URI."""
    tools = {tool.name: _digest(tool) for tool in offers.tools}
    return {**tools, **{skill.uri: _digest(skill) for skill in offers.skills}}


def _digest(offer: Any) -> str:
    if isinstance(offer, ServedSkill):
        files = {path: file.digest for path, file in offer.files.items()}
        return _hash([offer.frontmatter, files])
    return _hash(_definition(offer))


def _definition(tool: Any) -> dict[str, Any]:
    return tool.model_dump(mode="json", by_alias=True, exclude_none=True)


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def _is_wanted(name: str, config: ServerConfig) -> bool:
    allowed = any(fnmatchcase(name, pattern) for pattern in config.tools.allow)
    return allowed and not any(fnmatchcase(name, pattern) for pattern in config.tools.deny)


def _import_sdk() -> None:
    if find_spec("mcp") is None:
        command = install_command("mcp")
        raise CannotStart(f"the MCP SDK is not installed; install it with: {command}")
    try:
        import amplifier_extras.tool_mcp.client as _  # noqa: F401
    except ImportError as error:
        raise CannotStart(
            f"the installed MCP SDK is unusable ({error}); version 2 is required, "
            f"install it with: {install_command('mcp')}"
        ) from error


_hubs: WeakKeyDictionary[Any, list[Hub]] = WeakKeyDictionary()
"""Session → its hubs: the plan's, and one for the servers that an editor adds."""


async def mount(coordinator: Any, settings: McpConfig) -> Callable[[], Awaitable[None]]:
    """Start the configured servers and mount their tools; settings as in `McpConfig`.

    Returns:
        A cleanup function that stops all servers.

    Raises:
        RuntimeError: A required server is not ready in time.
    """
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(MCP_EVENTS))
    hub = Hub(coordinator, settings)
    hubs = _hubs.setdefault(coordinator, [])
    hubs.append(hub)

    async def answer(argument: str = "") -> str:
        verb, _, name = argument.strip().partition(" ")
        if verb == "accept":
            accepted = [await each.accept(name.strip()) for each in hubs]
            if any(accepted):
                return f"The tools and skills of {name} are used as they are now."
            return f"No server {name!r} has changed its tools or skills."
        lines = [line for each in hubs for line in each.describe()]
        return "\n".join(lines) or "The plan has no MCP servers."

    if len(hubs) == 1:
        command = {
            "name": "mcp",
            "summary": "List the MCP servers, their state and their tools; accept NAME uses changed tools",
            "handler": answer,
            "during_turn": True,
        }
        coordinator.register_contributor("chat.commands", MODULE_ID, lambda: command)
    coordinator.register_contributor("lock.pins", MODULE_ID, hub.list_pins)
    coordinator.register_contributor(SKILLS_CHANNEL, MODULE_ID, hub.list_skills)
    await hub.start()
    return hub.close
