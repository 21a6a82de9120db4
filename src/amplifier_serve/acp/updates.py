"""The `session/update` notifications of an editor: what happens, and what a saved session has."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from amplifier_app.base.stdio import Output
from amplifier_app.render.approval import find_change
from amplifier_app.render.events import EventStream
from amplifier_app.render.result import RunReport
from amplifier_app.runtime import describe
from amplifier_app.runtime.approvals import current_mode
from amplifier_app.runtime.continuation import build_conversation
from amplifier_app.runtime.observers.observer import Level
from amplifier_app.runtime.observers.visibility import shown_blocks
from amplifier_app.runtime.status import read_status
from amplifier_app.runtime.turns.turn import (
    EventHandler,
    has_succeeded,
    input_in,
    peek,
    result_in,
)
from amplifier_app.sessions.conversation import Call, Note, Prompt, Step
from amplifier_support.fields import to_mapping
from amplifier_support.session_capabilities import REDACT_EVENT

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession

KINDS = {
    "read_file": "read",
    "write_file": "edit",
    "edit_file": "edit",
    "bash": "execute",
    "grep": "search",
    "glob": "search",
    "web_search": "search",
    "tool_search": "search",
    "web_fetch": "fetch",
    "todo": "think",
}
_MAX_OUTPUT = 100_000
"""Characters of a result."""
_LIVE_OUTPUT = 4000
"""Characters shown of the output of a call that is running."""
_STATES = ("pending", "in_progress", "completed")
_TOKENS = {
    "totalTokens": "total_tokens",
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "thoughtTokens": "reasoning_tokens",
    "cachedReadTokens": "cache_read_tokens",
    "cachedWriteTokens": "cache_write_tokens",
}
"""Counts in the answer to a prompt, and the fields of the kernel's `Usage`."""


