"""How to reach servers: start a program, or connect over streamable HTTP."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from typing import Any

from amplifier_extras.tool_mcp.config import ServerConfig
from amplifier_extras.tool_mcp.connection import CannotStart, Connection, Program
from amplifier_extras.tool_mcp.error_log import ErrorLog
from amplifier_modules._shared.process.environment import command_environment
from amplifier_modules._shared.process.sandbox import command_sandbox
from amplifier_support.environment import absolute_entries
from amplifier_support.process.commands import ProcessRunner
from amplifier_support.session_capabilities import WORKING_DIR

_RESTRICTED = "; it runs in a sandbox, which 'sandbox' of the server can change"


class LocalWay:
    """Start a server's program for each connection."""

    def __init__(self, config: ServerConfig, coordinator: Any, log: ErrorLog) -> None:
        self._config = config
        self._coordinator = coordinator
        self._log = log
        self._sandbox = command_sandbox(coordinator, config.sandbox)
        self._runner = ProcessRunner(self._sandbox)

    async def __call__(self, lost: Callable[[], None]) -> Connection:
        # Only after the SDK, which takes seconds to import.
        from amplifier_extras.tool_mcp.stdio import StdioTransport

        program = self._program()
        self._log.clear_last_words()
        transport = StdioTransport(program, self._runner, self._log.feed, lost)
        return Connection(
            transport, lambda: self._explanation(transport.problem), self._runner.close
        )

    def _explanation(self, problem: str | None) -> str | None:
        if problem is None:
            return None
        last_words = self._log.last_words()
        output = f"; its output: {last_words}" if last_words else ""
        restricted = self._sandbox is not None and self._sandbox.enforced
        # Many servers need the network, which they have to be given.
        return f"{problem}{output}{_RESTRICTED if restricted else ''}"

    def _program(self) -> Program:
        if os.name != "posix":
            raise CannotStart("MCP servers can be started on POSIX systems only")
        base = WORKING_DIR.of(self._coordinator) or os.getcwd()
        folder = os.path.join(base, os.path.expanduser(self._config.cwd or "."))
        folder = os.path.normpath(folder)
        inherited = command_environment(self._coordinator, self._config.env_passthrough)
        environment = {**inherited, "PWD": folder, **self._config.env}
        command = os.path.expanduser(self._config.command or "")
        if "/" in command:
            found = os.path.join(folder, command)
            found = found if os.access(found, os.X_OK) and os.path.isfile(found) else None
        else:
            # A relative entry could pick a program from the working directory as the server.
            path = absolute_entries(environment.get("PATH", os.defpath))
            found = shutil.which(command, path=path)
        if found is None:
            raise CannotStart(f"program {self._config.command!r} not found")
        return Program([os.path.abspath(found), *self._config.args], environment, folder)


class RemoteWay:
    """Connect to a server over streamable HTTP."""

    def __init__(self, url: str, headers: Mapping[str, str], patience: float) -> None:
        self._url = url
        self._headers = headers
        self._patience = patience

    async def __call__(self, lost: Callable[[], None]) -> Connection:
        from amplifier_extras.tool_mcp.remote import connection_to

        return connection_to(self._url, self._headers, self._patience)
