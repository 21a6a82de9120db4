"""The mounted tools: one for each tool of a server, plus tools for resources and prompts."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Container, Mapping
from typing import TYPE_CHECKING, Any, cast

from amplifier_core.models import ToolResult
from amplifier_core.utils.truncate import sanitize_text
from amplifier_extras.tool_mcp.connection import ServerProblem, shorten
from amplifier_extras.tool_mcp.results import Results
from amplifier_extras.tool_mcp.server import Server
from amplifier_modules._shared.module.checked_tool import failure
from amplifier_modules._shared.module.spans import event_ids
from amplifier_modules._shared.module.tool_input import InvalidInput, read_input

if TYPE_CHECKING:
    from mcp import Client

Emit = Callable[[str, dict[str, Any]], Awaitable[None]]

MCP_PROGRESS = "mcp:progress"

_LONGEST_DESCRIPTION = 8000
_LONGEST_NAME = 64
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_-]")
_MOST_LISTED = 200
_MOST_PAGES = 20


class MountedTool(ABC):
    """A tool of a server (Tool Contract): a failure is a result, never an exception.

    Args:
        name: Its mounted name.
        description: Its description for the model.
        input_schema: JSON schema of its input.
        server: The server that runs it.
        results: Creates results from responses.
    """

    def __init__(
        self,
        name: str,
        description: str,
        input_schema: dict[str, Any],
        server: Server,
        results: Results,
    ) -> None:
        self.name = name
        self.description = description
        self.input_schema = input_schema
        self.server = server
        self._results = results

    def get_schema(self) -> dict[str, Any]:
        """JSON schema of the input."""
        return self.input_schema

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        """Run the tool; `error` of a failure has `message` and `type`."""
        try:
            given: Any = input
            if not isinstance(given, Mapping):
                raise InvalidInput(f"the input must be an object, not {type(given).__name__}")
            return await self.run(dict(cast("Mapping[str, Any]", given)))
        except (InvalidInput, ServerProblem) as error:
            return failure(error)

    @abstractmethod
    async def run(self, given: dict[str, Any]) -> ToolResult:
        """Return the result for an input."""


class RemoteTool(MountedTool):
    """A tool that runs on the server.

    Args:
        name: Its mounted name.
        server: The server that runs it.
        results: Creates results from responses.
        remote: The tool as the SDK describes it.
        emit: Emits events.
    """

    def __init__(
        self, name: str, server: Server, results: Results, remote: Any, emit: Emit
    ) -> None:
        text = remote.description or remote.title or f"The tool {remote.name} of {server.name}."
        schema = {"type": "object", **remote.input_schema}
        super().__init__(name, text[:_LONGEST_DESCRIPTION], schema, server, results)
        self._remote: str = remote.name
        self._emit = emit

    async def run(self, given: dict[str, Any]) -> ToolResult:
        arguments = _sendable(given)
        ids = event_ids()

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            shown = None if message is None else shorten(message)
            data = {"server": self.server.name, "tool": self.name, "progress": progress}
            await self._emit(MCP_PROGRESS, {**data, "total": total, "message": shown, **ids})

        async def call(client: Client) -> Any:
            return await client.call_tool(self._remote, arguments, progress_callback=on_progress)

        return self._results.of_call(await self.server.call(call))


class ListResources(MountedTool):
    """List a server's resources."""

    def __init__(self, name: str, server: Server, results: Results) -> None:
        about = f"List the resources of the MCP server {server.name}, with their URIs."
        super().__init__(name, about, _object(), server, results)

    async def run(self, given: dict[str, Any]) -> ToolResult:
        read_input(self.input_schema, given)
        return self._results.of_text("\n".join(await self.server.call(_resource_lines)))


