"""The result of validating a module: checks, and the report on them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from amplifier_support.named_tuple import NamedTuple

Severity = Literal["error", "warning", "info"]


class Check(NamedTuple):
    """The result of one check.

    Attributes:
        name: Stable identifier.
        passed: Whether it passed.
        message: The finding.
        severity: What a failure means: only an `error` fails the module; `info` is not a fault.
        advice: How to fix it.
    """

    name: str
    passed: bool
    message: str
    severity: Severity = "error"
    advice: str | None = None


class Report(NamedTuple):
    """The report on one module.

    Attributes:
        subject: What was checked: a path, or the module and where it came from.
        kind: The kind it was checked as; None if it could not be determined.
        entry_point: `"package:mount"`, if there is one.
        checks: The checks, in order.
        output: The last output of the module during the checks.
    """

    subject: str
    kind: str | None
    entry_point: str | None
    checks: tuple[Check, ...]
    output: str = ""

    @property
    def failed(self) -> list[Check]:
        """The failed checks of severity `error`."""
        return [check for check in self.checks if not check.passed and check.severity == "error"]

    @property
    def passed(self) -> bool:
        return not self.failed

    def as_json(self) -> dict[str, Any]:
        """The report as JSON data; see `render/schemas/validation.schema.json`."""
        return {
            "schema_version": 1,
            "subject": self.subject,
            "type": self.kind,
            "entry_point": self.entry_point,
            "passed": self.passed,
            "checks": [check._asdict() for check in self.checks],
            "output": self.output,
        }


def some(names: Collection[str], max_names: int = 5) -> str:
    """The sorted names in one line, up to `max_names`, and the number of the others."""
    listed = sorted(names)[:max_names]
    more = len(names) - len(listed)
    return ", ".join(listed) + (f" and {more} more" if more else "")
