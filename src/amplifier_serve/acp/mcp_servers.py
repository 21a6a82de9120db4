"""The MCP servers of an editor, added to those of the plan."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from amplifier_app.base.json_rpc import INVALID_PARAMS, RpcError

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession
    from amplifier_serve.acp.updates import Updates

_MODULE = "tool-mcp"
_WAIT_SECONDS = 30
"""Seconds until the first prompt goes on without servers that are not ready: the `start_timeout` of one."""


def read_servers(listed: Any) -> dict[str, dict[str, Any]]:
    """The config of each server that an editor lists, by a name that tool-mcp takes.

    Raises:
        RpcError: A server is incomplete, or of a type that is not supported.
    """
    servers: dict[str, dict[str, Any]] = {}
    for server in _list(listed, "mcpServers"):
        name, config = _read(server)
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


def _read(server: Any) -> tuple[str, dict[str, Any]]:
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
