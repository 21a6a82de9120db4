"""A session with the web tools, and loopback servers that count who connects."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from amplifier_core.models import HookResult, ToolResult
from amplifier_core.testing import MockCoordinator
from amplifier_modules._shared.module.config import parse_config
from amplifier_modules.tool_web.config import WEB_EVENTS, WebConfig
from amplifier_modules.tool_web.tools import web_tools
from tests.support.raw_http import Request, Write, answer


class Names:
    """A resolver whose answers a test gives: one after the other, the last again and again."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self._answers = {name.replace("_", "."): list(given) for name, given in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        answers = self._answers.get(host)
        if answers is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return answers.pop(0) if len(answers) > 1 else answers[0]


class Tools:
    """The mounted tools and the events they emitted."""

    def __init__(self, config: Mapping[str, Any], names: Names, **capabilities: Any) -> None:
        self.coordinator = MockCoordinator()
        for name, value in capabilities.items():
            self.coordinator.register_capability(name.replace("_", "."), value)
        self.events: list[tuple[str, dict[str, Any]]] = []
        for event in WEB_EVENTS:
            self.coordinator.hooks.register(event, self._note)
        settings = parse_config(WebConfig, config, "tool-web")
        made, self.close = web_tools(self.coordinator, settings, names)
        self.by_name = {tool.name: tool for tool in made}

    async def _note(self, event: str, data: dict[str, Any]) -> HookResult:
        self.events.append((event, data))
        return HookResult()

    async def fetch(self, url: str, **values: Any) -> ToolResult:
        return await self.by_name["web_fetch"].execute({"url": url, **values})

    async def search(self, query: str, **values: Any) -> ToolResult:
        return await self.by_name["web_search"].execute({"query": query, **values})


LOCAL = Names(site_test=[["127.0.0.1"]], other_test=[["127.0.0.1"]])


@asynccontextmanager
async def tools(
    names: Names = LOCAL, capabilities: Mapping[str, Any] | None = None, **config: Any
) -> AsyncGenerator[Tools]:
    """Tools that may ask `site.test`, which is this machine, if the config says nothing else."""
    mounted = Tools({"allow_hosts": ["site.test"], **config}, names, **(capabilities or {}))
    try:
        yield mounted
    finally:
        await mounted.close()


class Pages:
    """A handler that serves pages by path; a value is a body, or a body with headers, or more."""

    def __init__(self, **pages: Any) -> None:
        self.pages = {f"/{path}": page for path, page in pages.items()}

    async def __call__(self, request: Request, write: Write) -> None:
        page = self.pages.get(request.path.partition("?")[0])
        if callable(page):
            await page(request, write)
        elif page is None:
            await write(answer(404, "not here", {"content-type": "text/plain"}))
        else:
            body, headers = page if isinstance(page, tuple) else (page, {})
            await write(answer(200, body, {"content-type": "text/html", **headers}))


@asynccontextmanager
async def counting_server() -> AsyncGenerator[tuple[int, list[Any]]]:
    """A server on every address of this machine: its port, and the connections it has had."""
    connected: list[Any] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.append(writer.get_extra_info("peername"))
        writer.write(answer(200, "the secret of this machine", {"content-type": "text/plain"}))
        writer.close()

    server = await asyncio.start_server(serve, "0.0.0.0", 0)
    port = server.sockets[0].getsockname()[1]
    servers = [server]
    if socket.has_ipv6:
        sock = socket.socket(socket.AF_INET6)
        try:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(("::", port))
            servers.append(await asyncio.start_server(serve, sock=sock))
        except OSError:
            sock.close()
    try:
        yield port, connected
    finally:
        for each in servers:
            each.close()
            await each.wait_closed()
