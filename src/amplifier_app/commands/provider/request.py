"""What the commands that ask a provider have in common: who is meant, and where it comes from."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from amplifier_app.base.outcome import Outcome
from amplifier_app.base.stdio import claimed_stdout
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.plan_options import chosen_plan
from amplifier_app.runtime.log_notices import LogNotices, show_logs
from amplifier_app.runtime.observer import Renderer

if TYPE_CHECKING:
    from amplifier_app.runtime.provider_access import Provider
    from amplifier_app.sources.resolver import AppModuleSourceResolver

NameArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="Provider, as 'provider list' shows it; by default the one that is asked first.",
        show_default=False,
    ),
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Tracebacks and the modules' own logging.")
]


class Asked(NamedTuple):
    """The provider a command is about.

    Attributes:
        provider: Which.
        sources: Where it comes from.
        renderer: What shows its notices, on stderr.
        logs: What is logged, held back for now.
    """

    provider: Provider
    sources: AppModuleSourceResolver
    renderer: Renderer
    logs: LogNotices

    def run(self, main: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Run `main` to its end and show what was logged, but for what an error tells anyway."""
        from amplifier_app.commands.run.launch import run_loop

        told: list[str] = []
        try:
            return run_loop(main)
        except Exception as error:
            told.append(str(error))
            raise
        finally:
            self.logs.show_held(told)


def asked(
    invocation: Invocation, name: str | None, plan: Path | None, profile: str | None, verbose: bool
) -> Asked:
    """Find the provider, and keep stdout for the answer from now on.

    Raises:
        ConfigError: There is none of that name.
        PlanError: The plan is wrong.
    """
    from amplifier_app.plan.problems import PlanError
    from amplifier_app.render.text import StderrNotices
    from amplifier_app.runtime.provider_access import find_provider
    from amplifier_app.sources.plan_resolver import resolver_for

    invocation.verbose = invocation.verbose or verbose
    invocation.stdout = invocation.resources.enter_context(claimed_stdout())
    try:
        # A provider that is named counts whatever its condition in the plan says.
        chosen = chosen_plan(plan, profile, name)
    except PlanError:
        if name is None:
            raise
        # The plan is wrong, which this tells, or does not have it.
        chosen = chosen_plan(plan, profile)
    renderer = StderrNotices(quiet=False)
    logs = show_logs(renderer, verbose=invocation.verbose)
    return Asked(find_provider(chosen, name), resolver_for(chosen), renderer, logs)
