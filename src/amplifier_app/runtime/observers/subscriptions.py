"""The border between the events of any loop and the app: everything beyond sees canonical events.

* A loop that reports no blocks adds an answer to the context before it runs the calls of the answer or
  ends; the text is read from there, and reported.
* A call that does not run ends. Some loops emit nothing for a call that a hook denied: it is over at the
  next request, or with the next answer if they report no requests. For an unknown tool, some emit only
  `error:tool`.
* Text is shown once. Bundled providers never retry once they have sent text. Others may: they emit
  `provider:retry` and stream from the beginning. Text already shown is then skipped; where the second
  answer differs from the first, it is shown from its beginning on a new line.
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
from amplifier_support.text import common_length

_DELTA = "content_block:delta"
_ENDS = (TOOL_POST, TOOL_ERROR)
_OF_CALLS = (TOOL_PRE, *_ENDS, APPROVAL_REQUIRED, APPROVAL_GRANTED, APPROVAL_DENIED)

UNREPORTED = "app-unreported-blocks"
"""The `source` in the events of such blocks."""


def _report_unreported_blocks(coordinator: Any) -> None:
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


class _RunningCalls:
    """The calls that began and have not ended.

    Args:
        on_error: Receives `tool:error` for those that do not run.

    Attributes:
        events: The events that begin and end calls.
    """

    def __init__(self, on_error: EventHandler) -> None:
        self._on_error = on_error
        self._running: dict[Any, dict[str, Any]] = {}
        self._reasons: dict[Any, str] = {}
        self._changes: dict[str, EventHandler] = {
            # A stopped prompt ends its calls itself.
            "cancel:requested": self.forget,
            PROMPT_SUBMIT: self.forget,
            "execution:start": self.forget,
            TOOL_PRE: self.began,
            TOOL_POST: self.ended,
            TOOL_ERROR: self.ended,
            APPROVAL_DENIED: self.denied,
            "error:tool": self.not_found,
            PROVIDER_REQUEST: self.requested,
            CONTENT_BLOCK_END: self.answered,
            ORCHESTRATOR_COMPLETE: self.completed,
        }
        self.events = tuple(self._changes)

    def observe(self, event: str, data: dict[str, Any]) -> None:
        """Record an event, and end the calls that it shows to be over."""
        change = self._changes.get(event)
        if change is not None:
            change(event, data)

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
        self._on_error(TOOL_ERROR, {**call, "error": {"type": kind, "message": message}})


def _key(data: dict[str, Any]) -> Any:
    return peek(data, "tool_call_id") or peek(data, "tool_name")


def subscribe(coordinator: Any, renderer: Renderer, recorder: TurnRecorder) -> None:
    """Register the handlers of both on the events of a session."""
    hooks = coordinator.hooks
    _report_unreported_blocks(coordinator)
    for event, handler in recorder.handlers().items():
        # The recorder keeps the text of errors; of other events only names and numbers.
        handler = _with_redaction(coordinator, handler) if event == TOOL_ERROR else handler
        handler = _of_named_tools(handler) if event in _ENDS else handler
        hooks.register(event, handler, FIRST, name="app-recorder")
    asked, allowed = recorder.denial_handlers()
    for event in (PROMPT_SUBMIT, PROVIDER_REQUEST):
        hooks.register(event, asked, FIRST, name="app-recorder")
        hooks.register(event, allowed, LAST, name="app-recorder")
    observe(coordinator, renderer, recorder)


def observe(coordinator: Any, renderer: Renderer, recorder: TurnRecorder) -> None:
    """Register the handlers of a renderer on the events of a session that `recorder` records."""
    for event, handler in _canonical_handlers(renderer, recorder).items():
        priority = FIRST if event in BEFORE_EVENTS else LAST
        handler = _with_redaction(coordinator, handler)
        coordinator.hooks.register(event, handler, priority, name="app-renderer")


def _canonical_handlers(renderer: Renderer, recorder: TurnRecorder) -> dict[str, EventHandler]:
    """Return handlers that pass the events of any loop to a renderer, each call complete.

    Every event of a call has the call's id and its tool, and a call that began ends once.
    """
    handlers = visible_only(show_once(renderer.handlers()), renderer.visibility)
    denials = _Denials() if renderer.is_for_people else None

    def show(event: str, data: dict[str, Any]) -> None:
        handler = handlers.get(event)
        if denials is not None:
            data = denials.adapt(event, data)
        if handler is not None:
            handler(event, data)

    calls = _RunningCalls(show)

    def on_event(event: str, data: dict[str, Any]) -> None:
        if event in _OF_CALLS:
            data = recorder.with_call_id(data)
        calls.observe(event, data)
        show(event, data)

    return {
        **handlers,
        **dict.fromkeys((*calls.events, *_OF_CALLS), on_event),
        **dict.fromkeys(_ENDS, _of_named_tools(on_event)),
    }


def _of_named_tools(handler: EventHandler) -> EventHandler:
    """Wrap `handler` so that it receives the ends of calls that name their tool, as loops emit them.

    Some tools emit `tool:error` themselves, with other keys, and then return the failure.
    """
    return lambda event, data: handler(event, data) if peek(data, "tool_name") else None


def _with_redaction(coordinator: Any, handler: EventHandler) -> EventHandler:
    """Wrap `handler` so that it receives events redacted by the session, if it redacts.

    Hooks cannot redact some events, because a tool or the model needs their data.
    """

    def shown(event: str, data: dict[str, Any]) -> None:
        redact = REDACT_EVENT.of(coordinator)
        handler(event, data if redact is None else redact(event, data))

    return shown


class _Denials:
    """Shows denials as the user knows them.

    The text of a denial is for the model; the event `approval:denied` says who decided.
    """

    def __init__(self) -> None:
        self._texts: dict[Any, str] = {}

    def adapt(self, event: str, data: dict[str, Any]) -> dict[str, Any]:
        if event == APPROVAL_DENIED:
            by, reason = peek(data, "decided_by"), peek(data, "reason")
            if by == "answer":
                self._texts[peek(data, "tool_call_id")] = describe.DENIED_BY_USER
            elif isinstance(by, str) and by != "policy":
                why = f": {reason}" if isinstance(reason, str) else ""
                self._texts[peek(data, "tool_call_id")] = f"denied by {by}{why}"
        elif event == TOOL_ERROR:
            text = self._texts.pop(peek(data, "tool_call_id"), None)
            # A tool may fail with the same words.
            is_denial = peek(peek(data, "error"), "type") in ("Denied", None)
            if is_denial and describe.error_text(data).endswith(describe.DENIED_TO_MODEL):
                text = describe.DENIED_BY_USER
            if text is not None:
                return {**data, "error": {"type": "Denied", "message": text}}
        return data


def redacted_text(coordinator: Any, text: str) -> str:
    """Return a text redacted by the session, if it redacts."""
    redact = REDACT_EVENT.of(coordinator)
    return text if redact is None else redact("prompt:submit", {"prompt": text})["prompt"]


def show_once(handlers: dict[str, EventHandler]) -> dict[str, EventHandler]:
    """Wrap the handlers of a renderer so that they receive each text once."""
    if _DELTA not in handlers:
        return handlers
    answer = _ShowOnce(handlers[_DELTA])
    first = {"provider:request": answer.begin, "provider:retry": answer.restart}

    def on_event(event: str, data: dict[str, Any]) -> None:
        first[event]()
        if (handler := handlers.get(event)) is not None:
            handler(event, data)

    return {**handlers, _DELTA: answer.on_delta, **dict.fromkeys(first, on_event)}


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
        same = common_length(delta, awaited)
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
