"""The parser's errors as the app's own: what was wrong, the value, and the next step."""

from __future__ import annotations

import os
import re
import shlex
from typing import Any

from amplifier_app.base.errors import UsageError
from amplifier_app.base.stdio import to_stderr
from amplifier_app.plan.documents.profile_paths import SUFFIXES, find_profile
from amplifier_support.text import did_you_mean

_CHOICE = re.compile(
    r"(?:Value error, )?(?P<value>'.*') is not one of (?P<choices>'.*')\.?$", re.DOTALL
)
_LIST = re.compile(r"\. Choose from:\s+(.*)$", re.DOTALL)
_EXTRA = re.compile(r"^Got unexpected extra arguments?(?:\(s\))? \((\S+).*\)$", re.DOTALL)


def usage_error(error: BaseException, *, root: bool = False) -> BaseException:
    """A usage error of Typer as the app's; other exceptions as they are.

    Args:
        error: The exception.
        root: Whether no command was given, so that options of the program itself may be meant.
    """
    show = getattr(error, "format_message", None)
    if show is None or getattr(error, "exit_code", None) != 2:
        return error
    context: Any = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        to_stderr(f"{context.get_help()}\n")
        return UsageError(f"'{context.command_path}' needs one of these commands")
    hint = f"Try '{context.command_path} --help'." if context is not None else None
    if type(error).__name__ == "NoSuchOption":
        option: Any = getattr(error, "option_name", "")
        known = [*_options(context), "--help", *(["--version"] if root else [])]
        near = did_you_mean(option, known)
        if context is not None and option in ("--bundle", "-B") and "--plan" in known:
            near = (
                f"Pass a bundle with -f, as a file or a folder: {context.command_path} -f bundle.md"
            )
        return UsageError(f"unknown option {option!r}", hint=near or hint)
    parameter: Any = getattr(error, "param", None)
    if parameter is not None and getattr(error, "message", ""):
        return UsageError(f"{_name(parameter)}: {_invalid(error)}", hint=hint)
    about = getattr(parameter, "help", None)
    if parameter is not None and about and type(error).__name__ == "MissingParameter":
        hint = f"{_name(parameter)}: {about}\n{hint}"
    message = str(show()).rstrip(".")
    message = _LIST.sub(lambda match: ": one of " + " ".join(match[1].split()), message)
    extra = _EXTRA.match(message)
    if extra is not None:
        word = extra[1]
        return UsageError(f"unexpected argument {word!r}", hint=_as_option(context, word) or hint)
    return UsageError(message[:1].lower() + message[1:], hint=hint)


def _as_option(context: Any, word: str) -> str | None:
    """Return the options for a plan or a profile passed to a command that takes them as options."""
    if {"--plan", "--profile"} - {*_options(context)}:
        return None
    if word.endswith(SUFFIXES) or os.path.isfile(word):
        return f"Pass a plan file with -f: {context.command_path} -f {shlex.quote(word)}"
    if find_profile(word) is not None:
        return f"Pass a profile with -P: {context.command_path} -P {word}"
    return None


def _options(context: Any) -> list[str]:
    if context is None:
        return []
    return [
        name for parameter in context.command.params for name in parameter.opts if name[:1] == "-"
    ]


def _name(parameter: Any) -> str:
    """An option as it is spelled, or an argument as help shows it."""
    if parameter.param_type_name == "option":
        return parameter.opts[0] if parameter.opts[0].startswith("--") else parameter.opts[-1]
    return parameter.metavar or parameter.name.upper()


def _invalid(error: Any) -> str:
    """Describe the fault of a value."""
    message = str(error.message)
    errors = getattr(error.__cause__, "errors", None)
    if errors is not None:
        first: dict[str, Any] = errors()[0]
        expected = _expected(first)
        if expected is not None:
            return f"{expected} (got {str(first['input'])!r})"
        message = str(first["msg"])
    choice = _CHOICE.match(message)
    if choice is not None:
        return f"expected one of {choice['choices'].replace(chr(39), '')} (got {choice['value']})"
    return message.removeprefix("Value error, ").rstrip(".")


def _expected(error: dict[str, Any]) -> str | None:
    kind, limits = str(error["type"]), error.get("ctx") or {}
    if kind.startswith("int_"):
        return "expected a whole number"
    if kind.startswith(("float_", "finite_")):
        return "expected a number"
    if kind == "greater_than_equal":
        return f"expected at least {limits['ge']}"
    return f"expected at most {limits['le']}" if kind == "less_than_equal" else None
