"""Command groups that list their commands but import only the one invoked.

The program's own commands are in tables; installed packages add others, see `entry_points`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache, cached_property, reduce
from importlib import import_module
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperGroup
from typer.main import get_command

from amplifier_app.base.errors import ModuleError, UsageError
from amplifier_app.base.own_packages import version_line
from amplifier_app.base.slow_steps import slow_step
from amplifier_app.commands.entry_points import AddedCommand, find_commands
from amplifier_app.commands.help import prepare_command
from amplifier_support.text import did_you_mean, nearest

COMMANDS = {
    "run": ("run.command:run", "Send a prompt, or start a chat."),
    "continue": (
        "run.command:run",
        "Continue the last session of this directory (run --continue).",
    ),
    "resume": ("resume:resume", "Choose a saved session and continue it."),
    "init": ("init.command:init", "Set up a provider: its key, address and model."),
    "session": ("session:app", "List, show, search and manage saved sessions."),
    "plan": ("plan:app", "Show, check, compare and lock plans."),
    "module": ("module:app", "List, add, create and validate modules."),
    "tool": ("tool:app", "List, describe and run the tools of a plan."),
    "profile": ("profile:app", "List, show and choose profiles."),
    "provider": ("provider:app", "List and test providers, their models and their keys."),
    "plugin": ("plugin:app", "Add, list, show, update and remove plugins."),
    "trust": ("trust:trust", "Review a project's configuration and trust it."),
    "doctor": ("doctor:doctor", "Check your setup and suggest fixes."),
    "update": (
        "update:update",
        "Print the command that updates the program, and run it after a yes.",
    ),
    "report": ("report:report", "Write a file for a bug report."),
    "schema": ("schema:app", "Print the JSON Schemas of what the program reads and writes."),
    "docs": ("docs:docs", "Show the documentation."),
    "version": ("group:_show_version", "Show the version."),
}
"""Command name → `MODULE:ATTRIBUTE` of its function or Typer app in `amplifier_app.commands`, and its help line.

`continue` is `run --continue`, see `amplifier_app.cli`.
"""


HEADINGS = {
    "Prompts": ("run", "continue", "resume", "session", "view", "serve"),
    "Many inputs and tests": ("batch", "compare", "test"),
    "Plans and modules": (
        *("plan", "profile", "module", "tool", "provider"),
        *("policy", "skill", "mcp", "plugin"),
    ),
    "Setup": ("init", "trust", "doctor", "update", "report"),
    "Reference": ("docs", "schema", "version"),
}
"""The groups of the commands in the root help."""

_SETTINGS = (
    "Settings are files, see 'amplifier docs plans'; 'amplifier doctor' names them.\n"
    "Change them: amplifier profile use, amplifier module add, amplifier init"
)
_MEANT = {
    "bundle": "Run a bundle with -f: amplifier run -f bundle.md\n"
    "To include it in every chat: amplifier docs plans",
    "chat": "Start a chat: amplifier",
    "config": _SETTINGS,
    "login": "Set up a provider: amplifier init",
    "models": "List models: amplifier provider models",
    "settings": _SETTINGS,
}
"""Advice for commands that other programs have."""

_CONTINUE = """Continue the last session of this directory.

\b
  amplifier continue
  amplifier continue "Now the tests."

The same as `amplifier run --continue`, and takes its other options: amplifier run --help
"""


class CommandGroup(TyperGroup):
    """Suggests the nearest command for an unknown one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in (known := self.list_commands(ctx)):
            near, advice = did_you_mean(args[0], known), self.advice(args, known)
            hint = "\n".join(line for line in (near, advice) if line)
            raise UsageError(f"unknown command {args[0]!r}", hint=hint)
        return super().resolve_command(ctx, args)

    def advice(self, words: list[str], known: list[str]) -> str:
        """Return the next step after an unknown command."""
        return f"Available commands: {', '.join(known)}"


class LazyGroup(CommandGroup):
    """Imports a command only when it is invoked.

    Attributes:
        words: The words that call the group; none for the root.
        own: Name → `MODULE:ATTRIBUTE` of the function or Typer app and help line of each of its own
            commands, in the order help shows them.
        default: The command that is meant if the first word is none; None for an error.
    """

    words: ClassVar[tuple[str, ...]] = ()
    default: ClassVar[str | None] = None
    own: ClassVar[dict[str, tuple[str, str]]] = {
        name: (f"amplifier_app.commands.{target}", help)
        for name, (target, help) in COMMANDS.items()
    }

    @cached_property
    def added(self) -> dict[str, AddedCommand]:
        """The commands that installed packages add to this group, by name."""
        return {
            words[-1]: command
            for words, command in _find_commands().items()
            if words[:-1] == self.words and words[-1] not in self.own
        }

    @property
    def table(self) -> dict[str, str]:
        """Command name → help line."""
        own = {name: help for name, (_, help) in self.own.items()}
        return own | {name: command.help for name, command in self.added.items()}

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            if cmd_name in self.own:
                app = _as_app(_import(self.own[cmd_name][0]))
            elif cmd_name in self.added:
                app = _import_added(self.added[cmd_name])
            else:
                return None
            # Shown in usage lines; a single-command app is otherwise named after its function.
            self.commands[cmd_name] = command = prepare_command(get_command(app))
            command.name = cmd_name
            if cmd_name == "continue":
                command.help = _CONTINUE
                command.format_options = _no_options
        return self.commands[cmd_name]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if self.default is not None and args and args[0] not in ctx.help_option_names:
            is_typo = nearest(args[0], self.table) and not os.path.exists(args[0])
            if args[0] not in self.table and not is_typo:
                args = [self.default, *args]
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.table.items()))


