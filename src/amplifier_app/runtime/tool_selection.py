"""Offer only some of a plan's tools (`amplifier run --tools`)."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any, NamedTuple, Protocol

from amplifier_app.base.errors import UsageError


class Adjustment(Protocol):
    """A change of the modules that a session and its sub-sessions have mounted."""

    def apply(self, coordinator: Any) -> None:
        """Make the change: once the plan is mounted, and again before each prompt."""
        ...

    def check(self, coordinator: Any) -> None:
        """Check that the change can be made in a session that is not a sub-session.

        Raises:
            AppError: It cannot.
        """
        ...


class ToolSelection(NamedTuple):
    """The tools to keep.

    Attributes:
        patterns: Their names; `*` matches any part.
    """

    patterns: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> ToolSelection:
        """The selection of a list separated by commas."""
        return cls(tuple(name for part in text.split(",") if (name := part.strip())))

    def apply(self, coordinator: Any) -> None:
        """Unmount all other tools."""
        for name in list(coordinator.get("tools")):
            if not any(fnmatchcase(name, pattern) for pattern in self.patterns):
                coordinator.unmount("tools", name)

    def check(self, coordinator: Any) -> None:
        """Check that every name is one of a mounted tool.

        Raises:
            UsageError: One is not.
        """
        known = list(coordinator.get("tools"))
        for pattern in self.patterns:
            if not any(fnmatchcase(name, pattern) for name in known):
                from amplifier_support.did_you_mean import did_you_mean

                listed = f"Available tools: {', '.join(known)}" if known else "It has no tools."
                raise UsageError(
                    f"--tools: the plan has no tool {pattern!r}",
                    hint=did_you_mean(pattern, known) or listed,
                )
