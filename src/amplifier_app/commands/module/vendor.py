"""`amplifier module vendor`: the modules of a plan, copied with all they require."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.plan_options import PlanOption, ProfileOption, chosen_plan
from amplifier_app.commands.settings.scope import ScopeOption, changing, tell
from amplifier_app.render.table import Format, OutputOption
from amplifier_app.sources.loading import Fetching

if TYPE_CHECKING:
    from amplifier_app.commands.settings.modules import Target
    from amplifier_app.sources.vendor import Vendored

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def vendor(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to.", file_okay=False)],
    profile: ProfileOption = None,
    plan: PlanOption = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Write the sources into the settings as well.")
    ] = False,
    scope: ScopeOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite what was changed there.")
    ] = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """Copy the modules of a plan into DIR/<id>/, with all they require, so that they run on
    another machine of the same kind without a network.

    What the plan is locked to is copied, if it has a lock. Printed are the `sources:` to use
    from now on; --apply writes them into the settings of the project, else the user's own.
    """
    from amplifier_app.base import paths
    from amplifier_app.sources.lockfile import Lock, lock_path_for
    from amplifier_app.sources.vendor import vendor as copy

    chosen = chosen_plan(plan, profile, keep_unset=True, fetching=Fetching(keep=True))
    path = lock_path_for(chosen)
    lock = Lock.read(path) if path.exists() else None
    done = asyncio.run(copy(chosen, lock, folder.absolute(), paths.cache_dir(), force=force))
    with changing(scope, in_project="project") as where:
        sources = _sources(done, where)
        if apply:
            _apply(done, where)
        if output is Format.JSON:
            facts = {"folder": str(folder.absolute()), "settings": str(where.file)}
            rows = [_row(one) for one in done]
            print(json.dumps({**facts, "modules": rows, "sources": sources}, indent=2))
            return
    for one in done:
        to_stderr(one_line(f"amplifier: {one.module}: {_what(one)}", 1000))
    if not done:
        to_stderr("amplifier: nothing to copy: every module ships with the program")
    if chosen.merged.fetched:
        count = len(chosen.merged.fetched)
        to_stderr(
            f"amplifier: {count} included bundle(s) are fetched, not copied; to run without a "
            "network, write the plan without them first: amplifier plan import BUNDLE -o FILE"
        )
    if sources and not apply:
        print(one_line(f"# {where.file}", 1000))
        print("sources:")
        for module, source in sources.items():
            print(for_terminal(f"  {module}: {json.dumps(source, ensure_ascii=False)}"))


def _sources(done: list[Vendored], where: Target) -> dict[str, str]:
    """Module id → its source as the settings would name it."""
    from amplifier_app.commands.settings.modules import written_source

    copied = (one for one in done if one.state != "not copied")
    return {one.module: written_source(one.source, where) for one in copied}


def _apply(done: list[Vendored], where: Target) -> None:
    from amplifier_app.commands.settings.modules import override_source

    for one in done:
        if one.state != "not copied":
            tell(override_source(one.module, one.source, where))


def _row(one: Vendored) -> dict[str, object]:
    return {
        "module": one.module,
        "state": one.state,
        "folder": one.source if one.state != "not copied" else None,
        "was": one.entry.model_dump(exclude_none=True),
    }


def _what(one: Vendored) -> str:
    if one.state == "not copied":
        return f"not copied, it is installed beside Amplifier ({one.source})"
    commit = f" ({one.entry.commit[:12]})" if one.entry.commit else ""
    return f"{one.state}{commit}"
