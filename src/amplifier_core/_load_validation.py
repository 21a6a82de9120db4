"""The interface through which the loader and `mounting` call the validators, which import them.

The installed validator checks a mount function before the call and what it mounted after it. The
package's `__init__` installs the kernel's own validators.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Protocol


class CheckLike(Protocol):
    """A failed check."""

    name: str
    message: str


class LoadValidator(Protocol):
    """Returns errors only; warnings about a usable module are not included."""

    def mount_function(self, package: ModuleType, name: str) -> Sequence[CheckLike]:
        """Check the function `name` of a module's package without calling it."""
        ...

    def instances(self, kind: str, instances: Sequence[tuple[str, Any]]) -> Sequence[CheckLike]:
        """Check mounted objects, given with their names, as modules of a kind."""
        ...


_installed: list[LoadValidator] = []


def install(validator: LoadValidator) -> None:
    """Make every loader of this process use `validator`."""
    _installed[:] = [validator]


def installed() -> LoadValidator | None:
    return _installed[0] if _installed else None
