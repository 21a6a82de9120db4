"""Parses a provider's response, typed or in the dictionary form of the Orchestrator Contract."""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from decimal import Decimal
from secrets import token_hex
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from amplifier_core.cancellation import await_result
from amplifier_core.hooks import PlainData, plain
from amplifier_core.message_models import ChatResponse, Usage
from amplifier_modules._shared.history.values import (
    CALL_TYPES,
    MAX_DEPTH,
    TOO_DEEP_INPUT,
    InvalidArguments,
    clean_value,
    is_deeper,
    is_plain,
    parse_arguments,
    plain_block,
    plain_usage,
    read_kind,
)
from amplifier_modules._shared.loop.results import warn_of_ignored
from amplifier_support.fields import read_field, to_mapping
from amplifier_support.usage import add_counts, dollars, token_count, token_counts

logger = logging.getLogger(__name__)


class Call:
    """A tool call requested by the model.

    Attributes:
        problem: Why the call cannot be run, for the model; None if it can.
        repeats: Id of the earlier call in this turn that this one duplicates.
    """

    __slots__ = ("arguments", "id", "name", "problem", "repeats")

    def __init__(self, id: str, name: str) -> None:
        self.id = id
        self.name = name
        self.arguments: dict[str, Any] = {}
        self.problem: str | None = None
        self.repeats: str | None = None


async def find_calls(provider: Any, response: Any, blocks: list[dict[str, Any]]) -> list[Call]:
    """The tool calls of a response, in order, as its provider reads them."""
    parse = getattr(provider, "parse_tool_calls", None)
    items = parse(response) if callable(parse) else read_field(response, "tool_calls")
    items = await await_result(items)
    if items is None or (parse is None and not items):
        items = [block for block in blocks if read_kind(block) in CALL_TYPES]
    return [_call(item) for item in cast("Iterable[Any]", items or ())]


def _call(item: Any) -> Call:
    """A `ToolCall`, or a dict with `arguments` or `input`, also in the vendor's nested form."""
    inner: Any = read_field(item, "function") or item
    call = Call(id=str(read_field(item, "id") or ""), name=str(read_field(inner, "name") or ""))
    invalid = read_field(item, "invalid_arguments")
    arguments: Any = read_field(inner, "arguments")
    if arguments is None:
        arguments = read_field(inner, "input", {})
    try:
        values = _parse_arguments(str(invalid) if invalid else arguments)
    except InvalidArguments as error:
        call.problem = str(error)
        return call
    if invalid:
        call.problem = f"the provider reports the input as invalid: {str(invalid)[:500]}"
    else:
        call.arguments = values
    return call


def _parse_arguments(arguments: Any) -> dict[str, Any]:
    if isinstance(arguments, str):
        return parse_arguments(arguments)
    if not isinstance(arguments, dict):
        kind = type(arguments).__name__
        raise InvalidArguments(f"the input must be a JSON object, not {kind}")
    if is_deeper(arguments, MAX_DEPTH):
        raise InvalidArguments(TOO_DEEP_INPUT)
    values = cast("dict[str, Any]", arguments)
    return values if is_plain(values) else clean_value(values)


