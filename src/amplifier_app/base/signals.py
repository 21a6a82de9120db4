"""Signals during a turn: Ctrl-C stops it in three levels; SIGTERM stops it immediately.

The handlers are Python's (`signal.signal`), not the event loop's: they also run while the program is
blocked writing to a slow reader, where a third Ctrl-C must still end it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from amplifier_app.base.blocked_loop import GRACE_SECONDS, BlockLimit
from amplifier_app.base.errors import Terminated

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_TERMINATING = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)
)

_NOW = 2  # the level at which a turn is stopped immediately; above it, an exception is raised


_raised: int | None = None
"""The last signal that raised an exception outside of a turn, or that was held."""

_HELD_SECONDS = 1.0
"""Longer than that nothing holds signals: it may wait for a terminal that no one reads."""

_held_until = 0.0


def raise_on_signals() -> None:
    """Make Ctrl-C raise `KeyboardInterrupt` from now on, and SIGTERM and SIGHUP `Terminated`.

    Ignored signals stay ignored. Compiled code that runs at that moment may swallow the exception, or
    turn it into another one: `raise_noted_signal` and `signal_behind` make up for that.
    """
    global _raised
    _raised = None
    sys.unraisablehook = _report_unraisable
    for signum in (signal.SIGINT, *_TERMINATING):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _raise)


def _raise(signum: int, frame: FrameType | None) -> None:
    global _raised
    _raised = signum
    if time.monotonic() >= _held_until:
        raise _exception(signum)


def _report_unraisable(unraisable: UnraisableHookArgs) -> None:
    """Report an exception that Python swallows, as in `__del__`; the exception for a signal is raised again.

    Without an event loop that happens in `raise_noted_signal`.
    """
    error = unraisable.exc_value
    if not isinstance(error, (KeyboardInterrupt, Terminated)):
        sys.__unraisablehook__(unraisable)
        return
    with contextlib.suppress(RuntimeError):  # no loop runs
        asyncio.get_running_loop().call_soon_threadsafe(_raise_again, error)


def _raise_again(error: BaseException) -> NoReturn:
    raise error


@contextlib.contextmanager
def wake_on_signals(loop: asyncio.AbstractEventLoop) -> Generator[None]:
    """Have every signal wake the loop: otherwise one that comes just before the loop waits for events, or in
    another thread, is handled with the next event, which may be never.
    """
    # Only the main thread handles signals, and on Windows asyncio's loops see to it.
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = socket.socketpair()
    with reading, writing:
        reading.setblocking(False)
        writing.setblocking(False)
        loop.add_reader(reading, reading.recv, 4096)
        before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(reading)


@contextlib.contextmanager
def hold_signals() -> Generator[None]:
    """Finish what is done in it: a signal that comes meanwhile raises its exception at the end."""
    global _held_until, _raised
    before, _raised = _raised, None
    _held_until = time.monotonic() + _HELD_SECONDS
    try:
        yield
    finally:
        _held_until = 0.0
        held, _raised = _raised, _raised or before
    if held is not None:
        raise _exception(held)


def _exception(signum: int) -> KeyboardInterrupt:
    return (
        KeyboardInterrupt() if signum == signal.SIGINT else Terminated(signal.Signals(signum).name)
    )


def raise_noted_signal() -> None:
    """Raise the exception of a signal that came outside of a turn and has ended nothing."""
    if _raised is not None:
        raise _exception(_raised)


def signal_behind(error: BaseException) -> BaseException:
    """The exception of a signal that came outside of a turn, instead of what it was turned into."""
    if _raised is None or isinstance(error, KeyboardInterrupt):
        return error
    exception = _exception(_raised)
    exception.__cause__ = error
    return exception


class Interrupts:
    """While entered, the first Ctrl-C asks the turn to stop after its step, the second to stop
    immediately, and the third raises `KeyboardInterrupt`. SIGTERM and SIGHUP stop it immediately; the
    second one raises `Terminated`. Ignored signals (`nohup`, background jobs) stay ignored. A signal
    that has come before, and has ended nothing, raises its exception when this is entered. What still
    blocks the event loop 5 seconds after an immediate stop gets the exception `LoopBlocked`.

    Args:
        stop: Called in the event loop with ``immediate``.

    Attributes:
        received: The last signal received, or the last that was not Ctrl-C; None if there was none.
    """

    def __init__(self, stop: Callable[[bool], Any]) -> None:
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._limit: BlockLimit | None = None
        self._level = 0
        self._previous: dict[int, Any] = {}
        self.received: int | None = None

    def __enter__(self) -> Interrupts:
        raise_noted_signal()
        for signum in (signal.SIGINT, *_TERMINATING):
            handler = signal.getsignal(signum)
            if handler is signal.SIG_IGN:
                continue
            self._previous[signum] = handler
            signal.signal(signum, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._limit is not None:
            self._limit.remove()
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    @property
    def terminated(self) -> bool:
        """True if a signal was not Ctrl-C."""
        return self.received in _TERMINATING

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if not self.terminated or signum in _TERMINATING:
            self.received = signum
        level = self._level + 1
        self._level = level if signum == signal.SIGINT else max(level, _NOW)
        if self._level > _NOW:
            raise _exception(signum)
        if self._level == _NOW:
            self._limit = self._limit or BlockLimit(GRACE_SECONDS)
        self._loop.call_soon_threadsafe(self._stop, self._level == _NOW)
