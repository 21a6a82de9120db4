"""The child process of `amplifier module validate`: checks a third-party module.

    python -P -m amplifier_kit.validation.child DESCRIPTOR

reads its request from that socket and reports to it as it goes: one JSON object per line, each line
prefixed with the word that the request contains:

    {"stage": "mount"}            the next stage
    {"place": "tool.py, line 3"}  where the module's own code is, sampled from time to time
    {"kind": "tool"}              the kind the module is checked as
    {"check": {…}}                a finding, as `report.Check`
    {"done": true}                the checks are complete

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

from amplifier_core.package_import import before_installed
from amplifier_kit.validation.findings import Findings
from amplifier_kit.validation.isolation import NOT_REPORTED
from amplifier_kit.validation.locations import place_now
from amplifier_support.process_privacy import forbid_inspection

_SAMPLE_SECONDS = 0.2


def main(descriptor: int) -> None:
    """Carry out the request and exit the process, whatever the module left running in it."""
    forbid_inspection()
    connection = socket.socket(fileno=descriptor)
    # Processes the module starts must not inherit it.
    connection.set_inheritable(False)
    findings = Findings(connection)
    if findings.request.preferred_paths:
        position = before_installed()
        sys.path[position:position] = findings.request.preferred_paths
    os.environ.update(findings.secrets)
    sys.path.extend(findings.request.import_paths)
    carry_out = _checker_of(findings.request.mode)
    # The time limit starts here.
    findings.say(stage="start")
    faulthandler.enable()
    if findings.request.folder:
        sys.path.insert(0, findings.request.folder)
        # Check the source, not byte code that happens to be next to it.
        sys.pycache_prefix = os.devnull
    threading.Thread(target=_report_places, args=(findings,), daemon=True).start()
    code = NOT_REPORTED
    try:
        _carry_out(findings, carry_out)
        code = 0
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        # sys.exit() would wait for the module's threads.
        os._exit(code)


def _checker_of(mode: str) -> Callable[[Findings], None]:
    if mode == "contract":
        from amplifier_kit.validation.contract import check_contract

        return check_contract
    from amplifier_kit.validation.behaviour import check_behaviour

    return check_behaviour


def _carry_out(findings: Findings, check: Callable[[Findings], None]) -> None:
    try:
        check(findings)
    # Any exception comes from the module, including KeyboardInterrupt and the like.
    except BaseException as error:
        advice = (
            "raise an Exception on failure; do not touch tasks or the event loop you did not create"
        )
        findings.bad("isolation", f"it raised {findings.describe(error)}", advice)
    findings.say(done=True)


def _report_places(findings: Findings) -> None:
    """Report where the module's code is; the last report shows where it hangs."""
    root, main_thread = findings.request.root, threading.main_thread().ident or 0
    pause, last = threading.Event(), ""
    while not pause.wait(_SAMPLE_SECONDS):
        place = place_now(root, main_thread)
        if place and place != last:
            last = place
            findings.say(place=place)


if __name__ == "__main__":
    main(int(sys.argv[1]))
