"""`--output stream-json`: one event per line, as defined in `schemas/events.schema.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amplifier_app.base.json_text import json_line
from amplifier_app.base.stdio import Output
from amplifier_app.render.result import SCHEMA_VERSION, RunReport, sub_session_object
from amplifier_app.render.text import StreamedBlocks
from amplifier_app.runtime import describe
from amplifier_app.runtime.observers.observer import Level, SessionFacts, SubSessionFacts
from amplifier_app.runtime.turns.turn import (
    EventHandler,
    SubSession,
    TurnResult,
    has_succeeded,
    input_in,
    peek,
    result_in,
)
from amplifier_support.fields import to_mapping

if TYPE_CHECKING:
    from amplifier_app.runtime.checks import CheckResult

_MAX_ERROR = 100_000
"""Maximum length of an error in an event, in characters."""


class EventStream(StreamedBlocks):
    """Writes each event immediately. The `result` line is written elsewhere, because it must
    appear even if no renderer exists yet."""

    def __init__(self, output: Output, report: RunReport, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self._output = output
        self._report = report
        self._is_event = False
        self._begin_message()

    def handlers(self) -> dict[str, EventHandler]:
        return {
            **super().handlers(),
            "tool:pre": self._on_tool_start,
            "tool:post": self._on_tool_end,
            "tool:error": self._on_tool_error,
            "provider:retry": self._on_provider_retry,
            "provider:fallback": self._on_fallback,
            "provider:switched": self._on_switched,
            "context:post_compact": self._on_compacted,
        }

    def session_opened(self, facts: SessionFacts) -> None:
        self._report.announced = True
        self._event(
            "session",
            schema_version=SCHEMA_VERSION,
            session_id=facts.session_id,
            saved=facts.saved,
            resumed=facts.resumed,
            working_dir=facts.working_dir,
            profile=facts.profile,
            plan_digest=self._report.plan_digest,
            provider=facts.provider,
            model=facts.model,
            tools=list(facts.tools),
        )

    def notice(self, message: str, level: Level, source: str) -> None:
        super().notice(message, level, source)
        if self._report.announced and not self._is_event:
            self._event("notice", level=level, message=message, source=source)

    def check_ended(self, result: CheckResult) -> None:
        self._event("check", **result._asdict())

    def sub_session_started(self, facts: SubSessionFacts) -> None:
        self._event("sub_session_start", **facts._asdict())

    def sub_session_ended(self, ended: SubSession) -> None:
        self._event("sub_session_end", **sub_session_object(ended))

    def turn_ended(self, result: TurnResult) -> None:
        # Some loops send no blocks of an answer.
        if not self._has_text and result.has_answer and result.response:
            self._event("text", delta=result.response)

    def _begin_message(self) -> None:
        super()._begin_message()
        self._has_text = False

    def _event(self, kind: str, **fields: Any) -> None:
        if not self._output.write(json_line({"type": kind, **fields})):
            self.on_failure()

    def _on_request(self, event: str, data: dict[str, Any]) -> None:
        super()._on_request(event, data)
        self._event("request", provider=peek(data, "provider"), model=peek(data, "model"))

    def _add_piece(self, kind: str, text: str) -> None:
        self._has_text = self._has_text or kind == "text"
        self._event(kind, delta=text)

    def _end_block(self, kind: str, text: str) -> None:
        if text:
            self._add_piece(kind, text)

    def _on_tool_start(self, event: str, data: dict[str, Any]) -> None:
        self._event(
            "tool_start",
            id=peek(data, "tool_call_id"),
            name=peek(data, "tool_name"),
            input=input_in(data),
        )

    def _on_tool_end(self, event: str, data: dict[str, Any]) -> None:
        self._tool_end(data, has_succeeded(result_in(data)), describe.result_text(data))

    def _on_tool_error(self, event: str, data: dict[str, Any]) -> None:
        self._tool_end(data, False, describe.error_text(data, _MAX_ERROR))

    def _tool_end(self, data: dict[str, Any], success: bool, output: str) -> None:
        self._event(
            "tool_end",
            id=peek(data, "tool_call_id"),
            name=peek(data, "tool_name"),
            success=success,
            output=output,
            duration_ms=_whole(peek(data, "duration_ms")),
        )

    def _notice_on_stderr(self, event: str, data: dict[str, Any]) -> None:
        """Show the notice on stderr only; stdout gets an event of its own."""
        self._is_event = True
        try:
            super().handlers()[event](event, data)
        finally:
            self._is_event = False

    def _on_provider_retry(self, event: str, data: dict[str, Any]) -> None:
        self._notice_on_stderr(event, data)
        fields = _pick(data, "provider", "model", "attempt", "max_retries", "error_type")
        delay = peek(data, "delay")
        milliseconds = delay * 1000 if isinstance(delay, (int, float)) else None
        self._event("retry", **fields, delay_ms=_whole(milliseconds))

    def _on_fallback(self, event: str, data: dict[str, Any]) -> None:
        self._notice_on_stderr(event, data)
        kind = to_mapping(peek(data, "error")).get("type")
        self._event("fallback", **_pick(data, "provider", "fallback"), error_type=kind)

    def _on_switched(self, event: str, data: dict[str, Any]) -> None:
        self._notice_on_stderr(event, data)
        names = ("provider", "model", "requested_provider", "requested_model", "cause", "reason")
        self._event("switched", **_pick(data, *names, "until", "price"))

    def _on_compacted(self, event: str, data: dict[str, Any]) -> None:
        names = ("before_tokens", "after_tokens", "before_messages", "after_messages")
        self._event("compacted", **_pick(data, *names))


def _pick(data: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: peek(data, name) for name in names}


def _whole(milliseconds: Any) -> int | None:
    return round(milliseconds) if isinstance(milliseconds, (int, float)) else None
