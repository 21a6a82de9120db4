"""Input of an editor: the content blocks of prompts, the MCP servers that it adds to the plan, and its files."""

from __future__ import annotations

import asyncio
import base64
import binascii
import errno
import itertools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from amplifier_app.base.json_rpc import INVALID_PARAMS, Peer, RpcError
from amplifier_app.base.sanitize import visible
from amplifier_app.runtime.attachments import MAX_TEXT_BYTES, AttachedImage, read_attachments
from amplifier_support.fields import to_mapping

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession
    from amplifier_serve.acp.updates import Updates

_MODULE = "tool-mcp"
_WAIT_SECONDS = 30
"""Seconds until the first prompt goes on without servers that are not ready: the `start_timeout` of one."""
_ANSWER_SECONDS = 10.0
"""Seconds that the editor has to read or change a file."""


def read_prompt(blocks: Any) -> tuple[str, tuple[AttachedImage, ...]]:
    """The text and the images of a prompt.

    Raises:
        RpcError: A block is of another type, or incomplete.
        UsageError: An image is damaged or too large.
    """
    if not isinstance(blocks, list):
        raise RpcError(INVALID_PARAMS, "'prompt' must be a list of content blocks")
    texts: list[str] = []
    images: list[bytes] = []
    for block in cast("list[Any]", blocks):
        fields = cast("dict[str, Any]", block if isinstance(block, dict) else {})
        match fields:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "resource_link", "uri": str(uri)}:
                texts.append(f"[{fields.get('name') or uri}]({uri})")
            case {"type": "resource", "resource": {"uri": str(uri), "text": str(text)}}:
                texts.append(_file(uri, text))
            case {"type": "image", "data": str(data)}:
                images.append(_decoded(data))
            case _:
                kind = fields.get("type")
                raise RpcError(INVALID_PARAMS, f"cannot use a content block of the type {kind!r}")
    attached = read_attachments(images).images
    prompt = "\n".join(texts)
    if not prompt.strip() and not attached:
        raise RpcError(INVALID_PARAMS, "the prompt is empty")
    return prompt, attached


def _file(uri: str, text: str) -> str:
    path = visible(uri.removeprefix("file://"))
    if len(text.encode("utf-8", "replace")) > MAX_TEXT_BYTES:
        raise RpcError(INVALID_PARAMS, f"{path} is larger than {MAX_TEXT_BYTES:,} bytes")
    return f'\n<file path="{path}">\n{text.rstrip()}\n</file>\n'


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RpcError(INVALID_PARAMS, "an image is not valid base64") from error


def read_servers(listed: Any) -> dict[str, dict[str, Any]]:
    """The config of each server that an editor lists, by a name that tool-mcp takes.

    Raises:
        RpcError: A server is incomplete, or of a type that is not supported.
    """
    servers: dict[str, dict[str, Any]] = {}
    for server in _list(listed, "mcpServers"):
        name, config = _read_server(server)
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_") or "server"
        numbered = (f"{name[:28]}-{number}" for number in itertools.count(2))
        names = itertools.chain([name[:32]], numbered)
        servers[next(name for name in names if name not in servers)] = config
    return servers


async def mount_servers(session: OpenSession, servers: Mapping[str, Any], updates: Updates) -> None:
    """Mount tool-mcp with the servers of an editor: the plan's rules and its sandbox apply to them.

    Without them the session works, too: the editor adds the same ones to all agents.
    """
    if not servers:
        return
    config = {"servers": dict(servers), "wait": _WAIT_SECONDS}
    coordinator, loader = session.session.coordinator, session.session.loader
    try:
        mount = await loader.load(_MODULE, config, None)
        cleanup = await mount(coordinator)
    # Modules may raise anything.
    except Exception as error:
        updates.notice(f"the MCP servers are not available: {error}", "warning", "acp")
    else:
        coordinator.register_cleanup(cleanup)


def _read_server(server: Any) -> tuple[str, dict[str, Any]]:
    fields = cast("dict[str, Any]", server if isinstance(server, dict) else {})
    match fields:
        case {"name": str(name), "type": "http", "url": str(url)}:
            return name, {"url": url, "headers": _pairs(fields, "headers")}
        case {"name": str(name), "command": str(command)} if fields.get("type") in (None, "stdio"):
            args = _list(fields.get("args"), "args")
            if not all(isinstance(argument, str) for argument in args):
                raise RpcError(INVALID_PARAMS, f"the 'args' of {name!r} must be texts")
            return name, {"command": command, "args": args, "env": _pairs(fields, "env")}
        case _:
            text = "an MCP server needs a 'name', and a 'command' or a 'url' of the type 'http'"
            raise RpcError(INVALID_PARAMS, text)


class ClientFiles:
    """The files of an editor: see `amplifier_support.session_capabilities.EditorFiles`.

    Args:
        peer: The connection to it.
        session: The id of the session.
        can_write: Whether it also changes them.

    Attributes:
        changed: The files that were changed in it.
    """

    def __init__(self, peer: Peer, session: str, can_write: bool) -> None:
        self._peer = peer
        self._session = session
        self._can_write = can_write
        self.unsaved: dict[str, str] = {}
        self.changed: set[str] = set()

    async def read(self, path: str) -> str | None:
        try:
            answer = await self._request("fs/read_text_file", path=path)
        except RpcError:
            return None  # Editors may know only the files of their project.
        content = to_mapping(answer).get("content")
        return content if isinstance(content, str) else None

    async def write(self, path: str, text: str) -> None:
        if not self._can_write:
            message = "it has changes in the editor that are not saved; ask the user to save it"
            raise OSError(errno.EBUSY, message)
        self.changed.add(path)
        try:
            await self._request("fs/write_text_file", path=path, content=text)
        except RpcError as error:
            message = f"the editor could not change it: {error.message}"
            raise OSError(errno.EBUSY, message) from error

    async def _request(self, method: str, **params: str) -> Any:
        """Call the editor.

        Raises:
            RpcError: It refuses.
            OSError: It does not answer.
        """
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await self._peer.request(method, {"sessionId": self._session, **params})
        except TimeoutError as error:
            message = (
                f"the editor did not answer within {_ANSWER_SECONDS:g} s; ask the user to check it"
            )
            raise OSError(errno.EBUSY, message) from error


def _list(value: Any, field: str) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise RpcError(INVALID_PARAMS, f"{field!r} must be a list")
    return cast("list[Any]", value or [])


def _pairs(fields: Mapping[str, Any], field: str) -> dict[str, str]:
    """Names and values, which the protocol lists as objects."""
    pairs: dict[str, str] = {}
    for pair in _list(fields.get(field), field):
        match pair:
            case {"name": str(name), "value": str(value)}:
                pairs[name] = value
            case _:
                raise RpcError(INVALID_PARAMS, f"{field!r} must have a 'name' and a 'value' each")
    return pairs
