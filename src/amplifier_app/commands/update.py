"""`amplifier update`: the command that updates the program, for how it was installed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from amplifier_app.base.errors import ConfigError
from amplifier_app.base.installed import DISTRIBUTION
from amplifier_app.base.own_packages import version_line
from amplifier_app.base.stdio import stdin_is_tty, to_stderr
from amplifier_app.commands.answers import YesOption, confirm
from amplifier_support import installation
from amplifier_support.environment import without_model_keys
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.programs import find_program

_PROJECT_FILES = ("pyproject.toml", "setup.py", "requirements.txt", ".git", ".amplifier")


class Update(NamedTuple):
    """The way to update the program.

    Attributes:
        tool: Name of the program that manages it; see `Installation.tool`.
        steps: The command lines that update it, in order.
        project: The folder of the project to whose virtual environment it belongs; None for one of its own.
    """

    tool: str
    steps: list[list[str]]
    project: Path | None


def _find_update() -> Update:
    """Find out how to update the running program.

    Raises:
        ConfigError: It was installed from a file, of which no newer one is known.
    """
    installed = installation.find_installation()
    if "archive_info" in installed.source:
        hint = "Install a newer file the same way."
        raise ConfigError(f"it was installed from a file: {installed.source['url']}", hint=hint)
    tool, folder = installed.tool, installed.folder
    is_clone = folder is not None and (folder / ".git").exists()
    pull = [["git", "-C", str(folder), "pull", "--ff-only"]] if is_clone else []
    if tool == "uv tool":
        # uv keeps what it has built of a folder whose version is the same.
        again = ["--reinstall-package", DISTRIBUTION] if folder else []
        return Update(tool, [*pull, ["uv", "tool", "upgrade", *again, DISTRIBUTION]], None)
    if tool == "pipx":
        return Update(tool, [*pull, ["pipx", "upgrade", DISTRIBUTION]], None)
    steps = [*pull, [*installed.installer, "--upgrade", *installed.requirement()]]
    prefix = Path(sys.prefix)
    is_project = sys.prefix != sys.base_prefix and any(
        (prefix.parent / name).exists() for name in _PROJECT_FILES
    )
    return Update(tool, steps, prefix.parent if is_project else None)


def update(yes: YesOption = False) -> None:
    """Print the command that updates the program, and run it after a yes.

    The command is the one for how the program was installed: uv tool, pipx, pip or uv, from a package, a
    git repository or a clone. In a script it is printed on stdout and runs only with --yes. It never runs
    in the virtual environment of a project, whose versions are the project's own.
    """
    found = _find_update()
    to_stderr(f"amplifier: {version_line()}, installed with {found.tool} in {sys.prefix}")
    print(" && ".join(shlex.join(step) for step in found.steps), flush=True)
    if found.project:
        to_stderr(f"amplifier: not run: the environment belongs to {found.project}")
    elif (yes or (stdin_is_tty() and os.isatty(2))) and confirm("Run it?", yes):
        _run(found.steps)


def _run(steps: list[list[str]]) -> NoReturn:
    """Run the steps; the last one takes the place of this process, whose files it replaces."""
    commands = [[_find(name), *arguments] for name, *arguments in steps]
    environment = without_model_keys(os.environ)
    for command in commands[:-1]:
        code = subprocess.run(command, env=environment, check=False).returncode
        if code:
            raise ConfigError(f"{shlex.join(command)} failed with exit code {code}")
    os.execve(commands[-1][0], commands[-1], environment)


def _find(program: str) -> str:
    path = program if os.path.isabs(program) else find_program(program)
    if path is None:
        hint = "Install it, or run the printed command where it is installed."
        raise ConfigError(f"{program} was not found", hint=hint)
    return path
