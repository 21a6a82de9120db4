"""Slash commands of one's own: Markdown files in `commands/`, each a prompt with arguments.

    commands/changes.md
    ---
    description: Explain what changed
    argument-hint: SINCE
    ---
    Explain the commits since $1 for a user of the program. $ARGUMENTS

The folder is in the user's settings folder, and in the `.amplifier` of a trusted project, which comes first.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from amplifier_app.base import paths
from amplifier_app.base.errors import UsageError
from amplifier_app.base.sanitize import one_line, visible
from amplifier_app.chat.slash.registry import COMMAND_NAME, FROM_FILES, Chat, Reply, SlashCommand
from amplifier_app.plan.documents.document import read_markdown
from amplifier_app.plan.tree.nodes import read_text
from amplifier_app.plan.tree.problems import PlanError, Problems
from amplifier_app.runtime.observers.observer import Renderer
from amplifier_support.files import open_regular
from amplifier_support.named_tuple import NamedTuple

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession

_MAX_BYTES = 64 * 1024
_PLACE = re.compile(r"\$(ARGUMENTS|[1-9])")


class CommandFile(NamedTuple):
    """A command as its file describes it.

    Attributes:
        description: What it does, in one line.
        usage: Its argument, as `/help` shows it.
        prompt: The prompt, with places for the argument.
    """

    description: str
    usage: str
    prompt: str

    def fill(self, argument: str) -> str:
        """The prompt with the argument in its places, or else after it."""
        words = _words(argument)
        if not _PLACE.search(self.prompt):
            return f"{self.prompt}\n\n{argument}" if argument else self.prompt

        def value(place: re.Match[str]) -> str:
            if place[1] == "ARGUMENTS":
                return argument
            number = int(place[1])
            return words[number - 1] if number <= len(words) else ""

        return _PLACE.sub(value, self.prompt)


def _words(argument: str) -> list[str]:
    try:
        return shlex.split(argument)
    except ValueError:  # an open quote
        return argument.split()


def markdown_commands(
    session: OpenSession, taken: Collection[str], renderer: Renderer
) -> dict[str, SlashCommand]:
    """Return the commands of files by name; report those that cannot be used.

    Args:
        session: The session. Of a project, only a trusted one counts.
        taken: Names of other commands, which files do not replace.
        renderer: Shows warnings.
    """
    commands: dict[str, SlashCommand] = {}
    project = session.plan.project
    folders = [*([("project", project / "commands")] if project else [])]
    for origin, folder in [*folders, ("user", paths.config_dir() / "commands")]:
        for file in _files(folder):
            name = f"/{file.stem}"
            try:
                if not COMMAND_NAME.fullmatch(file.stem):
                    raise UsageError("a name has lower-case letters, digits, '-' and '_' only")
                if name in taken:
                    raise UsageError(f"{name} already exists")
                commands.setdefault(name, _command(name, _read(file), origin))
            except UsageError as error:
                text = f"{visible(str(file))} is not a command: {error.message}"
                renderer.notice(text, "warning", "chat")
    return commands


def _files(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(path for path in folder.iterdir() if path.suffix == ".md")
    except OSError:
        return


def _read(file: Path) -> CommandFile:
    """
    Raises:
        UsageError: The file cannot be read, or has no prompt.
    """
    try:
        # A pipe would block the start of the chat.
        with open(open_regular(os.path.realpath(file), os.O_RDONLY), "rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read it: {why}") from error
    if len(data) > _MAX_BYTES:
        raise UsageError(f"it is larger than {_MAX_BYTES // 1024} kB")
    fields = {"instruction": text}
    if text.startswith("---"):
        problems = Problems()
        tree = read_markdown(data, str(file), problems)
        try:
            problems.raise_if_any()
        except PlanError as error:
            raise UsageError("; ".join(one.message for one in error.problems)) from error
        assert tree is not None, "a file that cannot be read has problems"
        fields = {key: value for key, node in tree.items.items() if (value := read_text(node))}
    prompt = fields.get("instruction", "").strip()
    if not prompt:
        raise UsageError("it has no prompt below its front matter")
    first = prompt.partition("\n")[0].lstrip("# ")
    usage = fields.get("argument-hint", "" if not _PLACE.search(prompt) else "ARGUMENTS")
    return CommandFile(one_line(fields.get("description", first), 200), one_line(usage, 40), prompt)


def _command(name: str, about: CommandFile, origin: str) -> SlashCommand:
    async def run(chat: Chat, argument: str) -> Reply:
        chat.send(about.fill(argument))
        return None

    summary = f"{about.description} ({origin})"
    return SlashCommand(name, summary, run, about.usage, module=FROM_FILES)
