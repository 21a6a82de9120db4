"""Events that are shown as notices, with the same text in every renderer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from amplifier_app.base.own_packages import OWN_PACKAGES
from amplifier_app.base.redact import redact
from amplifier_app.base.sanitize import one_line
from amplifier_app.runtime.describe import count, error_text, tokens
from amplifier_app.runtime.observers.observer import Level, Renderer
from amplifier_app.runtime.turns.turn import EventHandler, peek


def retry_text(data: dict[str, Any], limit: int) -> str:
    """Describe a provider's retry in one line; the cause is cut to `limit` characters."""
    provider = one_line(str(peek(data, "provider") or "provider"), 60)
    attempt, attempts = peek(data, "attempt"), peek(data, "max_retries")
    delay = peek(data, "delay")
    cause = str(peek(data, "error_message") or peek(data, "error_type") or "request failed")
    about = one_line(cause, limit)
    if not about.lower().startswith(provider.lower()):
        about = f"{provider}: {about}"
    wait = f" in {round(delay, 1):g} s" if isinstance(delay, (int, float)) else ""
    known = attempt is not None and attempts is not None
    count = f", attempt {attempt} of {attempts}" if known else ""
    return f"{about}; retrying{wait}{count}"


def _fallback_text(data: dict[str, Any], limit: int) -> str:
    """Describe a switch to another provider in one line; the cause is cut to `limit` characters."""
    name, instead = (
        one_line(str(peek(data, key) or "another provider"), 60) for key in ("provider", "fallback")
    )
    model = one_line(str(peek(data, "fallback_model") or ""), 60)
    about = ", ".join(filter(None, (model, _price_text(peek(data, "price")))))
    text = f"{name} is not available: {error_text(data, limit)}; using {instead} instead"
    return f"{text}{f' ({about})' if about else ''}{_until(data)}"


def _switch_text(data: dict[str, Any], limit: int) -> str:
    """Describe the change of the answering model in one line; empty if `_fallback_text` has."""
    cause, model = peek(data, "cause"), _name(data, "")
    price = _price_text(peek(data, "price"))
    about = f" ({price})" if price else ""
    if cause is None:
        return f"{model} answers again{about}"
    if cause == "fallback":
        return ""
    why = "a hook chose it" if cause == "hook" else "the service chose it"
    return f"{model}{about} answers instead of {_name(data, 'requested_')}{_until(data)}: {why}"


def _price_text(price: Any) -> str:
    """A price of input and output tokens, as events have it; empty if it is unknown."""
    amounts = [peek(price, key) for key in ("input", "output")]
    if not all(isinstance(amount, (int, float)) for amount in amounts):
        return ""
    return "${:g} in, ${:g} out per million tokens".format(*amounts)


def _name(data: dict[str, Any], which: str) -> str:
    name = peek(data, f"{which}model") or peek(data, f"{which}provider") or "another model"
    return one_line(str(name), 60)


def _until(data: dict[str, Any]) -> str:
    until = str(peek(data, "until") or "").replace("_", " ")
    return f" until the {until}" if until else ""


def _overflow_text(data: dict[str, Any], limit: int) -> str:
    """Describe a request that was too long in one line."""
    before, after = peek(data, "before_tokens"), peek(data, "after_tokens")
    model = one_line(str(peek(data, "model") or peek(data, "provider") or "the model"), 60)
    if isinstance(before, int) and isinstance(after, int):
        sizes = f"about {tokens(before)} → {tokens(after)} tokens"
        return (
            f"the conversation is too long for {model}; retrying once with a shorter one ({sizes})"
        )
    return f"the conversation is too long for {model} and cannot be shortened"


def compaction_text(data: dict[str, Any], limit: int) -> str:
    """Describe a compaction in one line; empty if it changed nothing."""
    before, after = peek(data, "before_tokens"), peek(data, "after_tokens")
    if isinstance(before, int) and isinstance(after, int):
        if after >= before:
            return ""
        text = f"context compacted: {tokens(before)} → {tokens(after)} tokens"
        dropped = peek(data, "removed_messages")
        if not isinstance(dropped, int) or dropped < 1:
            return text
        became = "a summary replaces" if peek(data, "strategy") == "summarize" else "without"
        return f"{text}, {became} {count(dropped, 'message')}"
    return "context compacted"


def _step_text(data: dict[str, Any], limit: int) -> str:
    """Name the step that begins; empty if there is only one step."""
    step, count = peek(data, "step"), peek(data, "count")
    if not isinstance(count, int) or count < 2:
        return ""
    return f"step: {one_line(str(peek(step, 'name') or ''), limit)}"


_NOTICES: dict[str, tuple[Callable[[dict[str, Any], int], str], Level, str]] = {
    "provider:retry": (retry_text, "warning", "provider"),
    "provider:fallback": (_fallback_text, "warning", "provider"),
    "provider:switched": (_switch_text, "info", "provider"),
    "context:overflow": (_overflow_text, "warning", "context"),
    "step:start": (_step_text, "info", "loop"),
    "context:post_compact": (compaction_text, "info", "context"),
}
"""Text, level and source by event; an empty text shows nothing."""


def notice_handlers(renderer: Renderer) -> dict[str, EventHandler]:
    """Return handlers that show these events and module notifications with `renderer.notice`."""

    def show(event: str, data: dict[str, Any]) -> None:
        describe, level, source = _NOTICES[event]
        if event == "provider:retry" and not renderer.retries.is_new_event(data):
            return
        text = describe(data, renderer.longest_note)
        if text and event == "context:post_compact" and renderer.saved_as is not None:
            text += f"; the session keeps all: amplifier session show {renderer.saved_as}"
        if text:
            renderer.notice(text, level, source)

    def notify(event: str, data: dict[str, Any]) -> None:
        level = peek(data, "level")
        if text := str(peek(data, "message") or peek(data, "text") or ""):
            renderer.notice(text, level if level in ("warning", "error") else "info", "module")

    return {**dict.fromkeys(_NOTICES, show), "user:notification": notify}


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
            # A renderer may pass it on to an editor, or to a file.
            text = redact(self._text(record))
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
        # Some errors, such as Pydantic's, have several lines.
        return message if self._verbose else one_line(message, 2000)


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
