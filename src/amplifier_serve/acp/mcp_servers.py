"""The MCP servers of an editor, added to those of the plan."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from amplifier_serve.json_rpc import INVALID_PARAMS, RpcError

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession

_MODULE = "tool-mcp"


async def mount_servers(session: OpenSession, servers: list[Any]) -> None:
    """Mount tool-mcp with the servers of an editor: the plan's rules and its sandbox apply to them.

    Raises:
        RpcError: A server is incomplete, or of a type that is not supported.
        Exception: tool-mcp cannot be mounted.
    """
    if not servers:
        return
    config = {"servers": dict(map(_read, servers))}
    coordinator, loader = session.session.coordinator, session.session.loader
    mount = await loader.load(_MODULE, config, None)
    cleanup = await mount(coordinator)
    if cleanup is not None:
        coordinator.register_cleanup(cleanup)


def _read(server: Any) -> tuple[str, dict[str, Any]]:
    fields = cast("dict[str, Any]", server if isinstance(server, dict) else {})
    match fields:
        case {"name": str(name), "type": "http", "url": str(url)}:
            config: dict[str, Any] = {"url": url, "headers": _pairs(fields.get("headers"))}
        case {"name": str(name), "command": str(command), "args": list(args)}:
            config = {"command": command, "args": args, "env": _pairs(fields.get("env"))}
        case _:
            raise RpcError(
                INVALID_PARAMS, "an MCP server needs a 'command' with 'args', or a 'url'"
            )
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_")[:32] or "server", config


def _pairs(listed: Any) -> dict[str, str]:
    """Names and values, which the protocol lists as objects."""
    pairs = cast("list[Any]", listed if isinstance(listed, list) else [])
    return {str(pair["name"]): str(pair["value"]) for pair in pairs}
