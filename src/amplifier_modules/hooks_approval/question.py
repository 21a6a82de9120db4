"""The question about a call for the user, and the message about a denial for the model."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from amplifier_modules._shared.history.access import CALL_TYPES, as_mapping, kind_of, mappings
from amplifier_modules.hooks_approval.rules import Call, Policy, Verdict, allowances

_MOST_SHOWN = 4000

ModelCall = tuple[str, str, Mapping[str, Any]]
"""A tool call of the model: id, tool and input."""


def subject(call: Call, redact: Callable[[Any], Any] = lambda value: value) -> str:
    """The subject of the call: the file it changes, its command, or its whole input.

    Args:
        call: The call.
        redact: Replaces secrets in text and data.
    """
    if call.changes_one_file:
        return redact(call.places[0].real)
    if call.command is None:
        return json.dumps(redact(dict(call.values)), default=repr, ensure_ascii=False)
    rest = {key: value for key, value in call.values.items() if value is not call.command}
    command = redact(call.command)
    return f"{command} {json.dumps(redact(rest), default=repr)}" if rest else command


def question_about(call: Call, verdict: Verdict) -> tuple[str, bool]:
    """The question for the user, and whether it shows the whole subject."""
    text = subject(call)
    whole = len(text) <= _MOST_SHOWN
    if not whole:
        left_out = len(text) - _MOST_SHOWN
        text = f"{text[:_MOST_SHOWN]} … and {left_out} more characters not shown"
    if "\n" in text or "\r" in text:
        # Marked line by line, so that no line of a command can pass for part of the question.
        text = "".join(f"\n  | {line}" for line in text.splitlines()) + "\n"
    if call.tool == "bash" and text == call.command:
        question = f"Run `{text}`?"
    else:
        question = f"Allow {call.tool}: {text}"
    if verdict.why:
        because = "Asking because " if verdict.why.startswith("it ") else "Reason: "
        question += f" ({because}{verdict.why})"
    return question, whole


def with_folder(call: Call, why: str | None) -> str | None:
    """The reason to ask, including the folder a command runs in if the call does not show it."""
    if call.command is None or call.start == call.base:
        return why
    where = f"it runs in {call.start}, where the last command ended"
    return f"{where}, and {why}" if why else where


def refusal(policy: Policy, call: Call, verdict: Verdict, *, asked: bool) -> str:
    """The message to the model about a denied call."""
    if asked:
        why = f"{call.tool}: {verdict.why}"
        if call.unclear is not None:
            why += f"; asked because {call.unclear}"
    else:
        why = f"{call.tool}: denied by {verdict.by} of the approval settings"
        why += f": {verdict.why}" if verdict.why else ""
    allowed = allowances(policy, call.tool)
    hint = f" Allowed without asking: {allowed}." if allowed else ""
    return f"{why}. Do not try to reach the same in another way; go on without it or ask the user.{hint}"


async def calls_of_last_message(context: Any) -> list[ModelCall]:
    """The tool calls of the model's last message."""
    messages = context.get_messages() if context is not None else []
    if inspect.isawaitable(messages):
        messages = await messages
    for message in reversed(list(mappings(messages))):
        if message.get("role") == "assistant":
            return list(_calls_in(message))
    return []


def _calls_in(message: Mapping[str, Any]) -> Iterator[ModelCall]:
    known: set[str] = set()
    blocks = [one for one in mappings(message.get("content")) if kind_of(one) in CALL_TYPES]
    for one in (*blocks, *mappings(message.get("tool_calls"))):
        id = one.get("id")
        name = one.get("name") or one.get("tool")
        values = one.get("input") if "input" in one else one.get("arguments")
        given = as_mapping(values)
        if isinstance(id, str) and isinstance(name, str) and given is not None and id not in known:
            known.add(id)
            yield id, name, given
