"""What validation found out: checks, and the report they make up."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, NamedTuple

KINDS = ("provider", "tool", "hook", "orchestrator", "context")

Severity = Literal["error", "warning", "info"]


class Check(NamedTuple):
    """One thing that was looked at.

    Attributes:
        name: Stable identifier.
        passed: Whether it was in order.
        message: What was found.
        severity: What a failure means: only an `error` fails the module, and `info` is no fault.
        advice: How to mend it.
    """

    name: str
    passed: bool
    message: str
    severity: Severity = "error"
    advice: str | None = None


class Report(NamedTuple):
    """What was found out about one module.

    Attributes:
        subject: What was checked: a path, or the module and where it came from.
        kind: What it was checked as; None if that could not be told.
        entry_point: `"package:mount"`, if there is one.
        checks: In the order they were made.
        output: The end of what the module wrote while it was checked.
    """

    subject: str
    kind: str | None
    entry_point: str | None
    checks: tuple[Check, ...]
    output: str = ""

    @property
    def failed(self) -> list[Check]:
        """The failed checks of severity `error`."""
        return [one for one in self.checks if not one.passed and one.severity == "error"]

    @property
    def passed(self) -> bool:
        return not self.failed

    def as_json(self) -> dict[str, Any]:
        """The report as JSON data, as `render/schemas/validation.schema.json` has it."""
        return {
            "schema_version": 1,
            "subject": self.subject,
            "type": self.kind,
            "entry_point": self.entry_point,
            "passed": self.passed,
            "checks": [check._asdict() for check in self.checks],
            "output": self.output,
        }


def some(names: Collection[str], most: int = 5) -> str:
    """Names in a row, in order; of many the first ones, and how many more there are."""
    shown = sorted(names)[:most]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
