"""Confirmation of what a command is about to do: the `--yes` option, or a question on the terminal."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.base.stdio import read_line, stdin_is_tty

_PATIENCE_SECONDS = 600.0

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


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
