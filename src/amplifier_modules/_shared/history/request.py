"""The two entry points: stored messages of a loop, and a request built by any loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from pydantic import BaseModel, PrivateAttr

from amplifier_core.message_models import ChatRequest, Message, ToolSpec
from amplifier_modules._shared.history.joining import make_whole
from amplifier_modules._shared.history.parsing import ParsedMessages
from amplifier_modules._shared.history.values import clean_value, is_clean


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
    whole, repairs = make_whole(messages, parsed)
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
