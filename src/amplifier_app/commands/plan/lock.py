"""`amplifier plan lock`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from amplifier_app.base.outcome import Ending
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.plan_options import PlanOption, ProfileOption, chosen_plan
from amplifier_app.render.table import Format, OutputOption
from amplifier_app.sources.loading import Fetching

if TYPE_CHECKING:
    from amplifier_app.sources.plan_lock import Difference

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def lock(
    profile: ProfileOption = None,
    plan: PlanOption = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-o", metavar="FILE", help="Write the lock there.", dir_okay=False),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Write nothing; exit code 78 if the lock does not fit."),
    ] = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """Write down what each module of the plan is exactly: commit, content, versions.

    What is locked already stays as it is while its source does; `amplifier module update` moves
    it. Modules of agents and providers that are left out on this machine are locked as well.
    """
    from amplifier_app.sources.lockfile import Lock, lock_path_for
    from amplifier_app.sources.plan_lock import differences, make_lock
    from amplifier_app.trust.renewal import keeping_trust

    # What a provider needs to be asked is not needed to know what it is.
    fetching = Fetching(keep=True, lock=file)
    chosen = chosen_plan(plan, profile, keep_unset=True, fetching=fetching)
    path = file or lock_path_for(chosen)
    old = Lock.read(path) if check or path.exists() else None
    new = asyncio.run(make_lock(chosen, old))
    found = differences(old or Lock(plan=new.plan), new)
    changed = old is None or old != new
    if changed and not check:
        with keeping_trust(chosen.project, path):
            new.write(path)
    if output is Format.JSON:
        facts = {"plan": new.plan, "lock": str(path), "changed": changed}
        rows = [one._asdict() for one in found]
        print(json.dumps({**facts, "modules": len(new.modules), "differences": rows}, indent=2))
    else:
        _tell(found, path, len(new.modules), changed=changed, check=check)
    if check and changed:
        raise typer.Exit(Ending.CONFIGURATION.exit_code)


def _tell(found: list[Difference], path: Path, modules: int, *, changed: bool, check: bool) -> None:
    for one in found:
        print(one_line(str(one)))
    if not changed:
        to_stderr(f"amplifier: {path} fits the plan ({modules} modules)")
    elif check:
        to_stderr(f"amplifier: {path} does not fit the plan\n  Write it anew: amplifier plan lock")
    else:
        to_stderr(f"amplifier: wrote {path} ({modules} modules)")
