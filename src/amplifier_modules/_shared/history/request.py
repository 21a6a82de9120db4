"""Requests that every vendor accepts, from the stored messages of a loop or from a request of any loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, cast

from pydantic import BaseModel, PrivateAttr, ValidationError

from amplifier_core.message_models import (
    ChatRequest,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolSpec,
)
from amplifier_modules._shared.history.parsing import (
    BuiltMessage,
    Call,
    ParsedMessages,
    Reading,
    Result,
    read,
)
from amplifier_modules._shared.history.values import (
    clean_text,
    clean_value,
    is_blank,
    is_clean,
    plain_block,
)

INTERRUPTED = (
    "The tool call was interrupted before its result was recorded. Its effects are unknown."
)
"""Answers a call whose result is missing; the call may have run."""

LEAD_IN = "(The beginning of this conversation is not included.)"
"""The user message added before a conversation that begins with an assistant message."""

CONTINUE = "Continue."
"""The user message added after a conversation that ends with an assistant message."""

NO_MESSAGE = "(empty message)"
"""The user message of a request without messages."""

_COLLECTED = ("system", "developer")
_SPEAKING = frozenset({*_COLLECTED, "user", "assistant"})
_THINKING = frozenset({"thinking", "redacted_thinking"})

_NOT_LISTED = frozenset({"invalid_arguments", "name", "tool", "arguments"})
"""Keys of a call's block that are not copied to its entry in `tool_calls`."""

_FIELDS = Message.model_fields.keys()
_UNSET: dict[str, Any] = dict.fromkeys(_FIELDS)
_TEXT_KEYS = {"type", "text"}
_TEXT_MESSAGE_KEYS = {"role", "content", "metadata"}
"""The keys of a message of text; its metadata is not sent."""
_UNSET_TEXT: dict[str, Any] = dict.fromkeys(TextBlock.model_fields)
_set_slot = object.__setattr__


class NormalisedRequest(ChatRequest):
    """A request whose messages follow the rules of this package.

    Attributes:
        repairs: One line for each repair; providers may report them with the event
            `provider:tool_sequence_repaired`.
    """

    _repairs: tuple[str, ...] = PrivateAttr(default=())
    _checked: tuple[list[Message], int] | None = PrivateAttr(default=None)

    @classmethod
    def build(
        cls, messages: list[Message], repairs: list[str], fields: dict[str, Any]
    ) -> NormalisedRequest:
        """A request of messages that follow the rules, with further fields of `ChatRequest`."""
        # Messages and tools were built here and need no validation.
        make = cls if fields.keys() - {"tools"} else cls.model_construct
        request = make(messages=messages, **fields)
        request._repairs = tuple(repairs)
        request._checked = (request.messages, len(messages))
        return request

    @property
    def repairs(self) -> tuple[str, ...]:
        return self._repairs

    @property
    def is_whole(self) -> bool:
        """True if `messages` is still the normalised list, with its original length."""
        if self._checked is None:
            return False
        messages, length = self._checked
        return messages is self.messages and length == len(messages)


def to_chat_request(
    messages: Iterable[Mapping[str, Any] | Message],
    *,
    tools: Iterable[ToolSpec | Mapping[str, Any]] | None = None,
    parsed: ParsedMessages | None = None,
    **fields: Any,
) -> ChatRequest:
    """A valid request from stored messages, in one pass and without changing them.

    Args:
        messages: What `get_messages_for_request()` returned; the forms may be mixed.
        tools: The tools to offer; typed, or mappings in either vendor's spelling.
        parsed: Cache of parsed messages, for callers that build several requests.
        **fields: Further fields of `ChatRequest`.

    Raises:
        TypeError: An item of `messages` is not a message.
        pydantic.ValidationError: A field does not fit `ChatRequest`.
    """
    whole, repairs = _make_whole(messages, parsed)
    if tools is not None:
        fields["tools"] = [_tool_spec(tool) for tool in tools]
    return NormalisedRequest.build(whole, repairs, fields)


