"""`amplifier module update`: fetch newer versions of a plan's modules."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from amplifier_app.base import paths
from amplifier_app.base.json_text import json_text
from amplifier_app.base.locks import changing_settings
from amplifier_app.base.outcome import Ending
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.plan_options import chosen_plan, takes_plan_options
from amplifier_app.commands.run.request import Request
from amplifier_app.render.table import Column, OutputOption, print_table
from amplifier_app.sources import update as updating
from amplifier_app.sources.loading import Fetching
from amplifier_app.sources.lockfile import Lock, lock_path_for
from amplifier_app.trust.renewal import keeping_trust

if TYPE_CHECKING:
    from amplifier_app.sources.update import Update

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@takes_plan_options("profile", "plan")
def update(
    modules: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Update only these modules.", show_default=False),
    ] = None,
    *,
    request: Request,
    check: Annotated[
        bool, typer.Option("--check", help="Only report; exit with 9 if updates are available.")
    ] = False,
    output: OutputOption = "text",
) -> None:
    """Fetch newer commits of branches and newer versions of packages, and update the plan's lock.

    \b
      amplifier module update --check
      amplifier module update my-tool

    Compares with the plan's lock, or else with the versions last used.
    """
    # Single modules are updated without the bundles that name them.
    fetching = Fetching(keep=bool(modules))
    chosen = chosen_plan(request, keep_unset=True, fetching=fetching)
    path = lock_path_for(chosen)
    caches = updating.Caches.below(paths.cache_dir())
    written: Path | None = None
    while True:
        lock = Lock.read(path) if path.exists() else None
        found = asyncio.run(updating.look_for_updates(chosen, lock, modules or (), caches))
        found += updating.bundle_updates(chosen, lock)
        newer = [one for one in found if one.state == "newer"]
        if not newer or check:
            break
        renewed = asyncio.run(updating.fetch_updates(chosen, lock, found))
        if renewed is None:
            break
        # Otherwise another process has changed it while the modules were fetched.
        with changing_settings(), keeping_trust(chosen.project, path):
            if renewed.replace(path, lock):
                written = path
                break
    if output == "json":
        facts = {"lock": str(path) if lock is not None else None, "written": written is not None}
        print(json_text({**facts, "modules": [one._asdict() for one in found]}))
    else:
        _report(found, written)
    if newer and check:
        raise typer.Exit(Ending.CHECK_FAILED.exit_code)


def _report(found: list[Update], written: Path | None) -> None:
    rows = [(one.module, _what(one), one.source) for one in found]
    columns = (Column("MODULE"), Column("VERSION", "wrap"), Column("SOURCE", "middle", drop=1))
    print_table(columns, rows)
    if not found:
        to_stderr(
            "amplifier: nothing to update: no module or bundle comes from a repository or package index"
        )
    elif written is not None:
        to_stderr(one_line(f"amplifier: wrote {written}", 1000))


def _what(one: Update) -> str:
    if one.state == "newer":
        return f"{_short(one.old)} → {_short(one.new)}"
    return f"{_short(one.new)} {one.state}"


def _short(version: str | None) -> str:
    if version is None:
        return "none"
    return version[:12] if len(version) >= 40 else version
