"""Code shared by the commands of `amplifier session`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.typer_options import argument
from amplifier_app.sessions.index import Index, ask_index
from amplifier_app.sessions.store import SessionStore

_Answer = TypeVar("_Answer")

SessionArgument = Annotated[
    str,
    argument("ID", "Session id, the start of one, or a short id, as in 'amplifier session list'."),
]


def from_index(question: Callable[[Index], _Answer]) -> _Answer:
    """Ask the index of the saved sessions; what there is to say about it goes to stderr."""
    answer, remark = ask_index(SessionStore().root, question)
    if remark:
        to_stderr(f"amplifier: {remark}")
    return answer
