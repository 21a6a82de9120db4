"""The activity of a turn in one line, and its usage in another."""

from __future__ import annotations

import time
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from amplifier_app.base.sanitize import one_line
from amplifier_app.render.ansi import cells, clip, paint
from amplifier_app.runtime import describe
from amplifier_app.runtime.turns.turn import TurnResult, peek

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
SPINNER_SECONDS = 0.1

_CHARACTERS_PER_TOKEN = 4
_SECONDS_SHOWN_AFTER = 1.0

_CAUSES = {
    "RateLimitError": ("rate limited", "for the rate limit"),
    "NetworkError": ("connection failed", "for the connection"),
    "LLMTimeoutError": ("no answer in time", "after a timeout"),
    "StreamError": ("the answer was cut off", "after an answer was cut off"),
}
_OVERLOADED, _UNAVAILABLE = 529, 503
_OTHER_WAIT = "to repeat a failed request"
_MAX_CAUSE = 60


class Progress:
    """The state of the model call that runs.

    Attributes:
        since: `time.monotonic()` at its start.
    """

    def __init__(self) -> None:
        self._model = ""
        self._doing = "waiting"
        self.since = time.monotonic()
        self._characters = 0
        self._retry: tuple[str, float, str] | None = None  # cause, end of the wait, attempt
        self._waited = 0.0
        self._waited_for = ""
        self._tries = 1

    def start_call(self, model: str = "") -> None:
        """A model call starts."""
        self._model = one_line(model, 40) or self._model
        self._doing = "waiting"
        self.since = time.monotonic()
        self._characters = 0

    def add_characters(self, kind: str, characters: int) -> None:
        """A piece of the answer has arrived."""
        self._doing = "thinking" if kind == "thinking" else "writing"
        self._characters += characters
        self._end_wait()

    def seconds(self) -> float:
        """Seconds since the model call started."""
        return time.monotonic() - self.since

    def retries(self, data: dict[str, Any]) -> None:
        """The provider waits before it repeats a request."""
        self._end_wait()
        delay = _delay(data)
        cause, self._waited_for = _cause(data)
        self._retry = (cause, time.monotonic() + delay, _attempt(data))
        self._waited += delay
        self._tries += 1

    def _end_wait(self) -> None:
        if self._retry is not None:
            # The wait may have been cut short.
            self._waited -= max(0.0, self._retry[1] - time.monotonic())
            self._retry = None

    def take_retry_summary(self) -> str:
        """Return, once, a summary of the retries; empty if there were none."""
        if self._retry is not None and self._retry[1] > time.monotonic():
            self._tries -= 1  # stopped before the request was repeated
        self._end_wait()
        waited, self._waited = self._waited, 0.0
        tries, self._tries = self._tries, 1
        tried = f", tried {tries} times" if tries > 2 else ""
        return f"waited {round(waited)} s {self._waited_for}{tried}" if waited >= 0.5 else ""

    def line(self, width: int, key: str, hint: str) -> str:
        """Return the line for what is going on, at most `width` cells wide.

        Args:
            width: Cells of the line.
            key: The key that stops the turn.
            hint: What this and other keys do.
        """
        if self._retry is not None:
            cause, end, attempt = self._retry
            left = end - time.monotonic()
            others = cells(_retrying("", left, attempt)) + cells(f"  · {key} to give up")
            retrying = _retrying(clip(cause, max(width - others, 8)), left, attempt)
            return clip(f"{spinner()} {retrying} · {key} to give up", width)
        text = " ".join(filter(None, (self._model, self._doing)))
        if self.seconds() > _SECONDS_SHOWN_AFTER:
            text += f" · {int(self.seconds())} s"
        if self._characters:
            count = max(1, self._characters // _CHARACTERS_PER_TOKEN)
            text += f" · ↓ {describe.count(count, 'token')}"
        return with_hint(f"{spinner()} {text}", hint, width)


def retry_text(data: dict[str, Any]) -> str:
    """Describe a retry: `rate limited, retrying in 4 s (2 of 4)`."""
    return _retrying(_cause(data)[0], _delay(data), _attempt(data))


def _retrying(cause: str, seconds: float, attempt: str) -> str:
    left = max(0, round(seconds))
    when = f"retrying in {left} s" if left else "retrying"
    comma = "" if cause.endswith("…") else ","
    return f"{cause}{comma} {when}{attempt}"


def _cause(data: dict[str, Any]) -> tuple[str, str]:
    message = one_line(str(peek(data, "error_message") or "the request failed"), _MAX_CAUSE)
    kind = str(peek(data, "error_type"))
    if kind == "ProviderUnavailableError":
        return _unavailability(peek(data, "status_code"), message)
    return _CAUSES.get(kind, (message, _OTHER_WAIT))


def _unavailability(status: Any, message: str) -> tuple[str, str]:
    # Providers of other authors send no status.
    if status == _OVERLOADED or "overloaded" in message.lower():
        return "the provider is overloaded", "for the overloaded provider"
    code = f" ({status})" if isinstance(status, int) else ""
    if code and status >= 500 and status != _UNAVAILABLE:
        return f"server error{code}", "after a server error"
    return f"the provider is unavailable{code}", "for the unavailable provider"


def _delay(data: dict[str, Any]) -> float:
    delay = peek(data, "delay")
    return float(delay) if isinstance(delay, (int, float)) else 0.0


def _attempt(data: dict[str, Any]) -> str:
    attempt, attempts = peek(data, "attempt"), peek(data, "max_retries")
    return f" ({attempt} of {attempts})" if attempt and attempts else ""


def spinner() -> str:
    """Return the current frame of the spinner."""
    return paint(SPINNER[int(time.monotonic() / SPINNER_SECONDS) % len(SPINNER)], "accent")


def with_hint(line: str, hint: str, width: int) -> str:
    """Return a line with a hint at its right end, if there is room."""
    gap = width - cells(line) - cells(hint)
    return f"{line}{' ' * gap}{paint(hint, 'dim')}" if hint and gap >= 2 else clip(line, width)


def join_parts(*parts: str) -> str:
    """Join the parts that are not empty with ` · `."""
    return " · ".join(filter(None, parts))


def footer(
    result: TurnResult, seconds: float, changed: int, *, commands: Iterable[str] = ()
) -> str:
    """Summarize a turn: `5 steps · 41 s · 38.2k in (91 % cached) · 1.9k out · $0.043`.

    Args:
        result: The turn.
        seconds: How long it took to be shown.
        changed: Number of files it changed.
        commands: Slash commands for these files.
    """
    read, written = result.usage.get("input_tokens", 0), result.usage.get("output_tokens", 0)
    cached = result.usage.get("cache_read_tokens") or 0
    share = f" ({round(100 * cached / read)} % cached)" if read and cached else ""
    files = f"{describe.count(changed, 'file')} changed {' '.join(commands)}".rstrip()
    parts = [
        describe.count(result.steps, "step") if result.steps else "",
        describe.duration(seconds if result.seconds is None else result.seconds),
        f"{describe.tokens(read)} in{share}" if read else "",
        f"{describe.tokens(written)} out" if written else "",
        _dollars(result.cost, is_estimate=bool(result.usage.get("estimated_calls"))),
        files if changed else "",
    ]
    return join_parts(*parts)


def _dollars(cost: Decimal | None, *, is_estimate: bool) -> str:
    if not cost:
        return ""
    amount = (
        f"${cost:.2f}" if cost >= 1 else f"${cost:.3f}" if cost >= Decimal("0.0005") else "<$0.001"
    )
    return f"~{amount}" if is_estimate else amount
