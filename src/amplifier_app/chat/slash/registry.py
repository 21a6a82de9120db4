"""The registry of slash commands: one function per command, found by name.

A command is a function decorated with `command`, in one of the files listed in `_FILES`:

    @command("/think", "Show or hide the model's thinking", usage="[on|off]", during_turn=True)
    async def think(chat: Chat, argument: str) -> Reply:
        ...

It returns what to show: text, a Rich renderable or None. It raises an `AppError` for a bad argument.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from amplifier_app.base.errors import UsageError
from amplifier_app.base.sanitize import one_line
from amplifier_app.sessions.summary import short_id
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import did_you_mean, lazy_pattern

if TYPE_CHECKING:
    from amplifier_app.chat.picker import Picker
    from amplifier_app.runtime.observers.observer import Renderer
    from amplifier_app.runtime.session import OpenSession

T = TypeVar("T")
R = TypeVar("R")

COMMAND_NAME = lazy_pattern(r"[a-z][a-z0-9_-]*")
_COMMAND = lazy_pattern(r"/[a-z][a-z0-9_-]*(?=\s|$)")
_FILES = {
    "conversation": "Conversation",
    "sessions": "Sessions",
    "model": "Model and permissions",
    "files": "Files",
    "information": "What happens",
}
"""File with commands → their heading in `/help`."""
_FROM_MODULES = "From modules"
_OWN = "Your own"

FROM_FILES = "files"
"""The `module` of commands from files."""


class Leave(Exception):
    """The user wants to leave the chat."""


class Reopen(Exception):
    """The chat continues with another session.

    Args:
        greets: Whether to show what the session continues.
        changes: Fields of the request (`amplifier_app.commands.run.request.Request`) that differ,
            for example ``resume``.

    Attributes:
        back: The same for the session that is left, if it can be opened again.
    """

    def __init__(self, *, greets: bool = True, **changes: Any) -> None:
        super().__init__()
        self.greets = greets
        self.changes = changes
        self.back: dict[str, Any] | None = None


class ToBackground(Exception):
    """The running prompt goes on in a process of its own, and the chat ends.

    Args:
        prompt: The prompt that goes on with it.

    Attributes:
        changes: Fields of the request that differ from the chat's.
    """

    def __init__(self, prompt: str) -> None:
        super().__init__()
        self.prompt = prompt
        self.changes: dict[str, Any] = {}


class Chat(Protocol):
    """The part of the chat that a command may use."""

    session: OpenSession
    """The open session."""
    renderer: Renderer
    """Shows the session."""
    commands: dict[str, SlashCommand]
    """All commands by name, including those from modules."""
    last_prompt: str | None
    """The prompt sent last in this chat."""
    is_plain: bool
    """True if the terminal itself edits the input line."""

    @property
    def is_unanswered(self) -> bool:
        """True if the last prompt ended too early: with an error, or before an answer."""
        ...

    def on_background(self) -> None:
        """Let the running prompt go on in a process of its own, from its next model request."""
        ...

    def send(self, prompt: str, *, adds_files: bool = True) -> None:
        """Send a prompt to the model as soon as no turn runs.

        Args:
            prompt: The prompt.
            adds_files: Whether `@path` in it adds a file.
        """
        ...

    def page_or_return(self, text: str) -> Reply:
        """Show text in the pager if it is long and no turn runs; otherwise return it."""
        ...

    def edit_text(self, text: str) -> str:
        """Return text after it was edited in the user's editor.

        Raises:
            AppError: The terminal has no editor, or it failed.
        """
        ...

    async def pick(self, picker: Picker[T, R]) -> R | None:
        """Let the user choose from a list, unless `is_plain`; None if they leave it."""
        ...


Reply = Any
"""The output of a command: text, a Rich renderable, or None for nothing."""

Run = Callable[[Chat, str], Awaitable[Reply]]
Complete = Callable[[Chat, str], Iterable["str | tuple[str, str]"]]


class SlashCommand(NamedTuple):
    """A slash command.

    Attributes:
        name: Its name with the slash.
        summary: What it does, in one line.
        run: Called with the chat and the argument, which is stripped and may be empty.
        usage: Its argument, for example ``[on|off]``.
        during_turn: Whether it runs immediately while a turn runs; others wait for its end.
        complete: Returns the values for an argument, each alone or with its summary, for the
            chat and the argument typed so far; the chat filters them.
        aliases: Other names, not listed.
        module: The module that contributed it; empty for commands of the app.
    """

    name: str
    summary: str
    run: Run
    usage: str = ""
    during_turn: bool = False
    complete: Complete | None = None
    aliases: tuple[str, ...] = ()
    module: str = ""


_commands: dict[str, SlashCommand] = {}


def command(
    name: str,
    summary: str,
    *,
    usage: str = "",
    during_turn: bool = False,
    complete: Complete | None = None,
    aliases: tuple[str, ...] = (),
) -> Callable[[Run], Run]:
    """Register the decorated function as a command; see `SlashCommand` for the arguments."""

    def register(run: Run) -> Run:
        _commands[name] = SlashCommand(name, summary, run, usage, during_turn, complete, aliases)
        return run

    return register


def all_commands() -> dict[str, SlashCommand]:
    """Return the app's commands by name, sorted."""
    for file in _FILES:
        importlib.import_module(f"{__package__}.{file}")
    return dict(sorted(_commands.items()))


