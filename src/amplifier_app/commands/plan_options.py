"""The options that select a plan, shared by the commands that inspect one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from amplifier_app import trust
from amplifier_app.plan import ResolvedPlan
from amplifier_app.sources.loading import AS_ENVIRONMENT_SAYS, Fetching, load

ProfileOption = Annotated[
    str | None,
    typer.Option("--profile", "-P", metavar="NAME", help="Profile to use.", rich_help_panel="Plan"),
]
PlanOption = Annotated[
    Path | None,
    typer.Option("--plan", "-f", metavar="FILE", help="Plan file to use.", rich_help_panel="Plan"),
]
ProviderOption = Annotated[
    str | None,
    typer.Option(
        "--provider", "-p", metavar="NAME", help="Provider to use.", rich_help_panel="Plan"
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", "-m", metavar="NAME", help="Model to use.", rich_help_panel="Plan"),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change a value of the plan; repeatable.",
        rich_help_panel="Plan",
    ),
]


def chosen_plan(
    plan: Path | None,
    profile: str | None,
    provider: str | None = None,
    model: str | None = None,
    sets: Sequence[str] | None = None,
    *,
    keep_unset: bool = False,
    fetching: Fetching = AS_ENVIRONMENT_SAYS,
) -> ResolvedPlan:
    """The plan that `run` would use with these options.

    An untrusted project is skipped with a notice on stderr.

    Args:
        keep_unset: See `amplifier_app.plan.model.ResolvedPlan`.
        fetching: How bundles are fetched.

    Raises:
        ConfigError: The plan cannot be found.
        PlanError: The plan is invalid.
    """
    project = trust.project_if_trusted()
    loaded = load(
        plan=plan,
        profile=profile,
        provider=provider,
        model=model,
        sets=tuple(sets or ()),
        keep_unset=keep_unset,
        fetching=fetching,
        project=None if project is None else project.folder,
    )
    if project is not None:
        project.check(loaded)
    return loaded
