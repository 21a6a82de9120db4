"""Command groups that list their commands but import only the one invoked.

The program's own commands are in tables; installed packages add others, see `entry_points`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperGroup
from typer.main import get_command

from amplifier_app.base.errors import ModuleError, UsageError
from amplifier_app.base.slow_steps import slow_step
from amplifier_app.commands.entry_points import AddedCommand, find_commands
from amplifier_app.commands.help import summary, with_plain_help

COMMANDS = {
    "run": "Send a prompt, or start a chat.",
    "continue": "Continue the last session of this directory (run --continue).",
    "resume": "Choose a saved session and continue it.",
    "init": "Set up a provider: its key, address and model.",
    "session": "List, show, search and manage saved sessions.",
    "plan": "Show, check, compare and lock plans.",
    "module": "List, add, create and validate modules.",
    "tool": "List, describe and run the tools of a plan.",
    "profile": "List, show and choose profiles.",
    "provider": "List and test providers, their models and their keys.",
    "trust": "Review a project's configuration and trust it.",
    "doctor": "Check your setup and suggest fixes.",
    "report": "Write a file for a bug report.",
    "schema": "Print the JSON Schemas of what the program reads and writes.",
    "docs": "Show the documentation.",
    "version": "Show the version.",
}
"""Command name → help line of the app's own commands. Each is the Typer `app` of
`amplifier_app.commands.<name>`, made with `add_completion=False`."""


HEADINGS = {
    "Prompts": ("run", "continue", "resume", "session"),
    "Many inputs and tests": ("batch", "compare", "test"),
    "Plans and modules": ("plan", "profile", "module", "tool", "provider", "policy"),
    "Setup": ("init", "trust", "doctor", "report"),
    "Reference": ("docs", "schema", "version"),
}
"""The groups of the commands in the root help."""

_PACKAGES = ("docs", "doctor", "init", "module", "run", "session")
"""Commands whose app is in the file `command` of a package."""

_CONTINUE = """Continue the last session of this directory.

\b
  amplifier continue
  amplifier continue "Now the tests."

The same as `amplifier run --continue`, and takes its other options: amplifier run --help
"""


class LazyGroup(TyperGroup):
    """Imports a command only when it is invoked.

    Attributes:
        words: The words that call the group; none for the root.
        where: `MODULE:ATTRIBUTE` of the Typer app of one of its own commands, with `{}` for the name.
        own: Name → help line of its own commands, in the order help shows them.
    """

    words: ClassVar[tuple[str, ...]] = ()
    where: ClassVar[str] = "amplifier_app.commands.{}:app"
    own: ClassVar[dict[str, str]] = COMMANDS
    _added: dict[str, AddedCommand] | None = None

    @property
    def added(self) -> dict[str, AddedCommand]:
        """The commands that installed packages add to this group, by name."""
        if self._added is None:
            self._added = {
                words[-1]: command
                for words, command in find_commands().items()
                if words[:-1] == self.words and words[-1] not in self.own
            }
        return self._added

    @property
    def table(self) -> dict[str, str]:
        """Command name → help line."""
        added = {name: command.help for name, command in self.added.items()}
        # The program's own commands may also be registered as Typer commands of the group.
        registered = {
            name: summary(command)
            for name, command in self.commands.items()
            if name not in self.own and name not in added
        }
        return registered | self.own | added

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            if cmd_name in self.own:
                module, _, attribute = self._target(cmd_name).partition(":")
                app = getattr(import_module(module), attribute)
            elif cmd_name in self.added:
                app = _load(self.added[cmd_name])
            else:
                return None
            # Shown in usage lines; a single-command app is otherwise named after its function.
            self.commands[cmd_name] = command = with_plain_help(get_command(app))
            command.name = cmd_name
            if cmd_name == "continue":
                command.help = _CONTINUE
                command.format_options = _no_options
        return self.commands[cmd_name]

    def _target(self, name: str) -> str:
        return self.where.format(name.replace("-", "_"))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        # Typer suggests similar commands only among those already loaded.
        if args and not any(args[0] in names for names in (self.own, self.commands, self.added)):
            raise self._unknown(args)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.table.items()))

    def _unknown(self, words: list[str]) -> Exception:
        from amplifier_support.text import did_you_mean

        near, advice = did_you_mean(words[0], self.table), self.advice(words, self.table)
        hint = "\n".join(line for line in (near, advice) if line)
        return UsageError(f"unknown command {words[0]!r}", hint=hint)

    def advice(self, words: list[str], table: dict[str, str]) -> str:
        """Return the next step after an unknown command."""
        return f"Available commands: {', '.join(table)}"


def _load(command: AddedCommand) -> typer.Typer:
    """Import a command of an installed package.

    Raises:
        ModuleError: It cannot be imported, or is not a `typer.Typer`.
    """
    name = " ".join(command.words)
    module, _, attribute = command.target.partition(":")
    try:
        with slow_step(f"importing the command '{name}' of {command.package}"):
            app = import_module(module)
            for part in attribute.split("."):
                app = getattr(app, part)
    # The package is someone else's and may raise anything while it is imported.
    except (Exception, SystemExit) as error:
        if command.is_own:
            raise
        raise ModuleError(
            f"cannot load the command '{name}' of {command.package}: "
            f"{type(error).__name__}: {error}",
            hint=f"Reinstall or remove the package: {sys.executable} -m pip uninstall {command.package.rpartition('-')[0]}",
        ) from error
    if not isinstance(app, typer.Typer):
        raise ModuleError(
            f"cannot load the command '{name}' of {command.package}: "
            f"{command.target} is {type(app).__name__}, not typer.Typer"
        )
    return app


def command_group(
    name: str,
    table: dict[str, str],
    *,
    where: str | None = None,
    help: str | None = None,
) -> typer.Typer:
    """Create a command with commands of its own, one module each.

    Args:
        name: Its name.
        table: See `LazyGroup.own`.
        where: See `LazyGroup`; default: `amplifier_app.commands.<name>:{}_app`.
        help: Its help; default: its line in `COMMANDS`.
    """
    members = {
        "words": (name,),
        "where": where or f"amplifier_app.commands.{name}:{{}}_app",
        "own": table,
    }
    app = typer.Typer(
        cls=type(f"{name.capitalize()}Commands", (LazyGroup,), members),
        help=help or COMMANDS[name],
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
    )
    # Makes it a group even with a single command.
    app.callback()(lambda: None)
    return app


def _no_options(ctx: Any, formatter: Any) -> None: ...


class _AllCommands(LazyGroup):
    def _target(self, name: str) -> str:
        # `continue` is `run --continue`, see `amplifier_app.cli`.
        name = "run" if name == "continue" else name
        return super()._target(f"{name}.command" if name in _PACKAGES else name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        table = self.table
        listed = {name for names in HEADINGS.values() for name in names}
        others = tuple(name for name in table if name not in listed)
        for heading, names in (*HEADINGS.items(), ("Other", others)):
            if rows := [(name, table[name]) for name in names if name in table]:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def advice(self, words: list[str], table: dict[str, str]) -> str:
        all_commands = "All commands: amplifier help"
        if {"-h", "--help"} & {*words}:
            return all_commands
        if words[0] == "bundle":
            return "Run a bundle with -f: amplifier run -f bundle.md\nTo include it in every chat: amplifier docs plans"
        prompt = " ".join(word for word in words if not word.startswith("-"))
        return f'To send it as a prompt: amplifier run "{prompt}"\n{all_commands}'


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
            from amplifier_app.base.version import version_line

            print(version_line())
            raise typer.Exit

    return with_plain_help(get_command(app))