class Updates(EventStream):
    """A renderer that sends updates to the editor; other messages go to stderr.

    Args:
        send: Sends one: its kind and its fields.

    Attributes:
        session: The open session; None before there is one.
        running: The input of each tool call in progress, by its id.
        unsaved: See `amplifier_support.session_capabilities.EditorFiles`.
        has_terminals: Whether the editor shows the output of a command in a terminal.
    """

    is_for_people = True

    def __init__(self, send: Callable[[str, dict[str, Any]], None]) -> None:
        super().__init__(Output(-1), RunReport(), quiet=True)
        self.send = send
        self.session: OpenSession | None = None
        self.running: dict[str, tuple[str, Any]] = {}
        self.unsaved: Mapping[str, str] = {}
        self.has_terminals = False
        self._held: list[str] = []
        self._is_prompting = False
        self._diffs: dict[str, Any] = {}
        self._spans: dict[Any, str] = {}
        self._output: dict[str, str] = {}
        self._title: str | None = None
        self._used: int | None = None

    def handlers(self) -> dict[str, EventHandler]:
        own = {"approval:mode_changed": self._on_mode, "tool:output": self._on_output}
        return {**super().handlers(), **own}

    # Messages

    def hold(self, text: str) -> None:
        """Show a message with the next prompt: outside of prompts, editors show none."""
        self._held.append(text)

    def prompt_begins(self) -> None:
        """Show the messages that were held."""
        self._is_prompting = True
        for text in self._held:
            self.say(text)
        self._held.clear()

    def say(self, text: str) -> None:
        """Show a paragraph that is not part of the model's answer."""
        self.send("agent_message_chunk", {"content": text_block(f"{text}\n\n")})

    def notice(self, message: str, level: Level, source: str) -> None:
        super().notice(message, level, source)
        if level == "info":
            return
        if self._is_prompting:
            self.send("agent_thought_chunk", {"content": text_block(f"{level}: {message}\n\n")})
        else:
            self.hold(f"{level}: {message}")

    def close(self) -> None:
        self.session = None

    # The state of the session

    def prompt_ended(self) -> None:
        """Send what a prompt has changed."""
        self._is_prompting = False
        self.running.clear()
        self._diffs.clear()
        self._spans.clear()
        self._output.clear()
        self._send_usage()
        self.send_title()

    def send_title(self) -> None:
        """Send the title of the session if it has changed."""
        saved = None if self.session is None else self.session.saved
        title = None if saved is None else saved.metadata.get("title")
        if saved is not None and isinstance(title, str) and title != self._title:
            self._title = title
            about = {"title": title, "updatedAt": saved.metadata.get("updated")}
            self.send("session_info_update", about)

    def _send_usage(self) -> None:
        if self.session is None:
            return
        status = read_status(self.session)
        used, size, cost = status.context_used, status.context_limit, status.cost
        if used is None or size is None or used == self._used:
            return
        self._used = used
        priced = {} if cost is None else {"cost": {"amount": float(cost), "currency": "USD"}}
        self.send("usage_update", {"used": used, "size": size, **priced})

    def _on_mode(self, event: str, data: dict[str, Any]) -> None:
        mode = None if self.session is None else current_mode(self.session.session.coordinator)
        if mode is not None:
            self.send("current_mode_update", {"currentModeId": mode})

    # Events

    def _event(self, kind: str, **fields: Any) -> None:
        match kind:
            case "text":
                self.send("agent_message_chunk", {"content": text_block(fields["delta"])})
            case "thinking":
                self.send("agent_thought_chunk", {"content": text_block(fields["delta"])})
            case "request":
                self._send_usage()
            case "tool_start":
                self._announce(str(fields["id"]), str(fields["name"]), fields["input"])
                todos = peek(fields["input"], "todos")
                if isinstance(todos, list):
                    entries = [_plan_entry(todo) for todo in cast("list[Any]", todos)]
                    self.send("plan", {"entries": entries})
            case _:
                pass

    def _announce(self, id: str, name: str, input: Any) -> None:
        self.running[id] = (name, input)
        call = self.describe_call(name, input)
        if "content" in call:  # Its text comes from a file, too.
            call |= self.redacted_input("", {"content": call["content"]})
            self._diffs[id] = call["content"]
        elif call["kind"] == "execute" and self.has_terminals:
            call["content"] = [{"type": "terminal", "terminalId": id}]
            call["_meta"] = {"terminal_info": {"terminal_id": id}}
        self.send("tool_call", {"toolCallId": id, "status": "in_progress", **call})

    def describe_call(self, name: str, input: Any) -> dict[str, Any]:
        """A tool call as an editor shows it: title, kind, places and the change of a file."""
        arguments = to_mapping(input)
        data = {"tool_name": name, "tool_input": arguments}
        call: dict[str, Any] = {
            "title": describe.call(name, arguments),
            "kind": KINDS.get(name, "other"),
            "rawInput": dict(arguments),
        }
        folder = os.getcwd() if self.session is None else self.session.facts.working_dir
        path = describe.find_file(data)
        if path is not None and "\0" not in path:
            line = arguments.get("offset")
            place: dict[str, Any] = {"path": os.path.join(folder, path)}
            if isinstance(line, int) and line > 0:
                place["line"] = line
            call["locations"] = [place]
            unsaved = self.unsaved.get(os.path.realpath(place["path"]))
            change = find_change(arguments, folder, unsaved) if call["kind"] == "edit" else None
            if change is not None and not change.is_refused:
                texts = {"oldText": change.old, "newText": change.new}
                call["content"] = [{"type": "diff", "path": place["path"], **texts}]
        return call

    def redacted_input(self, name: str, input: Any) -> Any:
        """The input of a call as events of the session have it."""
        redact = None if self.session is None else REDACT_EVENT.of(self.session.session.coordinator)
        if redact is None:
            return input
        return redact("tool:pre", {"tool_name": name, "tool_input": input})["tool_input"]

    def _on_tool_start(self, event: str, data: dict[str, Any]) -> None:
        self._spans[peek(data, "span_id")] = str(peek(data, "tool_call_id"))
        super()._on_tool_start(event, data)

    def _on_output(self, event: str, data: dict[str, Any]) -> None:
        """Show what a running call has written: all of it in a terminal, otherwise its end."""
        id, text = self._find_running(data), str(peek(data, "text") or "")
        if id is None or not text:
            return
        update: dict[str, Any] = {"toolCallId": id, "status": "in_progress"}
        if self._is_in_terminal(id):
            skipped = peek(data, "skipped")
            note = f"[{skipped:,} characters left out]\n" if skipped else ""
            self._output[id] = text
            update["_meta"] = {"terminal_output": {"terminal_id": id, "data": note + text}}
        else:
            self._output[id] = (self._output.get(id, "") + text)[-_LIVE_OUTPUT:]
            update["content"] = _result_content(self._output[id])
        self.send("tool_call_update", update)

    def _find_running(self, data: dict[str, Any]) -> str | None:
        span, tool = peek(data, "span_id"), peek(data, "tool_name")
        if span is not None:
            id = self._spans.get(span)
            return id if id in self.running else None
        # Tools of other authors do not know their span.
        ids = [id for id, (name, _) in self.running.items() if name == tool]
        return ids[0] if len(ids) == 1 else None

    def _is_in_terminal(self, id: str) -> bool:
        name, _ = self.running[id]
        return self.has_terminals and KINDS.get(name) == "execute"

    def _on_tool_end(self, event: str, data: dict[str, Any]) -> None:
        self._tool_end(data, has_succeeded(result_in(data)), describe.shown_result(data))

    def _on_tool_error(self, event: str, data: dict[str, Any]) -> None:
        id = str(peek(data, "tool_call_id"))
        if id not in self.running:  # It cannot run: its tool is unknown, or its input is invalid.
            self._announce(id, str(peek(data, "tool_name")), input_in(data))
        super()._on_tool_error(event, data)

    def _tool_end(self, data: dict[str, Any], success: bool, output: str) -> None:
        id = str(peek(data, "tool_call_id"))
        is_in_terminal = id in self.running and self._is_in_terminal(id)
        self.running.pop(id, None)
        written = self._output.pop(id, "")
        diff = self._diffs.pop(id, None) if success else None
        update: dict[str, Any] = {
            "toolCallId": id,
            "status": "completed" if success else "failed",
            "rawOutput": _cut(output),
        }
        if is_in_terminal:
            code = 0 if success else peek(peek(result_in(data), "error"), "exit_code")
            update["_meta"] = {
                "terminal_output": {"terminal_id": id, "data": _cut(_rest(output, written))},
                "terminal_exit": {"terminal_id": id, "exit_code": code, "signal": None},
            }
        else:
            update["content"] = diff or _result_content(output)
        self.send("tool_call_update", update)


