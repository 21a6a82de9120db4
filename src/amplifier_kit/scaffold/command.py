"""`amplifier module new`: create the package of a new, working module."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.base.installed import bundled_modules
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.plan.tree.entries import ModuleKind
from amplifier_kit.scaffold.kinds import TEMPLATES, check_name, substitutions

_ENDING = ".tmpl"


def generate(kind: ModuleKind, module_id: str, parent: Path) -> Path:
    """Write the package of a new module, completely or not at all.

    Args:
        kind: Its kind.
        module_id: Its id.
        parent: The parent folder of the new folder; created if necessary.

    Returns:
        The new folder.

    Raises:
        UsageError: The id is invalid, the folder exists, or it cannot be written.
    """
    check_name(module_id)
    target = parent / module_id
    if os.path.lexists(target):
        raise UsageError(
            f"{target} already exists",
            hint="Choose another name, or another folder with --dir.",
        )
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{module_id}-", dir=parent) as name:
            staged = Path(name) / module_id
            _write(kind, module_id, staged)
            # The rename fails if the folder was created in the meantime.
            staged.rename(target)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"cannot write {target}: {reason}") from error
    return target


def _write(kind: ModuleKind, module_id: str, target: Path) -> None:
    values = substitutions(kind, module_id)
    root = files("amplifier_kit.scaffold") / "templates"
    for path, template in [*_templates(root / "common"), *_templates(root / kind)]:
        parts = [values["package"] if part == "package" else part for part in path]
        file = target.joinpath(*parts)
        file.parent.mkdir(parents=True, exist_ok=True)
        text = Template(template.read_text(encoding="utf-8")).substitute(values)
        file.write_text(text, encoding="utf-8")
    (target / values["package"] / "py.typed").touch()


def _templates(
    folder: Traversable, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Traversable]]:
    """The templates below a folder, each with the path of its file."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _templates(entry, (*path, entry.name))
        elif entry.name.endswith(_ENDING):
            yield (*path, entry.name.removesuffix(_ENDING)), entry


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