class CallLedger:
    """The tool calls of a turn by id, so that each is run at most once and answered once.

    A repeated id has one of three causes:

    * In the same answer, with the same name and arguments: a broken stream repeated the call. The
      duplicate is dropped.
    * In a later answer, with the same name and arguments: a service or a proxy answered twice. The
      call gets a new id to be answered under, and `repeats` is the id of the original.
    * With a different name or arguments: a different call, because some services number the calls
      of each answer from zero. It gets a new id, and from then on equal ids in this turn are not
      treated as duplicates.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, dict[str, Any]]] = {}
        self._ids_are_reused = False

    def settle(
        self, calls: list[Call], blocks: list[dict[str, Any]]
    ) -> tuple[list[Call], list[dict[str, Any]]]:
        """Record the calls of an answer.

        Args:
            calls: What the provider read from the response; their ids may change.
            blocks: The response's blocks.

        Returns:
            The calls to answer, and the blocks of the message to store: a tool_call block for
            every call, in the place it had in the response.
        """
        settled: list[Call] = []
        by_given_id: dict[str, deque[Call | None]] = defaultdict(deque)
        for call in calls:
            given_id, what = call.id, (call.name, call.arguments)
            siblings = by_given_id[given_id]
            if given_id and any(c is not None and (c.name, c.arguments) == what for c in siblings):
                siblings.append(None)
                continue
            if given_id in self._seen:
                self._assign_new_id(call, given_id, what)
            call.id = call.id or f"call_{token_hex(8)}"
            self._seen[call.id] = what
            siblings.append(call)
            settled.append(call)
        return settled, _with_calls(blocks, settled, by_given_id)

    def _assign_new_id(self, call: Call, given_id: str, what: tuple[str, dict[str, Any]]) -> None:
        if self._seen[given_id] != what:
            self._ids_are_reused = True
        elif not self._ids_are_reused:
            call.repeats = given_id
        call.id = f"{given_id}_{token_hex(4)}"


def _with_calls(
    blocks: list[dict[str, Any]], calls: list[Call], by_given_id: dict[str, deque[Call | None]]
) -> list[dict[str, Any]]:
    placed: set[str] = set()
    result: list[dict[str, Any]] = []
    for block in blocks:
        if read_kind(block) not in CALL_TYPES:
            result.append(block)
            continue
        waiting = by_given_id[str(block.get("id") or "")]
        call = waiting.popleft() if waiting else None
        if call is not None:
            placed.add(call.id)
            result.append({**block, "type": "tool_call", "id": call.id})
    result += [
        {"type": "tool_call", "id": call.id, "name": call.name, "input": call.arguments}
        for call in calls
        if call.id not in placed
    ]
    return result


_TEXT_FIELDS = {"text": "text", "thinking": "thinking", "redacted_thinking": "data"}
"""The field that a block of each of these types has to have."""
_OPAQUE = ("thinking", "redacted_thinking", "reasoning")
_COUNTED = ("input_tokens", "output_tokens", "total_tokens")


def read_blocks(response: Any) -> list[dict[str, Any]]:
    """The content blocks of a response as dicts, in order, without fields that are None."""
    content = read_field(response, "content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if not isinstance(content, (list, tuple)):
        return []
    blocks = (_valid(_block(item)) for item in cast("Iterable[Any]", content))
    return [block for block in blocks if block]


def _valid(block: dict[str, Any]) -> dict[str, Any]:
    """A block that can be saved, shown and sent back; empty if nothing is left of it.

    A provider may pass on anything its service sent, and a module of others may return anything.
    """
    kind = block.get("type")
    needed = _TEXT_FIELDS.get(kind) if isinstance(kind, str) else None
    if needed is not None and not isinstance(block.get(needed), str):
        return {}
    if is_plain(block):
        return block
    # Thinking goes back unchanged or not at all.
    return {} if kind in _OPAQUE else clean_value(block)


def _block(item: Any) -> dict[str, Any]:
    if isinstance(item, BaseModel):
        return plain_block(item)
    if isinstance(item, Mapping):
        return dict(cast("Mapping[str, Any]", item))
    if isinstance(item, str):
        return {"type": "text", "text": item}
    text = getattr(item, "text", None)
    return {"type": "text", "text": text} if isinstance(text, str) else {}


def is_response(value: Any) -> bool:
    """Return True if a value can be parsed as a response."""
    if isinstance(value, Mapping):
        return bool({"content", "tool_calls"} & cast("Mapping[str, Any]", value).keys())
    return hasattr(value, "content")


def join_text(blocks: list[dict[str, Any]]) -> str:
    """The text of a message: its text blocks joined, as they stream."""
    return "".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text")


def read_usage(response: Any) -> dict[str, Any]:
    """The usage of a response as plain data: its valid counts and cost.

    Empty if it reports none, or if a count is not valid: the rest would be too low.
    """
    usage = read_field(response, "usage")
    if isinstance(usage, BaseModel):
        usage = plain_usage(usage)
    if token_counts(usage, *_COUNTED) is None:
        return {}
    fields = cast("Mapping[Any, Any]", usage).items()
    valid = {key: count for key, value in fields if (count := token_count(value)) is not None}
    cost = dollars(cast("Mapping[str, Any]", usage).get("cost_usd"))
    return valid if cost is None else {**valid, "cost_usd": str(cost)}


def shown_to_hooks(response: Any) -> PlainData:
    """A response as event data: plain data that also supports attribute access."""
    data = plain(response)
    if not isinstance(data, PlainData):
        fields = ChatResponse.model_fields
        data = PlainData({name: plain(read_field(response, name)) for name in fields})
    data["usage"] = plain(read_usage(response)) or None
    return data


def response_data(response: PlainData) -> dict[str, Any]:
    """The data of `provider:response` about a response, from the result of `shown_to_hooks`."""
    usage, finish_reason = response.get("usage") or {}, response.get("finish_reason")
    return {"response": response, "usage": usage, "finish_reason": finish_reason}


def apply_hook_changes(response: Any, original: Mapping[str, Any], changed: Any) -> Any:
    """The response after hooks; the same object if they did not change it.

    Args:
        response: The provider's response.
        original: The same response as passed to hooks.
        changed: Their replacement.
    """
    if changed is original or changed == original:
        return response
    if not isinstance(changed, Mapping):
        return changed if hasattr(changed, "content") else response
    fields = cast("Mapping[str, Any]", changed)
    if not isinstance(response, BaseModel):
        return {**cast("dict[str, Any]", response), **fields} if "content" in fields else response
    # Only changed fields: hooks see text in place of values that JSON cannot represent.
    changes = {key: value for key, value in fields.items() if original.get(key) != value}
    try:
        typed = ChatResponse.model_validate({"content": [], **changes})
    except ValidationError as error:
        warn_of_ignored("response", "provider:response", error)
        return response
    return response.model_copy(update={key: getattr(typed, key) for key in changes})


def read_metadata(response: Any) -> Mapping[str, Any]:
    """The metadata of a response, empty if it has none."""
    return to_mapping(read_field(response, "metadata"))


def lost_usage(usages: Iterable[Usage]) -> dict[str, Any]:
    """The usage of attempts without an answer, as one; see `_summed_usage`."""
    return _summed_usage(map(plain_usage, usages))


def with_lost(usage: dict[str, Any], lost: list[Usage]) -> dict[str, Any]:
    """The usage of an answer and of the attempts before it; unknown if that of the answer is."""
    return _summed_usage([usage, lost_usage(lost)]) if lost and usage else usage


def _summed_usage(usages: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The usage of several requests as one; its cost only if that of each is known."""
    total = UsageTotal()
    known = True
    for usage in usages:
        total.add(usage)
        known = known and "cost_usd" in usage
    summed = total.as_dict()
    if not known:
        summed.pop("cost_usd", None)
    return summed


