"""Slash commands that the app does not have itself: of modules, of the user's files, and one for each skill.

A module adds commands in the channel `chat.commands`, for its modes, and from files that it reads, as the published
tool-slash-command does: it lists them in the capability `slash_command_registry`; `slash_command_executor`
makes a prompt of one and may run commands for it.

A command of the user is a Markdown file, a prompt with arguments:

commands/changes.md
    ---
    description: Explain what changed
    argument-hint: SINCE
    ---
    Explain the commits since $1 for a user of the program. $ARGUMENTS

Its folder is in the user's settings folder, and in the `.amplifier` of a trusted project, which comes first. Commands
of plugins come last; one whose name is taken is called PLUGIN-NAME.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from amplifier_app.base import paths
from amplifier_app.base.errors import ModuleError, UsageError
from amplifier_app.base.sanitize import one_line, visible
from amplifier_app.chat.slash.model import mode_commands
from amplifier_app.chat.slash.registry import (
    COMMAND_NAME,
    FROM_FILES,
    Chat,
    Reply,
    SlashCommand,
    ask_module,
    describe_error,
)
from amplifier_app.plan.documents.document import read_markdown
from amplifier_app.plan.tree.nodes import read_text
from amplifier_app.plan.tree.problems import PlanError, Problems
from amplifier_app.runtime.observers.observer import Renderer
from amplifier_support.fields import to_mapping
from amplifier_support.files import open_regular
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.session_capabilities import (
    COMMAND_EXECUTOR,
    COMMAND_REGISTRY,
    SKILLS_CHANNEL,
)

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession


# -- slash commands of one's own: Markdown files in commands/, each a prompt with arguments


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
        if not _PLACE.search(self.prompt):
            return f"{self.prompt}\n\n{argument}" if argument else self.prompt
        values = {str(number): word for number, word in enumerate(_words(argument), 1)}
        values["ARGUMENTS"] = argument
        return _PLACE.sub(lambda place: values.get(place[1], ""), self.prompt)


def _words(argument: str) -> list[str]:
    try:
        return shlex.split(argument)
    except ValueError:  # an open quote
        return argument.split()


def _markdown_commands(
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
    folders = {"project": project, "user": paths.config_dir()}
    files = [
        (file.stem, origin, file)
        for origin, folder in folders.items()
        if folder is not None
        for file in _files(folder / "commands")
    ]
    for plugin in session.plan.plugins.values():
        for name, file in plugin.commands.items():
            is_taken = f"/{name}" in taken or any(name == other for other, _, _ in files)
            files.append((f"{plugin.name}-{name}" if is_taken else name, plugin.name, file))
    for stem, origin, file in files:
        name = f"/{stem}"
        try:
            if not COMMAND_NAME.fullmatch(stem):
                raise UsageError("a name has lower-case letters, digits, '-' and '_' only")
            if name in taken:
                raise UsageError(f"{name} already exists")
            commands.setdefault(name, _markdown_command(name, _read(file), origin))
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
            raise UsageError("; ".join(problem.message for problem in error.problems)) from error
        assert tree is not None, "a file that cannot be read has problems"
        fields = {key: value for key, node in tree.items.items() if (value := read_text(node))}
    prompt = fields.get("instruction", "").strip()
    if not prompt:
        raise UsageError("it has no prompt below its front matter")
    first = prompt.partition("\n")[0].lstrip("# ")
    usage = fields.get("argument-hint", "" if not _PLACE.search(prompt) else "ARGUMENTS")
    return CommandFile(one_line(fields.get("description", first), 200), one_line(usage, 40), prompt)


def _markdown_command(name: str, about: CommandFile, origin: str) -> SlashCommand:
    async def run(chat: Chat, argument: str) -> Reply:
        chat.send(about.fill(argument))
        return None

    summary = f"{about.description} ({origin})"
    return SlashCommand(name, summary, run, about.usage, module=FROM_FILES)


# -- slash commands that a module reads from files ---------------------------------------


_ALLOW = "Allow"
_APPROVAL_SECONDS = 300.0


def file_commands(
    session: OpenSession, taken: Collection[str], renderer: Renderer
) -> dict[str, SlashCommand]:
    """Return the commands of files by name; report those that cannot be used.

    Args:
        session: The session. Commands of a project that is not trusted are left out.
        taken: Names of other commands.
        renderer: Shows warnings.
    """
    coordinator = session.session.coordinator
    registry, executor = COMMAND_REGISTRY.of(coordinator), COMMAND_EXECUTOR.of(coordinator)
    if registry is None or executor is None:
        return {}
    commands: dict[str, SlashCommand] = {}
    untrusted: list[str] = []

    def warn(text: str) -> None:
        renderer.notice(text, "warning", "chat")

    try:
        # Commands without a namespace first.
        listed = sorted(registry.list_commands(), key=lambda listing: str(listing.namespace or ""))
        for listing in listed:
            command = _command_in_file(listing, executor)
            if getattr(listing, "scope", "") == "project" and session.plan.project is None:
                untrusted.append(command.name)
            elif not COMMAND_NAME.fullmatch(command.name[1:]):
                warn(
                    f"{listing.source_file}: a name has lower-case letters, digits, '-' and '_' only"
                )
            elif command.name in taken or command.name in commands:
                warn(f"{listing.source_file}: {command.name} already exists")
            else:
                commands[command.name] = command
    # A module may raise anything; the chat works without its commands.
    except Exception as error:
        reason = describe_error(error, 200)
        warn(f"the commands of slash_command_registry cannot be listed: {reason}")
    if untrusted:
        names = f"{', '.join(untrusted)}; see 'amplifier trust'"
        warn(f"commands of a project that is not trusted are left out: {names}")
    return commands


def _command_in_file(listing: Any, executor: Any) -> SlashCommand:
    name, about = f"/{listing.name}", listing.metadata

    async def run(chat: Chat, argument: str) -> Reply:
        if about.requires_approval and not await _is_allowed(chat, listing):
            return f"{name} was not allowed"
        try:
            result = await executor.execute_full(listing.name, argument, listing.namespace)
        # A module may raise anything; the chat continues.
        except Exception as error:
            raise ModuleError(f"{name} failed: {describe_error(error)}") from error
        notes = [str(warning) for warning in result.warnings or ()]
        if result.model_override:
            notes.append(f"it is for the model {result.model_override}; switch with /model")
        for note in notes:
            chat.renderer.notice(f"{name}: {note}", "warning", "chat")
        # It may have the output of commands, whose mentions the user has not written.
        chat.send(str(result.prompt), adds_files=False)
        return None

    summary = " ".join(filter(None, (one_line(str(about.description)), _origin(listing))))
    return SlashCommand(name, summary, run, _usage(about.argument_hint), module=FROM_FILES)


def _origin(listing: Any) -> str:
    names = (getattr(listing, "scope", ""), listing.namespace)
    return f"({':'.join(dict.fromkeys(str(name) for name in names if name))})"


def _usage(hint: Any) -> str:
    # YAML reads '[FILE]' as a list.
    text = " ".join(f"[{word}]" for word in hint) if isinstance(hint, list) else str(hint or "")
    return one_line(text, 40)


async def _is_allowed(chat: Chat, listing: Any) -> bool:
    about = listing.metadata.approval_message or listing.metadata.description
    question = f"Run /{listing.name}? {one_line(str(about), 400)}"
    approvals: Any = chat.session.session.coordinator.approval_system
    options = [_ALLOW, "Deny"]
    answer = await approvals.request_approval(question, options, _APPROVAL_SECONDS, "deny")
    return answer == _ALLOW


# -- slash commands of modules -----------------------------------------------------------


CHANNEL = "chat.commands"


async def contributed_commands(
    session: OpenSession, existing: Mapping[str, SlashCommand], renderer: Renderer
) -> dict[str, SlashCommand]:
    """Return the commands of the session's modules by name; report the invalid ones.

    Args:
        session: The session.
        existing: The commands of the app, which modules cannot replace.
        renderer: Shows warnings.
    """
    coordinator = session.session.coordinator
    commands: dict[str, SlashCommand] = {}
    taken = {name for command in existing.values() for name in (command.name, *command.aliases)}
    for entry in list(coordinator.channels.get(CHANNEL, ())):
        module = one_line(str(entry["name"]), 60)
        try:
            for command in _commands_in(await ask_module(entry["callback"]), module):
                if command.name in taken or command.name in commands:
                    raise UsageError(f"{command.name} already exists")
                commands[command.name] = command
        except UsageError as error:
            renderer.notice(f"{module}: invalid chat command: {error}", "warning", "chat")
        # A module may raise anything; the chat works without its commands.
        except Exception as error:
            text = f"{module}: cannot list its chat commands: {describe_error(error, 200)}"
            renderer.notice(text, "warning", "chat")
    for command in mode_commands(session, renderer):
        # `/mode` switches to a mode with the name of another command.
        if command.name not in taken:
            commands.setdefault(command.name, command)
    commands |= file_commands(session, {*taken, *commands}, renderer)
    # A module may have read the same files.
    commands = _markdown_commands(session, taken, renderer) | commands
    contributed = await coordinator.collect_contributions(SKILLS_CHANNEL)
    for skill in (one for listed in contributed if isinstance(listed, list) for one in listed):
        command = _skill_command(to_mapping(skill))
        # A skill whose name is taken, or is none of a command, is still the model's to load.
        if COMMAND_NAME.fullmatch(command.name[1:]) and command.name not in taken:
            commands.setdefault(command.name, command)
    return commands


def _skill_command(skill: Mapping[str, Any]) -> SlashCommand:
    name, description, origin = (str(skill.get(k, "")) for k in ("name", "description", "origin"))

    async def run(chat: Chat, argument: str) -> Reply:
        load = f"Load the skill {name} and follow it"
        chat.send(f"{load} for this:\n\n{argument}" if argument else f"{load}.")
        return None

    summary = f"{one_line(description, 200)} ({one_line(origin)})"
    return SlashCommand(f"/{name}", summary, run, "[TASK]", module="skills")


def _commands_in(value: Any, module: str) -> Iterator[SlashCommand]:
    if isinstance(value, (list, tuple)):
        for item in cast("list[Any]", value):
            yield from _commands_in(item, module)
    elif isinstance(value, Mapping):
        yield _command(cast("Mapping[str, Any]", value), module)
    elif value is not None:
        raise UsageError(f"expected a mapping, got {type(value).__name__}")


def _command(value: Mapping[str, Any], module: str) -> SlashCommand:
    name, summary, handler = (value.get(key) for key in ("name", "summary", "handler"))
    if not isinstance(name, str) or not COMMAND_NAME.fullmatch(name.removeprefix("/")):
        raise UsageError(f"name must be lower-case letters, digits, '-' and '_', got {name!r:.60}")
    name = f"/{name.removeprefix('/')}"
    if not isinstance(summary, str) or not callable(handler):
        raise UsageError(f"{name} needs 'summary' (text) and 'handler' (function)")

    async def run(chat: Chat, argument: str) -> Reply:
        try:
            answer = await ask_module(handler, argument)
        # A module may raise anything; the chat continues.
        except Exception as error:
            raise ModuleError(f"{name} of {module} failed: {describe_error(error)}") from error
        return answer if answer is None else str(answer)

    usage = one_line(str(value.get("usage") or ""), 40)
    during_turn = value.get("during_turn") is True
    return SlashCommand(name, one_line(summary), run, usage, during_turn, module=module)