_find_commands = cache(find_commands)
"""Searches once; each group asks for its own."""


def _import(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return reduce(getattr, attribute.split("."), import_module(module))


def _as_app(command: Any) -> typer.Typer:
    """A Typer app as it is, or one with a function as its only command."""
    if isinstance(command, typer.Typer):
        return command
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(command)
    return app


def _import_added(command: AddedCommand) -> typer.Typer:
    """Import a command of an installed package.

    Raises:
        ModuleError: It cannot be imported, or is of another package and not a `typer.Typer`.
    """
    name = " ".join(command.words)
    try:
        with slow_step(f"importing the command '{name}' of {command.package}"):
            app = _import(command.target)
    # The package is someone else's and may raise anything while it is imported.
    except (Exception, SystemExit) as error:
        if command.is_own:
            raise
        raise ModuleError(
            f"cannot load the command '{name}' of {command.package}: "
            f"{type(error).__name__}: {error}",
            hint=f"Reinstall or remove the package: {sys.executable} -m pip uninstall {command.package.rpartition('-')[0]}",
        ) from error
    if command.is_own:
        return _as_app(app)
    if not isinstance(app, typer.Typer):
        raise ModuleError(
            f"cannot load the command '{name}' of {command.package}: "
            f"{command.target} is {type(app).__name__}, not typer.Typer"
        )
    return app


def eager_group(help: str, kind: type[CommandGroup] = CommandGroup) -> typer.Typer:
    """Create a command to which the decorator `command` adds commands of its own."""
    app = typer.Typer(
        cls=kind, help=help, no_args_is_help=True, add_completion=False, rich_markup_mode=None
    )
    # Makes it a group even with a single command.
    app.callback()(lambda: None)
    return app


def command_group(
    name: str,
    package: str,
    table: Mapping[str, tuple[str, str]],
    *,
    help: str | None = None,
    default: str | None = None,
) -> typer.Typer:
    """Create a command with commands of its own.

    Args:
        name: Its name.
        package: The package with the modules of its commands.
        table: Command name → the function or Typer app, as `MODULE:NAME`, and its help line.
        help: Its help; default: its line in `COMMANDS`.
        default: The command that is meant if the first word is none of them.
    """
    own = {command: (f"{package}.{place}", line) for command, (place, line) in table.items()}
    members = {"words": (name,), "own": own, "default": default}
    kind = type(f"{name.capitalize()}Commands", (LazyGroup,), members)
    return eager_group(help or COMMANDS[name][1], kind)


def _no_options(ctx: Any, formatter: Any) -> None: ...


class _AllCommands(LazyGroup):
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        table = self.table
        listed = {name for names in HEADINGS.values() for name in names}
        others = tuple(name for name in table if name not in listed)
        for heading, names in (*HEADINGS.items(), ("Other", others)):
            if rows := [(name, table[name]) for name in names if name in table]:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def advice(self, words: list[str], known: list[str]) -> str:
        all_commands = "All commands: amplifier help"
        if {"-h", "--help"} & {*words}:
            return all_commands
        if words[0] in _MEANT:
            return _MEANT[words[0]]
        prompt = " ".join(word for word in words if not word.startswith("-"))
        return f'To send it as a prompt: amplifier run "{prompt}"\n{all_commands}'


def _show_version() -> None:
    """Show the version."""
    print(version_line())


def amplifier_command() -> Any:
    """The root command, with all others below it."""
    # Without a markup mode, brackets in help texts stay as they are and help does not import Rich.
    app = typer.Typer(
        cls=_AllCommands,
        name="amplifier",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        # Inherited by all commands.
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def amplifier(  # pyright: ignore[reportUnusedFunction] - Typer keeps it
        version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
    ) -> None:
        """Run AI agents defined in YAML plans. With no command, starts a chat.

        \b
          amplifier init
          amplifier run "Which tests cover src/app.py?"
          git diff | amplifier run "Review this."
        """
        # `--version` on its own is answered before Typer is imported.
        if version:
            _show_version()
            raise typer.Exit

    return prepare_command(get_command(app))
