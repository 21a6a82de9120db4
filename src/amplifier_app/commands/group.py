"""Command groups that list their commands but import only the one invoked."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperGroup
from typer.main import get_command

from amplifier_app.base.errors import UsageError
from amplifier_app.commands.help import with_plain_help

COMMANDS = {
    "run": "Send a prompt, or start a chat.",
    "continue": "Continue the last session of this directory (run --continue).",
    "resume": "Choose a saved session and continue it.",
    "batch": "Run a plan over many inputs.",
    "compare": "Compare two batches over the same input.",
    "test": "Test plans without a model.",
    "init": "Set up a provider: its key, address and model.",
    "session": "List, show, search and manage saved sessions.",
    "plan": "Show, check, compare and lock plans.",
    "policy": "Test the rules for tool calls.",
    "module": "List, add, create and validate modules.",
    "tool": "List, describe and run the tools of a plan.",
    "profile": "List, show and choose profiles.",
    "provider": "List and test providers, their models and their keys.",
    "trust": "Review a project's configuration and trust it.",
    "doctor": "Check your setup and suggest fixes.",
    "report": "Write a file for a bug report.",
    "schema": "Print the JSON Schemas of results, events, batches, plans and tests.",
    "docs": "Show the documentation.",
    "version": "Show the version.",
}
"""Command name → help line. Each command is the Typer `app` of
`amplifier_app.commands.<name>.command`, made with `add_completion=False`."""


HEADINGS = {
    "Prompts": ("run", "continue", "resume", "session"),
    "Many inputs and tests": ("batch", "compare", "test"),
    "Plans and modules": ("plan", "profile", "module", "tool", "provider", "policy"),
    "Setup": ("init", "trust", "doctor", "report"),
    "Reference": ("docs", "schema", "version"),
}
"""The groups of the commands in the root help."""

_CONTINUE = """Continue the last session of this directory.

\b
  amplifier continue
  amplifier continue "Now the tests."

The same as `amplifier run --continue`, and takes its other options: amplifier run --help
"""


class LazyGroup(TyperGroup):
    """Imports a command only when it is invoked.

    Attributes:
        where: The module of a command, with `{}` for the command's name.
        table: Command name → help line, in the order help shows them.
    """

    where: ClassVar[str] = "amplifier_app.commands.{}.command"
    table: ClassVar[dict[str, str]] = COMMANDS

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            if cmd_name not in self.table:
                return None
            # `continue` is `run --continue`, see `amplifier_app.cli`.
            module = "run" if cmd_name == "continue" else cmd_name
            app = import_module(self.where.format(module)).app
            # Shown in usage lines; a single-command app is otherwise named after its function.
            self.commands[cmd_name] = command = with_plain_help(get_command(app))
            command.name = cmd_name
            if cmd_name == "continue":
                command.help = _CONTINUE
                command.format_options = _no_options
        return self.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        # Typer suggests similar commands only among those already loaded.
        if args and args[0] not in self.table:
            raise self._unknown(args)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.table.items()))

    def _unknown(self, words: list[str]) -> Exception:
        from amplifier_support.did_you_mean import did_you_mean

        near, advice = did_you_mean(words[0], self.table), self.advice(words, self.table)
        hint = "\n".join(one for one in (near, advice) if one)
        return UsageError(f"unknown command {words[0]!r}", hint=hint)

    def advice(self, words: list[str], table: dict[str, str]) -> str:
        """What to do about an unknown command."""
        return f"Available commands: {', '.join(table)}"


def command_group(name: str, table: dict[str, str]) -> typer.Typer:
    """A command with commands of its own, one module each in `amplifier_app.commands.<name>`.

    Args:
        name: Its name; `COMMANDS` has its help line.
        table: See `LazyGroup`.
    """
    where = f"amplifier_app.commands.{name}.{{}}"
    app = typer.Typer(
        cls=type(f"{name.capitalize()}Commands", (LazyGroup,), {"where": where, "table": table}),
        help=COMMANDS[name],
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
    )
    # Makes it a group even with a single command.
    app.callback()(lambda: None)
    return app


def _no_options(ctx: Any, formatter: Any) -> None: ...


class _AllCommands(LazyGroup):
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        listed = {name for names in HEADINGS.values() for name in names}
        others = tuple(name for name in self.table if name not in listed)
        for heading, names in (*HEADINGS.items(), ("Other", others)):
            if rows := [(name, self.table[name]) for name in names if name in self.table]:
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
