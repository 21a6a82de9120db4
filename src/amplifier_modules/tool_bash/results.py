"""The model's view of a command: its output and its end."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amplifier_core.models import ToolResult
from amplifier_modules._shared.process.output import Captured
from amplifier_support.process.commands import Ended

_SHOWN_PIDS = 10


def to_result(
    ended: Ended,
    captured: Captured,
    timeout: float | None,
    log: Path | None,
    notes: Sequence[str] = (),
) -> ToolResult:
    """Return the result of a command that has ended; a success if the exit code is 0.

    Args:
        ended: How it ended.
        captured: Its output.
        timeout: Its time limit in seconds.
        log: File for further output of processes it left running.
        notes: Further notes, placed before how it ended.
    """
    lines = [*cut(captured), *_running(ended, log), *notes, ending(ended, timeout)]
    output = with_notes(captured.text if captured.total else "(no output)", lines)
    if ended.exit_code == 0:
        return ToolResult(output=output)
    kind = "TimedOut" if ended.timed_out else "ExitStatus"
    error: dict[str, Any] = {"message": lines[-1], "type": kind}
    if ended.exit_code is not None:
        error["exit_code"] = ended.exit_code
    return ToolResult(success=False, output=output, error=error)


def with_notes(text: str, notes: Sequence[str]) -> str:
    """`text` followed by notes, each in brackets on its own line."""
    return "\n".join((text.removesuffix("\n"), *(f"[{note}]" for note in notes)))


def cut(captured: Captured) -> list[str]:
    """Say where the part cut out of an output is, if it was cut."""
    if not captured.cut:
        return []
    size = f"the output has {captured.total} bytes"
    if captured.file is None or captured.in_file == 0:
        why = f": {captured.problem}" if captured.problem else ""
        return [f"{size}; the part cut out was not kept{why}"]
    part = (
        "all of it is"
        if captured.in_file == captured.total
        else f"the first {captured.in_file} of them are"
    )
    return [f"{size}; {part} in {captured.file}"]


def ending(ended: Ended, timeout: float | None) -> str:
    """Describe in a few words how a command ended."""
    if ended.timed_out:
        text = f"killed after the time limit of {timeout:g} s, with everything it had started"
        if ended.unkillable:
            text += f", except processes that cannot be killed: {_listed(ended.unkillable)}"
        return text
    code = ended.exit_code or 0
    if code < 0:
        return f"killed by signal {-code} ({signal.Signals(-code).name})"
    return f"exit code {code}"


def _running(ended: Ended, log: Path | None) -> list[str]:
    if not ended.background:
        return []
    where = f"; its further output goes to {log}" if log else ""
    return [f"still running in the background: {_listed(ended.background)}{where}"]


def _listed(pids: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, pids[:_SHOWN_PIDS]))
    more = len(pids) - _SHOWN_PIDS
    return f"{shown} and {more} more" if more > 0 else shown
