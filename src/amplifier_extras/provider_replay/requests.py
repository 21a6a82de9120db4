"""Requests in a recording, and how they are compared.

Values that differ from run to run are ignored: ids of tool calls, which are numbered by first
appearance; the working directory; dates, times, durations; UUIDs and other long hexadecimal ids;
and text added by `hooks-status`. Streaming, time limits and metadata are not part of a request.
"""

from __future__ import annotations

import builtins
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from pydantic import BaseModel

from amplifier_core import llm_errors
from amplifier_core.llm_errors import LLMError
from amplifier_modules._shared.history.request import normalise

_OPTIONS = (
    "temperature",
    "top_p",
    "max_output_tokens",
    "tool_choice",
    "stop",
    "reasoning_effort",
    "response_format",
)
_DATE = r"\d{4}-\d\d-\d\d"
_CLOCK = r"\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?"
_ZONE = r"(?:\s?(?:Z|UTC|GMT|CES?T|[+-]\d\d:?\d\d))?"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)(?:uary|ruary|ch|il|e|y|ust|tember|ober|ember)?"
_WEEKDAY = r"(?:(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?,?\s+)?"
_ID = (
    r"(?<![0-9A-Za-z])(?:\d{8}-\d{6}-[0-9a-f]{6}|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
    r"|(?=[0-9a-f]*[0-9])[0-9a-f]{16,64})(?![0-9A-Za-z])"
)
_CHANGING = (
    (r'<system-reminder source="hooks-status">.*?</system-reminder>', "{status}"),
    (
        rf"{_WEEKDAY}(?:\b{_DATE}|\b\d{{1,2}}\.?\s+{_MONTH}(?:\s+\d{{4}})?|\b{_MONTH}\s+\d{{1,2}}(?:,?\s+\d{{4}})?)"
        rf"(?:[T ,]+{_CLOCK}{_ZONE})?(?![\w-])",
        "{time}",
    ),
    (rf"(?<![\w:.]){_CLOCK}{_ZONE}(?![\w:])", "{time}"),
    (r"(?<![\w.])\d+(?:\.\d+)?\s?(?:ms|µs|s|secs?|seconds)(?!\w)", "{duration}"),
    (r'(?<="duration_ms":)\s*[\d.]+', "{duration}"),
    (_ID, "{id}"),
)

_ANY_ID = re.compile(_ID)
_REDACTED = re.compile(r"\[REDACTED:[\w-]+\]")

Plain = dict[str, Any]


def plain_request(request: Any, options: Mapping[str, Any]) -> Plain:
    """A request and its keyword arguments, as plain data: `messages`, `tools` and options."""
    asked = normalise(request)
    plain: Plain = {"messages": [_dumped_message(m) for m in asked.messages]}
    if asked.tools:
        plain["tools"] = [_dumped(tool) for tool in asked.tools]
    for name in ("model", *_OPTIONS):
        value = options.get(name)
        if value is None:
            value = getattr(asked, name, None)
        if value is not None:
            plain[name] = _dumped(value) if isinstance(value, BaseModel) else value
    return plain


