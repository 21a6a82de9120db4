"""`amplifier plan lock`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from amplifier_app.base.json_text import json_text
from amplifier_app.base.locks import changing_settings
from amplifier_app.base.outcome import Ending
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.plan_options import chosen_plan, takes_plan_options
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.typer_options import option
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.render.table import OutputOption
from amplifier_app.render.text import StderrNotices
from amplifier_app.runtime.mount import find_pins
from amplifier_app.runtime.observers.notices import show_logs
from amplifier_app.sources.loading import Fetching
from amplifier_app.sources.lockfile import Lock, lock_path_for
from amplifier_app.sources.plan_lock import Difference, make_lock
from amplifier_app.sources.plan_lock import differences as lock_differences
from amplifier_app.trust import keeping_trust


@takes_plan_options("profile", "plan")
def lock(
    *,
    request: Request,
    file: Annotated[
        Path | None, option("-o, --to FILE", "Write the lock to FILE.", dir_okay=False)
    ] = None,
    check: Annotated[
        bool, option("--check", "Write nothing; exit with 78 if the lock is out of date.")
    ] = False,
    output: OutputOption = "text",
) -> None:
    """Pin every module of the plan to an exact commit, content hash and version, and what MCP servers and
    skills bring.

    \b
      amplifier plan lock -f plan.yaml
      amplifier plan lock -P review --check

    Existing pins are kept while their source is unchanged; `amplifier module update` moves them.
    Modules of agents, and providers skipped on this machine, are pinned as well. This starts the
    plan's MCP servers. Your own skills are not pinned. The price list of each provider is named with
    its date and hash; newer prices do not put a lock out of date.
    """
    # Locking a provider does not need its credentials.
    fetching = Fetching(keep=True, lock=file)
    # What a server cannot offer is not pinned.
    show_logs(StderrNotices(quiet=False), verbose=False).show_held()
    chosen = chosen_plan(request, keep_unset=True, fetching=fetching)
    path = file or lock_path_for(chosen)
    while True:
        old = Lock.read(path) if check or path.exists() else None
        new = run_loop(_make_lock(chosen, old))
        # Newer prices do not change what runs.
        same = old if old is None or not check else old.model_copy(update={"prices": new.prices})
        changed = same != new
        if not changed or check:
            break
        # Otherwise another process has changed it while the modules were fetched.
        with changing_settings(), keeping_trust(chosen.project, path):
            if new.replace(path, old):
                break
    differences = lock_differences(old or Lock(plan=new.plan), new)
    if output == "json":
        facts = {"plan": new.plan, "lock": str(path), "changed": changed}
        rows = [difference._asdict() for difference in differences]
        print(json_text({**facts, "modules": len(new.modules), "differences": rows}))
    else:
        _report(differences, path, len(new.modules), changed=changed, check=check)
    if check and changed:
        raise typer.Exit(Ending.CONFIGURATION.exit_code)


async def _make_lock(plan: ResolvedPlan, old: Lock | None) -> Lock:
    new, pins = await make_lock(plan, old), await find_pins(plan)
    # An older lock without pins stays as it is if there is nothing to pin.
    if not pins and old is not None and old.pins is None:
        return new
    return new.model_copy(update={"pins": pins})


def _report(
    differences: list[Difference], path: Path, modules: int, *, changed: bool, check: bool
) -> None:
    for difference in differences:
        print(one_line(str(difference)))
    if not changed:
        to_stderr(f"amplifier: {path} is up to date ({modules} modules)")
    elif check:
        to_stderr(f"amplifier: {path} is out of date\n  Update it: amplifier plan lock")
    else:
        to_stderr(f"amplifier: wrote {path} ({modules} modules)")
