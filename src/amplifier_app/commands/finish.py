"""The single place where commands end: exit code, JSON result and the message on stderr."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from contextlib import ExitStack
from typing import Literal

from amplifier_app.base.json_text import json_line
from amplifier_app.base.outcome import FOR_TRACEBACK, OK, Ending, Outcome, hint_for, to_outcome
from amplifier_app.base.sanitize import for_terminal
from amplifier_app.base.stdio import Output, to_stderr
from amplifier_app.render.result import RunReport, result_object

_AS_WRITTEN = (Ending.OK, Ending.INTERRUPTED)
"""Endings that do not count if the output could not be written; a failure stops a run."""

OutputFormat = Literal["text", "json", "stream-json"]


class Invocation:
    """One invocation of the program, available to commands as `typer.Context.obj`.

    Attributes:
        output: The result's format. Guessed from the raw arguments until a command has parsed
            them, so that usage errors are reported in the requested format, too.
        verbose: Whether failures print a traceback.
        stdout: Where the answer goes.
        report: What the JSON result of a run contains besides the outcome; None for other commands.
        outcome: How the command ended, if it did not raise.
        opens_chat: Whether a prompt on a terminal begins a chat.
        resources: Closed after the result has been reported.
    """

    def __init__(
        self,
        output: OutputFormat = "text",
        *,
        verbose: bool = False,
        stdout: Output | None = None,
        report: RunReport | None = None,
    ) -> None:
        self.output: OutputFormat = output
        self.verbose = verbose
        self.stdout = stdout or Output(1)
        self.report = report
        self.outcome: Outcome = OK
        self.opens_chat = False
        self.resources = ExitStack()


def guess_invocation(argv: list[str], stdout: Output | None = None) -> Invocation:
    """The invocation as far as the raw arguments and the environment show it."""
    output: OutputFormat = "text"
    for argument, following in zip(argv, [*argv[1:], ""], strict=True):
        flag, _, value = argument.partition("=")
        value = value or following
        if flag == "--output" and (value == "json" or value == "stream-json"):
            output = value
    # For tests, the option means a line for each of them.
    flags = set() if argv[:1] == ["test"] else {"-v", "--verbose"}
    verbose = bool(os.environ.get("AMPLIFIER_DEBUG")) or bool(flags & set(argv))
    report = RunReport() if argv[:1] == ["run"] else None
    return Invocation(output=output, verbose=verbose, stdout=stdout, report=report)


def finish(invocation: Invocation, ended: Outcome | BaseException | int) -> int:
    """Report how the command ended and return the exit code.

    Args:
        invocation: The invocation that ended.
        ended: An outcome, the exception that ended it, or the exit code of a command that has
            reported everything itself.
    """
    # A module may have replaced it.
    with contextlib.suppress(AttributeError, ValueError):
        sys.stdout.flush()
    error = ended if isinstance(ended, BaseException) else None
    if isinstance(ended, int):
        if ended:
            return ended
        outcome = OK
    else:
        outcome = to_outcome(ended) if isinstance(ended, BaseException) else ended
        _print_result(invocation, outcome)
    failure = invocation.stdout.failure
    if failure is not None and outcome.ending in _AS_WRITTEN:
        error, outcome = failure, _outcome_of_stdout(failure)
    if outcome.ending not in (Ending.OK, Ending.PIPE_CLOSED):
        _print_message(invocation, outcome, error)
    return outcome.exit_code


def _outcome_of_stdout(failure: OSError) -> Outcome:
    if isinstance(failure, BrokenPipeError):
        return to_outcome(failure)
    reason = (failure.strerror or str(failure)).lower()
    return Outcome(Ending.SESSION, f"cannot write to stdout: {reason}", hint_for(failure))


def _print_result(invocation: Invocation, outcome: Outcome) -> None:
    report = invocation.report
    if invocation.output == "text" or (report is None and outcome.ending is Ending.OK):
        return
    result = result_object(outcome, report)
    if invocation.output == "stream-json" and report is not None:
        if not report.announced:
            invocation.stdout.write(json_line({"type": "session", "session_id": None}))
        result = {"type": "result", **result}
    invocation.stdout.write(json_line(result))


def _print_message(invocation: Invocation, outcome: Outcome, error: BaseException | None) -> None:
    if error is not None and invocation.verbose:
        to_stderr(for_terminal("".join(traceback.format_exception(error))).rstrip())
    lines = [f"amplifier: {outcome.message}"]
    hint = outcome.hint
    if outcome.ending is Ending.ERROR and not invocation.verbose:
        hint = hint or FOR_TRACEBACK
    seconds = outcome.retry_after or 0
    if seconds >= 1:
        wait = f"{seconds:g} s" if seconds < 120 else f"{seconds / 60:.3g} minutes"
        lines.append(f"  Retry in {wait} (provider's request).")
    if hint:
        lines += [f"  {line}" for line in hint.splitlines()]
    to_stderr(for_terminal("\n".join(lines)))
