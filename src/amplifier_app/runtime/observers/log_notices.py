"""Show log messages of modules as notices instead of stray lines on the terminal."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from amplifier_app.base.own_packages import OWN_PACKAGES
from amplifier_app.runtime.observers.observer import Level, Renderer


class LogNotices(logging.Handler):
    """Shows warnings and errors through a renderer.

    Messages logged while modules mount are held until `show_held`, because the session itself
    reports, once, why a module mounted nothing.

    Args:
        renderer: Shows the messages.
        verbose: Show debug messages of Amplifier and tracebacks, immediately.
    """

    def __init__(self, renderer: Renderer, *, verbose: bool) -> None:
        super().__init__(logging.DEBUG if verbose else logging.WARNING)
        self._renderer = renderer
        self._verbose = verbose
        self._held: list[logging.LogRecord] | None = None if verbose else []

    def emit(self, record: logging.LogRecord) -> None:
        if self._held is not None:
            self._held.append(record)
            return
        try:
            text = self._text(record)
            if self._verbose or self._renderer.retries.is_new_log(text):
                self._renderer.notice(text, _level(record), record.name)
        # Like logging itself: a record that cannot be formatted must not end the program.
        except Exception:
            self.handleError(record)

    def show_held(self, reported: Iterable[str] = ()) -> None:
        """Show held messages, except those contained in a text of `reported`."""
        held, self._held = self._held or [], None
        reported = list(reported)
        for record in held:
            message = record.getMessage()
            if record.name != "amplifier_core.mounting" and not any(
                message in text for text in reported
            ):
                self.emit(record)

    def _text(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if self._verbose:
            message = f"{record.name}: {message}"
            if record.exc_info:
                message += "\n" + logging.Formatter().formatException(record.exc_info)
        elif record.exc_info and record.exc_info[1] is not None:
            message += f": {record.exc_info[1]!r}"
        return message


def _level(record: logging.LogRecord) -> Level:
    if record.levelno >= logging.ERROR:
        return "error"
    return "warning" if record.levelno >= logging.WARNING else "info"


def show_logs(renderer: Renderer, *, verbose: bool) -> LogNotices:
    """Send all log messages of this process to `renderer`."""
    handler = LogNotices(renderer, verbose=verbose)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO if verbose else logging.WARNING)
    if verbose:
        for name in OWN_PACKAGES:
            logging.getLogger(name).setLevel(logging.DEBUG)
    return handler
