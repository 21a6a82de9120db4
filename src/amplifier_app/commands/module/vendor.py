"""`amplifier module vendor`: copy a plan's modules with their dependencies."""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from amplifier_app.base import paths
from amplifier_app.base.json_text import json_text
from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.plan_options import chosen_plan, takes_plan_options
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.settings.modules import override_source, written_source
from amplifier_app.commands.settings.scope import ScopeOption, changing, report
from amplifier_app.render.table import OutputOption
from amplifier_app.sources.loading import Fetching
from amplifier_app.sources.lockfile import Lock, lock_path_for
from amplifier_app.sources.vendor import vendor as copy

if TYPE_CHECKING:
    from amplifier_app.commands.settings.modules import Target
    from amplifier_app.sources.vendor import Vendored

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@takes_plan_options("profile", "plan")
def vendor(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Target folder.", file_okay=False)],
    *,
    request: Request,
    apply: Annotated[
        bool, typer.Option("--apply", help="Also write the sources to the settings.")
    ] = False,
    scope: ScopeOption = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite changed copies.")] = False,
    output: OutputOption = "text",
) -> None:
    """Copy a plan's modules and their dependencies to DIR/<id>/.

    \b
      amplifier module vendor ./modules -f plan.yaml

    The copies run without a network, also on another machine of the same platform. If the plan
    has a lock, copies the locked versions. Prints the `sources:` to use; --apply writes them to
    the settings of the project, or outside a project to your own.
    """
    chosen = chosen_plan(request, keep_unset=True, fetching=Fetching(keep=True))
    path = lock_path_for(chosen)
    lock = Lock.read(path) if path.exists() else None
    done = asyncio.run(copy(chosen, lock, folder.absolute(), paths.cache_dir(), force=force))
    with changing(scope, in_project="project") as where:
        sources = _sources(done, where)
        if apply:
            _apply(done, where)
        if output == "json":
            facts = {"folder": str(folder.absolute()), "settings": str(where.file)}
            rows = [_row(one) for one in done]
            print(json_text({**facts, "modules": rows, "sources": sources}))
            return
    for one in done:
        to_stderr(one_line(f"amplifier: {one.module}: {_what(one)}", 1000))
    if not done:
        to_stderr("amplifier: nothing to copy: all modules are bundled")
    if chosen.merged.fetched:
        count = len(chosen.merged.fetched)
        bundle = "BUNDLE" if request.plan is None else shlex.quote(str(request.plan))
        to_stderr(
            f"amplifier: included bundles are not copied ({count}); to run without a network, convert "
            f"the plan first: amplifier plan import {bundle} -o FILE"
        )
    if sources and not apply:
        print(one_line(f"# {where.file}", 1000))
        print("sources:")
        for module, source in sources.items():
            print(for_terminal(f"  {module}: {json.dumps(source, ensure_ascii=False)}"))


def _sources(done: list[Vendored], where: Target) -> dict[str, str]:
    """Module id → its source as written in settings."""
    copied = (one for one in done if one.state != "not copied")
    return {one.module: written_source(one.source, where) for one in copied}


def _apply(done: list[Vendored], where: Target) -> None:
    for one in done:
        if one.state != "not copied":
            report(override_source(one.module, one.source, where))


def _row(one: Vendored) -> dict[str, object]:
    return {
        "module": one.module,
        "state": one.state,
        "folder": one.source if one.state != "not copied" else None,
        "was": one.entry.model_dump(exclude_none=True),
    }


def _what(one: Vendored) -> str:
    if one.state == "not copied":
        return f"not copied: it is installed next to Amplifier ({one.source})"
    commit = f" ({one.entry.commit[:12]})" if one.entry.commit else ""
    return f"{one.state}{commit}"
