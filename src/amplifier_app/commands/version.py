"""`amplifier version`."""

from __future__ import annotations

import typer

from amplifier_app.base.own_packages import version_line

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def version() -> None:
    """Show the version."""
    print(version_line())
