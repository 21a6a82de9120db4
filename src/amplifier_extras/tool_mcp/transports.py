"""Transports to servers: start a program, or connect over streamable HTTP; what programs write is
logged.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amplifier_extras.tool_mcp.config import ServerConfig
from amplifier_extras.tool_mcp.connection import (
    CannotStart,
    Connection,
    Program,
)
from amplifier_modules._shared.sandbox import command_environment, command_sandbox
from amplifier_support.environment import absolute_entries
from amplifier_support.files import open_private_in
from amplifier_support.process.commands import ProcessRunner
from amplifier_support.redaction import Redactor
from amplifier_support.session_capabilities import WORKING_DIR

if TYPE_CHECKING:
    from amplifier_extras.tool_mcp.remote import RemoteAuth

logger = logging.getLogger(__name__)

_MOST = 5_000_000
_TAIL = 2000


class ErrorLog:
    """The log of one server.

    Args:
        folder: Returns the folder of the log, when there is something to write.
        name: Name of the file.
        redactor: Removes secrets.
    """

    def __init__(self, folder: Callable[[], Path], name: str, redactor: Redactor) -> None:
        self._folder = folder
        self._name = name
        self._redactor = redactor
        self._unwritten = b""
        self._tail = ""
        self._written = 0
        self._file: int | None = None
        self._is_ending = False

    def feed(self, data: bytes) -> None:
        """Add the next piece. Never raises: an unwritable log is reported once."""
        *lines, self._unwritten = (self._unwritten + data).split(b"\n")
        if len(self._unwritten) > 64 * 1024:
            lines.append(self._unwritten)
            self._unwritten = b""
        if lines:
            self._write("".join(f"{line.decode('utf-8', 'replace')}\n" for line in lines))

    def last_words(self) -> str:
        """The end of what it wrote, on one line."""
        text = self._tail + self._redactor.text(self._unwritten.decode("utf-8", "replace"))
        return " | ".join(line.strip() for line in text.splitlines()[-5:] if line.strip())[-500:]

    def clear_last_words(self) -> None:
        """Forget the last words: those of an earlier run explain nothing."""
        self._tail = ""

    def stop_creating(self) -> None:
        """Create no file from now on: the session is ending, and its folder may be gone."""
        self._is_ending = True

    def close(self) -> None:
        """Write what is left and close the file."""
        if self._unwritten:
            self.feed(b"\n")
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, text: str) -> None:
        text = self._redactor.text(text)
        self._tail = (self._tail + text)[-_TAIL:]
        data = text.encode("utf-8", "replace")[: _MOST - self._written]
        if not data or (self._file is None and self._is_ending):
            return
        try:
            if self._file is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                self._file = open_private_in(self._folder(), self._name, flags)
            os.write(self._file, data)
            self._written += len(data)
        except OSError as error:
            self._written = _MOST
            logger.warning("cannot write the log %s of an MCP server: %s", self._name, error)


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
        folder = os.path.join(
            _working_dir(self._coordinator), os.path.expanduser(self._config.cwd or ".")
        )
        folder = os.path.normpath(folder)
        inherited = command_environment(self._coordinator, self._config.env_passthrough)
        environment = {**inherited, "PWD": folder, **self._config.env}
        command = os.path.expanduser(self._config.command or "")
        if "/" in command:
            program = os.path.join(folder, command)
            program = program if os.access(program, os.X_OK) and os.path.isfile(program) else None
        else:
            # A relative entry could pick a program from the working directory as the server.
            path = absolute_entries(environment.get("PATH", os.defpath))
            program = shutil.which(command, path=path)
        if program is None:
            raise CannotStart(f"program {self._config.command!r} not found")
        return Program([os.path.abspath(program), *self._config.args], environment, folder)


class RemoteWay:
    """Connect to a server over streamable HTTP.

    Args:
        name: The server's name.
        config: Its settings, with a URL.
        coordinator: The session's.
    """

    def __init__(self, name: str, config: ServerConfig, coordinator: Any) -> None:
        self._name = name
        self._config = config
        self._coordinator = coordinator
        self._auth: RemoteAuth | None = None

    async def __call__(self, lost: Callable[[], None]) -> Connection:
        # The cryptography takes a moment.
        await asyncio.to_thread(import_module, "amplifier_extras.tool_mcp.oauth")
        from amplifier_extras.tool_mcp.oauth import authorize
        from amplifier_extras.tool_mcp.remote import connection_to

        config = self._config
        if self._auth is None and not config.has_token:
            self._auth = authorize(self._name, config, _working_dir(self._coordinator))
        return connection_to(config.url or "", config.headers, config.timeout, self._auth)

    def secrets(self) -> Iterator[str]:
        """Yield the tokens in use."""
        if self._auth is not None:
            yield from self._auth.secrets()


def _working_dir(coordinator: Any) -> str:
    return WORKING_DIR.of(coordinator) or os.getcwd()
