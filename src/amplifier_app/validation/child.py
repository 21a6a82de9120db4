"""The child process of `amplifier module validate`: tries a foreign module out.

    python -P -m amplifier_app.validation.child DESCRIPTOR

reads its request from that socket and reports there as it goes, one JSON object a line, each line
behind the word that the request gives:

    {"stage": "mount"}            what comes next
    {"place": "tool.py, line 3"}  where the module's own code is, looked at from time to time
    {"kind": "tool"}              what the module is checked as
    {"check": {…}}                a finding, as `report.Check`
    {"done": true}                there are no more

Standard output and error belong to the module.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from amplifier_app.validation.isolation import NOT_TOLD
from amplifier_app.validation.places import place_now
from amplifier_app.validation.report import Check, Severity
from amplifier_core.foreign import describe_exception
from amplifier_core.package_import import before_installed
from amplifier_support.process_privacy import forbid_inspection

_LOOK_SECONDS = 0.2
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


def main(descriptor: int) -> None:
    """Carry out the request, and end the process whatever the module left running in it."""
    forbid_inspection()
    connection = socket.socket(fileno=descriptor)
    # What the module starts has no business with it.
    connection.set_inheritable(False)
    findings = Findings(connection)
    if findings.request.preferred_paths:
        position = before_installed()
        sys.path[position:position] = findings.request.preferred_paths
    os.environ.update(findings.secrets)
    sys.path.extend(findings.request.import_paths)
    carry_out = _what_to_do(findings.request.mode)
    # From here on the time counts.
    findings.say(stage="start")
    faulthandler.enable()
    if findings.request.folder:
        sys.path.insert(0, findings.request.folder)
        # What is tried out is the source, and no byte code that happens to lie beside it.
        sys.pycache_prefix = os.devnull
    threading.Thread(target=_look_on, args=(findings,), daemon=True).start()
    code = NOT_TOLD
    try:
        _carry_out(findings, carry_out)
        code = 0
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        # Not sys.exit(): threads of the module would be waited for.
        os._exit(code)


def _what_to_do(mode: str) -> Callable[[Findings], None]:
    if mode == "contract":
        from amplifier_app.validation.contract import check_contract

        return check_contract
    from amplifier_app.validation.behaviour import check_behaviour

    return check_behaviour


def _carry_out(findings: Findings, check: Callable[[Findings], None]) -> None:
    try:
        check(findings)
    # Whatever it raises, KeyboardInterrupt and its kind included, it is the module's.
    except BaseException as error:
        advice = "raise an Exception where something fails; leave tasks and the event loop alone"
        findings.bad("isolation", f"it raised {findings.told(error)}", advice)
    findings.say(done=True)


def _look_on(findings: Findings) -> None:
    """Report where the module's code is; the last report tells where it hangs."""
    root, main_thread = findings.request.root, threading.main_thread().ident or 0
    pause, last = threading.Event(), ""
    while not pause.wait(_LOOK_SECONDS):
        place = place_now(root, main_thread)
        if place and place != last:
            last = place
            findings.say(place=place)


if __name__ == "__main__":
    main(int(sys.argv[1]))