def by_heading(commands: Mapping[str, SlashCommand]) -> dict[str, list[SlashCommand]]:
    """Return the commands by their headings in `/help`, in the order of both."""
    headings = [*dict.fromkeys(_FILES.values()), _OWN, _FROM_MODULES]
    grouped: dict[str, list[SlashCommand]] = {heading: [] for heading in headings}
    for command in commands.values():
        if command.module:
            heading = _OWN if command.module == FROM_FILES else _FROM_MODULES
        else:
            heading = _FILES[command.run.__module__.rpartition(".")[2]]
        grouped[heading].append(command)
    return {heading: listed for heading, listed in grouped.items() if listed}


def command_in(text: str) -> str | None:
    """Return the slash command at the start of `text`, known or not; None if it is a prompt.

    A path (`/usr/bin/env is missing`) is a prompt, and so is text with a leading space.
    """
    match = _COMMAND.match(text)
    return match[0] if match else None


def is_shell_line(text: str) -> bool:
    """Return True if an input is a shell command."""
    return text.startswith("!")


def is_command(text: str) -> bool:
    """Return True if an input is a shell command or a slash command instead of a prompt."""
    return is_shell_line(text) or command_in(text) is not None


_NAMES_ELSEWHERE = {
    "/branch": "/fork",
    "/config": "/status",
    "/load": "/resume",
    "/new": "/clear",
    "/permissions": "/approve",
    "/ps": "/bashes",
    "/rewind": "/undo",
    "/tokens": "/context",
    "/usage": "/cost",
}
"""Commands of other agents → the ones of the same use here, for suggestions."""

_MISSING = {
    "/bashes": "It is a command of tool-bash; add that with: amplifier module add tool-bash",
    "/mcp": "It needs an MCP server; add one with: amplifier mcp add NAME -- COMMAND",
    "/skills": "It needs a skill, a folder with a SKILL.md; see: amplifier docs tool-skills",
}
"""Commands that a session lacks → how to get them."""

_SET_ELSEWHERE = {
    "/doctor": "Run in a shell: amplifier doctor",
    "/hooks": "Hooks are part of the plan: /modules; see: amplifier docs hooks-shell",
    "/login": "Run in a shell: amplifier init",
    "/plugin": "Run in a shell: amplifier plugin list; a new chat has the plugins added since",
    "/statusline": "Set it in your settings: 'display: {status: [model, context]}'; see: amplifier docs chat",
    "/rules": "Rules for tool calls are under 'approvals' in the plan: /plan. Instruction files: /memory",
    "/theme": "Set it in your settings: 'display: {theme: light}'; see: amplifier docs chat",
    "/update": "Run in a shell: amplifier update",
    "/vim": "Set it in your settings: 'display: {keys: vi}'; see: amplifier docs chat",
}
"""Commands that no session has → where to set what they are about."""


def find(name: str, commands: Mapping[str, SlashCommand]) -> SlashCommand | None:
    """Return the command with this name or alias."""
    match = commands.get(name)
    return match or next(
        (command for command in commands.values() if name in command.aliases), None
    )


async def run_command(text: str, chat: Chat) -> Reply:
    """Run the slash command in `text` and return what it shows.

    Raises:
        UsageError: The command is unknown, or takes no argument.
        AppError: The command cannot run, for example because of its argument.
        Leave: The command ends the chat.
    """
    name = command_in(text) or ""
    slash_command = find(name, chat.commands)
    if slash_command is None:
        elsewhere = _NAMES_ELSEWHERE.get(name)
        near = did_you_mean(elsewhere or name, chat.commands)
        send = "/help lists all commands. Start with a space to send the text as a prompt."
        how = _MISSING.get(name) or _SET_ELSEWHERE.get(name, near)
        hints = filter(None, (how, _kept_plan(name, chat), send))
        raise UsageError(f"unknown command: {name}", hint="\n".join(hints))
    argument = text[len(name) :].strip()
    # A module may take an argument without naming it in `usage`.
    if argument and not slash_command.usage and not slash_command.module:
        raise UsageError(f"{name} takes no argument, got {one_line(argument, 40)!r}")
    return await slash_command.run(chat, argument)


def _kept_plan(name: str, chat: Chat) -> str:
    """Return why a resumed session lacks a command that its plan may have by now."""
    if name not in _MISSING or not chat.session.facts.resumed:
        return ""
    session = chat.session
    how = f"amplifier run --resume {short_id(session.id)} --profile {session.facts.profile}"
    return f"A resumed session keeps its saved plan. With the plan as it is now: {how}"


async def ask_module(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function of a module, which may be a coroutine function or not, and return its answer."""
    answer = function(*arguments, **options)
    return await answer if inspect.isawaitable(answer) else answer


def describe_error(error: Exception, limit: int = 400) -> str:
    """Return what a module has raised in one line."""
    return one_line(str(error), limit) or type(error).__name__


def parse_switch(name: str, argument: str) -> bool | None:
    """Return whether `on` or `off` was chosen; None for neither.

    Raises:
        UsageError: It is something else.
    """
    chosen = parse_choice(name, argument, ("", "on", "off"))
    return chosen == "on" if chosen else None


def parse_choice(name: str, argument: str, allowed: Iterable[str]) -> str:
    """Return `argument` if it is allowed.

    Raises:
        UsageError: It is not.
    """
    allowed = list(allowed)
    if argument in allowed:
        return argument
    *words, last = (f"'{word}'" for word in allowed if word)
    expected = f"{', '.join(words)} or {last}" if words else last
    raise UsageError(f"{name} expects {expected}, got {one_line(argument, 40)!r}")