class ReadResource(MountedTool):
    """Read a resource of a server."""

    def __init__(self, name: str, server: Server, results: Results) -> None:
        about = f"Read a resource of the MCP server {server.name} by its URI."
        uri = {"type": "string", "description": "The URI of the resource"}
        super().__init__(name, about, _object("uri", uri=uri), server, results)

    async def run(self, given: dict[str, Any]) -> ToolResult:
        uri: str = sanitize_text(read_input(self.input_schema, given)["uri"])
        return self._results.of_resource(
            await self.server.call(lambda client: client.read_resource(uri))
        )


class ListPrompts(MountedTool):
    """List a server's prompts."""

    def __init__(self, name: str, server: Server, results: Results) -> None:
        about = f"List the prompts of the MCP server {server.name}, with their arguments."
        super().__init__(name, about, _object(), server, results)

    async def run(self, given: dict[str, Any]) -> ToolResult:
        read_input(self.input_schema, given)
        return self._results.of_text("\n".join(await self.server.call(_prompt_lines)))


class GetPrompt(MountedTool):
    """Get a prompt of a server."""

    def __init__(self, name: str, server: Server, results: Results) -> None:
        about = f"Get a prompt of the MCP server {server.name}, filled in with arguments."
        prompt = {"type": "string", "description": "The name of the prompt"}
        arguments = {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "Its arguments by name",
        }
        schema = _object("name", name=prompt, arguments=arguments)
        super().__init__(name, about, schema, server, results)

    async def run(self, given: dict[str, Any]) -> ToolResult:
        name, arguments = given.get("name"), given.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(arguments, Mapping):
            raise InvalidInput("'name' must be a string, and 'arguments' an object of strings")
        filled = cast("Mapping[str, Any]", arguments)
        texts = _sendable({key: str(value) for key, value in filled.items()})
        return self._results.of_prompt(
            await self.server.call(lambda client: client.get_prompt(name, texts))
        )


def _object(*required: str, **properties: Any) -> dict[str, Any]:
    """The schema of an object with exactly these properties."""
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return {**schema, "required": list(required), "additionalProperties": False}


def _sendable(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments as JSON can carry them: without lone surrogates."""
    text = json.dumps(arguments, ensure_ascii=False, default=str)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.loads(sanitize_text(text))
    return arguments


async def _resource_lines(client: Client) -> list[str]:
    found: list[str] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await client.list_resources(cursor=cursor)
        found += [_line(r.uri, r.name, r.mime_type, r.description) for r in page.resources]
        cursor = page.next_cursor
        if not cursor:
            break
    templates = await client.list_resource_templates()
    found += [
        _line(t.uri_template, t.name, t.mime_type, t.description)
        for t in templates.resource_templates
    ]
    return _most(found, "resource")


async def _prompt_lines(client: Client) -> list[str]:
    found: list[str] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await client.list_prompts(cursor=cursor)
        for item in page.prompts:
            arguments = [a.name if a.required else f"{a.name}?" for a in item.arguments or ()]
            found.append(
                _line(f"{item.name}({', '.join(arguments)})", None, None, item.description)
            )
        cursor = page.next_cursor
        if not cursor:
            break
    return _most(found, "prompt")


def _line(address: str, name: str | None, kind: str | None, description: str | None) -> str:
    about = ", ".join(" ".join(part.split()) for part in (name, kind, description) if part)
    return f"{address}: {about}" if about else address


def _most(lines: list[str], what: str) -> list[str]:
    if not lines:
        return [f"[the server has no {what}s]"]
    left = len(lines) - _MOST_LISTED
    return [*lines[:_MOST_LISTED], f"[and {left} more]"] if left > 0 else lines


def tool_name(server: str, tool: str, taken: Container[str]) -> str:
    """A name for a tool of a server that is not in `taken`.

    Characters that services refuse become `_`. A name that is too long or taken ends with a digest
    of the original, so that it is the same in every session.
    """
    name = _NOT_ALLOWED.sub("_", f"mcp_{server}_{tool}")
    if len(name) <= _LONGEST_NAME and name not in taken:
        return name
    digest = hashlib.sha256(f"{server}\n{tool}".encode()).hexdigest()[:8]
    return f"{name[: _LONGEST_NAME - len(digest) - 1]}_{digest}"
