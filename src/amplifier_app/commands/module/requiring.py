"""`amplifier module require`: packages for the modules of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from amplifier_app.base.errors import ConfigError, Location, UsageError
from amplifier_app.base.installed import normalised
from amplifier_app.base.locks import changing_settings
from amplifier_app.base.paths import bundled_profiles_dir, is_offline, project_dir
from amplifier_app.base.stdio import claim_stdout, to_stderr
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.run.choose import choose
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.typer_options import argument, option, takes_options
from amplifier_app.plan.modules import PlannedModule, agent_modules, planned_modules
from amplifier_app.plan.source_spec import (
    SourceSyntaxError,
    check_requirement,
    parsed_requirement,
)
from amplifier_app.plan.tree import edit
from amplifier_app.plan.tree.entries import SECTION_OF
from amplifier_app.runtime.plan_check import CheckReport, check_plan
from amplifier_app.sources.requirements.missing_packages import missing_package
from amplifier_app.sources.resolver import resolver_for
from amplifier_app.trust import keeping_trust


@takes_options(Request, "plan", "profile", "offline", "trust", "no_project")
def require(
    context: typer.Context,
    request: Request,
    package: Annotated[
        str, argument("PACKAGE", "The package: NAME, 'NAME<2', or 'NAME @ git+https://…'.")
    ],
    modules: Annotated[
        list[str] | None,
        option(
            "--module ID",
            "A module that needs it; repeatable. [default: all that cannot be imported without it]",
        ),
    ] = None,
) -> None:
    """Add a package to the modules of a plan that need it (`requires:`).

    \b
      amplifier module require some-lib -f plan.yaml
      amplifier module require 'some-lib<2' --module my-tool -P mine

    Changes the plan file, also for modules of bundles that it includes. Without --module, it fetches and
    mounts the plan's modules to find the ones that need it.
    """
    try:
        check_requirement(package)
        name = normalised(parsed_requirement(package).name)
    except SourceSyntaxError as error:
        raise UsageError(error.message, hint=error.hint) from None
    invocation: Invocation = context.obj
    # Modules may print while they are imported and mounted.
    invocation.stdout = invocation.resources.enter_context(claim_stdout())
    chosen = choose(request.validate(), invocation.stdout, lenient=True)
    file = Path(chosen.plan.merged.chain[0])
    if file.is_relative_to(bundled_profiles_dir()):
        raise ConfigError(
            f"{file.stem!r} is a bundled profile", hint="Choose a plan of your own: --plan FILE"
        )
    entries = [*planned_modules(chosen.plan), *agent_modules(chosen.plan)]
    ids = set(modules or ())
    if unknown := ids - {entry.module for entry in entries}:
        hint = f"Modules: {', '.join(sorted({entry.module for entry in entries}))}"
        raise UsageError(f"{chosen.plan.name!r} has no module {min(unknown)!r}", hint=hint)
    if not ids:
        sources = resolver_for(chosen.plan, offline=is_offline(request.offline))
        lacking = _places_without(name, run_loop(check_plan(chosen.plan, sources)))
        ids = {entry.module for entry in entries if entry.entry.key_at("module") in lacking}
    if not ids:
        raise ConfigError(
            f"every module of {chosen.plan.name!r} can be imported without {name!r}",
            hint="Name the modules that need it: --module ID",
        )
    # All entries of a module share its requirements, so one gets them, the plan's own if there is one.
    needing = [next(entry for entry in entries if entry.module == id) for id in sorted(ids)]
    with changing_settings(), keeping_trust(project_dir(), file):
        for section, module in [(_section(module, package), module) for module in needing]:
            _add(file, section, module, package)
    names = ", ".join(module.module for module in needing)
    to_stderr(f"amplifier: added {package} to {names} ({file})")


def _places_without(name: str, report: CheckReport) -> set[Location]:
    """Return where the plan names the modules that fail to import a package."""
    return {
        finding.problem.at
        for finding in report.findings
        if (package := missing_package(finding.problem.message)) and normalised(package) == name
    }


def _section(module: PlannedModule, package: str) -> str:
    """Return the section of a module in the plan.

    Raises:
        ConfigError: It has none: it is a part of the session, or only agents have it.
    """
    section = SECTION_OF.get(module.kind)
    if section is None or module.agent is not None:
        raise ConfigError(
            f"cannot add a requirement to the {module.kind} {module.module!r}",
            hint=f"Add to its entry: requires: [{package!r}]",
        )
    return section


def _add(file: Path, section: str, module: PlannedModule, package: str) -> None:
    if Path(module.entry.key_at("module").file).absolute() == file.absolute():
        edit.append_value(file, (section, module.key, "requires"), package)
        return
    entry: dict[str, Any] = {"module": module.module, "requires": [package]}
    if module.key != module.module:
        entry["instance_id"] = module.key
    edit.append_value(file, (section,), entry)
