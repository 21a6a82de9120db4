"""Shared by the commands that change settings: the `--scope` option and the report."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from amplifier_app.base.locks import changing_settings
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.settings.modules import target
from amplifier_app.trust import keeping_trust

if TYPE_CHECKING:
    from amplifier_app.commands.settings.modules import Changed, Target


ScopeOption = Annotated[
    Literal["user", "project", "local"] | None,
    typer.Option(
        "--scope",
        help="Settings to change: your own, the project's, or your own for this project.",
    ),
]


@contextlib.contextmanager
def changing(scope: str | None, *, in_project: str) -> Generator[Target]:
    """The settings file to change; a trusted project stays trusted after the change.

    Other processes that change settings wait until the block ends.

    Args:
        scope: The scope option.
        in_project: The default scope inside a project.
    """
    where = target(scope, in_project=in_project)
    with changing_settings(), keeping_trust(where.project, where.file):
        yield where


def report(changed: Changed) -> None:
    """Report a change on stderr."""
    to_stderr(one_line(f"amplifier: {changed.what} ({changed.file})", 1000))
    if changed.warning:
        to_stderr(one_line(f"amplifier: {changed.warning}", 1000))
