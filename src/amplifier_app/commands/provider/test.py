"""`amplifier provider test`: does a provider answer?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.plan_options import PlanOption, ProfileOption
from amplifier_app.commands.provider.request import NameArgument, VerboseOption, asked
from amplifier_app.render.table import Format, OutputOption

if TYPE_CHECKING:
    from amplifier_app.runtime.provider_access import Answered

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def ask_for_a_word(
    context: typer.Context,
    name: NameArgument = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="NAME", help="Model to ask, instead of its own."),
    ] = None,
    profile: ProfileOption = None,
    plan: PlanOption = None,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="Wait this long: 90, 90s, 5m.")
    ] = "2m",
    output: OutputOption = Format.TEXT,
    verbose: VerboseOption = False,
) -> None:
    """Ask a provider for one word, once: a real request of a few tokens.

    Exit codes: 0 it answers; 3 it cannot be loaded; 4 the key is refused; 5 it refuses the
    request, for instance the model; 75 it cannot be reached or is busy, try again later; 78 it
    is not configured, for instance has no key. Nothing is saved.
    """
    from amplifier_app.base.outcome import OK, Outcome
    from amplifier_app.commands.run.launch import parse_duration
    from amplifier_app.runtime.provider_access import ask

    invocation: Invocation = context.obj
    seconds = parse_duration(timeout)
    one = asked(invocation, name, plan, profile, verbose)

    async def main() -> Outcome:
        answered = await ask(
            one.provider, one.sources, model=model, timeout=seconds, renderer=one.renderer
        )
        facts = _facts(one.provider.name, answered)
        json_text = json.dumps(facts, indent=2)
        invocation.stdout.write((json_text if output is Format.JSON else _text(facts)) + "\n")
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
    from amplifier_app.base.sanitize import one_line

    usage = facts["usage"]
    said = f"{facts['provider']} answers: {facts['model']}, {facts['latency_ms']} ms"
    if usage["input_tokens"] is not None:
        said += f", {usage['input_tokens']} tokens in, {usage['output_tokens']} out"
    if facts["cost_usd"] is not None and float(facts["cost_usd"]):
        said += f", ${facts['cost_usd']}"
    return one_line(said)
