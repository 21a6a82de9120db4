"""`amplifier provider models|test`: requests to a provider."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amplifier_app.base.json_text import json_text
from amplifier_app.base.outcome import OK, Outcome
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import claim_stdout, terminal_width
from amplifier_app.commands.duration import parse_duration
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.plan_options import chosen_plan, takes_plan_options
from amplifier_app.commands.run.request import Request
from amplifier_app.plan.tree.problems import PlanError
from amplifier_app.render.table import Column, OutputOption, table
from amplifier_app.render.text import StderrNotices
from amplifier_app.runtime.observers.notices import LogNotices, show_logs
from amplifier_app.runtime.observers.observer import Renderer
from amplifier_app.runtime.provider_access import ask, find_provider
from amplifier_app.runtime.provider_access import models as models_of
from amplifier_app.sources.resolver import resolver_for
from amplifier_support.named_tuple import NamedTuple

if TYPE_CHECKING:
    from amplifier_app.runtime.provider_access import Answered, Provider
    from amplifier_app.sources.resolver import AppModuleSourceResolver
    from amplifier_core.models import ModelInfo


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


models_app = typer.Typer(add_completion=False, rich_markup_mode=None)

COLUMNS = (
    Column("MODEL", "middle", least=20),
    Column("NAME", "end", drop=2),
    Column("CONTEXT", right=True),
    Column("OUTPUT", drop=1, right=True),
    Column("CAPABILITIES", "wrap", drop=3),
)


@models_app.command()
@takes_plan_options("profile", "plan")
def models(
    context: typer.Context,
    name: NameArgument = None,
    *,
    request: Request,
    output: OutputOption = "text",
    verbose: VerboseOption = False,
) -> None:
    """List the models a provider offers, with their limits in tokens where known.

    \b
      amplifier provider models
      amplifier provider models openai --output json

    Contacts the provider's service. Exit codes are those of 'provider test'.
    """
    invocation: Invocation = context.obj
    call = prepare_request(invocation, name, request, verbose)

    async def main() -> Outcome:
        found = await models_of(call.provider, call.sources, renderer=call.renderer)
        if output == "json":
            rows = [model.model_dump(mode="json") for model in found]
            text = json_text(rows)
        else:
            width = terminal_width(invocation.stdout.fd)
            text = "\n".join(table(COLUMNS, [_row(model) for model in found], width))
        invocation.stdout.write(text + "\n" if text else "")
        return OK

    invocation.outcome = call.run(main())


def _row(model: ModelInfo) -> tuple[str, ...]:
    named = model.display_name if model.display_name != model.id else ""
    return (
        model.id,
        named,
        f"{model.context_window:,}" if model.context_window else "",
        f"{model.max_output_tokens:,}" if model.max_output_tokens else "",
        ", ".join(model.capabilities),
    )


test_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@test_app.command()
@takes_plan_options("profile", "plan")
def request_short_answer(
    context: typer.Context,
    name: NameArgument = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME",
            help="Model to use. [default: the provider's]",
            show_default=False,
        ),
    ] = None,
    *,
    request: Request,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="Time limit: 90, 90s, 5m.")
    ] = "2m",
    output: OutputOption = "text",
    verbose: VerboseOption = False,
) -> None:
    """Test a provider with a one-word request; it uses a few tokens and saves nothing.

    \b
      amplifier provider test
      amplifier provider test openai -m MODEL

    Exit codes: 0 it answered; 3 the provider cannot be loaded; 4 the key was rejected; 5 the
    request was rejected, for example because of the model; 75 the service is unreachable or busy,
    try again later; 78 the provider is not configured, for example has no key.
    """
    invocation: Invocation = context.obj
    seconds = parse_duration(timeout)
    call = prepare_request(invocation, name, request, verbose)

    async def main() -> Outcome:
        answered = await ask(
            call.provider, call.sources, model=model, timeout=seconds, renderer=call.renderer
        )
        facts = _facts(call.provider.name, answered)
        text = json_text(facts) if output == "json" else _text(facts)
        invocation.stdout.write(f"{text}\n")
        return OK

    invocation.outcome = call.run(main())


def _facts(name: str, answered: Answered) -> dict[str, Any]:
    return {
        "provider": name,
        "model": answered.model,
        "latency_ms": round(answered.seconds * 1000),
        "usage": {
            "input_tokens": answered.input_tokens,
            "output_tokens": answered.output_tokens,
        },
        "cost_usd": None if answered.cost is None else str(answered.cost),
    }


def _text(facts: dict[str, Any]) -> str:
    usage = facts["usage"]
    line = f"{facts['provider']} answers: {facts['model']}, {facts['latency_ms']} ms"
    if usage["input_tokens"] is not None:
        line += f", {usage['input_tokens']} tokens in, {usage['output_tokens']} out"
    if facts["cost_usd"] is not None and float(facts["cost_usd"]):
        line += f", ${facts['cost_usd']}"
    return one_line(line)
