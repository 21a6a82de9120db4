"""Values of the command line are what Typer makes of them, and most are made without pydantic."""

from __future__ import annotations

import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from typer.main import get_command

from amplifier_app.commands.help import keep_plain_values


class Colour(Enum):
    RED = "red"


def values(argv: list[str], *, plain: bool) -> Any:
    """The values that a command receives, or the error that the command line ends with."""
    taken: list[Any] = []
    app = typer.Typer(add_completion=False)

    @app.command()
    def take(
        name: Annotated[str, typer.Argument()],
        rest: Annotated[list[str] | None, typer.Argument()] = None,
        number: Annotated[int, typer.Option(min=1, max=8)] = 3,
        share: float | None = None,
        kind: Annotated[Literal["text", "json"], typer.Option(case_sensitive=False)] = "text",
        colour: Colour = Colour.RED,
        tag: Annotated[list[str] | None, typer.Option()] = None,
        file: Path | None = None,
        parsed: Annotated[str | None, typer.Option(parser=str.upper)] = None,
        bits: Annotated[int | None, typer.Option(parser=lambda text: int(text, 2))] = None,
        is_set: bool = False,
        maybe: Annotated[bool | None, typer.Option("--yes/--no")] = None,
    ) -> None:
        taken.extend([name, rest, number, share, kind, colour, tag, file])
        taken.extend([parsed, bits, is_set, maybe])

    command: Any = get_command(app)
    if plain:
        keep_plain_values(command)
    try:
        command.main(argv, standalone_mode=False)
    except Exception as error:
        return type(error).__name__, str(error)
    return taken


@pytest.mark.parametrize(
    "argv",
    [
        ["a"],
        ["", "b", "c"],
        ["a", "--number", "7", "--share", "0.5", "--kind", "json", "--colour", "red"],
        ["a", "--kind", "JSON"],
        ["a", "--tag", "x", "--tag", "y", "--file", "f", "--parsed", "up", "--is-set", "--no"],
        ["a", "--number", "0"],
        ["a", "b", "--number", "007", "--share", "1."],
        ["a", "--number", "9", "--share", "."],
        ["a", "--number", "1.0"],
        ["a", "--number", "many"],
        ["a", "--bits", "101"],
        ["a", "--bits", "2"],
        ["a", "--kind", "xml"],
        ["a", "--colour", "blue"],
        [],
        ["a", "--unknown"],
    ],
    ids=" ".join,
)
def test_values_and_errors_are_those_of_typer(argv: list[str]) -> None:
    assert values(argv, plain=True) == values(argv, plain=False)


@pytest.mark.parametrize(
    "argv",
    [
        ["session", "list", "-n", "5"],
        ["docs"],
        ["session", "search", "x"],
        ["batch", "status", "x"],
    ],
)
def test_a_command_without_models_imports_no_pydantic(argv: list[str], tmp_path: Path) -> None:
    code = "import sys; from amplifier_app.cli import main; main(sys.argv[1:]); print('pydantic' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, *argv],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "False"
