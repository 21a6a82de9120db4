"""Logging in at a server: a browser that comes back to a port of this machine, or to a pasted URL."""

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
from urllib.parse import parse_qs, parse_qsl, urljoin, urlsplit

from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, OAuthFlowError
from mcp.client.auth.oauth2 import OAuthContext
from mcp.client.auth.utils import union_scopes
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyUrl

from amplifier_app.base.errors import ConfigError
from amplifier_app.base.keys import Stored
from amplifier_app.base.logins import Login, LoginFacts, LoginStore
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import read_line, to_stderr
from amplifier_extras.tool_mcp.config import OAuthConfig, ServerConfig
from amplifier_extras.tool_mcp.connection import error_text
from amplifier_extras.tool_mcp.oauth import Flow, Kept, Metadata, find_end
from amplifier_extras.tool_mcp.remote import http_client
from amplifier_support.redaction import Redactor

_HOST = "127.0.0.1"
_PATH = "/callback"
_PATIENCE_SECONDS = 600.0
_REQUEST_SECONDS = 10.0
_MAX_REQUEST = 32 * 1024
_DONE = "The browser's part is done. Close this window and return to the terminal."
_OTHER = "This page belongs to no login in progress."


class Browser:
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
    """Log in at a server, and store the login.

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
        for choice in dict.fromkeys([port or _registered_port(former), port]):
            try:
                await stack.enter_async_context(redirects.listening(choice))
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE or choice == port:
                    reason = (error.strerror or str(error)).lower()
                    raise ConfigError(f"cannot listen on port {choice}: {reason}") from error
        user = Browser(name, redirects, pastes=pastes)
        login = await _log_in(name, config, user, former, scope)
    if login is None:
        return None
    async with store.replacing(name, url):
        return login, await asyncio.to_thread(store.store, login)


async def _log_in(
    server: str, config: ServerConfig, user: Browser, former: Login | None, scope: str | None
) -> Login | None:
    """Log in at a server; the login is not stored yet.

    Raises:
        OAuthFlowError: The login failed.
    """
    url, oauth = config.url or "", config.oauth or OAuthConfig()
    kept = Kept(_own_client(oauth, user.redirect_uri, None if scope else former))
    granted = former.scope if former and scope else None
    extra = union_scopes(union_scopes(oauth.scope, granted), scope)
    provider = OAuthClientProvider(
        url,
        Metadata(
            extra_scope=extra,
            client_name="Amplifier",
            redirect_uris=[AnyUrl(user.redirect_uri)],
            token_endpoint_auth_method="none",
        ),
        kept,
        user.show,
        user.redirected,
        oauth.client_metadata_url,
    )
    auth = Flow(provider, kept, issuer=oauth.issuer)
    async with http_client(config.headers, config.start_timeout, auth) as http:
        try:
            async with Client(
                streamable_http_client(url, http_client=http), cache=None
            ) as connected:
                if connected.server_capabilities.tools is not None:
                    await connected.list_tools()
        # Errors arrive in groups; the errors of the flow are kept.
        except Exception as error:
            problem = auth.problem or error_text(error)
            raise OAuthFlowError(Redactor(auth.secrets(), ()).text(problem)) from None
    return None if kept.tokens is None else _to_login(server, url, provider.context, kept.tokens)


def _to_login(server: str, url: str, context: OAuthContext, tokens: OAuthToken) -> Login:
    metadata, client = context.oauth_metadata, context.client_info
    origin = context.get_authorization_base_url(url)
    uses_resource = context.should_include_resource_param(context.protocol_version)
    return Login(
        LoginFacts(
            server,
            url,
            str(metadata.issuer) if metadata else origin,
            find_end(tokens),
            bool(tokens.refresh_token),
        ),
        tokens.access_token,
        tokens.refresh_token,
        tokens.scope,
        str(metadata.token_endpoint) if metadata else urljoin(origin, "/token"),
        context.get_resource_url() if uses_resource else None,
        {} if client is None else client.model_dump(mode="json", exclude_none=True),
    )


def _own_client(
    oauth: OAuthConfig, redirect_uri: str, former: Login | None
) -> OAuthClientInformationFull | None:
    """This program's registration: the configured one, or the one of an earlier login.

    One with another redirect is not used: most authorization servers compare them.
    """
    if oauth.client_id is not None:
        return OAuthClientInformationFull(
            client_id=oauth.client_id,
            client_secret=oauth.client_secret,
            redirect_uris=[AnyUrl(redirect_uri)],
            token_endpoint_auth_method=oauth.client_auth if oauth.client_secret else "none",
            issuer=oauth.issuer,
        )
    if former is None or redirect_uri not in former.client.get("redirect_uris", ()):
        return None
    return OAuthClientInformationFull.model_validate(dict(former.client))


def _registered_port(former: Login | None) -> int:
    """The port of this machine for which an earlier login was registered; 0 for none."""
    uris = former.client.get("redirect_uris") or () if former else ()
    return next((urlsplit(uri).port or 0 for uri in uris), 0)


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