def normalise(request: ChatRequest | Mapping[str, Any]) -> ChatRequest:
    """The request with valid messages; the same object if they already are.

    Args:
        request: Typed, or a mapping with `messages` and any further fields of `ChatRequest`
            (`max_tokens` is read as `max_output_tokens`).

    Raises:
        TypeError: An item of its messages is not a message.
        ValueError: A mapping without `messages`.
        pydantic.ValidationError: A field of a mapping does not fit `ChatRequest`.
    """
    if isinstance(request, NormalisedRequest) and request.is_whole:
        return request
    if isinstance(request, BaseModel):
        extra = request.model_extra or {}
        fields = {name: getattr(request, name) for name in request.model_fields_set} | extra
    else:
        fields = dict(request)
        if "messages" not in fields:
            raise ValueError("the request is missing 'messages', the list of messages to send")
        if "max_tokens" in fields:
            fields.setdefault("max_output_tokens", fields.pop("max_tokens"))
    return to_chat_request(fields.pop("messages"), tools=fields.pop("tools", None), **fields)


def _tool_spec(tool: ToolSpec | Mapping[str, Any]) -> ToolSpec:
    if isinstance(tool, ToolSpec):
        if is_clean([tool.name, tool.description, tool.parameters]):
            return tool
        return ToolSpec(**clean_value(tool.model_dump()))
    body = cast("Mapping[str, Any]", tool.get("function") or tool)
    parameters = body.get("parameters") or body.get("input_schema") or {"type": "object"}
    return ToolSpec(
        name=clean_value(body.get("name")),
        description=clean_value(body.get("description")),
        parameters=clean_value(parameters),
    )


# -- a valid conversation --------------------------------------------------------------------


class _Asked:
    """A call in the conversation, with its final id and its result."""

    __slots__ = ("call", "result", "wire_id")

    def __init__(self, call: Call, wire_id: str) -> None:
        self.call = call
        self.wire_id = wire_id
        self.result: Result | None = None

    @property
    def keeps_its_id(self) -> bool:
        return self.call.fields["id"] == self.wire_id

    @property
    def fields(self) -> dict[str, Any]:
        """The call's block, with its id in this conversation."""
        fields = self.call.fields
        return fields if self.keeps_its_id else {**fields, "id": self.wire_id}


class _Pairs:
    """Matches results to calls.

    A result answers the last call before it with the same id, or else the first one after it.
    Calls and results without an id are matched in order.
    """

    def __init__(self) -> None:
        self._latest: dict[str, _Asked] = {}
        self._early: dict[str, Result] = {}
        self._nameless: deque[_Asked] = deque()
        self._wire_ids: set[str] = set()
        self.dropped: list[Result] = []

    def add_calls(self, calls: list[Call]) -> list[_Asked]:
        added: list[_Asked] = []
        for call in calls:
            asked = _Asked(call, self._unused(call.fields["id"]))
            if call.id is None:
                self._nameless.append(asked)
            else:
                asked.result = self._early.pop(call.id, None)
                self._latest[call.id] = asked
            added.append(asked)
        return added

    def add_result(self, result: Result) -> None:
        if result.id is None:
            if self._nameless:
                self._nameless.popleft().result = result
            else:
                self.dropped.append(result)
            return
        asked = self._latest.get(result.id)
        if asked is None and result.id not in self._early:
            self._early[result.id] = result
        elif asked is not None and asked.result is None:
            asked.result = result
        else:
            self.dropped.append(result)

    def orphans(self) -> list[Result]:
        return [*self.dropped, *self._early.values()]

    def _unused(self, base: str) -> str:
        wire_id, number = base, 1
        while wire_id in self._wire_ids:
            number += 1
            wire_id = f"{base}_{number}"
        self._wire_ids.add(wire_id)
        return wire_id