def count_tokens(session: OpenSession) -> dict[str, int]:
    """Count the tokens of a session so far; empty if its provider does not report them.

    Cached tokens are part of the input, as in the kernel's `Usage`.
    """
    tokens = session.usage.tokens
    if not tokens.keys() >= {"total_tokens", "input_tokens", "output_tokens"}:
        return {}
    return {name: tokens[key] for name, key in _TOKENS.items() if key in tokens}


def _result_content(text: str) -> list[dict[str, Any]]:
    """The content of a tool call that has this result."""
    return [{"type": "content", "content": text_block(_cut(text))}] if text else []


def _rest(output: str, written: str) -> str:
    """Return the part of a result after the last line that was already shown, such as a note on the sandbox."""
    last = written.rstrip("\n").rpartition("\n")[2]
    # As a whole line: "1" is also in "[exit code 1]".
    start, line, _ = f"\n{output}\n".rpartition(f"\n{last}\n")
    if not last or not line:
        return output
    rest = output[len(start) + len(last) :]
    return rest.removeprefix("\n") if written.endswith("\n") else rest


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_OUTPUT else f"{text[:_MAX_OUTPUT]}\n…"


def text_block(text: str) -> dict[str, Any]:
    """Text as a content block."""
    return {"type": "text", "text": text}


def _plan_entry(todo: Any) -> dict[str, Any]:
    """An item of a to-do list."""
    content, state = str(peek(todo, "content") or ""), peek(todo, "status")
    status = state if state in _STATES else "pending"
    return {"content": content, "priority": "medium", "status": status}


async def replay(session: OpenSession, updates: Updates) -> None:
    """Send the conversation of a saved session."""
    for item in await build_conversation(session):
        if isinstance(item, Prompt):
            updates.send("user_message_chunk", {"content": text_block(item.text)})
        elif isinstance(item, Step):
            _replay_step(session, item, updates)
        elif isinstance(item, Note) and item.is_attachment:
            for image in _images(item):
                updates.send("user_message_chunk", {"content": image})


def _replay_step(session: OpenSession, step: Step, updates: Updates) -> None:
    content = step.message.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    blocks = cast("list[Any]", content if isinstance(content, list) else [])
    for block in shown_blocks(blocks, session.renderer.visibility):
        text, thinking = block.get("text"), block.get("thinking")
        if block.get("type") == "text" and isinstance(text, str) and text:
            updates.send("agent_message_chunk", {"content": text_block(text)})
        elif block.get("type") == "thinking" and isinstance(thinking, str) and thinking:
            updates.send("agent_thought_chunk", {"content": text_block(thinking)})
    for call in step.calls:
        _replay_call(call, updates)


def _replay_call(call: Call, updates: Updates) -> None:
    details = updates.describe_call(call.name, call.input)
    result = call.shown
    # Not the change of a file, which is another one by now.
    details["content"] = _result_content(result or "")
    status = "failed" if result is None else "completed"
    updates.send(
        "tool_call", {"toolCallId": call.id or f"call-{call.number}", "status": status} | details
    )


def _images(note: Note) -> Iterator[dict[str, Any]]:
    content = note.message.get("content")
    for block in cast("list[Any]", content if isinstance(content, list) else []):
        match block:
            case {"type": "image", "source": {"data": str(data), "media_type": str(media_type)}}:
                yield {"type": "image", "data": data, "mimeType": media_type}
            case _:
                pass
