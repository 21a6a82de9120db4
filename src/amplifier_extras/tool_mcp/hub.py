"""All servers of a session: started in parallel, their tools mounted when they are ready."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from fnmatch import fnmatchcase
from importlib.util import find_spec
from typing import Any

from amplifier_core.events import SESSION_RESUME, SESSION_START
from amplifier_core.models import HookResult
from amplifier_extras.tool_mcp import tools
from amplifier_extras.tool_mcp.config import MODULE_ID, McpConfig, ServerConfig
from amplifier_extras.tool_mcp.connection import CannotStart, Connection, Offers, Way, shorten
from amplifier_extras.tool_mcp.error_log import ErrorLog
from amplifier_extras.tool_mcp.results import Results
from amplifier_extras.tool_mcp.server import Listener, Server
from amplifier_extras.tool_mcp.transports import LocalWay, RemoteWay
from amplifier_modules._shared.module.spans import event_ids
from amplifier_modules._shared.process.output_dir import output_dir
from amplifier_support.redaction import Redactor, configured_secrets, secrets_in
from amplifier_support.session_capabilities import OFFLINE

logger = logging.getLogger(__name__)

MCP_CONNECTED = "mcp:connected"
MCP_DISCONNECTED = "mcp:disconnected"
MCP_FAILED = "mcp:failed"
MCP_LOG = "mcp:log"
MCP_EVENTS = (MCP_CONNECTED, MCP_DISCONNECTED, MCP_FAILED, MCP_LOG, tools.MCP_PROGRESS)
"""Events this module emits in addition to the kernel's."""

_LONGEST_LOG = 10_000
_MOST_UNTOLD = 100


