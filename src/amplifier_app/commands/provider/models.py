"""`amplifier provider models`: the models a provider offers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.plan_options import PlanOption, ProfileOption
from amplifier_app.commands.provider.request import NameArgument, VerboseOption, asked
from amplifier_app.render.table import Format, OutputOption, table

if TYPE_CHECKING:
    from amplifier_core.models import ModelInfo

app = typer.Typer(add_completion=False, rich_markup_mode=None)

HEAD = ("MODEL", "NAME", "CONTEXT", "OUTPUT", "CAPABILITIES")


@app.command()
def models(
    context: typer.Context,
    name: NameArgument = None,
    profile: ProfileOption = None,
    plan: PlanOption = None,
    output: OutputOption = Format.TEXT,
    verbose: VerboseOption = False,
) -> None:
    """List the models a provider offers, with their limits in tokens where known.

    Contacts the provider's service. Exit codes are those of 'provider test'.
    """
    from amplifier_app.base.outcome import OK, Outcome
    from amplifier_app.runtime.provider_access import models as models_of

    invocation: Invocation = context.obj
    one = asked(invocation, name, plan, profile, verbose)

    async def main() -> Outcome:
        found = await models_of(one.provider, one.sources, renderer=one.renderer)
        if output is Format.JSON:
            rows = [model.model_dump(mode="json") for model in found]
            text = json.dumps(rows, indent=2)
        else:
            text = "\n".join(table(HEAD, [_row(model) for model in found]))
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
