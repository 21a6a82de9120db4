"""What commands that change settings have in common: which file, and what is told."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import to_stderr

if TYPE_CHECKING:
    from amplifier_app.commands.settings.modules import Changed, Target


class Scope(str, Enum):  # noqa: UP042 - Typer shows the members' values
    """Whose settings."""

    USER = "user"
    PROJECT = "project"
    LOCAL = "local"


ScopeOption = Annotated[
    Scope | None,
    typer.Option(
        "--scope", help="Whose settings: your own, the project's, or yours in the project."
    ),
]


@contextlib.contextmanager
def changing(scope: Scope | None, *, in_project: str) -> Generator[Target]:
    """The settings file that the option names; a project stays trusted over what is changed.

    Args:
        scope: The option.
        in_project: The scope to choose in a project when there is no option.
    """
    from amplifier_app.commands.settings.modules import target
    from amplifier_app.trust.renewal import keeping_trust

    where = target(scope.value if scope is not None else None, in_project=in_project)
    with keeping_trust(where.project, where.file):
        yield where


def tell(changed: Changed) -> None:
    """Say what was changed."""
    to_stderr(one_line(f"amplifier: {changed.what} ({changed.file})", 1000))
    if changed.warning:
        to_stderr(one_line(f"amplifier: {changed.warning}", 1000))
