"""`amplifier module new`: create the package of a new, working module."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from amplifier_app.base.installed import bundled_modules
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.plan.tree.entries import ModuleKind
from amplifier_kit.scaffold.generate import generate
from amplifier_kit.scaffold.kinds import TEMPLATES

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def new(
    kind: Annotated[ModuleKind, typer.Argument(metavar="KIND", help="Kind of the module.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its id, for example my-tool.")],
    folder: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Parent folder of the new package.")
    ] = Path(),
) -> None:
    """Create a package for a new module: tool, provider, hook, orchestrator or context.

    \b
      amplifier module new tool my-tool
      amplifier module new provider my-provider --dir modules

    The package works as created and passes its tests. Prints the path of the new folder.
    """
    created = generate(kind, name, folder)
    print(one_line(str(created), 10_000))
    to_stderr("Next:")
    steps = (
        (f"cd {shlex.quote(str(created))}", ""),
        ("pytest", "run its tests (needs pytest and pytest-asyncio next to Amplifier)"),
        ("amplifier module validate . --behavioral", "check the contract of its kind"),
        (f'amplifier run --plan plan.yaml "{TEMPLATES[kind].prompt}"', "try it"),
    )
    width = max(len(command) for command, _ in steps)
    for command, what in steps:
        to_stderr(f"  {command.ljust(width)}  {'# ' + what if what else ''}".rstrip())
    if name in bundled_modules():
        to_stderr(
            f"A bundled module is also called {name}: to use this one, a plan needs a 'source'."
        )
