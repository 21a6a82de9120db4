"""The stored help pages: `python -m tests.meta.help_pages` writes them."""

import contextlib
import io
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import amplifier_app
from amplifier_app.cli import main
from amplifier_app.commands.group import amplifier_command
from amplifier_app.commands.help import walk_commands

FILE = Path(amplifier_app.__file__).parent / "commands" / "help.txt"


def list_commands() -> list[str]:
    """Return the words of each command; none for the program itself."""
    group: Any = amplifier_command()
    return ["", *(words for words, _ in walk_commands(group, None))]


def print_page(words: str) -> str:
    """Return the help of a command as Typer prints it on a terminal of 80 columns."""
    with (
        patch.dict(os.environ, {"COLUMNS": "80"}),
        contextlib.redirect_stdout(io.StringIO()) as page,
    ):
        assert main([*words.split(), "--help"]) == 0
    return page.getvalue()


def pages() -> str:
    """Return the content of the file."""
    return "".join(f"\f{words}\n{print_page(words)}" for words in list_commands())


if __name__ == "__main__":
    FILE.write_text(pages(), encoding="utf-8")
