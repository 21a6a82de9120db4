"""Settings of tool-mcp."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from amplifier_modules._shared.module.config import (
    ModuleConfig,
    Published,
    alias_for,
    ignored,
    several,
)
from amplifier_modules._shared.sandbox import SandboxValue

MODULE_ID = "tool-mcp"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")


class ToolFilter(ModuleConfig):
    """Which tools of a server to mount, by their names on the server; `*` matches any text.

    Attributes:
        allow: Mount only these.
        deny: Do not mount these, even if `allow` lists them.
    """

    allow: list[str] = Field(default_factory=lambda: ["*"])
    deny: list[str] = Field(default_factory=list[str])


class OAuthConfig(ModuleConfig):
    """Ways to get tokens for a server with OAuth; without it, only `amplifier mcp login` is needed.

    Attributes:
        grant: How to get them: the user logs in, or the program has credentials of its own.
        client_id: The program's id, if it is registered at the authorization server.
        client_secret: Its secret.
        private_key: Its key instead of a secret: PEM text, or the path of a PEM file.
        algorithm: The algorithm of signatures with the key.
        client_auth: How the secret is sent.
        client_metadata_url: The https URL of a document that describes the program; used as its id
            where the authorization server supports that, instead of a registration.
        issuer: The only authorization server to use; by default the one that the server names.
        scope: Scopes to request in addition to those that the server asks for, separated by spaces.
        redirect_port: The port of this machine to which the browser is sent; 0 for any.
    """

    grant: Literal["authorization_code", "client_credentials"] = "authorization_code"
    client_id: str | None = Field(default=None, min_length=1)
    client_secret: str | None = Field(default=None, min_length=1)
    private_key: str | None = Field(default=None, min_length=1)
    algorithm: str = "RS256"
    client_auth: Literal["client_secret_basic", "client_secret_post"] = "client_secret_basic"
    client_metadata_url: str | None = Field(default=None, pattern="^https://[^/]+/.")
    issuer: str | None = Field(default=None, pattern="^https?://")
    scope: str | None = None
    redirect_port: int = Field(default=0, ge=0, le=65535)

    @model_validator(mode="after")
    def _has_credentials(self) -> Self:
        if self.client_id is None and (self.client_secret or self.private_key):
            raise ValueError("'client_secret' and 'private_key' require 'client_id'")
        if self.grant == "authorization_code":
            if self.private_key:
                raise ValueError("'private_key' requires 'grant: client_credentials'")
        elif (self.client_secret is None) == (self.private_key is None):
            raise ValueError("exactly one of 'client_secret' and 'private_key' is required")
        elif self.issuer is None:
            raise ValueError("'issuer' is required: the credentials are sent nowhere else")
        return self


class ServerConfig(ModuleConfig):
    """One MCP server: a program to start, or the URL of a running one.

    Attributes:
        command: The program; found on the PATH unless it has a slash in it.
        args: Its arguments.
        env: Environment variables to set in addition to the session's.
        env_passthrough: Environment variables to pass although their names or values look like
            secrets; `*` matches any characters.
        cwd: The folder to run in; by default the session's working directory.
        sandbox: What the program may do, as `session.sandbox` of a plan, which is the default.
        url: URL of a server with streamable HTTP.
        headers: Sent with every request to `url`.
        oauth: How to get tokens for `url`.
        enabled: Whether to use it.
        required: Whether the session fails without it.
        timeout: Time limit of a call, in seconds.
        start_timeout: Time limit for starting, in seconds.
        tools: Which of its tools to mount.
        defer: Whether requests leave its tools out until the model searches for them; by default as the
            module's `defer`.
        resources: Mount tools to list and read its resources, if it has any.
        prompts: Mount tools to list and fill in its prompts, if it has any.
        skills: Mount a tool to load its skills, if it offers any.
    """

    command: str | None = Field(default=None, min_length=1)
    args: list[str] = Field(default_factory=list[str])
    env: dict[str, str] = Field(default_factory=dict[str, str])
    env_passthrough: list[str] = Field(default_factory=list[str])
    cwd: str | None = None
    sandbox: SandboxValue = None
    url: str | None = None
    headers: dict[str, str] = Field(default_factory=dict[str, str])
    oauth: OAuthConfig | None = None
    enabled: bool = True
    required: bool = False
    timeout: float = Field(default=120, gt=0)
    start_timeout: float = Field(default=30, gt=0)
    tools: ToolFilter = Field(default_factory=ToolFilter)
    defer: bool | None = None
    resources: bool = True
    prompts: bool = True
    skills: bool = True

    @field_validator("url")
    @classmethod
    def _is_http(cls, value: str | None) -> str | None:
        if value is not None and not value.lower().startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        return value

    @field_validator("headers")
    @classmethod
    def _can_be_sent(cls, value: dict[str, str]) -> dict[str, str]:
        for name, content in value.items():
            if not (name + content).isascii() or not (name + content).isprintable():
                raise ValueError(
                    f"{name} contains a line break or another character that cannot be sent"
                )
        return value

    @model_validator(mode="after")
    def _has_one_way(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("exactly one of 'command' and 'url' is required")
        if self.oauth is not None and (self.url is None or self.has_token):
            raise ValueError("'oauth' requires 'url', and no header Authorization")
        return self

    @property
    def has_token(self) -> bool:
        """True if `headers` has a token, so that none is asked for."""
        return any(name.lower() == "authorization" for name in self.headers)


class McpConfig(ModuleConfig):
    """Settings of tool-mcp.

    Attributes:
        servers: The servers, by a short name of letters, digits, `_` and `-`.
        wait: Longest time the start waits for servers that are not required, in seconds; tools of
            later ones are mounted when they are ready.
        defer: Whether requests leave tools out until the model searches for them; by default if the
            servers have more than 30.
        keep: Tools that requests never leave out: their names, where `*` matches any text, or how many
            of the first ones.
        skills: Offer the skills of servers.
        max_output: Bytes of a result shown to the model; longer results are cut in the middle and
            kept whole in a file.
    """

    published: ClassVar[Mapping[str, Published]] = {
        "mcpServers": alias_for("servers"),
        "max_content_size": alias_for("max_output"),
        **several(
            "visibility max_servers_visible",
            ignored("the model gets the tools of every server; choose them with 'tools'"),
        ),
        **several(
            "server_log_dir verbose_servers", ignored("what servers log is shown when one fails")
        ),
    }

    servers: dict[str, ServerConfig] = Field(default_factory=dict[str, ServerConfig])
    wait: float = Field(default=3, ge=0)
    defer: bool | None = None
    keep: Annotated[int, Field(ge=0)] | list[str] = 3
    skills: bool = True
    max_output: int = Field(default=50_000, ge=1000)

    @field_validator("servers")
    @classmethod
    def _have_names(cls, value: dict[str, ServerConfig]) -> dict[str, ServerConfig]:
        for name in value:
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} is not a valid server name: use up to 32 letters, digits, _ and -"
                )
        return value
