"""What a plan adds to the requirements of a module: the entries of its key `requires`.

mcp<2                               a version of a package, from the index
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
    from amplifier_app.sources.git import Checkout


class Addition:
    """A requirement of the plan for one module, ready to be installed.

    Args:
        requirement: The entry of the plan.
        fetch: Fetches the repository that it names.
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
        """The files of its repository, fetched when first asked for; None for versions."""
        source = check_requirement(self._text)
        return self._fetch(source) if source is not None else None

    @property
    def commit(self) -> str | None:
        """The commit of its repository; None for versions, and where nothing had to be fetched."""
        known: Checkout | None = self.__dict__.get("checkout")
        return known.commit if known is not None else None

    @property
    def exact(self) -> str:
        """The requirement, with the commit that its repository is at."""
        return f"{self.written} # {self.checkout.commit}" if self.checkout else self._text

    def line(self, folder: str) -> str:
        """What uv is given.

        Args:
            folder: The URL of a copy of the repository's folder.
        """
        parsed = parsed_requirement(self._text)
        if parsed.url is None:
            return self._text
        parsed.url = folder
        return str(parsed)
