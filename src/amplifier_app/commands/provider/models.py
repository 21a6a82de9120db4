"""`amplifier provider models`: the models a provider offers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from amplifier_app.base.json_text import json_text
from amplifier_app.base.outcome import OK, Outcome
from amplifier_app.base.stdio import terminal_width
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.plan_options import takes_plan_options
from amplifier_app.commands.provider.request import NameArgument, VerboseOption, prepare_request
from amplifier_app.commands.run.request import Request
from amplifier_app.render.table import Column, OutputOption, table
from amplifier_app.runtime.provider_access import models as models_of

if TYPE_CHECKING:
    from amplifier_core.models import ModelInfo

app = typer.Typer(add_completion=False, rich_markup_mode=None)

COLUMNS = (
    Column("MODEL", "middle", least=20),
    Column("NAME", "end", drop=2),
    Column("CONTEXT", right=True),
    Column("OUTPUT", drop=1, right=True),
    Column("CAPABILITIES", "wrap", drop=3),
)


@app.command()
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
    one = prepare_request(invocation, name, request, verbose)

    async def main() -> Outcome:
        found = await models_of(one.provider, one.sources, renderer=one.renderer)
        if output == "json":
            rows = [model.model_dump(mode="json") for model in found]
            text = json_text(rows)
        else:
            width = terminal_width(invocation.stdout.fd)
            text = "\n".join(table(COLUMNS, [_row(model) for model in found], width))
        invocation.stdout.write(text + "\n" if text else "")
        return OK

    invocation.outcome = one.run(main())


def _row(model: ModelInfo) -> tuple[str, ...]:
    named = model.display_name if model.display_name != model.id else ""
    return (
        model.id,
        named,
        f"{model.context_window:,}" if model.context_window else "",
        f"{model.max_output_tokens:,}" if model.max_output_tokens else "",
        ", ".join(model.capabilities),
    )
