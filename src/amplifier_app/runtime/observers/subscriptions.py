"""Subscribe the renderer and the turn recorder to the events of a session.

Text of an answer is shown once, even if a provider restarts the answer. Bundled providers never
retry once they have sent text. Others may: they emit `provider:retry` and stream from the
beginning. Text already shown is then skipped; where the second answer differs from the first, it
is shown from its beginning on a new line.

Report the text of answers for loops that report no blocks.

Such a loop adds an answer to the context before it runs the calls of the answer or ends; the text
is read from there.

End the calls that a loop does not run, for renderers.

Some loops emit nothing for a call that a hook denied: it is over at the next request, or with the
next answer if they report no requests. For an unknown tool, some emit only `error:tool`.
"""

from __future__ import annotations

from typing import Any, cast

from amplifier_app.runtime import describe
from amplifier_app.runtime.observers.observer import BEFORE_EVENTS, FIRST, LAST, Renderer
from amplifier_app.runtime.observers.visibility import visible_only
from amplifier_app.runtime.turns.turn import EventHandler, peek
from amplifier_app.runtime.turns.turn_recorder import TurnRecorder
from amplifier_app.sessions.tool_calls import calls_in
from amplifier_core.events import (
    APPROVAL_DENIED,
    APPROVAL_GRANTED,
    APPROVAL_REQUIRED,
    CONTENT_BLOCK_DELTA,
    CONTENT_BLOCK_END,
    CONTENT_BLOCK_START,
    ORCHESTRATOR_COMPLETE,
    PROMPT_SUBMIT,
    PROVIDER_REQUEST,
    TOOL_ERROR,
    TOOL_POST,
    TOOL_PRE,
)
from amplifier_support.session_capabilities import REDACT_EVENT

UNREPORTED = "app-unreported-blocks"
"""The `source` in the events of such blocks."""


def report_unreported_blocks(coordinator: Any) -> None:
    """Emit `content_block:end` for the text of answers of which nothing is reported."""
    reports = False
    done: tuple[int, dict[str, Any]] | None = None

    def on_block(event: str, data: dict[str, Any]) -> None:
        nonlocal reports
        reports = reports or dict.get(data, "source") != UNREPORTED

    def on_next(event: str, data: dict[str, Any]) -> None:
        nonlocal reports
        reports = False

    async def on_answer(event: str, data: dict[str, Any]) -> None:
        nonlocal done
        context = None if reports else coordinator.get("context")
        if context is None:
            return
        messages = await context.get_messages()
        # Further calls of the same answer.
        if not messages or done == (len(messages), messages[-1]):
            return
        done = (len(messages), messages[-1])
        blocks = _texts(messages[-1], before_calls=event == TOOL_PRE)
        for index, block in enumerate(blocks):
            about = {"block_type": block["type"], "block_index": index, "total_blocks": len(blocks)}
            await coordinator.hooks.emit(
                CONTENT_BLOCK_END, {**about, "block": block, "source": UNREPORTED}
            )

    handlers = {
        **dict.fromkeys((CONTENT_BLOCK_START, CONTENT_BLOCK_DELTA, CONTENT_BLOCK_END), on_block),
        **dict.fromkeys((PROMPT_SUBMIT, PROVIDER_REQUEST), on_next),
        **dict.fromkeys((TOOL_PRE, ORCHESTRATOR_COMPLETE), on_answer),
    }
    for event, handler in handlers.items():
        coordinator.hooks.register(event, handler, FIRST, name=UNREPORTED)


def _texts(message: dict[str, Any], *, before_calls: bool) -> list[dict[str, Any]]:
    """Return the blocks with text of a message if it is an answer with calls, or without."""
    if message.get("role") != "assistant" or bool(calls_in(message)) != before_calls:
        return []
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    return [
        cast("dict[str, Any]", block)
        for block in blocks
        if isinstance(block, dict) and block.get("type") in ("text", "thinking")
    ]


def with_denied_ends(handlers: dict[str, EventHandler]) -> dict[str, EventHandler]:
    """Wrap the handlers of a renderer so that a call that does not run ends in every loop."""
    calls = _RunningCalls(handlers.get("tool:error", _nothing))
    watched: dict[str, EventHandler] = {
        # A stopped prompt ends its calls itself.
        "cancel:requested": calls.forget,
        "prompt:submit": calls.forget,
        "execution:start": calls.forget,
        "tool:pre": calls.began,
        "tool:post": calls.ended,
        "tool:error": calls.ended,
        APPROVAL_DENIED: calls.denied,
        "error:tool": calls.not_found,
        "provider:request": calls.requested,
        "content_block:end": calls.answered,
        "orchestrator:complete": calls.completed,
    }
    return {
        **handlers,
        **{event: _both(first, handlers.get(event, _nothing)) for event, first in watched.items()},
    }


