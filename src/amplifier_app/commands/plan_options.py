"""The plan of the commands that inspect one, and the options that select it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from amplifier_app import trust
from amplifier_app.base.sanitize import one_line
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.typer_options import takes_options
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.render.ansi import wrapped
from amplifier_app.sources.loading import AS_ENVIRONMENT_SAYS, Fetching, load


def takes_plan_options(*names: str) -> Callable[[Callable[..., None]], Any]:
    """Give a command these options of `run`, in place of its parameter of type `Request`."""
    return takes_options(Request, *names, group="Plan")


def skipped_lines(rows: Sequence[Mapping[str, Any]], name: str, width: int | None) -> list[str]:
    """The lines below a list that say why the plan skips some of its entries.

    Args:
        rows: The entries; `left_out` is the reason.
        name: The key of the name of each.
        width: Cells of a terminal; None for whole lines.
    """
    skipped = [f"{row[name]} skipped: {row['left_out']}" for row in rows if row["left_out"]]
    lines = [""] if skipped else []
    for reason in map(one_line, skipped):
        lines += [reason] if width is None else wrapped(reason, width, "  ")
    return lines


def chosen_plan(
    request: Request | None = None,
    *,
    keep_unset: bool = False,
    fetching: Fetching = AS_ENVIRONMENT_SAYS,
) -> ResolvedPlan:
    """The plan that `run` would use.

    An untrusted project is skipped with a notice on stderr.

    Args:
        request: The options that select it: profile, plan, provider, model and sets.
        keep_unset: See `amplifier_app.plan.model.ResolvedPlan`.
        fetching: How bundles are fetched.

    Raises:
        ConfigError: The plan cannot be found.
        PlanError: The plan is invalid.
    """
    request = request or Request()
    project = trust.project_if_trusted()
    loaded = load(
        plan=request.plan,
        profile=request.profile,
        provider=request.provider,
        model=request.model,
        sets=tuple(request.sets or ()),
        keep_unset=keep_unset,
        fetching=fetching,
        project=None if project is None else project.folder,
    )
    if project is not None:
        project.check(loaded)
    return loaded
