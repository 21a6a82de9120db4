"""OAuth at remote servers: tokens for a session, and the flow that `mcp login` and credentials use.

Imports the SDK, which takes seconds: `transports` loads this when a server is connected to.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shlex
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
from mcp.client.auth import (
    OAuthClientProvider,
    OAuthFlowError,
    OAuthTokenError,
)
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.oauth2 import OAuthContext
from mcp.client.auth.utils import extract_field_from_www_auth, issuers_match, union_scopes
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import Field, ValidationError

from amplifier_app.base.errors import ConfigError
from amplifier_app.base.logins import Login, LoginStore
from amplifier_app.plan.source_spec import LOOPBACK
from amplifier_extras.tool_mcp.config import OAuthConfig, ServerConfig
from amplifier_extras.tool_mcp.connection import CannotStart, error_text
from amplifier_extras.tool_mcp.remote import RemoteAuth, http_client
from amplifier_support.addresses import AddressPolicy, RefusedAddress
from amplifier_support.fields import to_mapping
from amplifier_support.redaction import Redactor

LOGIN_REQUIRED = -32901
"""Code of the error that a request gets which needs a login: none that the protocol uses."""

_EARLY_SECONDS = 10.0
"""Seconds before its end at which an access token is replaced."""

_PATIENCE_SECONDS = 30.0
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e ]{1,500}")

# Logs with a traceback each error that it raises, with texts of the authorization server.
logging.getLogger("mcp.client.auth.oauth2").setLevel(logging.CRITICAL + 1)


class StoredLogin(RemoteAuth):
    """Sends the token of the stored login, and replaces it when it has ended. Never asks the user.

    Args:
        server: The server's name.
        url: The server's URL.
        client: Returns a client for requests to the authorization server.
    """

    def __init__(self, server: str, url: str, client: Callable[[], httpx2.AsyncClient]) -> None:
        self._server = server
        self._url = url
        self._client = client
        self._store = LoginStore()
        self._login: Login | None = None
        self._has_read = False
        self._former: set[str] = set()

    def secrets(self) -> Iterator[str]:
        yield from self._former

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        await self._prepare()
        sent = self._send_with(request)
        response = yield request
        is_refused = response.status_code == 401 or _needs_scope(response)
        # The scopes of a token stay the same when it is renewed.
        if is_refused and await self._prepare(sent, renews=not _needs_scope(response)):
            self._send_with(request)
            response = yield request
        if response.status_code == 401:
            self.needs_user = self.problem is None
            self.problem = self.problem or self._describe_refusal()
            _explain(response, self.problem)
        elif _needs_scope(response):
            _explain(response, self._describe_scope(response))
        elif response.is_success:
            self.problem, self.needs_user = None, False

    def _send_with(self, request: httpx2.Request) -> str:
        token = self._login.access_token if self._login else ""
        if token:
            request.headers["authorization"] = f"Bearer {token}"
        return token

    async def _prepare(self, refused: str | None = None, *, renews: bool = True) -> bool:
        """Have a token that can be sent.

        Args:
            refused: The token that the server has refused.
            renews: True to ask for another one in its place.

        Returns:
            True if there is one other than `refused`.
        """
        if not self._has_read or refused is not None or _has_ended(self._login):
            # To the end, whatever happens to the request: the former token cannot be used twice.
            taking = self._take_or_replace(refused if renews else None)
            await asyncio.shield(asyncio.ensure_future(taking))
        token = self._login.access_token if self._login else ""
        return token not in ("", refused)

    async def _take_or_replace(self, refused: str | None) -> None:
        self.problem = None
        try:
            async with self._store.replacing(self._server, self._url):
                self._login = await asyncio.to_thread(self._store.read, self._server, self._url)
                self._has_read = True
                login = self._login
                if login is None or not login.access_token:
                    return
                self._remember(login)
                # Another process may have replaced it.
                if login.access_token == refused or (login.refresh_token and _has_ended(login)):
                    await self._replace(login)
        except ConfigError as error:
            self.problem = error.message
        except (httpx2.HTTPError, ValidationError, OAuthTokenError, _Unavailable) as error:
            self.problem = f"cannot renew its login: {self._redacted(error_text(error))}"

    async def _replace(self, login: Login) -> None:
        """Use the refresh token, and store what it gives. A refused one is removed."""
        token = await self._ask(login) if login.refresh_token else None
        if token is None:
            facts = login.facts._replace(expires_at=0.0, is_renewable=False)
            self._login = login._replace(facts=facts, access_token="", refresh_token=None)
        else:
            refresh = token.refresh_token or login.refresh_token
            self._login = login._replace(
                facts=login.facts._replace(expires_at=find_end(token), is_renewable=bool(refresh)),
                access_token=token.access_token,
                refresh_token=refresh,
                scope=token.scope or login.scope,
            )
            self._remember(self._login)
        await asyncio.to_thread(self._store.store, self._login)

    async def _ask(self, login: Login) -> OAuthToken | None:
        """A new token from the authorization server; None if it refuses.

        Raises:
            httpx2.HTTPError: It is unreachable.
            ValidationError: Its answer is invalid.
            OAuthTokenError: It wants a way of authentication that is not supported.
            _Unavailable: It fails.
        """
        form = {"grant_type": "refresh_token", "refresh_token": login.refresh_token or ""}
        form["client_id"] = str(login.client.get("client_id"))
        form |= {"resource": login.resource} if login.resource else {}
        context = OAuthContext(
            self._url,
            Metadata(redirect_uris=None),
            Kept(),
            redirect_handler=None,
            callback_handler=None,
        )
        context.client_info = OAuthClientInformationFull.model_validate(dict(login.client))
        form, headers = context.prepare_token_auth(form, {"accept": "application/json"})
        async with self._client() as client:
            response = await client.post(
                login.token_endpoint, data=form, headers=headers, timeout=_PATIENCE_SECONDS
            )
        if response.status_code in (400, 401) and not _is_temporary(response):
            return None
        if not response.is_success:
            raise _Unavailable(f"{login.facts.issuer} answered with {response.status_code}")
        return OAuthToken.model_validate_json(response.content)

    def _remember(self, login: Login) -> None:
        self._former |= {login.access_token, login.refresh_token or ""} - {""}

    def _redacted(self, text: str) -> str:
        return Redactor(self._former).text(text)

    def _describe_refusal(self) -> str:
        command = f"amplifier mcp login {self._server}"
        if self._login is None:
            return f"it requires a login; log in with: {command}"
        return f"its login has ended or was refused; log in again with: {command}"

    def _describe_scope(self, response: httpx2.Response) -> str:
        scope = extract_field_from_www_auth(response, "scope") or ""
        scope = scope if _SCOPE.fullmatch(scope) else ""
        option = f" --scope {shlex.quote(scope)}" if scope else ""
        what = f"the scope {scope!r}" if scope else "a scope"
        return f"it requires {what}; log in again with: amplifier mcp login {self._server}{option}"


class _Unavailable(Exception):
    """The authorization server fails."""


def _is_temporary(response: httpx2.Response) -> bool:
    """True if a refusal says that another attempt may succeed."""
    try:
        error = to_mapping(response.json()).get("error")
    except ValueError:
        return False
    return error in ("server_error", "temporarily_unavailable", "slow_down")


def authorize(name: str, config: ServerConfig, folder: str) -> RemoteAuth:
    """Return what authorizes the requests to a server.

    Args:
        name: The server's name.
        config: Its settings.
        folder: The folder that the path of a key starts at.

    Raises:
        CannotStart: The key for it cannot be read.
    """
    url, oauth = config.url or "", config.oauth
    if oauth is None or oauth.grant == "authorization_code":
        return StoredLogin(name, url, lambda: http_client({}, _PATIENCE_SECONDS))
    kept = Kept()
    key = None if oauth.private_key is None else _read_key(oauth.private_key, folder)
    provider = _credentials_provider(url, oauth, key, kept)
    metadata = provider.context.client_metadata.model_dump(exclude={"scope"})
    provider.context.client_metadata = Metadata(extra_scope=oauth.scope, **metadata)
    return Flow(provider, kept, [key or oauth.client_secret or ""])


class Flow(RemoteAuth):
    """A flow of the SDK, its requests restricted, its errors kept for the user.

    Args:
        provider: The flow.
        kept: Its tokens.
        secrets: What else must not be shown.
        issuer: The only authorization server to use; None for the one that the server names.
    """

    def __init__(
        self,
        provider: OAuthClientProvider,
        kept: Kept,
        secrets: Sequence[str] = (),
        issuer: str | None = None,
    ) -> None:
        self._provider = provider
        self._kept = kept
        self._secrets = secrets
        self._issuer = issuer

    def secrets(self) -> Iterator[str]:
        yield from (*self._secrets, *self._kept.secrets())

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        flow = self._provider.async_auth_flow(request)
        self.problem = None
        response: httpx2.Response | None = None
        try:
            outgoing = await anext(flow)
            while True:
                self._check_issuer()
                await _restrict(outgoing, request)
                response = yield outgoing
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            if response is not None and response.status_code in (401, 403):
                self.problem = "it refuses the token from its authorization server"
        # The flow, signatures and answers of others may fail in any way.
        except Exception as error:
            text = Redactor(self.secrets(), ()).text(error_text(error))
            self.problem = f"no token from its authorization server: {text}"
            raise OAuthFlowError(self.problem) from None
        finally:
            await flow.aclose()

    def _check_issuer(self) -> None:
        metadata = self._provider.context.oauth_metadata
        if self._issuer and metadata and not issuers_match(str(metadata.issuer), self._issuer):
            named = metadata.issuer
            raise OAuthFlowError(f"it names the authorization server {named}, not {self._issuer}")


def _credentials_provider(
    url: str, config: OAuthConfig, key: str | None, kept: Kept
) -> OAuthClientProvider:
    client_id = config.client_id or ""
    if key is None:
        return ClientCredentialsOAuthProvider(
            url,
            kept,
            client_id,
            config.client_secret or "",
            config.client_auth,
            issuer=config.issuer,
        )
    parameters = SignedJWTParameters(
        issuer=client_id,
        subject=client_id,
        signing_key=key,
        signing_algorithm=config.algorithm,
    )
    assertion = parameters.create_assertion_provider()
    return PrivateKeyJWTOAuthProvider(url, kept, client_id, assertion, issuer=config.issuer)


def _read_key(key: str, folder: str) -> str:
    if key.lstrip().startswith("-----BEGIN"):
        return key
    try:
        return Path(folder, Path(key).expanduser()).read_text("ascii")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not a PEM file"
        raise CannotStart(f"cannot read the private key {key!r}: {reason}") from error


# -- parts -------------------------------------------------------------------------------


class Metadata(OAuthClientMetadata):
    """The metadata of this program; the scopes that the SDK finds are added to the user's."""

    extra_scope: str | None = Field(default=None, exclude=True)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(
            name, union_scopes(value, self.extra_scope) if name == "scope" else value
        )


