"""Short descriptions of tool calls, durations and amounts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, cast

from amplifier_app.base.sanitize import one_line
from amplifier_app.runtime.turns.turn import input_in, peek, result_in
from amplifier_app.sessions.tool_calls import agent_answer
from amplifier_support.clock import utc_now, utc_time
from amplifier_support.fields import read_field, to_mapping

_MAIN_KEYS = ("command", "file_path", "path", "query", "url", "name", "prompt", "task", "proposal")
"""Input fields that identify a call, most specific first."""


DENIED_BY_USER = "denied by you"
"""The error of a call that the user denied, as a person sees it."""

DENIED_TO_MODEL = "denied by the user"
"""The reason of such a denial that the app gives a module."""

_EDITING_TOOLS = ("write_file", "edit_file")


def first_sentence(text: str) -> str:
    """Return a text up to the end of its first sentence."""
    return re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0]


def tool_name(data: dict[str, Any]) -> str:
    """Return the tool name of a tool event, safe for one line of a terminal."""
    return one_line(str(peek(data, "tool_name") or "tool"), 60)


def tool_input(data: dict[str, Any], limit: int = 100) -> str:
    """Summarize the input of a tool call: its main field, or else compact JSON."""
    value = input_in(data)
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        if isinstance(fields.get("instruction"), str):
            return one_line(task(fields.get("agent"), fields["instruction"]), limit)
        if isinstance(fields.get("pattern"), str):
            where = fields.get("path") or ""
            return one_line(
                f"{fields['pattern']} in {where}" if where else fields["pattern"], limit
            )
        for key in _MAIN_KEYS:
            if isinstance(fields.get(key), str) and fields[key]:
                return one_line(fields[key], limit)
        if isinstance(fields.get("todos"), list):
            return _progress(fields["todos"])
        value = json.dumps(fields, default=str, ensure_ascii=False) if fields else ""
    return one_line(str(value or ""), limit)


def call(name: str, input: Any) -> str:
    """Summarize a tool call in a few words: its command, or else its name and input."""
    command = to_mapping(input).get("command")
    if isinstance(command, str) and command.strip():
        return one_line(command, 60)
    return one_line(f"{name} {tool_input({'tool_input': input})}", 60)


def changed_files(data: dict[str, Any]) -> list[str]:
    """Return the files that a successful tool call has changed, as far as its event shows."""
    path = find_file(data)
    return [path] if path and peek(data, "tool_name") in _EDITING_TOOLS else []


def find_file(data: dict[str, Any]) -> str | None:
    """Return the file or folder that the input of a tool call names."""
    fields = to_mapping(input_in(data))
    values = (fields.get(name) for name in ("file_path", "path"))
    return next((path for path in values if isinstance(path, str) and path), None)


def _progress(todos: list[Any]) -> str:
    """`1 of 3 done`, for a to-do list."""
    done = sum(isinstance(todo, Mapping) and todo.get("status") == "completed" for todo in todos)
    return f"{done} of {len(todos)} done"


def task(agent: Any, instruction: str) -> str:
    """Summarize a delegated task: `reviewer: Look at the diff`."""
    return f"{agent}: {instruction}" if isinstance(agent, str) and agent else instruction


def result_text(data: dict[str, Any]) -> str:
    """Return a tool's result as unsanitized text."""
    result = result_in(data)
    answer = agent_answer(read_field(result, "output"))
    if answer is not None:
        return answer
    serialized = getattr(result, "get_serialized_output", None)
    if callable(serialized):
        return str(serialized())
    if isinstance(result, Mapping):
        fields = cast("Mapping[str, Any]", result)
        error = fields.get("error")
        result = fields.get("output") or peek(error, "message") or error or ""
    if isinstance(result, (Mapping, list)):
        return json.dumps(result, ensure_ascii=False, default=str)
    return "" if result is None else str(result)


def shown_result(data: dict[str, Any]) -> str:
    """Return a tool's result as unsanitized text for people: of a command, what it has written."""
    result = result_in(data)
    output = read_field(result, "output")
    written = [read_field(output, name) for name in ("stdout", "stderr")]
    if not isinstance(written[0], str):
        return result_text(data)
    text = "".join(part for part in written if isinstance(part, str)).rstrip("\n")
    code = read_field(output, "returncode")
    return f"{text}\n[exit code {code}]" if isinstance(code, int) else text


def block_text(data: dict[str, Any]) -> str:
    """Return the text of a finished text or thinking block."""
    block = peek(data, "block")
    texts = (read_field(block, name) for name in ("text", "thinking"))
    return next((text for text in texts if isinstance(text, str)), "")


def error_text(data: dict[str, Any], limit: int = 200) -> str:
    """Return the message of an error event, cut to `limit` characters."""
    error = peek(data, "error")
    error = to_mapping(error).get("message") or error
    return one_line(str(error or "failed"), limit)


def was_skipped(error: str | None) -> bool:
    """Return True if the error of a call says that a loop did not run it."""
    return bool(error) and error.startswith("not run: ")


def duration(seconds: float) -> str:
    """`300 ms`, `12 s`, `2 min 5 s`, `3 h 20 min`."""
    if seconds < 0.95:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def age(time: str, now: datetime | None = None) -> str:
    """Return the age of an ISO 8601 time: `just now`, `5 min ago`, `3 h ago`, `2 d ago`, a date."""
    try:
        then = datetime.fromisoformat(time)
    except ValueError:
        return ""
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    seconds = ((now or utc_now()) - then).total_seconds()
    if seconds < 60:
        return "just now"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min ago"
    if seconds < 86_400:
        return f"{seconds // 3600:.0f} h ago"
    if seconds < 14 * 86_400:
        return f"{seconds // 86_400:.0f} d ago"
    return utc_time(then.timestamp()).astimezone().strftime("%Y-%m-%d")


def count(number: int, noun: str) -> str:
    """`1 prompt`, `2 prompts`, `1,200 prompts`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def changed_since(files: Sequence[str]) -> str:
    """`2 files changed since: a.py, b.py`, naming at most three; empty for none."""
    if not files:
        return ""
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    names = ", ".join(one_line(file, 40) for file in files[:3])
    return f"{count(len(files), 'file')} changed since: {names}{more}"


def size(number: int) -> str:
    """A number of bytes: `950 B`, `12 kB`, `3.4 MB`."""
    if number < 1000:
        return f"{number} B"
    if number < 999_500:
        return f"{number / 1000:.0f} kB"
    return f"{number / 1_000_000:.1f} MB" if number < 999_950_000 else f"{number / 1e9:.1f} GB"


def tokens(count: int) -> str:
    """`950`, `12.3k`, `200k`, `1.2M`."""
    if count < 1000:
        return str(count)
    number, unit = (count / 1000, "k") if count < 999_950 else (count / 1_000_000, "M")
    return f"{number:.1f}".removesuffix(".0") + unit


def cost(dollars: Decimal) -> str:
    """`$0.0123`: four digits below a dollar, two above."""
    return f"${dollars:.4f}" if dollars < 1 else f"${dollars:.2f}"