class _RunningCalls:
    """The calls that began and have not ended.

    Args:
        on_error: Receives `tool:error` for those that do not run.
    """

    def __init__(self, on_error: EventHandler) -> None:
        self._on_error = on_error
        self._running: dict[Any, dict[str, Any]] = {}
        self._reasons: dict[Any, str] = {}

    def began(self, event: str, data: dict[str, Any]) -> None:
        self._running[_key(data)] = data

    def ended(self, event: str, data: dict[str, Any]) -> None:
        self._running.pop(_key(data), None)

    def denied(self, event: str, data: dict[str, Any]) -> None:
        reason = peek(data, "reason")
        self._reasons[peek(data, "tool_name")] = reason if isinstance(reason, str) else ""

    def requested(self, event: str, data: dict[str, Any]) -> None:
        for call in list(self._running.values()):
            reason = self._reasons.get(peek(call, "tool_name"))
            self._fail(call, "Denied", reason or "refused by a hook of the plan")
        self.forget(event, data)

    def answered(self, event: str, data: dict[str, Any]) -> None:
        if peek(data, "source") == UNREPORTED:
            self.requested(event, data)

    def completed(self, event: str, data: dict[str, Any]) -> None:
        ends_calls = peek(data, "status") in ("success", "incomplete")
        (self.requested if ends_calls else self.forget)(event, data)

    def not_found(self, event: str, data: dict[str, Any]) -> None:
        if self._running and peek(data, "error_type") == "tool_not_found":
            _, call = self._running.popitem()  # these loops run one call at a time
            self._fail(call, "ToolNotFound", peek(data, "error_message"))

    def forget(self, event: str, data: dict[str, Any]) -> None:
        self._running.clear()
        self._reasons.clear()

    def _fail(self, call: dict[str, Any], kind: str, message: Any) -> None:
        self._on_error("tool:error", {**call, "error": {"type": kind, "message": message}})


def _both(first: EventHandler, then: EventHandler) -> EventHandler:
    def handle(event: str, data: dict[str, Any]) -> None:
        first(event, data)
        then(event, data)

    return handle


def _key(data: dict[str, Any]) -> Any:
    return peek(data, "tool_call_id") or peek(data, "tool_name")


def _nothing(event: str, data: dict[str, Any]) -> None:
    pass


_DELTA = "content_block:delta"
_OF_CALLS = (TOOL_PRE, TOOL_POST, TOOL_ERROR, APPROVAL_REQUIRED, APPROVAL_GRANTED, APPROVAL_DENIED)


def subscribe(coordinator: Any, renderer: Renderer, recorder: TurnRecorder) -> None:
    """Register the handlers of both on the events of a session."""
    hooks = coordinator.hooks
    report_unreported_blocks(coordinator)
    for event, handler in named_calls(recorder.handlers()).items():
        # The recorder keeps the text of errors; of other events only names and numbers.
        handler = with_redaction(coordinator, handler) if event == "tool:error" else handler
        hooks.register(event, handler, FIRST, name="app-recorder")
    asked, allowed = recorder.denial_handlers()
    for event in (PROMPT_SUBMIT, PROVIDER_REQUEST):
        hooks.register(event, asked, FIRST, name="app-recorder")
        hooks.register(event, allowed, LAST, name="app-recorder")
    shown = visible_only(show_once(renderer.handlers()), renderer.visibility)
    if renderer.is_for_people:
        shown = with_short_denials(shown)
    shown = named_calls(with_call_ids(with_denied_ends(shown), recorder))
    for event, handler in shown.items():
        priority = FIRST if event in BEFORE_EVENTS else LAST
        hooks.register(event, with_redaction(coordinator, handler), priority, name="app-renderer")


def named_calls(handlers: dict[str, EventHandler]) -> dict[str, EventHandler]:
    """Wrap the handlers so that a call ends with an event that names its tool, as those of loops do.

    Some tools emit `tool:error` themselves, with other keys, and then return the failure.
    """

    def of_loops(handler: EventHandler) -> EventHandler:
        return lambda event, data: handler(event, data) if peek(data, "tool_name") else None

    ends = (TOOL_POST, TOOL_ERROR)
    return {
        event: of_loops(handler) if event in ends else handler
        for event, handler in handlers.items()
    }


def with_redaction(coordinator: Any, handler: EventHandler) -> EventHandler:
    """Wrap `handler` so that it receives events redacted by the session, if it redacts.

    Hooks cannot redact some events, because a tool or the model needs their data.
    """

    def shown(event: str, data: dict[str, Any]) -> None:
        redact = REDACT_EVENT.of(coordinator)
        handler(event, data if redact is None else redact(event, data))

    return shown


