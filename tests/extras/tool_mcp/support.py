"""Sessions with MCP servers that are real processes."""

import multiprocessing
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from amplifier_core.models import HookResult, ToolResult
from amplifier_core.testing import MockCoordinator
from amplifier_extras.tool_mcp import mount
from amplifier_extras.tool_mcp.hub import MCP_EVENTS
from tests.support.warm_program import script_command

HERE = Path(__file__).parent
RAW = HERE / "raw_server.py"


def raw(*options: str, **settings: Any) -> dict[str, Any]:
    """The config of a hand-written server."""
    return {"command": sys.executable, "args": [str(RAW), *options], **settings}


def sdk(**settings: Any) -> dict[str, Any]:
    """The config of a server made with the SDK."""
    command, *arguments = script_command(HERE / "sdk_server.py")
    return {"command": command, "args": arguments, **settings}


def serve_http(port: int, is_stateless: bool) -> None:
    """Be a server made with the SDK until the process is killed."""
    from tests.extras.tool_mcp.sdk_server import server

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    server.run("streamable-http", host="127.0.0.1", port=port, stateless_http=is_stateless)


def start_http(port: int, is_stateless: bool) -> BaseProcess:
    """Start `serve_http` in a process forked from one that has imported the SDK, which takes a second."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__, f"{__package__}.sdk_server"])
    process = processes.Process(target=serve_http, args=(port, is_stateless))
    process.start()
    return process


class Session:
    """What is mounted, and the events it emitted."""

    def __init__(
        self, coordinator: MockCoordinator, events: list[tuple[str, dict[str, Any]]]
    ) -> None:
        self.coordinator = coordinator
        self.events = events

    @property
    def tools(self) -> list[str]:
        return list(self.coordinator.get("tools"))

    async def call(self, tool: str, **values: Any) -> ToolResult:
        return await self.coordinator.get("tools", f"mcp_{tool}").execute(values)

    def reported(self, event: str) -> list[dict[str, Any]]:
        return [data for name, data in self.events if name == event]


@asynccontextmanager
async def session(
    servers: Mapping[str, Any], capabilities: Mapping[str, Any] | None = None, **config: Any
) -> AsyncGenerator[Session]:
    """A session with these servers, waited for however busy the machine is."""
    coordinator = MockCoordinator()
    for name, value in (capabilities or {}).items():
        coordinator.register_capability(name, value)
    events: list[tuple[str, dict[str, Any]]] = []

    async def note(event: str, data: dict[str, Any]) -> HookResult:
        events.append((event, data))
        return HookResult()

    for event in MCP_EVENTS:
        coordinator.hooks.register(event, note)
    close = await mount(coordinator, {"wait": 60, "servers": dict(servers), **config})
    await coordinator.hooks.emit("session:start", {})
    try:
        yield Session(coordinator, events)
    finally:
        await close()
        await coordinator.cleanup()
