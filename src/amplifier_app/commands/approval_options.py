"""The options that answer questions which wait for approval."""

# Without `from __future__ import annotations`, whose strings Typer would compile at every start.
from typing import Annotated

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.commands.duration import parse_duration
from amplifier_app.sessions.waiting import Decision

AllowOption = Annotated[bool, typer.Option("--allow", help="Allow the call, once.")]
DenyOption = Annotated[bool, typer.Option("--deny", help="Deny the call.")]
AnswerOption = Annotated[
    str | None,
    typer.Option(
        "--answer",
        metavar="TEXT",
        help="With --deny, the reason for the model; alone, the answer to a question.",
    ),
]
ExpiresOption = Annotated[
    float | None,
    typer.Option(
        "--expires",
        metavar="TIME",
        parser=parse_duration,
        help="How long the answer counts: 90m, 24h. [default: 7 days]",
        show_default=False,
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
