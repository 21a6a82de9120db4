"""The user's part of a login: a browser that comes back to a port of this machine, or to a pasted URL."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import sys
import threading
import webbrowser
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import parse_qs, parse_qsl, urlsplit

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthFlowError

from amplifier_app.base.errors import ConfigError
from amplifier_app.base.keys import Stored
from amplifier_app.base.logins import Login, LoginStore
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import read_line, to_stderr
from amplifier_extras.tool_mcp.config import ServerConfig
from amplifier_extras.tool_mcp.oauth import User, log_in, registered_port
from amplifier_extras.tool_mcp.remote import http_client

_HOST = "127.0.0.1"
_PATH = "/callback"
_PATIENCE_SECONDS = 600.0
_REQUEST_SECONDS = 10.0
_MAX_REQUEST = 32 * 1024
_DONE = "The browser's part is done. Close this window and return to the terminal."
_OTHER = "This page belongs to no login in progress."


class Browser(User):
    """A browser on this machine, or one from which the user pastes the URL it ends at.

    Args:
        name: The server's name, for messages.
        redirects: The requests that arrive at the port.
        pastes: Read the URL from stdin instead of waiting for the browser.
    """

    def __init__(self, name: str, redirects: Redirects, *, pastes: bool) -> None:
        self.redirect_uri = redirects.uri
        self._name = name
        self._redirects = redirects
        self._pastes = pastes
        self._state = ""

    async def show(self, url: str) -> None:
        if urlsplit(url).scheme not in ("https", "http"):
            raise OAuthFlowError("the address of its login page is invalid")
        self._state = parse_qs(urlsplit(url).query)["state"][0]
        to_stderr(f"amplifier: to log in at {self._name}, open this page in a browser:")
        # Alone on its line and not wrapped, to be copied.
        print(url, file=sys.stderr, flush=True)
        if not self._pastes:
            open_page(url)

    async def redirected(self) -> AuthorizationCodeResult:
        if self._pastes:
            to_stderr(
                f"amplifier: the browser will end at an address that begins with {self.redirect_uri} and "
                "may show an error; paste that address here:"
            )
            line = await asyncio.to_thread(read_line, _PATIENCE_SECONDS)
            if not (line or "").strip():
                raise OAuthFlowError("no address was pasted")
            query = urlsplit((line or "").strip()).query
        else:
            to_stderr(
                f"amplifier: waiting for the browser at {self.redirect_uri}; if it runs on another machine, "
                f"press Ctrl-C and use: amplifier mcp login {self._name} --no-browser"
            )
            query = await self._redirects.wait(self._state)
        return _read_redirect(query, self._state)


async def log_in_with_browser(
    name: str, config: ServerConfig, *, pastes: bool, scope: str | None = None
) -> tuple[Login, Stored] | None:
    """Log in at a server, and store the login; see `oauth.log_in`.

    Args:
        name: The server's name.
        config: Its settings, with a URL.
        pastes: Read the URL at which the browser ends from stdin.
        scope: Scopes to request in addition to those that the server asks for.

    Returns:
        The login, and where it is stored; None if the server wants none.

    Raises:
        ConfigError: The port for the browser is in use, or the login cannot be read or stored.
        OAuthFlowError: The login failed.
    """
    store, url = LoginStore(), config.url or ""
    former = store.read(name, url)
    redirects = Redirects()
    port = config.oauth.redirect_port if config.oauth else 0
    async with AsyncExitStack() as stack:
        # The registration of an earlier login is for the port that it used.
        for choice in dict.fromkeys([port or registered_port(former), port]):
            try:
                await stack.enter_async_context(redirects.listening(choice))
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE or choice == port:
                    reason = (error.strerror or str(error)).lower()
                    raise ConfigError(f"cannot listen on port {choice}: {reason}") from error
        user = Browser(name, redirects, pastes=pastes)

        def client(auth: httpx2.Auth) -> httpx2.AsyncClient:
            return http_client(config.headers, config.start_timeout, auth)

        login = await log_in(name, config, user, client, former, scope)
    if login is None:
        return None
    async with store.replacing(name, url):
        return login, await asyncio.to_thread(store.store, login)


def _read_redirect(query: str, state: str) -> AuthorizationCodeResult:
    """
    Raises:
        OAuthFlowError: The query is not the answer to this request, or a refusal.
    """
    fields = dict(parse_qsl(query))
    if not secrets.compare_digest(fields.get("state", "").encode(), state.encode()):
        raise OAuthFlowError("the address is not the one of this login")
    if "error" in fields:
        about = fields.get("error_description")
        text = f"{fields['error']} ({about})" if about else fields["error"]
        raise OAuthFlowError(f"it refused: {one_line(text, 300)}")
    return AuthorizationCodeResult(code=fields.get("code", ""), state=state, iss=fields.get("iss"))


def open_page(url: str) -> None:
    """Open a page in the user's browser, if there is a desktop."""
    if sys.platform in ("darwin", "win32") or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        # Some browsers are waited for until they end.
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


class Redirects:
    """The port of this machine at which browsers arrive after a login.

    Attributes:
        uri: Its URL.
    """

    def __init__(self) -> None:
        self.uri = ""
        self._waiting: dict[str, asyncio.Future[str]] = {}

    @asynccontextmanager
    async def listening(self, port: int) -> AsyncGenerator[None]:
        """Listen.

        Args:
            port: The port; 0 for any.

        Raises:
            OSError: The port is in use.
        """
        server = await asyncio.start_server(self._answer, _HOST, port, limit=_MAX_REQUEST)
        self.uri = f"http://{_HOST}:{server.sockets[0].getsockname()[1]}{_PATH}"
        try:
            yield
        finally:
            server.close()

    async def wait(self, state: str) -> str:
        """Return the query of the request with this state.

        Raises:
            OAuthFlowError: None arrives in time.
        """
        arrival = self._waiting[state] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return await arrival
        except TimeoutError:
            raise OAuthFlowError(f"no browser came back within {_PATIENCE_SECONDS:g} s") from None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(
            *(OSError, TimeoutError, ValueError),
            *(asyncio.IncompleteReadError, asyncio.LimitOverrunError),
        ):
            async with asyncio.timeout(_REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            method, target, _ = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
            parts = urlsplit(target)
            state = dict(parse_qsl(parts.query)).get("state", "")
            arrival = self._waiting.get(state) if (method, parts.path) == ("GET", _PATH) else None
            status, text = ("200 OK", _DONE) if arrival else ("404 Not Found", _OTHER)
            body = text.encode()
            writer.write(
                f"HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\n"
                f"content-length: {len(body)}\r\nreferrer-policy: no-referrer\r\n"
                "connection: close\r\n\r\n".encode()
                + body
            )
            await writer.drain()
            if arrival is not None and not arrival.done():
                arrival.set_result(parts.query)
        writer.close()
