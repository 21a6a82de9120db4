"""A transcript as a conversation: prompts, steps and tool calls, each with its number."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from amplifier_app.sessions.tool_calls import (
    CallNumbers,
    agent_answer,
    as_text,
    calls_in,
    results_in,
)
from amplifier_app.sessions.transcript import is_by_hook
from amplifier_support.fields import to_mapping
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.usage import token_count

Message = dict[str, Any]

CONTINUE = "Continue."
"""The prompt that goes on with an unfinished one."""

ANSWERED = "The user has answered what waited for approval."
"""The beginning of the prompt with the answers."""


def goes_on(content: Any) -> bool:
    """Return True for the content of a prompt that only goes on with an earlier one."""
    return isinstance(content, str) and (content == CONTINUE or content.startswith(ANSWERED))


class Call(NamedTuple):
    """A tool call.

    Attributes:
        number: Its number in the session; see `CallNumbers`.
        id: Its id; None if the model sent none.
        name: The tool.
        input: Its input; text if it was not valid JSON.
        result: Its result as text; None if there is none.
        step: The number of its step.
    """

    number: int
    id: str | None
    name: str
    input: Any
    result: str | None
    step: int

    @property
    def shown(self) -> str | None:
        """The result for people: of a sub-agent its answer."""
        return self.result if (answer := agent_answer(self.result)) is None else answer


class Prompt(NamedTuple):
    """A message of the user, with the number of the first record after it."""

    number: int
    message: Message
    end: int

    @property
    def text(self) -> str:
        return as_text(self.message.get("content"))


class Step(NamedTuple):
    """A model call and the tool calls it asked for.

    Attributes:
        number: Its position among the session's model calls, from 1.
        message: The model's answer.
        calls: The tool calls in it, with their results.
        end: The number of records up to its last tool result.
    """

    number: int
    message: Message
    calls: tuple[Call, ...]
    end: int

    @property
    def usage(self) -> Mapping[str, Any]:
        """Tokens and cost as the provider reported them, without invalid counts; empty if unknown."""
        return {
            name: value
            for name, value in to_mapping(self._metadata.get("usage")).items()
            if not isinstance(value, int) or token_count(value) is not None
        }

    @property
    def model(self) -> str | None:
        model = self._metadata.get("model")
        return model if isinstance(model, str) else None

    @property
    def requested_model(self) -> str | None:
        """The model that was requested; None if unknown."""
        model = self._metadata.get("requested_model")
        return model if isinstance(model, str) else None

    @property
    def switched(self) -> Mapping[str, Any]:
        """The reason why another model answered: `cause`, `reason`, `until`; empty if none did."""
        return to_mapping(self._metadata.get("switched"))

    @property
    def _metadata(self) -> Mapping[str, Any]:
        return to_mapping(self.message.get("metadata"))


class Note(NamedTuple):
    """Another message, such as the instruction or one that a hook added; or a change of the context.

    Attributes:
        kind: The role, or `cleared` or `replaced` for a change of the context.
        message: The message; empty for a change.
        replacement: The messages that replace all before, for `replaced`.
    """

    kind: str
    message: Message
    replacement: tuple[Message, ...] = ()

    @property
    def is_instruction(self) -> bool:
        """True if it is part of the system prompt."""
        return self.kind in ("system", "developer")

    @property
    def is_attachment(self) -> bool:
        """True if it has the images of the prompt that follows."""
        metadata = self.message.get("metadata")
        return isinstance(metadata, dict) and metadata.get("hook_name") == "attachments"


Item = Prompt | Step | Note

_MAX_WAITING = 1000
"""Items after a step while its calls wait for a result."""


class Conversation:
    """All that a transcript records, in order, cleared parts included.

    Iterating reads the records again, so that a long conversation need not be in memory; the lists are.

    Args:
        records: The records of a transcript.
    """

    def __init__(self, records: Iterable[Message]) -> None:
        self._records = records

    def __iter__(self) -> Iterator[Item]:
        return _items(self._records)

    @functools.cached_property
    def items(self) -> list[Item]:
        return list(self)

    @property
    def prompts(self) -> list[Prompt]:
        return [item for item in self.items if isinstance(item, Prompt)]

    @property
    def steps(self) -> list[Step]:
        return [item for item in self.items if isinstance(item, Step)]

    @property
    def calls(self) -> list[Call]:
        return [call for step in self.steps for call in step.calls]

    @functools.cached_property
    def size(self) -> Size:
        """The number of its prompts and steps."""
        prompts = steps = 0
        for item in self:
            prompts += isinstance(item, Prompt)
            steps += isinstance(item, Step)
        return Size(prompts, steps)


class Size(NamedTuple):
    """The length of a conversation."""

    prompts: int
    steps: int


def _items(records: Iterable[Message]) -> Iterator[Item]:
    numbers = CallNumbers()
    # From the last step whose calls may still get a result.
    items: list[Item] = []
    prompts = steps = 0
    for end, record in enumerate(records, 1):
        assigned = numbers.add(record)
        role = record.get("role")
        results = results_in(record)
        if role is None and record.get("control") is not None:
            items.append(_change(record))
        elif role == "assistant":
            yield from items
            items.clear()
            steps += 1
            calls = tuple(
                Call(number, call.id, call.name, call.input, None, steps)
                for number, call in zip(assigned, calls_in(record), strict=True)
            )
            items.append(Step(steps, record, calls, end))
        elif results:
            _add_results(items, results, end)
        elif role == "user" and not is_by_hook(record):
            prompts += 1
            items.append(Prompt(prompts, record, end))
        else:
            items.append(Note(str(role), record))
        if items and not _may_change(items):
            yield from items
            items.clear()
    yield from items


def _may_change(items: list[Item]) -> bool:
    """Return True if the first of the items is a step that may still get a result."""
    first = items[0]
    if not isinstance(first, Step) or len(items) > _MAX_WAITING:
        return False
    return len(items) == 1 or any(call.result is None for call in first.calls)


def _change(record: Message) -> Note:
    if record["control"] == "clear":
        return Note("cleared", {})
    value = record.get("messages")
    messages = cast("list[Any]", value) if isinstance(value, list) else []
    return Note("replaced", {}, tuple(message for message in messages if isinstance(message, dict)))


def _add_results(items: list[Item], results: list[tuple[str | None, Any]], end: int) -> None:
    """Give tool results to the calls of the last step that wait for them."""
    position = next((n for n in reversed(range(len(items))) if isinstance(items[n], Step)), None)
    if position is None:
        return
    step = cast("Step", items[position])
    calls = list(step.calls)
    for call_id, content in results:
        for n, call in enumerate(calls):
            if call.id == call_id and call.result is None:
                calls[n] = call._replace(result=as_text(content))
                break
    items[position] = step._replace(calls=tuple(calls), end=end)


_IGNORED = ("metadata", "timestamp", "id")


class Comparison(NamedTuple):
    """Two conversations compared.

    Attributes:
        common: The number of items that both begin with.
        last_common_step: The number of the last step they share; 0 if none.
        left: The further items of the first.
        right: The further items of the second.
    """

    common: int
    last_common_step: int
    left: list[Item]
    right: list[Item]


def compare(left: Conversation, right: Conversation) -> Comparison:
    """Find the common beginning of two conversations.

    Ids, times and usage do not count: two runs that said and did the same are the same.
    """
    lefts, rights = iter(left), iter(right)
    count = step = 0
    for left_item, other in itertools.zip_longest(lefts, rights):
        if left_item is None or other is None or _essence(left_item) != _essence(other):
            after = [[] if item is None else [item] for item in (left_item, other)]
            return Comparison(count, step, [*after[0], *lefts], [*after[1], *rights])
        count += 1
        step = left_item.number if isinstance(left_item, Step) else step
    return Comparison(count, step, [], [])


def _essence(item: Item) -> Any:
    """Return the part of an item that says or does something."""
    if isinstance(item, Step):
        calls = [(call.name, call.input, call.shown) for call in item.calls]
        return ("step", _content(item.message), calls)
    if isinstance(item, Prompt):
        return ("prompt", item.text)
    assert isinstance(item, Note)
    return (item.kind, _content(item.message), len(item.replacement))


def _content(message: dict[str, Any]) -> Any:
    content = message.get("content")
    if not isinstance(content, list):
        return content
    return [
        {key: value for key, value in block.items() if key not in _IGNORED}
        if isinstance(block, dict)
        else block
        for block in content
        if not (isinstance(block, dict) and block.get("type") in ("tool_call", "thinking"))
    ]
