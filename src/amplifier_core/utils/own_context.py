"""Awaiting a coroutine in a context of its own: what it sets there, nobody else sees.

Unlike in a task of its own it still runs in the caller's: cancelling the caller reaches it,
and nothing waits for another turn of the event loop.
"""

from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Any

__all__ = ["InContext"]


class InContext:
    """Awaits `coroutine` with every step of it run in `context`."""

    __slots__ = ("_context", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], context: Context) -> None:
        self._coroutine = coroutine
        self._context = context

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine, run = self._coroutine, self._context.run
        try:
            waits_for = run(coroutine.send, None)
            while True:
                try:
                    sent = yield waits_for
                except GeneratorExit:
                    run(coroutine.close)
                    raise
                except BaseException as error:
                    waits_for = run(coroutine.throw, error)
                else:
                    waits_for = run(coroutine.send, sent)
        except StopIteration as done:
            return done.value
