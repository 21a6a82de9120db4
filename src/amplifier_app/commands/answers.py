"""Options that answer a question of a command before it is asked."""

from __future__ import annotations

import os
import sys
from typing import Annotated

from amplifier_app.base.errors import UsageError
from amplifier_app.base.stdio import read_line, stdin_is_tty
from amplifier_app.commands.option import parse_duration
from amplifier_app.commands.typer_options import option
from amplifier_app.sessions.waiting import Decision

_PATIENCE_SECONDS = 600.0

YesOption = Annotated[bool, option("-y, --yes", "Do not ask for confirmation.")]


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


# Without `from __future__ import annotations`, whose strings Typer would compile at every start.


AllowOption = Annotated[bool, option("--allow", "Allow the call, once.")]
DenyOption = Annotated[bool, option("--deny", "Deny the call.")]
AnswerOption = Annotated[
    str | None,
    option(
        "--answer TEXT", "With --deny, the reason for the model; alone, the answer to a question."
    ),
]
ExpiresOption = Annotated[
    float | None,
    option(
        "--expires TIME",
        "How long the answer counts: 90m, 24h. [default: 7 days]",
        parser=parse_duration,
    ),
]


def read_decision(allow: bool, deny: bool, answer: str | None) -> Decision | None:
    """The decision of the options; None without one.

    Raises:
        UsageError: They contradict each other.
    """
    if allow and (deny or answer is not None):
        raise UsageError("--allow cannot be used with --deny or --answer")
    if deny or allow:
        return "deny" if deny else "allow"
    return None if answer is None else "answer"