def with_call_ids(
    handlers: dict[str, EventHandler], recorder: TurnRecorder
) -> dict[str, EventHandler]:
    """Wrap the handlers of a renderer so that every event of a call has the call's id.

    Some loops send none, and calls of one tool that run in parallel could not be distinguished.
    """

    def with_identity(handler: EventHandler) -> EventHandler:
        return lambda event, data: handler(event, recorder.with_call_id(data))

    return {
        event: with_identity(handler) if event in _OF_CALLS else handler
        for event, handler in handlers.items()
    }


def with_short_denials(handlers: dict[str, EventHandler]) -> dict[str, EventHandler]:
    """Wrap the handlers of a renderer so that they show a denial as the user knows it.

    The text of a denial is for the model; the event `approval:denied` says who decided.
    """
    on_error = handlers.get("tool:error")
    if on_error is None:
        return handlers
    denials: dict[Any, str] = {}
    on_denied = handlers.get(APPROVAL_DENIED)

    def denied(event: str, data: dict[str, Any]) -> None:
        by, reason = peek(data, "decided_by"), peek(data, "reason")
        if by == "answer":
            denials[peek(data, "tool_call_id")] = describe.DENIED_BY_USER
        elif isinstance(by, str) and by != "policy":
            why = f": {reason}" if isinstance(reason, str) else ""
            denials[peek(data, "tool_call_id")] = f"denied by {by}{why}"
        if on_denied is not None:
            on_denied(event, data)

    def failed(event: str, data: dict[str, Any]) -> None:
        text = denials.pop(peek(data, "tool_call_id"), None)
        # A tool may fail with the same words.
        is_denial = peek(peek(data, "error"), "type") in ("Denied", None)
        if is_denial and describe.error_text(data).endswith(describe.DENIED_TO_MODEL):
            text = describe.DENIED_BY_USER
        if text is not None:
            data = {**data, "error": {"type": "Denied", "message": text}}
        on_error(event, data)

    return {**handlers, APPROVAL_DENIED: denied, "tool:error": failed}


def redacted_text(coordinator: Any, text: str) -> str:
    """Return a text redacted by the session, if it redacts."""
    redact = REDACT_EVENT.of(coordinator)
    return text if redact is None else redact("prompt:submit", {"prompt": text})["prompt"]


def show_once(handlers: dict[str, EventHandler]) -> dict[str, EventHandler]:
    """Wrap the handlers of a renderer so that they receive each text once."""
    inner = handlers.get(_DELTA)
    if inner is None:
        return handlers
    answer = _ShowOnce(inner)
    begin, retry = handlers.get("provider:request"), handlers.get("provider:retry")

    def on_request(event: str, data: dict[str, Any]) -> None:
        answer.begin()
        if begin is not None:
            begin(event, data)

    def on_retry(event: str, data: dict[str, Any]) -> None:
        answer.restart()
        if retry is not None:
            retry(event, data)

    return {
        **handlers,
        _DELTA: answer.on_delta,
        "provider:request": on_request,
        "provider:retry": on_retry,
    }


class _ShowOnce:
    """Filters the text of one answer, by block type.

    Args:
        handler: Shows the text.
    """

    def __init__(self, handler: EventHandler) -> None:
        self._handler = handler
        self.begin()

    def begin(self) -> None:
        """Start a new request."""
        self._shown: dict[Any, list[str]] = {}
        self._awaited: dict[Any, str] = {}

    def restart(self) -> None:
        """Expect the same answer from its beginning."""
        self._awaited = {kind: "".join(texts) for kind, texts in self._shown.items()}

    def on_delta(self, event: str, data: dict[str, Any]) -> None:
        kind, delta = peek(data, "block_type"), peek(data, "delta")
        if not isinstance(delta, str):
            self._handler(event, data)
        elif awaited := self._awaited.get(kind):
            self._compare(event, data, kind, delta, awaited)
        else:
            self._shown.setdefault(kind, []).append(delta)
            self._handler(event, data)

    def _compare(
        self, event: str, data: dict[str, Any], kind: Any, delta: str, awaited: str
    ) -> None:
        same = _common(delta, awaited)
        if same == len(delta):
            self._awaited[kind] = awaited[same:]
            return
        del self._awaited[kind]
        if same == len(awaited):
            new_text = delta[same:]
            self._shown[kind].append(new_text)
        else:
            before = "".join(self._shown[kind])
            whole = before[: len(before) - len(awaited)] + delta
            new_text = f"\n{whole}"
            self._shown[kind] = [whole]
        self._handler(event, {**data, "delta": new_text})


def _common(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