class Hub(Listener):
    """The servers of a session.

    Args:
        coordinator: The session's.
        config: The module's settings.
    """

    def __init__(self, coordinator: Any, config: McpConfig) -> None:
        self._coordinator = coordinator
        self._config = config
        self._results = Results(config.max_output, lambda: output_dir(coordinator))
        self._mounted: dict[str, dict[str, tools.MountedTool]] = {}
        self._logs: list[ErrorLog] = []
        self._started = False
        self._sdk: asyncio.Task[None] | None = None
        self._untold: list[tuple[str, dict[str, Any]]] | None = []
        self._servers = [
            Server(name, settings, self._way_to(name, settings), self)
            for name, settings in config.servers.items()
            if settings.enabled
        ]

    async def start(self) -> None:
        """Start all servers, and wait for those that are required.

        Raises:
            RuntimeError: The SDK is not installed, or a required server is not ready.
        """
        if not self._servers:
            return
        if find_spec("mcp") is None:
            raise RuntimeError(
                f"{MODULE_ID}: the MCP SDK is not installed; install it with: "
                "pip install 'amplifier[mcp]'"
            )
        if OFFLINE.of(self._coordinator):
            self._leave_out_remote_ones()
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
        others = [asyncio.create_task(one.tried.wait()) for one in self._servers]
        needed = [asyncio.create_task(one.settled.wait()) for one in required]
        try:
            await asyncio.wait(others, timeout=self._config.wait)
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

    # -- server notifications ----------------------------------------------------------

    async def connected(self, server: Server, offers: Offers, seconds: float) -> None:
        wanted = self._tools_of(server, offers)
        await self._mount(server.name, wanted)
        data = {
            "transport": "stdio" if server.config.command else "http",
            "tools": list(wanted),
            "late": self._started,
            "duration_ms": round(seconds * 1000),
        }
        await self._emit(MCP_CONNECTED, {"server": server.name, **data})

    async def disconnected(self, server: Server, problem: str) -> None:
        logger.info("lost the MCP server %s: %s", server.name, problem)
        await self._emit(MCP_DISCONNECTED, {"server": server.name, "error": problem})

    async def failed(self, server: Server, problem: str, final: bool) -> None:
        if final and not (server.config.required and not self._started):
            logger.warning("MCP server %s is unavailable: %s", server.name, problem)
        data = {"error": problem, "final": final, "required": server.config.required}
        await self._emit(MCP_FAILED, {"server": server.name, **data})

    async def logged(self, server: Server, level: str, name: str | None, data: Any) -> None:
        text = data if isinstance(data, str) else repr(data)
        fields = {"level": level, "logger": name and shorten(name), "data": text[:_LONGEST_LOG]}
        await self._emit(MCP_LOG, {"server": server.name, **fields})

    async def _emit(self, event: str, data: dict[str, Any]) -> None:
        data = {**event_ids(), **data}
        if self._untold is None:
            await self._coordinator.hooks.emit(event, data)
        elif len(self._untold) < _MOST_UNTOLD:
            self._untold.append((event, data))

    async def _emit_pending(self, event: str, data: dict[str, Any]) -> HookResult:
        untold, self._untold = self._untold, None
        for name, held in untold or ():
            await self._coordinator.hooks.emit(name, held)
        return HookResult()

    # -- tools -------------------------------------------------------------------------

    def _tools_of(self, server: Server, offers: Offers) -> dict[str, tools.MountedTool]:
        """A server's tools by their mounted names."""
        own = self._mounted.get(server.name, {})
        others = self._coordinator.get("tools").keys() - own.keys()
        found: dict[str, tools.MountedTool] = {}
        for remote in offers.tools:
            if _is_wanted(remote.name, server.config):
                name = tools.tool_name(server.name, remote.name, {*others, *found})
                found[name] = tools.RemoteTool(name, server, self._results, remote, self._emit)
        extra: dict[str, Callable[[str, Server, Results], tools.MountedTool]] = {}
        if offers.has_resources and server.config.resources:
            extra |= {"list_resources": tools.ListResources, "read_resource": tools.ReadResource}
        if offers.has_prompts and server.config.prompts:
            extra |= {"list_prompts": tools.ListPrompts, "get_prompt": tools.GetPrompt}
        for ending, kind in extra.items():
            name = tools.tool_name(server.name, ending, {*others, *found})
            found[name] = kind(name, server, self._results)
        return found

    async def _mount(self, server: str, wanted: dict[str, tools.MountedTool]) -> None:
        for name, tool in self._mounted.get(server, {}).items():
            if name not in wanted and self._coordinator.get("tools", name) is tool:
                await self._coordinator.unmount("tools", name=name)
        for name, tool in wanted.items():
            await self._coordinator.mount("tools", tool, name=name)
        self._mounted[server] = wanted

    # -- transports --------------------------------------------------------------------

    def _way_to(self, name: str, config: ServerConfig) -> Way:
        if config.url is not None:
            way: Way = RemoteWay(config.url, config.headers, config.timeout)
        else:
            way = self._local_way(name, config)

        async def connect(lost: Callable[[], None]) -> Connection:
            if self._sdk is not None:
                await asyncio.shield(self._sdk)
            return await way(lost)

        return connect

    def _local_way(self, name: str, config: ServerConfig) -> LocalWay:
        given = configured_secrets(self._coordinator.config)
        known = [*secrets_in(), *secrets_in(config.env), *given]
        redactor = Redactor(known)
        log = ErrorLog(lambda: output_dir(self._coordinator), f"mcp-{name}.log", redactor)
        self._logs.append(log)
        return LocalWay(config, self._coordinator, log)


def _is_wanted(name: str, config: ServerConfig) -> bool:
    allowed = any(fnmatchcase(name, pattern) for pattern in config.tools.allow)
    return allowed and not any(fnmatchcase(name, pattern) for pattern in config.tools.deny)


def _import_sdk() -> None:
    try:
        import amplifier_extras.tool_mcp.client as _  # noqa: F401
    except ImportError as error:
        raise CannotStart(
            f"the installed MCP SDK is unusable ({error}); version 2 is required, "
            "install it with: pip install 'amplifier[mcp]'"
        ) from error
