"""Settings of tool-mcp."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import Field, field_validator, model_validator

from amplifier_modules._shared.module.config import ModuleConfig
from amplifier_modules._shared.module.published import Published, another_name_of, ignored

MODULE_ID = "tool-mcp"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")


class ToolFilter(ModuleConfig):
    """Which tools of a server are mounted, by their names on the server; `*` stands for any text.

    Attributes:
        allow: Only these.
        deny: Not these, whatever `allow` says.
    """

    allow: list[str] = Field(default_factory=lambda: ["*"])
    deny: list[str] = Field(default_factory=list[str])


class ServerConfig(ModuleConfig):
    """One MCP server: a program to start, or the address of one that runs.

    Attributes:
        command: The program; found on the PATH unless it has a slash in it.
        args: Its arguments.
        env: Environment variables it gets beside those of the session.
        env_passthrough: Variables of the environment it gets although their names or values look
            like secrets; `*` stands for any characters.
        cwd: The folder it runs in, by default the session's working directory.
        url: Address of a server that speaks streamable HTTP.
        headers: Sent with every request to `url`.
        enabled: Whether to use it.
        required: Whether the session cannot do without it.
        timeout: Seconds a call may take.
        start_timeout: Seconds until it has to be ready.
        tools: Which of its tools are mounted.
        resources: Mount tools that list and read its resources, if it has any.
        prompts: Mount tools that list and fill in its prompts, if it has any.
    """

    command: str | None = Field(default=None, min_length=1)
    args: list[str] = Field(default_factory=list[str])
    env: dict[str, str] = Field(default_factory=dict[str, str])
    env_passthrough: list[str] = Field(default_factory=list[str])
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = Field(default_factory=dict[str, str])
    enabled: bool = True
    required: bool = False
    timeout: float = Field(default=120, gt=0)
    start_timeout: float = Field(default=30, gt=0)
    tools: ToolFilter = Field(default_factory=ToolFilter)
    resources: bool = True
    prompts: bool = True

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
                    f"{name} has a line break or another character that cannot be sent"
                )
        return value

    @model_validator(mode="after")
    def _has_one_way(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("give either 'command' or 'url'")
        return self


class McpConfig(ModuleConfig):
    """Settings of tool-mcp.

    Attributes:
        servers: The servers by a short name of letters, digits, `_` and `-`.
        wait: Most seconds the start waits for the first attempt of servers that are not required;
            tools of late ones are mounted when they come.
        max_output: Bytes of a result shown to the model; what is over is cut in the middle and
            kept in a file.
    """

    published: ClassVar[Mapping[str, Published]] = {
        "mcpServers": another_name_of("servers"),
        "max_content_size": another_name_of("max_output"),
        **dict.fromkeys(
            ("server_log_dir", "verbose_servers"),
            ignored("what servers log is shown when one fails"),
        ),
    }

    servers: dict[str, ServerConfig] = Field(default_factory=dict[str, ServerConfig])
    wait: float = Field(default=3, ge=0)
    max_output: int = Field(default=50_000, ge=1000)

    @field_validator("servers")
    @classmethod
    def _have_names(cls, value: dict[str, ServerConfig]) -> dict[str, ServerConfig]:
        for name in value:
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} is no name for a server: up to 32 letters, digits, _ and -"
                )
        return value
