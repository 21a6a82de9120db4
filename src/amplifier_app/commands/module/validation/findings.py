"""What the child process is asked, and its reports to the process that asked."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path
from typing import Any, NamedTuple

from amplifier_app.base.checks import Check, Severity
from amplifier_core._foreign import describe_exception

_LONGEST = 2_000


class Request(NamedTuple):
    """What is to be tried out, and how.

    Attributes:
        mode: `contract` or `behaviour`.
        folder: What goes in front of `sys.path`, if anything.
        import_paths: What goes to its end.
        preferred_paths: What goes before the environment's packages.
        entry_point: `"package:mount"`; None for a folder that is itself the package.
        package: The folder or file that is imported; what is in it is the module's own code.
        name: The module's id, or what comes closest to it.
        kind: What it is to be checked as; None for what it says it is.
        config: What `mount` is given.
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
        """Where the module's own code is."""
        return Path(self.package).resolve()


class Findings:
    """Reports to whoever asked for the validation.

    Attributes:
        request: What was asked for.
        secrets: Variables that the module gets, and other processes are not to see.
        failed: Whether a finding so far fails the module.
    """

    def __init__(self, connection: socket.socket) -> None:
        asked = json.loads(connection.makefile("rb").readline())
        self.request = Request(**asked["request"])
        self.secrets: dict[str, str] = asked["secrets"]
        self.failed = False
        self._word = asked["word"]
        self._connection = connection
        self._owner = os.getpid()
        self._lock = threading.Lock()

    def good(self, name: str, message: str) -> None:
        """Report something that is in order."""
        self.add(Check(name, True, message))

    def bad(self, name: str, message: str, advice: str, severity: Severity = "error") -> None:
        """Report something that is not, and how to mend it."""
        self.add(Check(name, False, message, severity, advice))

    def add(self, check: Check) -> None:
        """Report a finding; of a text that goes on for pages, its beginning."""
        self.failed = self.failed or (not check.passed and check.severity == "error")
        message = check.message.encode("utf-8", "replace").decode()
        if len(message) > _LONGEST:
            message = f"{message[:_LONGEST]}…"
        self.say(check=check._replace(message=message)._asdict())

    def say(self, **facts: Any) -> None:
        """Report facts; a copy of this process that the module made by forking stays silent."""
        if os.getpid() == self._owner:
            line = f"{self._word} {json.dumps(facts)}\n".encode()
            with self._lock:
                self._connection.sendall(line)

    def told(self, error: BaseException) -> str:
        """An exception in the module's code in one sentence, with the line it came from."""
        return describe_exception(error, self.request.root)
