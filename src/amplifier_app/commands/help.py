"""Help pages: options in groups, readable on a narrow terminal, without the parser's type names.

Values of the command line are used as they are where that is possible: Typer converts every value, even a
missing one, with a validator of pydantic, whose import takes half the time of a short command. Text needs
no conversion, and neither does a default of the right type.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, get_args, get_origin

from typer.core import TyperCommand

# -- values of the command line that are used as they are --------------------------------


_PLAIN = (str, int, float, bool)


class _PlainValue:
    """Takes the place of Typer's conversion of one parameter until a value needs it.

    Args:
        annotation: The type of its values.
        parser: The function that reads each value, if the parameter has one.
    """

    def __init__(self, annotation: Any, parser: Callable[[Any], Any] | None) -> None:
        self._annotation: Any = None if parser else annotation
        self._parser = parser

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of a parameter."""
        takes_several = param.multiple or param.nargs == -1
        if value is None:
            return () if takes_several else None
        if takes_several and self._annotation == list[str]:
            return list(value)
        if not takes_several and self._is_converted(value):
            return value
        if not takes_several and self._parser is not None:
            # Typer reports these errors.
            with contextlib.suppress(ValueError, AssertionError):
                return self._parser(value)
        if self._is_number(str(value), param.type_descriptor.parameter_info):
            return self._annotation(value)
        param._runtime_param = None  # Typer creates its own.
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)

    def _is_converted(self, value: Any) -> bool:
        if self._annotation in _PLAIN:
            return type(value) is self._annotation
        return get_origin(self._annotation) is Literal and value in get_args(self._annotation)

    def _is_number(self, text: str, limits: Any) -> bool:
        """Return True for digits within the limits; Typer reads or reports anything else."""
        shape = {int: "[0-9]{1,15}", float: r"[0-9]{1,15}(\.[0-9]*)?"}.get(self._annotation)
        if shape is None or not re.fullmatch(shape, text):
            return False
        number = self._annotation(text)
        return (limits.min or number) <= number <= (limits.max or number)


def keep_plain_values(command: Any) -> None:
    """Convert the values of a command, once it is built, only where they need it.

    Versions of Typer that convert without pydantic are left as they are.
    """
    for parameter in command.params:
        _keep_plain_value(parameter)
    find_help_option = command.get_help_option

    def get_help_option(context: Any) -> Any:
        return _keep_plain_value(find_help_option(context))

    command.get_help_option = get_help_option


def _keep_plain_value(parameter: Any) -> Any:
    descriptor = getattr(parameter, "type_descriptor", None)
    if descriptor is not None and getattr(parameter, "_runtime_param", ...) is None:
        parser = descriptor.parameter_info.parser
        parameter._runtime_param = _PlainValue(descriptor.annotation, parser)
    return parameter


# -- help pages --------------------------------------------------------------------------


_OTHER = "Options"
_NARROWEST = 30
_WIDEST = 80
_NARROW = 60
_COLUMN = 28
_TYPE = r" <[^<>|]*>"
_CHOICES = r"<([^<>]*\|[^<>]*)>"
_BOUNDS = r"(?:; )?-?[\d.]*(?:<=?)?x[<>]=?-?[\d.]+"

_Context: Any = TyperCommand.context_class


class _Page(_Context.formatter_class):
    """A help page as wide as the terminal."""

    def __init__(self, **options: Any) -> None:
        columns = min(shutil.get_terminal_size().columns, _WIDEST)
        super().__init__(width=max(columns - 1, _NARROWEST))

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write the usage line, with required arguments as they are."""
        super().write_usage(prog, re.sub(r"\{([^{}]*)\}", r"\1", args), prefix)

    def write_dl(
        self, rows: Sequence[tuple[str, str]], col_max: int = _COLUMN, col_spacing: int = 2
    ) -> None:
        """Write names and descriptions in two columns, or below each other if it is narrow."""
        if self.width >= _NARROW:
            super().write_dl(rows, col_max, col_spacing)
            return
        for name, about in rows:
            self.write(f"{'':>{self.current_indent}}{name}\n")
            with self.indentation(), self.indentation():
                self.write_text(about) if about else None


class _PageContext(_Context):
    formatter_class = _Page


def prepare_command(command: Any) -> Any:
    """Give a command, once it is built, help of this form, and its values as they are."""
    command.context_class = _PageContext
    keep_plain_values(command)
    if not hasattr(command, "list_commands"):
        command.format_options = partial(_format_options, command)
    elif not hasattr(command, "table"):
        command.format_commands = partial(_format_commands, command)
        for below in command.commands.values():
            prepare_command(below)
    return command


def _format_commands(command: Any, ctx: Any, formatter: Any) -> None:
    names = command.list_commands(ctx)
    with formatter.section("Commands"):
        formatter.write_dl([(name, _summary(command.get_command(ctx, name))) for name in names])


def _summary(command: Any) -> str:
    """The first paragraph of a command's help, not cut off."""
    return " ".join((command.help or "").partition("\n\n")[0].replace("\b", "").split())


def _format_options(command: Any, ctx: Any, formatter: Any) -> None:
    groups: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        group = getattr(parameter, "rich_help_panel", None)
        if group is None and parameter.param_type_name == "argument":
            group = "Arguments"
        groups.setdefault(group or _OTHER, []).append(plain_record(*record))
    # `--help` and its like come last.
    last = groups.pop(_OTHER, [])
    title = "Other" if len(groups) > ("Arguments" in groups) else _OTHER
    for name, records in [*groups.items(), (title, last)]:
        if records:
            with formatter.section(name):
                formatter.write_dl(records)


def plain_record(names: str, about: str) -> tuple[str, str]:
    """A row without the names of types and the bounds of numbers."""
    names = re.sub(_TYPE, "", names)
    names = re.sub(_CHOICES, r"\1", names)
    about = (
        re.sub(_BOUNDS, "", about).replace("[]", "").replace("[default: ; ", "[default: ").strip()
    )
    return names, " ".join(about.split())


def walk_commands(group: Any, ctx: Any) -> Iterator[tuple[str, Any]]:
    """Every command below a group, with its words."""
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        yield name, command
        if hasattr(command, "list_commands"):
            yield from (
                (f"{name} {below}", sub_command)
                for below, sub_command in walk_commands(command, ctx)
            )
