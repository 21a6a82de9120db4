"""`amplifier plan show`."""

from __future__ import annotations

import typer

from amplifier_app.commands.choosing import (
    ModelOption,
    PlanOption,
    ProfileOption,
    ProviderOption,
    SetOption,
    chosen_plan,
)
from amplifier_app.render.sanitize import for_terminal
from amplifier_app.stdio import to_stderr

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def show(
    profile: ProfileOption = None,
    plan: PlanOption = None,
    provider: ProviderOption = None,
    model: ModelOption = None,
    sets: SetOption = None,
) -> None:
    """Show the plan with everything it extends; secrets are masked."""
    chosen = chosen_plan(plan, profile, provider, model, sets)
    for note in chosen.notes:
        to_stderr(f"amplifier: {for_terminal(note)}")
    print(for_terminal(chosen.to_yaml()), end="")
