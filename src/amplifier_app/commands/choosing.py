"""What commands that look at a plan have in common: the options that choose it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from amplifier_app.plan import ResolvedPlan, load

ProfileOption = Annotated[
    str | None, typer.Option("--profile", "-P", metavar="NAME", help="Profile to look at.")
]
PlanOption = Annotated[
    Path | None, typer.Option("--plan", "-f", metavar="FILE", help="Mount plan to look at.")
]
ProviderOption = Annotated[
    str | None, typer.Option("--provider", "-p", metavar="NAME", help="Provider to ask.")
]
ModelOption = Annotated[
    str | None, typer.Option("--model", "-m", metavar="NAME", help="Model to ask for.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change a value of the plan; repeatable."),
]


def chosen_plan(
    plan: Path | None,
    profile: str | None,
    provider: str | None = None,
    model: str | None = None,
    sets: Sequence[str] | None = None,
    *,
    keep_unset: bool = False,
) -> ResolvedPlan:
    """The plan that the options name, the same one that `run` with these options uses.

    Args:
        keep_unset: See `amplifier_app.plan.model.ResolvedPlan`.

    Raises:
        ConfigError: It cannot be found.
        PlanError: Something about it is wrong.
    """
    return load(
        plan=plan,
        profile=profile,
        provider=provider,
        model=model,
        sets=tuple(sets or ()),
        keep_unset=keep_unset,
    )
