"""The arguments of `run` read without Typer, whose import takes a tenth of a short run."""

from collections.abc import Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from amplifier_app.commands.finish import OutputFormat
from amplifier_app.commands.option import Option
from amplifier_app.commands.run.request import Request


def read_words(words: Sequence[str]) -> Request | None:
    """Return the request of a command line; None if Typer has to read it.

    Only what needs no explanation is read: options in their usual spelling, each followed by its
    value, and at most one prompt. `--output` is not part of a request.

    Raises:
        UsageError: Two options contradict each other.
    """
    fields: dict[str, Any] = {}
    options = _options()
    rest = iter(words)
    for word in rest:
        name, kind, may_be_empty = options.get(word, ("prompt", str, True))
        if kind is bool:
            value: Any = True
        else:
            text = word if name == "prompt" else next(rest, "-")
            explained = text.startswith("-") or not (text or may_be_empty)
            value = None if explained else _value(kind, text)
        if get_origin(kind) is list and value is not None:
            value = [*fields.pop(name, []), value]
        if value is None or name in fields:
            return None
        fields[name] = value
    fields.pop("output", None)
    return Request(**fields).validate()


def _options() -> dict[str, tuple[str, Any, bool]]:
    """The field and type of each option, and whether it may be empty, by its spellings."""
    options: dict[str, tuple[str, Any, bool]] = {"--output": ("output", OutputFormat, False)}
    for name, hint in Request.__annotations__.items():
        declared, *marks = get_args(hint) or (hint,)
        for mark in marks:
            if isinstance(mark, Option):
                kinds = [kind for kind in get_args(declared) if kind is not NoneType]
                kind = kinds[0] if get_origin(declared) is not Literal and kinds else declared
                options |= dict.fromkeys(mark.flags, (name, kind, mark.empty))
    return options


def _value(kind: Any, text: str) -> Any:
    """The value of an option; None for a type that Typer has to read."""
    if get_origin(kind) is Literal:
        return text if text in get_args(kind) else None
    if kind in (str, list[str]):
        return text
    return Path(text) if kind is Path else None
