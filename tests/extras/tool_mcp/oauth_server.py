"""An MCP server that requires tokens, with its authorization server, both made with the SDK, on one port."""

from __future__ import annotations

import base64
import json
import secrets
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlencode

import jwt
import uvicorn
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

CLIENT_ID = "robot"
SECRET = "robot secret/" + "s" * 20


class Tokens(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """Registers every client, and logs every user in without a question.

    Attributes:
        lifetime: Seconds for which the next access tokens are valid.
        refuses: The error with which logins end; None if they succeed.
        clients: The registered clients.
        access: The valid access tokens.
        refresh: The valid refresh tokens, each for one use.
        resources: The resources for which logins were asked.
        refreshed: How often a refresh token was used.
    """

    def __init__(self) -> None:
        self.lifetime = 3600
        self.refuses: str | None = None
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self.refresh: dict[str, RefreshToken] = {}
        self.resources: list[str | None] = []
        self.refreshed = 0

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[client_info.client_id] = client_info

    async def authorize(
        self, client: OAuthClientInformationFull, params: AuthorizationParams
    ) -> str:
        self.resources.append(params.resource)
        uri = str(params.redirect_uri)
        if self.refuses is not None:
            return construct_redirect_uri(uri, error=self.refuses, state=params.state)
        code = secrets.token_urlsafe(24)
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return construct_redirect_uri(uri, code=code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self.issue(client.client_id, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> RefreshToken | None:
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        del self.refresh[refresh_token.token]
        self.refreshed += 1
        return self.issue(client.client_id, scopes, refresh_token.resource)

    async def load_access_token(self, token: str) -> AccessToken | None:
        found = self.access.get(token)
        return found if found and (found.expires_at or 0) > time.time() else None

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.access.pop(token.token, None)

    def issue(self, client: str, scopes: list[str], resource: str | None) -> OAuthToken:
        """New tokens; words without the shape of a secret."""
        access, refresh = (f"opaque-{kind}-{secrets.token_hex(4)}" for kind in ("one", "two"))
        common: dict[str, Any] = {"client_id": client, "scopes": scopes, "resource": resource}
        end = int(time.time()) + self.lifetime
        self.access[access] = AccessToken(token=access, expires_at=end, **common)
        self.refresh[refresh] = RefreshToken(token=refresh, **common)
        return OAuthToken(
            access_token=access,
            refresh_token=refresh,
            expires_in=self.lifetime,
            scope=" ".join(scopes),
        )


class Gate:
    """Refuses calls that need a scope, and answers requests with client credentials."""

    def __init__(self, app: Any, server: Protected) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        headers = {key.decode(): value.decode() for key, value in scope["headers"]}
        self._server.requests.append((scope["path"], headers, body.decode()))
        if scope["path"] == "/token" and b"client_credentials" in body:
            await _reply(send, *self._server.credentials(headers, body.decode()))
        elif b'"save"' in body and not self._may_write(headers):
            challenge = 'Bearer error="insufficient_scope", scope="files:write"'
            await _reply(send, 403, {}, challenge)
        else:
            bodies = iter([{"type": "http.request", "body": body}])

            async def again() -> Any:
                return next(bodies, None) or await receive()

            await self._app(scope, again, send)

    def _may_write(self, headers: dict[str, str]) -> bool:
        token = self._server.tokens.access.get(headers.get("authorization", "").partition(" ")[2])
        return token is not None and "files:write" in token.scopes


async def _reply(send: Any, status: int, data: Any, challenge: str = "") -> None:
    headers = [(b"content-type", b"application/json")]
    headers += [(b"www-authenticate", challenge.encode())] if challenge else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(data).encode()})


class Protected:
    """The server, while `running`.

    Attributes:
        tokens: The authorization server.
        requests: The path, the headers and the body of each POST request.
        client_id: The id of a program that gets tokens on its own.
        secret: Its secret.
        key: Its public key, in PEM.
    """

    client_id = CLIENT_ID
    secret = SECRET

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.issuer = f"http://127.0.0.1:{self.port}"
        self.url = f"{self.issuer}/mcp"
        self.tokens = Tokens()
        self.requests: list[tuple[str, dict[str, str], str]] = []
        self.key = ""

    def credentials(self, headers: dict[str, str], body: str) -> tuple[int, Any]:
        """The answer to a request with client credentials."""
        form = {key: values[0] for key, values in parse_qs(body).items()}
        scopes = form.get("scope", "").split()
        if "client_assertion" in form:
            claims = jwt.decode(form["client_assertion"], self.key, ["RS256"], audience=self.issuer)
            is_known = claims["sub"] == CLIENT_ID
        else:
            pair = urlencode({CLIENT_ID: SECRET}).replace("=", ":", 1).replace("+", "%20")
            is_known = headers.get("authorization") == (
                f"Basic {base64.b64encode(pair.encode()).decode()}"
            )
        if not is_known:
            return 401, {"error": "invalid_client", "error_description": f"not {body} {headers}"}
        token = self.tokens.issue(CLIENT_ID, scopes, form.get("resource"))
        return 200, token.model_dump(exclude={"refresh_token"})

    @contextmanager
    def running(self) -> Generator[Protected]:
        server = MCPServer(
            "protected",
            log_level="CRITICAL",
            auth_server_provider=self.tokens,
            # From text, which keeps URLs as they are.
            auth=AuthSettings.model_validate(
                {
                    "issuer_url": self.issuer,
                    "resource_server_url": self.url,
                    "validate_token_resource": True,
                    "required_scopes": ["use"],
                    "client_registration_options": {
                        "enabled": True,
                        "valid_scopes": ["use", "files:write"],
                    },
                }
            ),
        )

        @server.tool()
        def hello() -> str:
            """Greets."""
            return "hello"

        @server.tool()
        def save() -> str:
            """Needs the scope files:write."""
            return "saved"

        @server.tool()
        def reveal(ctx: Context) -> str:
            """Gives the token away."""
            return str(ctx.request_context.request.headers["authorization"])  # pyright: ignore

        app = Gate(server.streamable_http_app(), self)
        config = uvicorn.Config(app, "127.0.0.1", self.port, log_level="error", lifespan="on")
        runs = uvicorn.Server(config)
        thread = threading.Thread(target=runs.run)
        thread.start()
        try:
            until = time.monotonic() + 60
            while not runs.started:
                assert time.monotonic() < until
                time.sleep(0.02)
            yield self
        finally:
            runs.should_exit = True
            runs.force_exit = True
            thread.join()
