"""Name on stderr the steps that take long before a session is open, such as a module that hangs."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Generator

_FIRST_SECONDS = 2.0
_REPEAT_SECONDS = 10.0
_POLL_SECONDS = 0.5


class _Reporter:
    """Reports in a thread, as a module that is imported blocks the event loop.

    Attributes:
        is_on: Whether to report; a library does not.
        show: Shows a report; returns False if it cannot.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.show: Callable[[str], bool] = lambda text: False
        self._steps: dict[object, tuple[str, float]] = {}
        self._has_thread = False
        self._lock = threading.Lock()

    def begin(self, key: object, text: str) -> None:
        with self._lock:
            self._steps[key] = text, time.monotonic()
            if not self._has_thread:
                self._has_thread = True
                threading.Thread(target=self._watch, name="slow-steps", daemon=True).start()

    def end(self, key: object) -> None:
        with self._lock:
            del self._steps[key]

    def _watch(self) -> None:
        """Report until no step is left."""
        due: dict[object, float] = {}
        while True:
            time.sleep(_POLL_SECONDS)
            with self._lock:
                steps = dict(self._steps)
                if not steps:
                    self._has_thread = False
                    return
            for key, (text, began) in steps.items():
                seconds = time.monotonic() - began
                if self.is_on and seconds >= due.get(key, _FIRST_SECONDS):
                    due[key] = seconds + _REPEAT_SECONDS
                    report = f"still {text} after {seconds:.0f} s"
                    if not self.show(report):
                        # Not through `sys.stderr`: what a screen shows of it waits for the event loop.
                        with contextlib.suppress(OSError):
                            os.write(2, f"amplifier: {report}\n".encode(errors="replace"))


_reporter = _Reporter()


def report_slow_steps(is_on: bool) -> None:
    """Report steps of more than 2 s from now on, or no longer."""
    _reporter.is_on = is_on


def show_slow_steps(show: Callable[[str], bool]) -> None:
    """Report steps through `show`, which is called in another thread and returns False if it cannot."""
    _reporter.show = show


@contextlib.contextmanager
def slow_step(text: str) -> Generator[None]:
    """Report the block if it takes long; `text` completes "still …"."""
    if not _reporter.is_on:
        yield
        return
    key = object()
    _reporter.begin(key, text)
    try:
        yield
    finally:
        _reporter.end(key)
