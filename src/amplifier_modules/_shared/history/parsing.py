"""Parses one stored message, in any supported form, into the parts of a request."""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Mapping
from typing import Any, cast

from pydantic import BaseModel

from amplifier_core.message_models import (
    ImageBlock,
    Message,
    ReasoningBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
)
from amplifier_modules._shared.history.values import (
    CALL_TYPES,
    RESULT_ROLES,
    arguments_or_text,
    as_json_text,
    as_mapping,
    clean_text,
    clean_value,
    is_blank,
    is_clean,
    is_list,
    mappings,
    portable_id,
    read_id,
    read_kind,
    result_id,
)


class BuiltMessage:
    """A message that was built for a request and can be reused.

    Attributes:
        message: The message. A receiver of an earlier request may have changed it.
    """

    __slots__ = ("_state", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self._state = _read_state(message)

    def is_untouched(self) -> bool:
        """Return True if it is unchanged since it was built; False if that is unknown."""
        return self._state is not None and self._state == _read_state(self.message)


def _read_state(message: Message) -> int | None:
    """A hash of a message's content; None if it has more than plain data."""
    content: Any = message.content
    try:
        if type(content) is list:
            content = [(block.__dict__, block.model_extra) for block in cast("list[Any]", content)]
        state: Any = ({**message.__dict__, "content": content}, message.model_extra)
        return hash(marshal.dumps(state))
    except (ValueError, AttributeError):
        return None


# Plain classes: created for every message of every request; other kinds would cost start-up time.


class Call:
    """A tool call of an assistant message; `fields` are those of its block."""

    __slots__ = ("fields", "id")

    def __init__(self, call_id: str | None, fields: dict[str, Any]) -> None:
        self.id = call_id
        self.fields = fields


class Result:
    """The answer to a tool call: text, or text and image blocks; `built` as in `Reading`."""

    __slots__ = ("built", "content", "id", "is_error", "name")

    def __init__(
        self,
        call_id: str | None,
        content: str | list[Any],
        *,
        name: str | None = None,
        is_error: bool = False,
    ) -> None:
        self.id = call_id
        self.content = content
        self.name = name
        self.is_error = is_error
        self.built: BuiltMessage | None = None


class Reading:
    """One parsed message.

    `content` holds text, or blocks in order: mappings or typed blocks, and a `Call` in place of each
    call. `calls` are the calls to use, `results` the calls that the message answers. `message` is set
    if a typed message can be used unchanged. Immutable after parsing: requests share it, and `built`,
    the message built from it.
    """

    __slots__ = (
        "built",
        "calls",
        "content",
        "message",
        "name",
        "prefill",
        "repairs",
        "results",
        "role",
    )

    def __init__(self, role: str) -> None:
        self.role = role
        self.content: str | list[Any] = ""
        self.name: str | None = None
        self.prefill = False
        self.calls: list[Call] = []
        self.results: list[Result] = []
        self.message: Message | None = None
        self.built: BuiltMessage | None = None
        self.repairs: list[str] = []

    def is_untouched(self) -> bool:
        """Return True if the built message, and so possibly the content they share, is unchanged."""
        if self.built is not None and not self.built.is_untouched():
            return False
        for result in self.results:
            if result.built is not None and not result.built.is_untouched():
                return False
        return True


_TYPED = (TextBlock, ImageBlock, ThinkingBlock, RedactedThinkingBlock, ReasoningBlock)
_THINKING = frozenset({"thinking", "redacted_thinking", "reasoning"})
_TEXT_TYPES = frozenset({"text", "input_text", "output_text"})
_ROLES = frozenset({"system", "developer", "user", "assistant"}) | RESULT_ROLES
_CALL_KEYS = frozenset(
    {"type", "id", "name", "tool", "input", "arguments", "function", "visibility"}
)
_UNNAMED_TOOL = "unnamed_tool"


def read(raw: object) -> Reading:
    """Parse one message; `raw` is a mapping or a typed message and is not changed.

    Raises:
        TypeError: `raw` is neither.
    """
    message = as_mapping(raw)
    if message is None:
        raise TypeError(f"expected a mapping or a Message, got {type(raw).__name__}")
    role: object = message.get("role")
    content: object = message.get("content")
    reading = Reading(role=role if isinstance(role, str) and role in _ROLES else "user")
    if reading.role != role:
        reading.repairs.append(f"role {role!r} taken as user")
    if reading.role in RESULT_ROLES:
        _read_results(reading, message, content)
        return reading
    name = message.get("name")
    reading.name = clean_text(name) if isinstance(name, str) else None
    reading.prefill = bool(message.get("prefill"))
    if isinstance(content, str):
        reading.content = clean_text(content)
        if isinstance(raw, Message) and _goes_on_as_it_is(raw, reading):
            reading.message = raw
    elif content is not None:
        reading.content = _blocks(reading, content)
    if reading.role == "assistant":
        _add_thinking(reading, message.get("thinking_block"))
        _add_listed_calls(reading, message.get("tool_calls"))
        _keep_first_calls(reading)
    return reading


def _goes_on_as_it_is(message: Message, reading: Reading) -> bool:
    return (
        reading.content is message.content
        and message.metadata is None
        and message.tool_call_id is None
        and reading.name is message.name
        and not (message.model_extra and message.model_extra.keys() - {"prefill"})
    )


# --- content ------------------------------------------------------------------------------------


def _blocks(reading: Reading, content: object) -> list[Any]:
    if not is_list(content):
        return [{"type": "text", "text": as_json_text(content)}]
    blocks: list[Any] = []
    for raw in content:
        block = _block(reading, raw)
        if block is not None:
            blocks.append(block)
    return blocks


def _block(reading: Reading, raw: object) -> Any:
    """The block for the request, or None if it is dropped or is a tool result."""
    if isinstance(raw, str):
        return None if is_blank(raw) else {"type": "text", "text": clean_text(raw)}
    block = as_mapping(raw)
    if block is None:
        return {"type": "text", "text": as_json_text(raw)}
    kind = read_kind(block)
    if kind in _TEXT_TYPES:
        return _text(raw, block)
    if kind in CALL_TYPES:
        return _call_block(reading, block)
    if kind == "tool_result":
        reading.results.append(_result(block, result_id(block)))
        return None
    if kind in _THINKING:
        return _thinking(reading, raw, block)
    if kind in ("image", "image_url", "input_image"):
        return _image(reading.role, raw, block)
    return {"type": "text", "text": f"[content of type {clean_text(kind)!r} left out]"}


def _text(raw: object, block: Mapping[str, Any]) -> Any:
    value: object = block.get("text")
    text = value if isinstance(value, str) else "" if value is None else as_json_text(value)
    if is_blank(text):
        return None
    if block["type"] == "text" and text is value and _is_clean_block(block):
        return _as_it_is(raw, block)
    return {**clean_value(block), "type": "text", "text": clean_text(text)}


def _thinking(reading: Reading, raw: object, block: Mapping[str, Any]) -> Any:
    kind = block["type"]
    whole = reading.role == "assistant" and _is_clean_block(block)
    if kind == "thinking":
        whole = whole and isinstance(block.get("thinking"), str) and bool(block.get("signature"))
    elif kind == "redacted_thinking":
        whole = whole and bool(block.get("data"))
    else:
        whole = whole and all(isinstance(block.get(key), list) for key in ("content", "summary"))
    if whole:
        return _as_it_is(raw, block)
    reading.repairs.append(f"left out a {kind} block that cannot be sent back unchanged")
    return None


def _image(role: str, raw: object, block: Mapping[str, Any]) -> Any:
    if role in ("system", "developer", "assistant"):
        return {"type": "text", "text": "[image left out]"}
    if block["type"] == "image" and isinstance(block.get("source"), Mapping):
        if _is_clean_block(block):
            return _as_it_is(raw, block)
        return clean_value(block)
    url: object = block.get("image_url")
    if isinstance(url, Mapping):
        url = cast("Mapping[str, object]", url).get("url")
    if not isinstance(url, str):
        return {"type": "text", "text": "[image without a source left out]"}
    head, comma, data = url.partition(";base64,")
    if comma and head.startswith("data:"):
        source = {"type": "base64", "media_type": head.removeprefix("data:"), "data": data}
    else:
        source = {"type": "url", "url": url}
    return {"type": "image", "source": clean_value(source)}


# --- calls --------------------------------------------------------------------------------------


def _call_block(reading: Reading, block: Mapping[str, Any]) -> Call | None:
    if reading.role != "assistant":
        reading.repairs.append(f"left out a tool call in a {reading.role} message")
        return None
    return _call(block, block)


def _add_thinking(reading: Reading, raw: object) -> None:
    """Put the thinking of a message, if not part of its content, before everything else."""
    block = as_mapping(raw)
    if block is None or read_kind(block) != "thinking":
        return
    blocks = _as_blocks(reading.content)
    if any(_kind(block) in _THINKING for block in blocks):
        return
    thinking = _thinking(reading, raw, block)
    if thinking is not None:
        reading.content, reading.message = [thinking, *blocks], None


def _as_blocks(content: str | list[Any]) -> list[Any]:
    if not isinstance(content, str):
        return content
    return [] if is_blank(content) else [{"type": "text", "text": content}]


def _kind(block: object) -> object:
    mapping = as_mapping(block)
    return None if mapping is None else mapping.get("type")


def _add_listed_calls(reading: Reading, listed: object) -> None:
    entries = list(mappings(listed))
    if not entries:
        return
    blocks = _as_blocks(reading.content)
    present = {block.id for block in blocks if isinstance(block, Call)}
    for entry in entries:
        call_id = read_id(entry, "id")
        if not present or (call_id is not None and call_id not in present):
            function = as_mapping(entry.get("function"))
            blocks.append(_call(entry, entry if function is None else function))
    reading.content = blocks
    reading.message = None


def _keep_first_calls(reading: Reading) -> None:
    """Collect the message's calls; a second one with the same id is removed from its content."""
    if isinstance(reading.content, str):
        return
    seen: set[str] = set()
    kept: list[Any] = []
    for block in reading.content:
        if type(block) is Call:
            if block.id is not None and block.id in seen:
                reading.repairs.append(f"dropped a second call {block.id}")
                continue
            if block.id is not None:
                seen.add(block.id)
            reading.calls.append(block)
        kept.append(block)
    reading.content = kept


def _call(entry: Mapping[str, Any], body: Mapping[str, Any]) -> Call:
    """A call from a block or a list entry; `body` has its name and arguments."""
    name = body.get("name") or body.get("tool")
    arguments = body.get("input") if body.get("input") is not None else body.get("arguments")
    value, invalid = _arguments(arguments)
    call_id = read_id(entry, "id")
    fields = {
        **_extras(entry),
        "type": "tool_call",
        "id": call_id or "call",
        "name": _tool_name(name),
        "input": value,
    }
    if invalid is not None:
        fields["invalid_arguments"] = invalid
    return Call(call_id, fields)


def _tool_name(name: object) -> str:
    if not isinstance(name, str) or is_blank(name):
        return _UNNAMED_TOOL
    return portable_id(clean_text(name))


def _extras(entry: Mapping[str, Any]) -> dict[str, Any]:
    if entry.keys() <= _CALL_KEYS:
        return {}
    extras = {k: v for k, v in entry.items() if k not in _CALL_KEYS and v is not None}
    return extras if is_clean(extras) else clean_value(extras)


def _arguments(raw: object) -> tuple[dict[str, Any], str | None]:
    """The arguments as a mapping, and the original text if it is not one."""
    if raw is None or raw == "":
        return {}, None
    value: object = raw
    if isinstance(raw, str):
        value, invalid = arguments_or_text(raw)
        if invalid is not None:
            return {}, clean_text(raw)
    if not isinstance(value, Mapping):
        return {}, as_json_text(raw)
    arguments = cast("Mapping[str, Any]", value)
    if isinstance(arguments, dict) and is_clean(arguments):
        return arguments, None
    return clean_value(arguments), None


# --- results ------------------------------------------------------------------------------------


def _read_results(reading: Reading, message: Mapping[str, Any], content: object) -> None:
    """A tool message: its `tool_result` blocks, else the message itself, are the results."""
    own = read_id(message, "tool_call_id")
    if not any(read_kind(block) == "tool_result" for block in mappings(content)):
        reading.results.append(_result(message, own))
        reading.content = ""
        return
    reading.role = "user"
    reading.content = _blocks(reading, content)
    for result in reading.results:
        result.id = result.id or own
        result.name = result.name or _optional_text(message.get("name"))


def _result(source: Mapping[str, Any], call_id: str | None) -> Result:
    payload = source.get("output") if "output" in source else source.get("content")
    return Result(
        call_id,
        _result_content(payload),
        name=_optional_text(source.get("name")),
        is_error=source.get("is_error") is True,
    )


def _result_content(payload: object) -> str | list[Any]:
    if payload is None:
        return ""
    if isinstance(payload, str):
        return clean_text(payload)
    if payload and is_list(payload) and all(_is_showable(item) for item in payload):
        return _blocks(Reading(role="user"), payload) or ""
    serialise = getattr(payload, "get_serialized_output", None)
    if callable(serialise):
        return clean_text(str(serialise()))
    if isinstance(payload, BaseModel):
        return clean_text(payload.model_dump_json())
    return as_json_text(payload)


def _is_showable(item: object) -> bool:
    block = as_mapping(item)
    if block is None:
        return False
    kind = read_kind(block)
    if kind in _TEXT_TYPES:
        return isinstance(block.get("text"), str)
    return kind == "image" and isinstance(block.get("source"), Mapping)


def _is_clean_block(block: Mapping[str, Any]) -> bool:
    """Return True if every value of the block can be sent unchanged."""
    for value in block.values():  # noqa: SIM110 - a generator costs twice as much here
        if not is_clean(value):
            return False
    return True


def _as_it_is(raw: object, block: Mapping[str, Any]) -> Any:
    return raw if isinstance(raw, _TYPED) else dict(block)


def _optional_text(value: object) -> str | None:
    return clean_text(value) if isinstance(value, str) and value else None


_WITHOUT_REFERENCES = 2
"""The version of marshal's format in which equal values have equal bytes."""


class ParsedMessages:
    """Parses messages and caches those of the last request.

    A message is recognized by its exact content and types: a context may return the same objects or
    equal ones, and their holders may change them. Cached results were parsed from a private copy.
    """

    def __init__(self) -> None:
        self._kept: dict[bytes, Reading] = {}

    def of(self, messages: Iterable[object]) -> list[Reading]:
        """The parsed messages, in order; messages are shared and never changed.

        Raises:
            TypeError: An item of `messages` is not a message.
        """
        before, self._kept = self._kept, {}
        return [self._one(raw, before) for raw in messages]

    def _one(self, raw: object, before: dict[bytes, Reading]) -> Reading:
        try:
            content = marshal.dumps(cast("Any", raw), _WITHOUT_REFERENCES)
        except ValueError:  # typed models and other values that JSON cannot represent
            return read(raw)
        reading = before.get(content) or self._kept.get(content)
        if reading is None or not reading.is_untouched():
            reading = read(marshal.loads(content))
        self._kept[content] = reading
        return reading
