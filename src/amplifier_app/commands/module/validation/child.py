"""The child process of `amplifier module validate`: tries a foreign module out.

    python -P -m amplifier_app.commands.module.validation.child DESCRIPTOR

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
import os
import socket
import sys
import threading
from collections.abc import Callable

from amplifier_app.commands.module.validation.findings import Findings
from amplifier_app.commands.module.validation.isolation import NOT_TOLD
from amplifier_app.commands.module.validation.locations import place_now
from amplifier_core.package_import import before_installed
from amplifier_support.process_privacy import forbid_inspection

_LOOK_SECONDS = 0.2


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
        from amplifier_app.commands.module.validation.contract import check_contract

        return check_contract
    from amplifier_app.commands.module.validation.behaviour import check_behaviour

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
