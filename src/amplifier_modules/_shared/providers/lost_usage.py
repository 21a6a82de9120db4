"""The usage of model calls that end without an answer: stopped, cut off or failed while streaming.

The service bills what it had read and written until then. A provider adds what the service has
reported of each such attempt; the loop collects it around the call.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from amplifier_core.message_models import Usage

_collected: ContextVar[list[Usage] | None] = ContextVar("amplifier_lost_usage", default=None)


@contextmanager
def collecting() -> Generator[list[Usage]]:
    """Collect the usage of the attempts made in this block that end without an answer."""
    usages: list[Usage] = []
    token = _collected.set(usages)
    try:
        yield usages
    finally:
        _collected.reset(token)


def add_lost(usage: Usage | None) -> None:
    """Add the usage of such an attempt; None if the service has reported nothing."""
    usages = _collected.get()
    if usages is not None and usage is not None and usage.total_tokens:
        usages.append(usage)
