"""Logins at services of others, such as MCP servers: tokens stored like keys, but never as variables.

    config_dir()/logins/         0700
        keys.json                0600: what each login is for, and the tokens not in a keyring
        login_….lock             0600: held while the tokens of one login are replaced

A login belongs to a server's name and URL and to the authorization server that issued its tokens; the
tokens are sent to these two only.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.base.keys import KeyStore, Stored
from amplifier_app.base.locks import hold_lock
from amplifier_support.files import make_private_folder, open_locked, system_errors_as
from amplifier_support.named_tuple import NamedTuple

_AGAIN = "Log in again with: amplifier mcp login NAME"
_POLL_SECONDS = 0.05

_Parsed = TypeVar("_Parsed")


class LoginFacts(NamedTuple):
    """A stored login, without its tokens.

    Attributes:
        server: The server's name.
        url: The server's URL.
        issuer: The authorization server.
        expires_at: The end of the access token in seconds since 1970; None if it has none.
        is_renewable: True if the access token can be replaced without the user.
    """

    server: str
    url: str
    issuer: str
    expires_at: float | None = None
    is_renewable: bool = False

    @property
    def is_valid(self) -> bool:
        """True if the login can be used without the user."""
        return self.is_renewable or self.expires_at is None or self.expires_at > time.time()


class Login(NamedTuple):
    """A login with its tokens.

    Attributes:
        facts: What it is for.
        access_token: Sent to the server; empty if it was refused.
        refresh_token: Sent to the authorization server for a new access token, if there is one.
        scope: The scopes of the tokens, separated by spaces.
        token_endpoint: The URL for new tokens.
        resource: The server as the authorization server knows it (RFC 8707).
        client: This program's registration at the authorization server.
    """

    facts: LoginFacts
    access_token: str
    refresh_token: str | None
    scope: str | None
    token_endpoint: str
    resource: str | None
    client: Mapping[str, Any]


class LoginStore:
    """The stored logins of one user."""

    def __init__(self) -> None:
        self._keys = KeyStore(paths.config_dir() / "logins", _AGAIN)

    @property
    def file(self) -> Path:
        """The file with the logins that are not in a keyring."""
        return self._keys.file

    def facts(self) -> list[LoginFacts]:
        """The stored logins; reads no keyring.

        Raises:
            ConfigError: See `KeyStore.names`.
        """
        notes = self._keys.notes().values()
        return [self._parsed(lambda note=note: LoginFacts(**json.loads(note))) for note in notes]

    def read(self, server: str, url: str) -> Login | None:
        """The login for a server, if there is one.

        Raises:
            ConfigError: It is unavailable.
        """
        try:
            text = self._keys.read(_key(server, url), cached=False)
        except KeyError:
            return None

        def parse() -> Login:
            data: dict[str, Any] = json.loads(text)
            data["facts"] = LoginFacts(**data["facts"])
            return Login(**data)

        return self._parsed(parse)

    def _parsed(self, parse: Callable[[], _Parsed]) -> _Parsed:
        try:
            return parse()
        except (ValueError, TypeError, KeyError):
            raise ConfigError(
                "the stored logins are damaged", location=Location(str(self.file)), hint=_AGAIN
            ) from None

    def store(self, login: Login) -> Stored:
        """Store a login, replacing any for the same server; in `replacing`.

        Raises:
            ConfigError: See `KeyStore.store`.
        """
        facts = login.facts._asdict()
        text = json.dumps({**login._asdict(), "facts": facts}, separators=(",", ":"))
        # A stored value has no white space; in JSON it is within strings only.
        value = text.replace(" ", "\\u0020")
        key = _key(login.facts.server, login.facts.url)
        return self._keys.store(key, value, note=json.dumps(facts))

    def forget(self, server: str) -> list[LoginFacts]:
        """Delete the logins for servers of this name, and return what they were for.

        Raises:
            ConfigError: See `KeyStore.forget`.
        """
        forgotten: list[LoginFacts] = []
        for login in self.facts():
            if login.server == server:
                # A process that replaces the tokens now would store them again.
                with hold_lock(self._lock(server, login.url), None):
                    forgotten += [login] if self._keys.forget(_key(server, login.url)) else []
        return forgotten

    @asynccontextmanager
    async def replacing(self, server: str, url: str) -> AsyncGenerator[None]:
        """Hold the lock of one login: other processes wait before they replace its tokens.

        Raises:
            ConfigError: The lock cannot be created.
        """
        lock = self._lock(server, url)
        with system_errors_as(ConfigError, f"cannot lock {lock}"):
            make_private_folder(lock.parent)
            descriptor = open_locked(lock)
            while descriptor is None:
                await asyncio.sleep(_POLL_SECONDS)
                descriptor = open_locked(lock)
        try:
            yield
        finally:
            os.close(descriptor)

    def _lock(self, server: str, url: str) -> Path:
        return self._keys.folder / f"{_key(server, url)}.lock"


def _key(server: str, url: str) -> str:
    return "login_" + hashlib.sha256(f"{server}\n{url}".encode()).hexdigest()[:32]
