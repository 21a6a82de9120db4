"""`amplifier plan check` and `amplifier run --dry-run`, which do the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.outcome import Ending
from amplifier_app.base.paths import is_offline
from amplifier_app.base.stdio import claim_stdout, terminal_width, to_stderr
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.run.choose import choose, open_sources
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.typer_options import option, takes_options
from amplifier_app.plan.tree.problems import PlanError
from amplifier_app.render.report import plan_module_lines, plan_verdict, weight_lines
from amplifier_app.render.table import OutputOption
from amplifier_app.render.text import StderrNotices
from amplifier_app.runtime.observers.notices import show_logs
from amplifier_app.runtime.observers.observer import Level, Renderer
from amplifier_app.runtime.plan_check import CheckReport, as_json, check_plan, to_report
from amplifier_app.runtime.request_weight import weigh_request
from amplifier_app.sources.resolver import resolver_for

_OPTIONS = (
    *("profile", "plan", "provider", "model", "sets"),
    *("timeout", "locked", "lock", "offline", "trust", "no_project"),
)


@takes_options(Request, *_OPTIONS)
def check(
    *,
    context: typer.Context,
    request: Request,
    tokens: Annotated[
        bool, option("--tokens", "Count the tokens of a request, by what adds them.")
    ] = False,
    max_tokens: Annotated[
        int | None, option("--max N", "With --tokens: exit with 9 if it has more than N.", min=1)
    ] = None,
    output: OutputOption = "text",
) -> None:
    """Fetch, install, import and mount everything the plan names, without asking a model.

    \b
      amplifier plan check
      amplifier plan check -f plan.yaml --locked
      amplifier plan check --tokens --max 10000
      amplifier plan check --output json

    Reports every problem at once. Exits with 78 if one of your files needs a fix, 2 if an option
    does, 3 if a module is at fault or --timeout is reached, 9 if --max is exceeded, otherwise 0. The
    modules run with your rights, as they do in a run. With --tokens the hooks of a prompt run, too.
    """
    invocation: Invocation = context.obj
    invocation.output = output
    if max_tokens is not None and not tokens:
        raise UsageError("--max needs --tokens")
    code = dry_run(request.validate(), invocation, weigh=tokens, max_tokens=max_tokens)
    raise typer.Exit(code)


def dry_run(
    request: Request, invocation: Invocation, *, weigh: bool = False, max_tokens: int | None = None
) -> int:
    """Check the plan of a request without asking a model, and report the result.

    Args:
        request: The request.
        invocation: The invocation of the command.
        weigh: Also count the tokens of a request.
        max_tokens: How many it may have.

    Returns:
        The exit code.

    Raises:
        AppError: The plan cannot be found, or its project is not trusted.
    """
    if invocation.output == "stream-json":
        raise UsageError(
            "--dry-run does not support --output stream-json", hint="Use --output json."
        )
    # Modules may print while they are imported and mounted.
    invocation.stdout = invocation.resources.enter_context(claim_stdout())
    report = _report(request, invocation, weigh)._replace(max_tokens=max_tokens)
    if invocation.output == "json":
        text = json_text(as_json(report))
        invocation.stdout.write(f"{text}\n")
    else:
        for line in plan_module_lines(report, terminal_width(invocation.stdout.fd)):
            invocation.stdout.write(f"{line}\n")
        if report.weight is not None:
            invocation.stdout.write("\n")
            for line in weight_lines(report.weight, terminal_width(invocation.stdout.fd)):
                invocation.stdout.write(f"{line}\n")
        to_stderr(plan_verdict(report))
    return report.ending.exit_code


def _report(request: Request, invocation: Invocation, weigh: bool) -> CheckReport:
    notices = _Warnings()
    renderer = StderrNotices(quiet=False) if invocation.verbose else notices
    logs = show_logs(renderer, verbose=invocation.verbose)
    try:
        chosen = choose(request, invocation.stdout, lenient=True)
    except PlanError as error:
        return to_report(error, str(request.plan or request.profile or "the plan"))

    async def check() -> CheckReport:
        if request.locked:
            sources = await open_sources(request, chosen)
        else:
            # The report lists what is missing offline along with everything else.
            sources = resolver_for(chosen.plan, offline=is_offline(request.offline))
        report = await check_plan(chosen.plan, sources, request.timeout)
        if weigh and report.ending is Ending.OK:
            report = report._replace(weight=await weigh_request(chosen.plan, sources))
        return report

    report = run_loop(check())
    logs.show_held(module.reason for module in report.modules)
    # With --tokens modules are mounted twice.
    return report._replace(warnings=(*report.warnings, *notices.list_new(report.warnings)))


class _Warnings(Renderer):
    """Collects what modules and servers log for the report."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: dict[str, None] = {}

    def notice(self, message: str, level: Level, source: str) -> None:
        self._texts[message] = None

    def list_new(self, known: Sequence[str]) -> Iterator[str]:
        """Yield the texts whose reason no warning of `known`, which has a line, ends with."""
        for text in self._texts:
            reason = text.rpartition(": ")[2]
            if not any(warning.endswith(reason) for warning in known):
                yield text