def fingerprint(comparable: Plain) -> str:
    """Equal for matching requests."""
    text = json.dumps(comparable, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def same(recorded: Any, asked: Any) -> bool:
    """Return True if two comparable requests match; redacted text matches any text.

    Keys known when the recording was made may be unknown now.
    """
    if recorded == asked:
        return True
    if isinstance(recorded, str) and isinstance(asked, str) and _REDACTED.search(recorded):
        return _is_filled_in(_REDACTED.split(recorded), asked)
    if isinstance(recorded, list) and isinstance(asked, list):
        pair = cast("list[Any]", recorded), cast("list[Any]", asked)
        return len(pair[0]) == len(pair[1]) and all(map(same, *pair))
    if isinstance(recorded, dict) and isinstance(asked, dict):
        then, now = cast("Plain", recorded), cast("Plain", asked)
        return then.keys() == now.keys() and all(same(then[key], now[key]) for key in then)
    return False


def _is_filled_in(parts: list[str], text: str) -> bool:
    """Return True if `text` is `parts` with any text between them.

    Without a regular expression, which a recording could craft to run forever.
    """
    first, *between, last = parts
    if not text.startswith(first):
        return False
    at = len(first)
    for part in between:
        start = text.find(part, at + 1)
        if start < 0:
            return False
        at = start + len(part)
    return len(text) - len(last) > at and text.endswith(last)


def ids_in(request: Plain) -> list[str]:
    """The ignored ids in the texts of a request, in order."""
    ids: list[str] = []
    for message in request["messages"]:
        for text in texts_in(message.get("content")):
            ids += _ANY_ID.findall(text)
    return ids


def texts_in(value: Any) -> Iterator[str]:
    """Every text of some plain data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from texts_in(item)
    elif isinstance(value, dict):
        for item in cast("dict[str, Any]", value).values():
            yield from texts_in(item)


def folder_pattern(folder: str) -> re.Pattern[str]:
    """A pattern for a folder and paths inside it."""
    return re.compile(re.escape(folder) + r"(?![\w.-])")


class Comparing:
    """Prepare requests for comparison.

    Args:
        folder: The working directory of their run.
        ignore: Further text to ignore, as regular expressions.
        structure: Whether to compare only the messages of the model, next to tools and options.
    """

    def __init__(self, folder: str, ignore: Iterable[str] = (), *, structure: bool = False) -> None:
        self._structure = structure
        folders = {folder, os.path.realpath(folder)} - {"/", ""}
        self._rules = [(re.compile(pattern), "{ignored}") for pattern in ignore]
        self._rules += [
            (folder_pattern(path), "{cwd}") for path in sorted(folders, key=len, reverse=True)
        ]
        self._rules += [(re.compile(pattern, re.DOTALL), name) for pattern, name in _CHANGING]
        self._texts: dict[str, str] = {}

    def comparable(self, request: Plain) -> Plain:
        """The plain `request` with ignored text replaced by placeholders."""
        ids: dict[str, str] = {}
        messages = [self._message(message, ids) for message in request["messages"]]
        if self._structure:
            messages = [message for message in messages if message.get("role") == "assistant"]
        return {**request, "messages": messages}

    def _message(self, message: Plain, ids: dict[str, str]) -> Plain:
        changed = {key: value for key, value in message.items() if key != "metadata"}
        if "tool_call_id" in changed:
            changed["tool_call_id"] = _numbered(changed["tool_call_id"], ids)
        content = changed.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if isinstance(content, list):
            blocks = cast("list[Any]", content)
            changed["content"] = [self._block(block, ids) for block in blocks]
        return changed

    def _block(self, block: Any, ids: dict[str, str]) -> Any:
        if not isinstance(block, Mapping):
            return rewrite_texts(block, self._text)
        changed = dict(cast("Mapping[str, Any]", block))
        if changed.get("type") in ("thinking", "redacted_thinking", "reasoning", "image"):
            return changed
        for key, value in changed.items():
            if key in ("id", "tool_call_id") and isinstance(value, str):
                changed[key] = _numbered(value, ids)
            elif key not in ("type", "name"):
                changed[key] = rewrite_texts(value, self._text)
        return changed

    def _text(self, text: str) -> str:
        known = self._texts.get(text)
        if known is None:
            known = text
            for pattern, name in self._rules:
                known = pattern.sub(name, known)
            self._texts[text] = known
        return known


def _numbered(call_id: str, ids: dict[str, str]) -> str:
    return ids.setdefault(call_id, f"call-{len(ids) + 1}")


def _dumped_message(message: BaseModel) -> Plain:
    """A message without fields that only repeat its blocks."""
    return {k: v for k, v in _dumped(message).items() if k not in ("tool_calls", "thinking_block")}


def _dumped(model: BaseModel) -> Plain:
    return model.model_dump(mode="json", exclude_none=True)


_ERROR_FIELDS = (
    "provider",
    "model",
    "status_code",
    "retryable",
    "retry_after",
    "delay_multiplier",
    "tool_name",
    "raw_arguments",
)


def plain_error(error: BaseException) -> dict[str, Any]:
    """An error's class, message and the other attributes of kernel errors."""
    fields = {name: getattr(error, name, None) for name in _ERROR_FIELDS}
    if not isinstance(error, LLMError):
        fields = {}
    about = {key: value for key, value in fields.items() if value is not None}
    return {"type": type(error).__name__, "message": str(error), **about}


def to_exception(recorded: Mapping[str, Any]) -> Exception:
    """Rebuild an error: a kernel class, a Python class, or a class of that name."""
    name, message = str(recorded.get("type")), str(recorded.get("message", ""))
    name = name if name.isidentifier() else "RecordedError"
    kind: Any = getattr(llm_errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, LLMError)) and "retryable" in recorded:
        # A provider's own class under the kernel's.
        kind = type(name, (LLMError,), {})
    if isinstance(kind, type) and issubclass(kind, LLMError):
        error = kind(message)
        for field in _ERROR_FIELDS:
            if field in recorded:
                setattr(error, field, recorded[field])
        return error
    kind = getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = type(name, (Exception,), {})
    try:
        return kind(message)
    except TypeError:  # such as UnicodeDecodeError, which takes more than a message
        return Exception(f"{name}: {message}")


Change = Callable[[str], str]


def rewrite_texts(value: Any, change: Change) -> Any:
    """Plain data with every text rewritten."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [rewrite_texts(item, change) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        held = cast("dict[str, Any]", value)
        return {key: rewrite_texts(item, change) for key, item in held.items()}
    return value


def change_deltas(chunks: Iterable[Any], change: Change) -> None:
    """Rewrite the deltas of streamed blocks, in place.

    The text to rewrite may extend over several deltas. In such a block the first delta gets all the
    text and the others none.
    """
    blocks: dict[Any, list[Plain]] = {}
    for chunk in chunks:
        if isinstance(chunk, dict) and isinstance(cast("Plain", chunk).get("delta"), str):
            delta = cast("Plain", chunk)
            blocks.setdefault(delta.get("index"), []).append(delta)
    for deltas in blocks.values():
        text = "".join(delta["delta"] for delta in deltas)
        new = change(text)
        if new != text:
            for delta in deltas:
                delta["delta"] = ""
            deltas[0]["delta"] = new
