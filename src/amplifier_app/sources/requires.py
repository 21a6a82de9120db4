"""What a plan adds to the requirements of a module: the entries of its key `requires`.

mcp<2                               a version of a package, from the index
pkg[extra]>=1 ; python_version>"3"  extras and markers as in PEP 508
name @ git+https://…@REF            a repository, by the rules of module sources
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from amplifier_app.errors import Location
from amplifier_app.sources.spec import (
    GitSource,
    SourceSyntaxError,
    parse_source,
    without_password,
)

if TYPE_CHECKING:
    from packaging.requirements import Requirement as Parsed

    from amplifier_app.sources.git import Checkout


class PlanRequirement(NamedTuple):
    """One entry of `requires`.

    Attributes:
        text: The requirement, complete.
        written: The same without passwords, as a lock has it.
        at: Where it is written.
    """

    text: str
    written: str
    at: Location


def check_requirement(text: str) -> GitSource | None:
    """The repository that a requirement names; None if it names versions.

    Raises:
        SourceSyntaxError: It is not valid or not allowed.
    """
    from pathlib import Path

    parsed = _parsed(text)
    if parsed.url is None:
        return None
    if not parsed.url.startswith("git+"):
        raise SourceSyntaxError(
            f"a requirement cannot come from {without_password(parsed.url)!r}",
            f"write versions as in '{parsed.name}>=1.0', or '{parsed.name} @ git+https://…'",
        )
    source = parse_source(parsed.url, Path("/"))
    assert isinstance(source, GitSource)
    return source


def _parsed(text: str) -> Parsed:
    from packaging.requirements import InvalidRequirement, Requirement

    from amplifier_app.sources.installed import normalised
    from amplifier_app.sources.uv import OURS

    try:
        parsed = Requirement(text)
        valid = text.isprintable()
    except InvalidRequirement:
        parsed, valid = None, False
    if parsed is None or not valid:
        raise SourceSyntaxError(
            f"{without_password(text)!r} is not a valid requirement",
            "write 'package', 'package>=1.2,<2' or 'package @ git+https://…'",
        )
    if normalised(parsed.name) in OURS:
        raise SourceSyntaxError(
            f"{parsed.name!r} is always the running version and cannot be required", "remove it"
        )
    return parsed


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
        parsed = _parsed(self._text)
        if parsed.url is None:
            return self._text
        parsed.url = folder
        return str(parsed)
