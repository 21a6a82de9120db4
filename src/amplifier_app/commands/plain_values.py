"""Values of the command line that are used as they are.

Typer converts every value, even a missing one, with a validator of pydantic, whose import takes half the
time of a short command. Text needs no conversion, and neither does a default of the right type.
"""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

_PLAIN = (str, int, float, bool)


class _PlainValue:
    """Takes the place of Typer's conversion of one parameter until a value needs it.

    Args:
        annotation: The type of its values; None if they are parsed.
    """

    def __init__(self, annotation: Any) -> None:
        self._annotation = annotation

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of a parameter."""
        takes_several = param.multiple or param.nargs == -1
        if value is None:
            return () if takes_several else None
        if not takes_several and self._is_converted(value):
            return value
        param._runtime_param = None  # Typer creates its own.
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)

    def _is_converted(self, value: Any) -> bool:
        if self._annotation in _PLAIN:
            return type(value) is self._annotation
        return get_origin(self._annotation) is Literal and value in get_args(self._annotation)


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
        is_parsed = descriptor.parameter_info.parser is not None
        parameter._runtime_param = _PlainValue(None if is_parsed else descriptor.annotation)
    return parameter
