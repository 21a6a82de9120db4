"""The seam between the loader and the validators that stand above it.

The loader calls what is installed here before it mounts a module from a resolved
source; the package's root installs the kernel's own validators.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol


class CheckLike(Protocol):
    """One finding."""

    name: str
    message: str


class ReportLike(Protocol):
    """The findings on one module."""

    @property
    def passed(self) -> bool: ...
    @property
    def errors(self) -> list[Any]: ...


LoadValidator = Callable[[str, Path | str, str, dict[str, Any]], Awaitable[ReportLike]]
"""``(kind, package path or dotted name, module id, config) -> report``."""

_installed: list[LoadValidator] = []


def install(validator: LoadValidator) -> None:
    """Have every loader of this process use `validator`."""
    _installed[:] = [validator]


def installed() -> LoadValidator | None:
    return _installed[0] if _installed else None
