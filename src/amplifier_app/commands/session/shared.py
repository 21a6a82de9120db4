"""Code shared by the commands of `amplifier session`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.base.stdio import read_line, stdin_is_tty, to_stderr
from amplifier_app.sessions.index import Index, ask_index
from amplifier_app.sessions.store import SessionStore

_Answer = TypeVar("_Answer")
_PATIENCE_SECONDS = 600.0

SessionArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="Session id, the start of one, or a short id.", show_default=False
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def from_index(question: Callable[[Index], _Answer]) -> _Answer:
    """Ask the index of the saved sessions; what there is to say about it goes to stderr."""
    answer, remark = ask_index(SessionStore().root, question)
    if remark:
        to_stderr(f"amplifier: {remark}")
    return answer


def confirm(question: str, yes: bool) -> bool:
    """Ask a yes-or-no question on the terminal; the default is no.

    Raises:
        UsageError: No terminal can show the question.
    """
    if yes:
        return True
    if not stdin_is_tty() or not os.isatty(2):
        raise UsageError("cannot ask for confirmation without a terminal", hint="Pass --yes.")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return (read_line(_PATIENCE_SECONDS) or "").strip().lower() in ("y", "yes")
