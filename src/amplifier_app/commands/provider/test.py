"""`amplifier provider test`: send one small request to a provider."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from amplifier_app.base.json_text import json_text
from amplifier_app.base.outcome import OK, Outcome
from amplifier_app.base.sanitize import one_line
from amplifier_app.commands.duration import parse_duration
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.plan_options import takes_plan_options
from amplifier_app.commands.provider.request import NameArgument, VerboseOption, prepare_request
from amplifier_app.commands.run.request import Request
from amplifier_app.render.table import OutputOption
from amplifier_app.runtime.provider_access import ask

if TYPE_CHECKING:
    from amplifier_app.runtime.provider_access import Answered

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
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
    one = prepare_request(invocation, name, request, verbose)

    async def main() -> Outcome:
        answered = await ask(
            one.provider, one.sources, model=model, timeout=seconds, renderer=one.renderer
        )
        facts = _facts(one.provider.name, answered)
        text = json_text(facts) if output == "json" else _text(facts)
        invocation.stdout.write(f"{text}\n")
        return OK

    invocation.outcome = one.run(main())


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
