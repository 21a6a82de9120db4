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

import asyncio
import contextlib
import faulthandler
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from amplifier_core._foreign import line_in
from amplifier_core.loader import before_installed
from amplifier_kit.validation.isolation import NOT_REPORTED, Findings
from amplifier_support.sandbox.system_calls import forbid_inspection


def _place_now(root: Path, thread: int) -> str:
    """The line below `root` that a thread, or a task waiting in it, is at; empty if none."""
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage] - it is documented
    tasks: list[asyncio.Task[Any]] = []
    while frame is not None:
        place = line_in(root, frame, frame.f_lineno)
        if place:
            return place
        if frame.f_code.co_name == "_run_once":
            tasks += _tasks(frame.f_locals.get("self"))
        frame = frame.f_back
    for task in tasks:
        places = [line_in(root, at, at.f_lineno) for at in _frames(task.get_coro())]
        if any(places):
            return [place for place in places if place][-1]
    return ""


def _tasks(loop: Any) -> list[asyncio.Task[Any]]:
    """The unfinished tasks of a loop that another thread runs."""
    try:
        return list(asyncio.all_tasks(loop))
    # The module's loop is in use; if this fails, the next sample may work.
    except Exception:
        return []


def _frames(coroutine: Any) -> Iterator[FrameType]:
    """The frames of a coroutine and of what it awaits, outermost first."""
    while coroutine is not None:
        inner = None
        # Coroutines, generators and async generators use different attribute names.
        for prefix, awaited in (("cr", "await"), ("gi", "yieldfrom"), ("ag", "await")):
            frame = getattr(coroutine, f"{prefix}_frame", None)
            if frame is not None:
                yield frame
                inner = getattr(coroutine, f"{prefix}_{awaited}", None)
        coroutine = inner


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
    carry_out = _choose_checker(findings.request.mode)
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


def _choose_checker(mode: str) -> Callable[[Findings], None]:
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
        place = _place_now(root, main_thread)
        if place and place != last:
            last = place
            findings.say(place=place)


if __name__ == "__main__":
    main(int(sys.argv[1]))
