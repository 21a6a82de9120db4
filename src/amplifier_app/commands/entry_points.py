"""The commands that installed packages add, through entry points of the group `amplifier.commands`.

An entry point's name is the command and its help line: "batch: Run a plan over many inputs.", or
"session join: ..." for a command of an existing group. Its value is a `typer.Typer` with that command.
The files are read directly: importing `importlib.metadata` would take as long as all of `amplifier --help`.
"""

from __future__ import annotations

import os
import sys

from amplifier_app.base.own_packages import WINGS

# Not typing's: `amplifier --help` runs this, and importing typing would take longer than the rest.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

GROUP = "amplifier.commands"


class AddedCommand:
    """A command of an installed package.

    Attributes:
        words: The words that call it, such as `("session", "join")`.
        help: Its line in the list of commands.
        target: `MODULE:ATTRIBUTE` of its Typer app.
        package: The name and version of the package, as its metadata folder has them.
    """

    __slots__ = ("help", "package", "target", "words")

    def __init__(self, words: tuple[str, ...], help: str, target: str, package: str) -> None:
        self.words = words
        self.help = help
        self.target = target
        self.package = package

    @property
    def is_own(self) -> bool:
        """True for a command that belongs to this program."""
        return self.target.partition(".")[0] in WINGS


def find_commands() -> dict[tuple[str, ...], AddedCommand]:
    """Return the commands of all packages on `sys.path` by their words.

    The program's own win, then the first of a name.
    """
    commands: dict[tuple[str, ...], AddedCommand] = {}
    for package, lines in _read_sections():
        for line in lines:
            name, _, target = line.rpartition("=")
            words, _, help_line = name.partition(":")
            if words.strip() and target.strip():
                key = tuple(words.split())
                added = AddedCommand(key, help_line.strip(), target.strip(), package)
                if key not in commands or (added.is_own and not commands[key].is_own):
                    commands[key] = added
    return commands


def _read_sections() -> Iterator[tuple[str, list[str]]]:
    """Yield the package and the lines of its section, for each that has one."""
    for folder in dict.fromkeys(sys.path):
        try:
            names = sorted(os.listdir(folder or "."))
        except OSError:  # a zip file, or it does not exist
            continue
        for name in names:
            if not name.endswith((".dist-info", ".egg-info")):
                continue
            try:
                path = os.path.join(folder, name, "entry_points.txt")
                with open(path, encoding="utf-8") as file:
                    text = file.read()
            except (OSError, UnicodeDecodeError):  # most packages have none
                continue
            if GROUP in text:
                yield name.rpartition(".")[0], _section(text)


def _section(text: str) -> list[str]:
    _, _, rest = text.partition(f"[{GROUP}]")
    lines = [line.strip() for line in rest.partition("\n[")[0].splitlines()]
    return [line for line in lines if "=" in line and not line.startswith(("#", ";"))]
