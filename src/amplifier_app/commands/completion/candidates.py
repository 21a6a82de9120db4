"""Find what a word of the command line can become: a command, an option, or a value."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, get_args, get_origin

from amplifier_app.commands.completion import values
from amplifier_app.commands.group import amplifier_command


class _Place(NamedTuple):
    """The position of a word in a command line.

    Attributes:
        path: The names of the commands before it.
        command: The innermost of them.
        option: The option whose value it is; None if it is none.
        position: How many arguments of the command are before it.
    """

    path: tuple[str, ...]
    command: Any
    option: Any
    position: int


def complete(words: Sequence[str], incomplete: str) -> list[str]:
    """What `incomplete` can become, after `words`; empty if unknown, for example for file names."""
    root = amplifier_command()
    # `amplifier` with options and without a command is `amplifier run`.
    if words and words[0].startswith("-"):
        words = ["run", *words]
    place = _place(root, words)
    if place is None:
        return []
    if place.option is not None:
        return _starting(_values(place, place.option, words, incomplete), incomplete)
    name, equals, begun = incomplete.partition("=")
    if name.startswith("--") and equals:
        option = _option(place.command, name)
        found = _values(place, option, words, begun) if option is not None else ()
        return [f"{name}={value}" for value in _starting(found, begun)]
    if incomplete.startswith("-"):
        options = _options(place.command)
        if not words:
            options += _options(root.get_command(None, "run"))
        return _starting(dict.fromkeys(options), incomplete)
    if _is_group(place.command):
        return _starting(place.command.list_commands(None), incomplete)
    arguments = [one for one in place.command.params if one.param_type_name == "argument"]
    if not arguments:
        return []
    argument = arguments[min(place.position, len(arguments) - 1)]
    if place.position >= len(arguments) and argument.nargs == 1:
        return []
    return _starting(_values(place, argument, words, incomplete), incomplete)


def _place(root: Any, words: Sequence[str]) -> _Place | None:
    """The position of the word after `words`; None if the command is unknown."""
    path: tuple[str, ...] = ()
    command, option, position = root, None, 0
    for word in words:
        if option is not None:
            option = None
        elif word.startswith("-") and word != "-":
            known = _option(command, word)
            option = known if known is not None and not known.is_flag else None
        elif _is_group(command):
            command = command.get_command(None, word)
            if command is None:
                return None
            path = (*path, word)
        else:
            position += 1
    return _Place(path, command, option, position)


def _is_group(command: Any) -> bool:
    return hasattr(command, "list_commands")


def _option(command: Any, flag: str) -> Any:
    for parameter in command.params:
        if flag in parameter.opts or flag in parameter.secondary_opts:
            return parameter
    return None


def _options(command: Any) -> list[str]:
    shown = [one for one in command.params if not getattr(one, "hidden", False)]
    flags = [flag for one in shown for flag in (*one.opts, *one.secondary_opts)]
    return [*(flag for flag in flags if flag.startswith("--")), "--help"]


def _values(place: _Place, parameter: Any, words: Sequence[str], begun: str) -> Iterable[str]:
    choices = _choices(parameter.type_descriptor.annotation)
    if choices:
        return choices
    flags, metavar, group = parameter.opts, parameter.metavar or "", place.path[:1]
    if "--profile" in flags or (group == ("profile",) and metavar == "NAME") or metavar == "PLAN":
        return values.profiles()
    if place.path == ("plan", "diff") and metavar in ("A", "B"):
        return values.profiles()
    if "--provider" in flags or (group == ("provider",) and metavar == "NAME"):
        return values.providers()
    if "--model" in flags:
        return values.models(_option_value(place.command, words, "--provider"))
    if "--set" in flags:
        profile = _option_value(place.command, words, "--profile")
        return (f"{address}=" for address in values.addresses(begun, profile))
    if metavar == "PATH.TO.KEY":
        return values.addresses(begun)
    if "--mode" in flags:
        return [mode for mode in metavar.split("|") if mode.islower()]
    if place.path == ("docs",) and metavar == "TOPIC":
        return values.topics()
    is_session = group in (("session",), ("resume",)) and metavar.startswith("ID")
    if is_session or {"--resume", "--fork"} & {*flags}:
        return values.sessions()
    if group == ("module",) and (metavar == "ID" or "|ID" in metavar):
        return values.modules()
    return ()


def _choices(annotation: Any) -> list[str]:
    """The values of a parameter's type, if it lists them."""
    if get_origin(annotation) is Literal:
        return [str(one) for one in get_args(annotation)]
    return [choice for part in get_args(annotation) for choice in _choices(part)]


def _option_value(command: Any, words: Sequence[str], flag: str) -> str | None:
    """The value of an option among the words before."""
    option = _option(command, flag)
    flags = option.opts if option is not None else [flag]
    for word, following in itertools.pairwise(words):
        if word in flags:
            return following
    return None


def _starting(found: Iterable[str], incomplete: str) -> list[str]:
    return [one for one in found if one.startswith(incomplete)]
