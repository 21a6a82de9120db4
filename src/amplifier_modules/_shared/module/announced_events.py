"""The events that modules announce; hooks cannot register for a wildcard."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from amplifier_support.session_capabilities import ANNOUNCED_EVENTS


async def announced_events(coordinator: Any) -> list[str]:
    """The names of the events that modules emit in addition to the kernel's.

    Each contributes a name or several; some register a capability instead. Anything else is ignored.
    """
    contributed = await coordinator.collect_contributions("observability.events")
    found: list[str] = []
    for given in [*contributed, ANNOUNCED_EVENTS.of(coordinator)]:
        several = isinstance(given, Iterable) and not isinstance(given, str)
        names = cast("Iterable[Any]", given) if several else [given]
        found += [name for name in names if isinstance(name, str)]
    return found
