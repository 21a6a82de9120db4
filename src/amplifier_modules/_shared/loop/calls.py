"""The tool calls of a response: reading them and assigning unique ids."""

from __future__ import annotations

import inspect
from collections import defaultdict, deque
from collections.abc import Iterable
from secrets import token_hex
from typing import Any, cast

from amplifier_modules._shared.history import InvalidArguments, parse_arguments
from amplifier_modules._shared.history.arguments import TOO_DEEP
from amplifier_modules._shared.history.values import MAX_DEPTH, clean_value, is_deeper, is_plain
from amplifier_support.fields import field_of

CALL_BLOCKS = ("tool_call", "tool_use")


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


async def calls_of(provider: Any, response: Any, blocks: list[dict[str, Any]]) -> list[Call]:
    """The tool calls of a response, in order, as its provider reads them."""
    parse = getattr(provider, "parse_tool_calls", None)
    found: Any = parse(response) if callable(parse) else field_of(response, "tool_calls")
    if inspect.isawaitable(found):
        found = await found
    if found is None or (parse is None and not found):
        found = [block for block in blocks if block.get("type") in CALL_BLOCKS]
    return [_call(item) for item in cast("Iterable[Any]", found or ())]


def _call(item: Any) -> Call:
    """A `ToolCall`, or a dict with `arguments` or `input`, also in the vendor's nested form."""
    inner: Any = field_of(item, "function") or item
    call = Call(id=str(field_of(item, "id") or ""), name=str(field_of(inner, "name") or ""))
    invalid = field_of(item, "invalid_arguments")
    arguments: Any = field_of(inner, "arguments")
    if arguments is None:
        arguments = field_of(inner, "input", {})
    try:
        found = _valid(str(invalid) if invalid else arguments)
    except InvalidArguments as error:
        call.problem = str(error)
        return call
    if invalid:
        call.problem = f"the provider reports the input as invalid: {str(invalid)[:500]}"
    else:
        call.arguments = found
    return call


def _valid(arguments: Any) -> dict[str, Any]:
    if isinstance(arguments, str):
        return parse_arguments(arguments)
    if not isinstance(arguments, dict):
        kind = type(arguments).__name__
        raise InvalidArguments(f"the input must be a JSON object, not {kind}")
    if is_deeper(arguments, MAX_DEPTH):
        raise InvalidArguments(TOO_DEEP)
    found = cast("dict[str, Any]", arguments)
    return found if is_plain(found) else clean_value(found)


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
            given, what = call.id, (call.name, call.arguments)
            siblings = by_given_id[given]
            if given and any(c is not None and (c.name, c.arguments) == what for c in siblings):
                siblings.append(None)
                continue
            if given in self._seen:
                self._assign_new_id(call, given, what)
            call.id = call.id or f"call_{token_hex(8)}"
            self._seen[call.id] = what
            siblings.append(call)
            settled.append(call)
        return settled, _with_calls(blocks, settled, by_given_id)

    def _assign_new_id(self, call: Call, given: str, what: tuple[str, dict[str, Any]]) -> None:
        if self._seen[given] != what:
            self._ids_are_reused = True
        elif not self._ids_are_reused:
            call.repeats = given
        call.id = f"{given}_{token_hex(4)}"


def _with_calls(
    blocks: list[dict[str, Any]], calls: list[Call], by_given_id: dict[str, deque[Call | None]]
) -> list[dict[str, Any]]:
    placed: set[str] = set()
    result: list[dict[str, Any]] = []
    for block in blocks:
        if block.get("type") not in CALL_BLOCKS:
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
