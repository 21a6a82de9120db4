"""Options of the command line as data, readable without importing Typer."""

from __future__ import annotations

from typing import Any


class Option:
    """An option, in the `Annotated` type of the field that takes its value.

    Args:
        flags: Its spellings, such as `--profile` and `-P`.
        group: The heading it appears under in help; None for the last one.
        empty: Whether its value may be empty.
        settings: More arguments of `typer.Option`.
    """

    def __init__(
        self,
        *flags: str,
        group: str | None = None,
        help: str,
        empty: bool = False,
        **settings: Any,
    ) -> None:
        self.flags = flags
        self.group = group
        self.empty = empty
        self.settings: dict[str, Any] = {"help": help, **settings}
