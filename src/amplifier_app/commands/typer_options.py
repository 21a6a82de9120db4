"""Options and arguments of Typer commands, written as help shows them, and those that the fields of a tuple declare."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.commands.option import find_option, parse_usage


def option(usage: str, help: str, **settings: Any) -> Any:
    """Return the option of a command; see `amplifier_app.commands.option.Option` for `usage`."""
    flags, metavar = parse_usage(usage)
    return typer.Option(*flags, metavar=metavar, help=help, **settings)


def argument(metavar: str, help: str, **settings: Any) -> Any:
    """Return the argument of a command."""
    return typer.Argument(metavar=metavar, help=help, **settings)


def takes_options(
    declared: type[Any], *names: str, group: str | None = None
) -> Callable[[Callable[..., None]], Any]:
    """Give a command the options that a NamedTuple declares, in place of its parameter of that type.

    Args:
        declared: The NamedTuple; fields annotated with an `Option` are options.
        names: The fields to take; all of them by default.
        group: The heading they appear under in help, in place of their own.
    """
    hints = get_type_hints(declared, include_extras=True)
    marks = {name: find_option(hint) for name, hint in hints.items()}
    options = {name: _option(hint, group) for name, hint in hints.items()}
    added = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=options[name])
        for name, default in declared._field_defaults.items()
        if options[name] and name in (names or options)
    ]

    def decorate(function: Callable[..., None]) -> Any:
        shape = signature(function, eval_str=True)
        into = next(
            parameter.name
            for parameter in shape.parameters.values()
            if parameter.annotation is declared
        )

        def command(**values: Any) -> None:
            fields = {one.name: values.pop(one.name) for one in added}
            for name, value in fields.items():
                mark, items = marks[name], value if isinstance(value, list) else [value]
                # For example an unset variable in a script.
                if mark is not None and not mark.empty and "" in items:
                    raise _empty(mark.flags[0], "a value")
            function(**values, **{into: declared(**fields)})

        parameters: list[Parameter] = []
        for one in shape.parameters.values():
            parameters += added if one.name == into else [one]
        parameters = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__signature__ = shape.replace(parameters=parameters)  # pyright: ignore[reportFunctionMemberAccess]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def _empty(flag: str, what: str) -> UsageError:
    return UsageError(
        f"{flag} needs {what}",
        hint="Leave the option out, or check the variable that its value comes from.",
    )


def _option(hint: Any, group: str | None) -> Any:
    """A field's type with its option as Typer's; None for a field that is not an option."""
    declared = find_option(hint)
    if declared is None:
        return None
    kind = get_args(hint)[0]
    settings: dict[str, Any] = {
        "metavar": declared.metavar,
        "help": declared.help,
        **declared.settings,
    }
    if Path in (kind, *get_args(kind)):

        def parse_path(text: str) -> Path:
            # As a path it would be the current folder.
            if not text:
                raise _empty(declared.flags[0], "a file")
            return Path(text)

        settings["parser"] = parse_path
    panel = group or declared.group
    return Annotated[kind, typer.Option(*declared.flags, rich_help_panel=panel, **settings)]
