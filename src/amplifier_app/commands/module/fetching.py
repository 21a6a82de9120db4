"""`amplifier module update|vendor`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from amplifier_app.base import paths
from amplifier_app.base.json_text import json_text
from amplifier_app.base.locks import changing_settings
from amplifier_app.base.outcome import Ending
from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.module.changing import override_source
from amplifier_app.commands.plan_options import chosen_plan, takes_plan_options
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.settings import (
    ScopeOption,
    changing,
    written_source,
)
from amplifier_app.commands.typer_options import argument, option
from amplifier_app.render.table import Column, OutputOption, print_table
from amplifier_app.sources import update as updating
from amplifier_app.sources.loading import Fetching
from amplifier_app.sources.lockfile import Lock, lock_path_for
from amplifier_app.sources.vendor import vendor as copy
from amplifier_app.trust import keeping_trust

if TYPE_CHECKING:
    from amplifier_app.commands.settings import Target
    from amplifier_app.sources.update import Update
    from amplifier_app.sources.vendor import Vendored


@takes_plan_options("profile", "plan")
def update(
    modules: Annotated[list[str] | None, argument("ID", "Update only these modules.")] = None,
    *,
    request: Request,
    check: Annotated[
        bool, option("--check", "Only report; exit with 9 if updates are available.")
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
    written: Path | None = None
    while True:
        lock = Lock.read(path) if path.exists() else None
        updates = run_loop(
            updating.look_for_updates(chosen, lock, modules or (), paths.cache_dir())
        )
        updates += updating.bundle_updates(chosen, lock)
        newer = [entry for entry in updates if entry.state == "newer"]
        if not newer or check:
            break
        renewed = run_loop(updating.fetch_updates(chosen, lock, updates))
        if renewed is None:
            break
        # Otherwise another process has changed it while the modules were fetched.
        with changing_settings(), keeping_trust(chosen.project, path):
            if renewed.replace(path, lock):
                written = path
                break
    if output == "json":
        facts = {"lock": str(path) if lock is not None else None, "written": written is not None}
        print(json_text({**facts, "modules": [entry._asdict() for entry in updates]}))
    else:
        _report(updates, written)
    if newer and check:
        raise typer.Exit(Ending.CHECK_FAILED.exit_code)


def _report(updates: list[Update], written: Path | None) -> None:
    rows = [(update.module, _what(update), update.source) for update in updates]
    columns = (Column("MODULE"), Column("VERSION", "wrap"), Column("SOURCE", "middle", drop=1))
    print_table(columns, rows)
    if not updates:
        to_stderr(
            "amplifier: nothing to update: no module or bundle comes from a repository or package index"
        )
    elif written is not None:
        to_stderr(one_line(f"amplifier: wrote {written}", 1000))


def _what(update: Update) -> str:
    if update.state == "newer":
        return f"{_short(update.old)} → {_short(update.new)}"
    return f"{_short(update.new)} {update.state}"


def _short(version: str | None) -> str:
    if version is None:
        return "none"
    return version[:12] if len(version) >= 40 else version


@takes_plan_options("profile", "plan")
def vendor(
    folder: Annotated[Path, argument("DIR", "Target folder.", file_okay=False)],
    *,
    request: Request,
    apply: Annotated[bool, option("--apply", "Also write the sources to the settings.")] = False,
    scope: ScopeOption = None,
    force: Annotated[bool, option("--force", "Overwrite changed copies.")] = False,
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
    done = run_loop(copy(chosen, lock, folder.absolute(), paths.cache_dir(), force=force))
    with changing(scope, in_project="project") as where:
        sources = _sources(done, where)
        if apply:
            _apply(done, where)
        if output == "json":
            facts = {"folder": str(folder.absolute()), "settings": str(where.file)}
            rows = [_row(vendored) for vendored in done]
            print(json_text({**facts, "modules": rows, "sources": sources}))
            return
    for vendored in done:
        to_stderr(one_line(f"amplifier: {vendored.module}: {_describe_vendored(vendored)}", 1000))
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
    copied = (module for module in done if module.state != "not copied")
    return {module.module: written_source(module.source, where) for module in copied}


def _apply(done: list[Vendored], where: Target) -> None:
    for module in done:
        if module.state != "not copied":
            override_source(module.module, module.source, where)


def _row(vendored: Vendored) -> dict[str, object]:
    return {
        "module": vendored.module,
        "state": vendored.state,
        "folder": vendored.source if vendored.state != "not copied" else None,
        "was": vendored.entry.model_dump(exclude_none=True),
    }


def _describe_vendored(vendored: Vendored) -> str:
    if vendored.state == "not copied":
        return f"not copied: it is installed next to Amplifier ({vendored.source})"
    commit = f" ({vendored.entry.commit[:12]})" if vendored.entry.commit else ""
    return f"{vendored.state}{commit}"
