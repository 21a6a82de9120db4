"""Options of the command line as data, and durations as their values, readable without importing Typer."""

from __future__ import annotations

from typing import Any, get_args

from amplifier_app.base.errors import UsageError
from amplifier_support.text import lazy_pattern


class Option:
    """An option, in the `Annotated` type of the field that takes its value.

    Args:
        usage: Its spellings and the name of its value, as help shows them: `-P, --profile NAME`.
        help: The text of its help.
        group: The heading it appears under in help; None for the last one.
        empty: Whether its value may be empty.
        settings: More arguments of `typer.Option`.
    """

    def __init__(
        self,
        usage: str,
        help: str,
        *,
        group: str | None = None,
        empty: bool = False,
        **settings: Any,
    ) -> None:
        self.flags, self.metavar = parse_usage(usage)
        self.help = help
        self.group = group
        self.empty = empty
        self.settings = settings


def parse_usage(usage: str) -> tuple[list[str], str | None]:
    """Return the spellings of an option, the longest first, and the name of its value."""
    spellings, _, metavar = usage.replace(", ", ",").partition(" ")
    return sorted(spellings.split(","), key=len, reverse=True), metavar or None


def find_option(hint: Any) -> Option | None:
    """The option that the type of a field declares."""
    return next((mark for mark in get_args(hint) if isinstance(mark, Option)), None)


_DURATION = lazy_pattern(r"(\d+(?:\.\d+)?)(s|m|h|d|w)?")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}

_LONGEST = 5200 * _UNITS["w"]
"""A hundred years: dates do not reach much further back."""


def parse_duration(text: str, option: str = "--timeout") -> float:
    """Seconds from ``90``, ``90s``, ``5m``, ``1h``, ``30d`` or ``2w``.

    Args:
        text: The duration.
        option: The option it was given for.

    Raises:
        UsageError: It is none of these, zero, or more than a hundred years.
    """
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _UNITS[match[2] or "s"] if match else 0.0
    if not 0 < seconds <= _LONGEST:
        raise UsageError(
            f"{option}: invalid duration {text!r}", hint="Write 90, 90s, 5m, 1h or 30d."
        )
    return seconds