class Kept:
    """The SDK's `TokenStorage`, in memory."""

    def __init__(self, client_info: OAuthClientInformationFull | None = None) -> None:
        self.client_info = client_info
        self.tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client_info

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client_info = client_info

    def secrets(self) -> Iterator[str]:
        """Yield what must not be shown."""
        values = [self.client_info and self.client_info.client_secret]
        if self.tokens is not None:
            values += [self.tokens.access_token, self.tokens.refresh_token]
        yield from filter(None, values)


class _Json(httpx2.AsyncByteStream):
    """A body in place of a response's own."""

    def __init__(self, body: bytes, replaced: Any) -> None:
        self._body = body
        self._replaced = replaced

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body

    async def aclose(self) -> None:
        await self._replaced.aclose()


def _explain(response: httpx2.Response, message: str) -> None:
    """Make a refusal an error of the protocol, which the SDK passes on; an exception ends the connection."""
    error = {"code": LOGIN_REQUIRED, "message": message}
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
    response.headers["content-type"] = "application/json"
    response.stream = _Json(body, response.stream)


def _needs_scope(response: httpx2.Response) -> bool:
    error = extract_field_from_www_auth(response, "error")
    return response.status_code == 403 and error == "insufficient_scope"


def _has_ended(login: Login | None) -> bool:
    end = login.facts.expires_at if login is not None else None
    return end is not None and time.time() > end - _EARLY_SECONDS


