"""`amplifier module new`: the package of a new module, which works from the start."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.module.kinds import Kind

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def new(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="What it is to be.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its id, such as my-tool.")],
    folder: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Folder to make its folder in.")
    ] = Path(),
) -> None:
    """Make the package of a new module: tool, provider, hook, orchestrator or context.

    It has what a module needs, works, and passes its tests. The new folder is named on stdout.
    """
    from amplifier_app.base.installed import bundled
    from amplifier_app.commands.module.scaffold.generate import generate
    from amplifier_app.commands.module.scaffold.kinds import TEMPLATES

    made = generate(kind.value, name, folder)
    print(one_line(str(made), 10_000))
    to_stderr("Next:")
    steps = (
        (f"cd {shlex.quote(str(made))}", ""),
        ("pytest", "its tests; needs pytest and pytest-asyncio beside Amplifier"),
        ("amplifier module validate . --behavioral", "the contract of its kind"),
        (f'amplifier run --plan plan.yaml "{TEMPLATES[kind.value].prompt}"', "see it work"),
    )
    width = max(len(command) for command, _ in steps)
    for command, what in steps:
        to_stderr(f"  {command.ljust(width)}  {'# ' + what if what else ''}".rstrip())
    if name in bundled():
        to_stderr(
            f"A bundled module is called {name}, too: a plan that means this one needs a 'source'."
        )
