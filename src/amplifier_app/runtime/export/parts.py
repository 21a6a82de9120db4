"""The parts of a saved conversation that are shown, and its heading."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from amplifier_app.base.json_text import value_text
from amplifier_app.base.keys import fill_environment
from amplifier_app.base.sanitize import one_line
from amplifier_app.runtime import describe
from amplifier_app.runtime.observers.visibility import Visibility, find_mark, shown_blocks
from amplifier_app.sessions.conversation import Call, Conversation, Item, Note, Prompt, Step
from amplifier_app.sessions.folder import SessionFolder
from amplifier_app.sessions.summary import cost_in
from amplifier_app.sessions.tool_calls import as_text
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.redaction import Redactor, secrets_in


class Part(NamedTuple):
    """A piece of a conversation as it is shown."""

    kind: Literal["prompt", "answer", "thinking", "call", "note"]
    text: str


class Heading(NamedTuple):
    """The heading of a conversation: its title and facts about it."""

    title: str
    facts: Sequence[str] = ()
    lines: Sequence[str] = ()


def read_time(event: Mapping[str, Any]) -> float | None:
    """When an event happened, in seconds since the epoch; None if its time cannot be read."""
    try:
        return datetime.fromisoformat(event["ts"]).timestamp()
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return None


def build_heading(
    session_id: str, metadata: Mapping[str, Any], conversation: Conversation, *, age: bool
) -> Heading:
    """The heading of a session, with its `age` or else the time of its last use."""

    def text(key: str) -> str:
        value = metadata.get(key)
        return one_line(value) if isinstance(value, str) else ""

    usage = metadata.get("usage")
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    cost = cost_in(metadata)
    facts = (
        session_id,
        describe.count(conversation.size.prompts, "prompt"),
        describe.count(conversation.size.steps, "step"),
        f"{describe.tokens(total)} tokens" if isinstance(total, int) else "",
        "" if cost is None else describe.cost(cost),
        text("model"),
        text("project"),
        describe.age(text("updated")) if age else text("updated"),
    )
    return Heading(text("title") or session_id, [fact for fact in facts if fact])


def build_parts(items: Iterable[Item], visibility: Visibility) -> Iterator[Part]:
    """The parts of a conversation that are shown at a level of visibility."""
    before = ""
    for item in items:
        if isinstance(item, Prompt):
            yield Part("prompt", item.text)
        elif isinstance(item, Step):
            if (switch := _switch(item)) != before and switch:
                yield Part("note", switch)
            before = switch
            yield from _answer(item, visibility)
            for call in item.calls:
                yield Part("call", _call_line(call))
        elif note := _note(item, whole=visibility.level == "internal"):
            yield Part("note", note)


def last_prompts(conversation: Conversation, count: int) -> Iterator[Item]:
    """The items from the beginning of the last `count` prompts; all with 0."""
    first = conversation.size.prompts - count + 1 if count else 0

    def is_before(item: Item) -> bool:
        return first > 0 and not (isinstance(item, Prompt) and item.number == first)

    return itertools.dropwhile(is_before, conversation)


def _answer(step: Step, visibility: Visibility) -> Iterator[Part]:
    content = step.message.get("content")
    if isinstance(content, str):
        yield Part("answer", content)
        return
    blocks: list[Any] = shown_blocks(content, visibility) if isinstance(content, list) else []
    thought = step.message.get("thinking_block")
    if isinstance(thought, dict) and visibility.shows("thinking", find_mark(thought)):
        blocks = [thought, *blocks]
    seen: set[str] = set()
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "thinking":
            text = str(block.get("thinking") or "")
            if text and text not in seen:
                yield Part("thinking", text)
            seen.add(text)
        elif kind == "text":
            yield Part("answer", str(block.get("text", "")))
        elif kind not in ("tool_call", "tool_result"):
            yield Part("note", f"({one_line(str(kind), 40)})")


def _switch(step: Step) -> str:
    """The model that answered a step and why, if it is not the requested one; else nothing."""
    if not step.switched:
        return ""
    cause, reason, until = (step.switched.get(key) for key in ("cause", "reason", "until"))
    model, requested = (one_line(name or "?", 60) for name in (step.model, step.requested_model))
    text = f"{model} answered instead of {requested} ({one_line(str(cause), 40)}"
    text += f": {one_line(str(reason), 200)})" if reason else ")"
    return f"{text}, until the {one_line(str(until), 40).replace('_', ' ')}" if until else text


def _note(note: Note, *, whole: bool) -> str:
    """Describe another message, or show the `whole` text; empty for a system prompt that is not shown."""
    if note.kind == "cleared":
        return "The context was cleared here."
    if note.kind == "replaced":
        return "The context was replaced here, for example by a summary."
    text = as_text(note.message.get("content"))
    if note.is_attachment:
        return f"attached: {one_line(text, 400)}"
    name = "system prompt" if note.is_instruction else "added by a hook"
    if whole:
        return f"{name}:\n{text}"
    return "" if note.is_instruction else f"{name}: {len(text):,} characters"


def _call_line(call: Call) -> str:
    """A tool call in one line: `7 bash pytest -q · 12 lines`."""
    about = describe.tool_input({"tool_input": call.input})
    result = call.shown
    if result is None:
        size = "no result"
    else:
        count = len(result.splitlines())
        size = one_line(result, 60) if count == 1 else f"{count:,} lines"
    words = " ".join(filter(None, (str(call.number), one_line(call.name, 60), about)))
    return f"{words} · {size}" if size else words


def call_text(call: Call) -> str:
    """A tool call with its whole input and result, as text."""
    lines = [f"{call.number} {call.name}", ""]
    if isinstance(call.input, dict):
        for name, value in call.input.items():
            text = value_text(value)
            below = "\n" in text
            lines += [f"{name}:", *text.splitlines(), ""] if below else [f"{name}: {text}"]
    elif call.input is not None:
        lines.append(as_text(call.input))
    if lines[-1]:
        lines.append("")
    lines.append("result:" if call.result is not None else "no result was recorded")
    return "\n".join([*lines, *(call.shown or "").splitlines()])


class Exported(NamedTuple):
    """A session without secrets.

    Attributes:
        id: Its id.
        metadata: Its metadata.
        records: The records of its transcript, read and redacted each time they are iterated over.
        events: The log of its events, oldest first, likewise; empty if it was not logged.
        sub_sessions: The sessions it spawned, also further down.
        unredacted: Its conversation with secrets: only to be counted, which is faster.
    """

    id: str
    metadata: dict[str, Any]
    records: Iterable[dict[str, Any]]
    events: Iterable[dict[str, Any]]
    sub_sessions: tuple[Exported, ...] = ()
    unredacted: Conversation | None = None

    @property
    def conversation(self) -> Conversation:
        conversation = Conversation(self.records)
        if self.unredacted is not None:
            conversation.size = self.unredacted.size
        return conversation


def redactor() -> Redactor:
    """Replaces the values of stored keys and of secret variables, and whatever looks like a secret.

    Raises:
        ConfigError: The stored keys cannot be read.
    """
    return Redactor(secrets_in(os.environ, fill_environment().secret))


class _Redacted(Iterable[dict[str, Any]]):
    """Records without secrets, read and redacted each time they are iterated over."""

    def __init__(
        self, read: Callable[[], Iterable[dict[str, Any]]], redact: Callable[[Any], Any]
    ) -> None:
        self._read = read
        self._redact = redact

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self._redact, self._read())


def export_session(
    session: SessionFolder, spawned: Iterable[SessionFolder], redact: Callable[[Any], Any]
) -> Exported:
    """A session and those it spawned.

    Raises:
        SessionError: A transcript is damaged.
    """

    def read(folder: SessionFolder) -> Exported:
        saved = folder.records()
        unredacted = Conversation(saved)
        # Counting also finds damage before anything is written.
        _ = unredacted.size
        records = _Redacted(lambda: saved, redact)
        events = _Redacted(lambda: folder.events(), redact)
        return Exported(folder.id, redact(folder.metadata), records, events, unredacted=unredacted)

    return read(session)._replace(sub_sessions=tuple(read(folder) for folder in spawned))
