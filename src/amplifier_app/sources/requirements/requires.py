"""Requirements that a plan adds to a module: the entries under its key `requires`.

mcp<2                               versions of a package from the index
pkg[extra]>=1 ; python_version>"3"  extras and markers as in PEP 508
name @ git+https://…@REF            a repository, by the rules of module sources
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from amplifier_app.plan.requirements import PlanRequirement, check_requirement, parsed_requirement
from amplifier_app.plan.source_spec import GitSource

if TYPE_CHECKING:
    from amplifier_app.sources.fetch.git import Checkout


class Addition:
    """A requirement that the plan adds to one module, ready to install.

    Args:
        requirement: The entry in the plan.
        fetch: Fetches its repository.
    """

    def __init__(
        self, requirement: PlanRequirement, fetch: Callable[[GitSource], Checkout]
    ) -> None:
        self.written = requirement.written
        self.at = requirement.at
        self._text = requirement.text
        self._fetch = fetch

    @cached_property
    def checkout(self) -> Checkout | None:
        """The checkout of its repository, fetched on first use; None for an index package."""
        source = check_requirement(self._text)
        return self._fetch(source) if source is not None else None

    @property
    def commit(self) -> str | None:
        """The commit of its repository; None for an index package, or if nothing was fetched."""
        known: Checkout | None = self.__dict__.get("checkout")
        return known.commit if known is not None else None

    @property
    def exact(self) -> str:
        """The requirement, with the commit of its repository."""
        return f"{self.written} # {self.checkout.commit}" if self.checkout else self._text

    def line(self, folder: str) -> str:
        """The line for uv's requirements file.

        Args:
            folder: URL of a copy of the repository's folder.
        """
        parsed = parsed_requirement(self._text)
        if parsed.url is None:
            return self._text
        parsed.url = folder
        return str(parsed)