def _make_whole(
    messages: Iterable[object], parsed: ParsedMessages | None = None
) -> tuple[list[Message], list[str]]:
    """The messages as a valid conversation, and a line for each repair.

    Args:
        messages: Mappings or typed messages.
        parsed: Cache of parsed messages of earlier requests.

    Raises:
        TypeError: An item of `messages` is not a message.
    """
    pairs = _Pairs()
    placed: list[Message | tuple[Reading, list[_Asked]]] = []
    repairs: list[str] = []
    originals = list(messages)
    texts = [_text_message(raw) for raw in originals]
    rest = (raw for raw, text in zip(originals, texts, strict=True) if text is None)
    others = iter(map(read, rest) if parsed is None else parsed.of(rest))
    for text in texts:
        if text is not None:
            placed.append(text)
            continue
        reading = next(others)
        repairs += reading.repairs
        for result in reading.results:
            pairs.add_result(result)
        placed.append((reading, pairs.add_calls(reading.calls)))
    repairs += [f"dropped a result of call {r.id or '(no id)'}" for r in pairs.orphans()]
    whole: list[Message] = []
    for part in placed:
        if type(part) is tuple:
            _append(whole, *part, repairs)
        else:
            whole.append(cast("Message", part))
    return _framed(whole, repairs), repairs


def _text_message(raw: object) -> Message | None:
    """The message of a mapping with nothing but text; None for any other.

    Most messages of a long conversation are text, and building one takes less time than finding it
    in the cache.
    """
    if type(raw) is not dict or not raw.keys() <= _TEXT_MESSAGE_KEYS:
        return None
    fields = cast("dict[str, Any]", raw)
    role, content = fields.get("role"), fields.get("content")
    if type(role) is not str or role not in _SPEAKING:
        return None
    if type(content) is str:
        return _valid_message(role, content, {}) if _is_sendable(content) else None
    if type(content) is not list or not content:
        return None
    blocks: list[TextBlock] = []
    for block in cast("list[Any]", content):
        if not (_is_plain_text(block) and _is_sendable(block["text"])):
            return None
        blocks.append(_text_block(block["text"]))
    return _valid_message(role, blocks, {})


def _is_sendable(text: str) -> bool:
    return not is_blank(text) and clean_text(text) is text


def _append(
    whole: list[Message], reading: Reading, asked: list[_Asked], repairs: list[str]
) -> None:
    if reading.message is not None and not is_blank(cast("str", reading.content)):
        whole.append(reading.message)
        return
    # A call that gets another id here makes another message.
    lasting = all(call.keeps_its_id for call in asked)
    message = reading.built.message if lasting and reading.built is not None else None
    if message is None:
        content = _final_content(reading, asked)
        if not content:
            return
        extras: dict[str, Any] = {"prefill": True} if reading.prefill else {}
        if reading.name is not None:
            extras["name"] = reading.name
        known = len(repairs)
        message = _message(reading.role, content, extras, repairs)
        if message is not None and reading.role == "assistant":
            _add_listed_form(message)
        if lasting and message is not None and len(repairs) == known:
            reading.built = BuiltMessage(message)
    if message is not None:
        whole.append(message)
    whole.extend(_answer(call, repairs) for call in asked)


def _final_content(reading: Reading, asked: list[_Asked]) -> str | list[Any]:
    content = reading.content
    if isinstance(content, str):
        return "" if is_blank(content) else content
    calls = iter(asked)
    blocks = [next(calls).fields if type(block) is Call else block for block in content]
    while blocks and _read_type(blocks[-1]) in _THINKING:
        # A message must not end with thinking; without what follows it, it is useless anyway.
        blocks.pop()
    return blocks


def _message(
    role: str, content: str | list[Any], extras: dict[str, Any], repairs: list[str]
) -> Message | None:
    known = cast("Any", role)
    if isinstance(content, str):
        return _valid_message(role, content, extras)
    if all(map(_is_plain_text, content)):
        return _valid_message(role, [_text_block(block["text"]) for block in content], extras)
    try:
        return Message(role=known, content=content, **extras)
    except ValidationError:
        valid = [block for block in content if _is_valid(role, block)]
    repairs.append(f"dropped {len(content) - len(valid)} malformed blocks of a {role} message")
    return Message(role=known, content=valid, **extras) if valid else None