class UsageTotal:
    """Adds up the usage of a turn's provider calls: token counts, and the cost if known."""

    def __init__(self) -> None:
        self._totals: dict[str, int] = {}
        self._cost: Decimal | None = None

    def add(self, usage: dict[str, Any]) -> None:
        add_counts(self._totals, usage)
        cost = dollars(usage.get("cost_usd"))
        if cost is not None:
            self._cost = (self._cost or Decimal(0)) + cost

    def as_dict(self) -> dict[str, Any]:
        """Counts by name, and `cost_usd` as a decimal string if any call had a cost."""
        totals: dict[str, Any] = dict(self._totals)
        if self._cost is not None:
            totals["cost_usd"] = str(self._cost)
        return totals


def assistant_message(
    response: Any, blocks: list[dict[str, Any]], calls: list[Call], about: Mapping[str, Any]
) -> dict[str, Any]:
    """The message to store for a response: its blocks and the fields that published parts read.

    Those are `tool_calls` and `thinking_block`; see `amplifier_modules._shared.history`.

    Args:
        response: The response.
        blocks: Its content.
        calls: Its tool calls.
        about: More metadata of the message.
    """
    message: dict[str, Any] = {"role": "assistant", "content": blocks}
    thinking = next((block for block in blocks if block.get("type") == "thinking"), None)
    if thinking is not None:
        message["thinking_block"] = thinking
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "tool": call.name, "arguments": call.arguments} for call in calls
        ]
    metadata: dict[str, Any] = {}
    usage = read_usage(response)
    if usage:
        metadata["usage"] = usage
    model = read_metadata(response).get("model")
    if isinstance(model, str):
        metadata["model"] = model
    if metadata := {**metadata, **about}:
        message["metadata"] = metadata
    return message