def find_end(token: OAuthToken) -> float | None:
    return None if token.expires_in is None else time.time() + token.expires_in


async def _restrict(request: httpx2.Request, authorized: httpx2.Request) -> None:
    """Give a request of the flow a time limit.

    Raises:
        OAuthFlowError: It could be read on its way, or a public server directs it to this machine or its network.
    """
    if request is authorized:
        return
    request.extensions["timeout"] = httpx2.Timeout(_PATIENCE_SECONDS).as_dict()
    if request.url.scheme != "https" and request.url.host not in LOOPBACK:
        raise OAuthFlowError(f"{urlsplit(str(request.url)).netloc} is not an https address")
    if await _is_public(authorized.url.host) and not await _is_public(request.url.host):
        raise OAuthFlowError(f"{request.url.host} is not a public address, but the server's is")


async def _is_public(host: str) -> bool:
    try:
        addresses = [str(ip_address(host))]
    except ValueError:
        addresses = []
    try:
        found = () if addresses else await asyncio.get_running_loop().getaddrinfo(host, None)
        for address in (*addresses, *(str(entry[4][0]) for entry in found)):
            AddressPolicy().check(host, 0, address)
    except RefusedAddress:
        return False
    except OSError:
        # A proxy may know it.
        return host not in LOOPBACK
    return True
