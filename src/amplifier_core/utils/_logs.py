"""Overhearing what code says in the log: a module's own reason is better than a guess."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["warnings_logged"]

_collected: ContextVar[list[str] | None] = ContextVar("amplifier_warnings_logged", default=None)


class _Collector(logging.Handler):
    """Keeps what is logged in the context (task) it was installed for, and nothing of others."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        if _collected.get() is self._messages:
            self._messages.append(record.getMessage())


@contextmanager
def warnings_logged() -> Generator[list[str]]:
    """The messages of level WARNING and above that this task logs while the block runs, in order."""
    messages: list[str] = []
    collector = _Collector(messages)
    token = _collected.set(messages)
    root = logging.getLogger()
    root.addHandler(collector)
    try:
        yield messages
    finally:
        root.removeHandler(collector)
        _collected.reset(token)
