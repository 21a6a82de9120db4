"""Groups of commands that know their commands' names and help but import only the one invoked."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperGroup
from typer.main import get_command

COMMANDS = {
    "run": "Send a prompt, or start a chat.",
    "init": "Set up a provider: its key, address and model.",
    "session": "List and show saved sessions.",
    "plan": "Show and check plans.",
    "module": "List and validate modules.",
    "profile": "List, show and choose profiles.",
    "provider": "List and test providers, their models and their keys.",
    "trust": "Look at what a project brings along, and trust it.",
    "doctor": "Check what a run needs, and say how to mend it.",
    "docs": "Show the documentation.",
    "version": "Show the version.",
}
"""Command name → help line. Each is `app`, a Typer with `add_completion=False`, in
`amplifier_app.commands.<name>.command`."""


class LazyGroup(TyperGroup):
    """Loads the `app` of a command when that command is asked for.

    Attributes:
        where: The module of each command, with `{}` for its name.
        table: Command name → help line, in the order that help shows.
    """

    where: ClassVar[str] = "amplifier_app.commands.{}.command"
    table: ClassVar[dict[str, str]] = COMMANDS

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            if cmd_name not in self.table:
                return None
            app = import_module(self.where.format(cmd_name)).app
            # Usage lines name a command by this; without it a single-command app is its function.
            self.commands[cmd_name] = command = get_command(app)
            command.name = cmd_name
        return self.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        # Typer looks for near misses among the commands it has; these are not loaded yet.
        if args and args[0] not in self.table:
            raise self._unknown(args[0])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.table.items()))

    def _unknown(self, name: str) -> Exception:
        from amplifier_app.base.errors import UsageError
        from amplifier_support.did_you_mean import did_you_mean

        hint = did_you_mean(name, self.table) or self.advice(name)
        return UsageError(f"no such command: {name}", hint=hint)

    def advice(self, name: str) -> str:
        """What to tell who asks for a command that is like none there is."""
        return f"There are: {', '.join(self.table)}."


class _AllCommands(LazyGroup):
    def advice(self, name: str) -> str:
        return f'To send it as a prompt: amplifier run "{name}"'


def amplifier_command() -> Any:
    """The whole command line as a click command."""
    # Without rich_markup_mode no bracket of a help text is markup, and help needs no Rich.
    app = typer.Typer(
        cls=_AllCommands, name="amplifier", rich_markup_mode=None, pretty_exceptions_enable=False
    )

    @app.callback()
    def amplifier(  # pyright: ignore[reportUnusedFunction] - Typer keeps it
        version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
    ) -> None:
        """Run agents described by YAML mount plans. Without a command: `run`."""
        # `--version` alone is answered before Typer is imported; here it has company.
        if version:
            from amplifier_app.base.version import version_line

            print(version_line())
            raise typer.Exit

    return get_command(app)
