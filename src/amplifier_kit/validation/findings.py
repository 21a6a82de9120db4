"""The child process's request, and its reports to the parent."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path
from typing import Any, NamedTuple

from amplifier_app.base.checks import Check, Severity
from amplifier_core._foreign import describe_exception
from amplifier_support.printable import cut_text

_LONGEST = 2_000


class Request(NamedTuple):
    """What to check, and how.

    Attributes:
        mode: `contract` or `behaviour`.
        folder: Put at the start of `sys.path`; may be empty.
        import_paths: Put at the end of `sys.path`.
        preferred_paths: Put before the environment's packages.
        entry_point: `"package:mount"`; None for a folder that is itself the package.
        package: The folder or file that is imported, containing the module's own code.
        name: The module's id, or the closest name to it.
        kind: The kind to check it as; None for the one it declares.
        config: The configuration for `mount`.
    """

    mode: str
    folder: str
    import_paths: list[str]
    preferred_paths: list[str]
    entry_point: str | None
    package: str
    name: str
    kind: str | None
    config: dict[str, Any]

    @property
    def root(self) -> Path:
        """The folder or file of the module's own code."""
        return Path(self.package).resolve()


class Findings:
    """Reports findings to the parent process.

    Attributes:
        request: The request.
        secrets: Environment variables for the module that other processes must not see.
        failed: Whether a finding so far fails the module.
        settings: The settings that the module's config schema has.
    """

    def __init__(self, connection: socket.socket) -> None:
        asked = json.loads(connection.makefile("rb").readline())
        self.request = Request(**asked["request"])
        self.secrets: dict[str, str] = asked["secrets"]
        self.failed = False
        self.settings: tuple[str, ...] = ()
        self._word = asked["word"]
        self._connection = connection
        self._owner = os.getpid()
        self._lock = threading.Lock()

    def good(self, name: str, message: str) -> None:
        """Report a check that passed."""
        self.add(Check(name, True, message))

    def bad(self, name: str, message: str, advice: str, severity: Severity = "error") -> None:
        """Report a check that failed, and how to fix it."""
        self.add(Check(name, False, message, severity, advice))

    def add(self, check: Check) -> None:
        """Report a finding; a very long message is cut."""
        self.failed = self.failed or (not check.passed and check.severity == "error")
        message = check.message.encode("utf-8", "replace").decode()
        self.say(check=check._replace(message=cut_text(message, _LONGEST))._asdict())

    def say(self, **facts: Any) -> None:
        """Report facts, except from a process that the module forked."""
        if os.getpid() == self._owner:
            line = f"{self._word} {json.dumps(facts)}\n".encode()
            with self._lock:
                self._connection.sendall(line)

    def describe(self, error: BaseException) -> str:
        """An exception in the module's code in one sentence, with its line."""
        return describe_exception(error, self.request.root)