def _add_listed_form(message: Message) -> None:
    """Repeat the calls and thinking of a message as `tool_calls` and `thinking_block`.

    Published loops do so, and many published providers build their request from these alone. An
    entry has no ``name``: providers that read that key also read the blocks, and would send each
    call twice.
    """
    extra = message.model_extra
    if extra is None or isinstance(message.content, str):
        return
    calls: list[dict[str, Any]] = []
    for block in message.content:
        if isinstance(block, ToolCallBlock):
            more = (block.model_extra or {}).items()
            call = {key: value for key, value in more if key not in _NOT_LISTED}
            calls.append({**call, "id": block.id, "tool": block.name, "arguments": block.input})
        elif isinstance(block, ThinkingBlock):
            extra.setdefault("thinking_block", plain_block(block))
    if calls:
        extra["tool_calls"] = calls


def _is_plain_text(block: Any) -> bool:
    return (
        type(block) is dict
        and block.keys() == _TEXT_KEYS
        and block["type"] == "text"
        and type(block["text"]) is str
    )


def _text_block(text: str) -> TextBlock:
    """A block that needs no validation; see `_valid_message`."""
    block = TextBlock.__new__(TextBlock)
    _set_slot(block, "__dict__", {**_UNSET_TEXT, "type": "text", "text": text})
    _set_slot(block, "__pydantic_fields_set__", {"type", "text"})
    _set_slot(block, "__pydantic_extra__", {})
    _set_slot(block, "__pydantic_private__", None)
    return block


def _valid_message(role: str, content: str | list[TextBlock], extras: dict[str, Any]) -> Message:
    """A message that needs no validation.

    Built by hand: a request has one for most of its messages, and pydantic's `model_construct`
    takes several times as long.
    """
    message = Message.__new__(Message)
    fields = {**_UNSET, "role": role, "content": content, **extras}
    more = {key: fields.pop(key) for key in extras.keys() - _FIELDS} if extras else {}
    _set_slot(message, "__dict__", fields)
    _set_slot(message, "__pydantic_fields_set__", {"role", "content", *extras} - more.keys())
    _set_slot(message, "__pydantic_extra__", more)
    _set_slot(message, "__pydantic_private__", None)
    return message


def _is_valid(role: str, block: object) -> bool:
    try:
        Message(role=cast("Any", role), content=[cast("Any", block)])
    except ValidationError:
        return False
    return True


def _answer(asked: _Asked, repairs: list[str]) -> Message:
    call_id, name, result = asked.wire_id, asked.call.fields["name"], asked.result
    if result is None:
        repairs.append(f"answered call {call_id} ({name}) as interrupted")
        result = Result(call_id, INTERRUPTED, is_error=True)
    built = None if result.built is None else result.built.message
    if built is not None and built.tool_call_id == call_id and built.name == name:
        return built
    extras: dict[str, Any] = {"is_error": True} if result.is_error else {}
    extras |= {"tool_call_id": call_id, "name": name}
    known = len(repairs)
    message = _message("tool", result.content, extras, repairs)
    if message is None:
        return _valid_message("tool", "", extras)
    if len(repairs) == known:
        result.built = BuiltMessage(message)
    return message


def _framed(whole: list[Message], repairs: list[str]) -> list[Message]:
    """Add a user message before or after the messages, or in place of none, where required."""
    spoken = [i for i, message in enumerate(whole) if message.role not in _COLLECTED]
    if not spoken:
        whole.append(_valid_message("user", NO_MESSAGE, {}))
        repairs.append("added a user message: there was none")
        return whole
    last = whole[spoken[-1]]
    if last.role == "assistant" and not last.get("prefill"):
        whole.append(_valid_message("user", CONTINUE, {}))
        repairs.append("added a user message: the last one was the assistant's")
    if whole[spoken[0]].role == "assistant":
        whole.insert(spoken[0], _valid_message("user", LEAD_IN, {}))
        repairs.append("added a user message: the first one was the assistant's")
    return whole


def _read_type(block: object) -> object:
    if isinstance(block, dict):
        return cast("dict[str, object]", block).get("type")
    return getattr(block, "type", None)
