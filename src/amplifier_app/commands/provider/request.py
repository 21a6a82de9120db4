"""Finds the provider for the commands that send requests to one."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from amplifier_app.base.outcome import Outcome
from amplifier_app.base.stdio import claim_stdout
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.plan_options import chosen_plan
from amplifier_app.commands.run.request import Request
from amplifier_app.plan.tree.problems import PlanError
from amplifier_app.render.text import StderrNotices
from amplifier_app.runtime.observers.log_notices import LogNotices, show_logs
from amplifier_app.runtime.observers.observer import Renderer
from amplifier_app.runtime.provider_access import find_provider
from amplifier_app.sources.plan_resolver import resolver_for

if TYPE_CHECKING:
    from amplifier_app.runtime.provider_access import Provider
    from amplifier_app.sources.resolver import AppModuleSourceResolver

NameArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="Provider, as 'provider list' shows it. [default: the plan's first]",
        show_default=False,
    ),
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show tracebacks and log messages of modules.")
]


class Asked(NamedTuple):
    """The provider a command sends requests to.

    Attributes:
        provider: The provider.
        sources: Where its module comes from.
        renderer: Shows its notices on stderr.
        logs: Log messages, held back for now.
    """

    provider: Provider
    sources: AppModuleSourceResolver
    renderer: Renderer
    logs: LogNotices

    def run(self, main: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Run `main` and show what was logged, except what its error already reports."""
        reported: list[str] = []
        try:
            return run_loop(main)
        except Exception as error:
            reported.append(str(error))
            raise
        finally:
            self.logs.show_held(reported)


def prepare_request(
    invocation: Invocation, name: str | None, request: Request, verbose: bool
) -> Asked:
    """Find the provider, and reserve stdout for the answer.

    Raises:
        ConfigError: The provider is unknown.
        PlanError: The plan is invalid.
    """
    invocation.verbose = invocation.verbose or verbose
    invocation.stdout = invocation.resources.enter_context(claim_stdout())
    try:
        # A provider named on the command line is included even if its condition is not met.
        chosen = chosen_plan(request._replace(provider=name))
    except PlanError:
        if name is None:
            raise
        # Either the plan is invalid, which this reports, or it does not list the provider.
        chosen = chosen_plan(request)
    renderer = StderrNotices(quiet=False)
    logs = show_logs(renderer, verbose=invocation.verbose)
    return Asked(find_provider(chosen, name), resolver_for(chosen), renderer, logs)
