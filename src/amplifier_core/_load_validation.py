"""The seam between loading and mounting, and the validators that stand above them.

What is installed here looks at a mount function before it is called, and at what it mounted
afterwards; the package's root installs the kernel's own validators.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Protocol


class CheckLike(Protocol):
    """One finding."""

    name: str
    message: str


class LoadValidator(Protocol):
    """Gives the errors it finds; remarks that leave a module usable are not among them."""

    def mount_function(self, package: ModuleType, name: str) -> Sequence[CheckLike]:
        """What is wrong with the function `name` of a module's package; it is not called."""
        ...

    def instances(self, kind: str, instances: Sequence[tuple[str, Any]]) -> Sequence[CheckLike]:
        """What is wrong with mounted objects, given by name, as modules of a kind."""
        ...


_installed: list[LoadValidator] = []


def install(validator: LoadValidator) -> None:
    """Have every loader of this process use `validator`."""
    _installed[:] = [validator]


def installed() -> LoadValidator | None:
    return _installed[0] if _installed else None
