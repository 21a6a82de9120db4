"""Tool calls in stored messages, and the number each has in its session."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from amplifier_support.fields import to_mapping
from amplifier_support.named_tuple import NamedTuple


class StoredCall(NamedTuple):
    """A tool call as an assistant message holds it.

    Attributes:
        id: Its id; None if the message has none.
        name: The tool.
        input: Its input; text if the model did not send valid JSON.
    """

    id: str | None
    name: str
    input: Any


def calls_in(message: Mapping[str, Any]) -> list[StoredCall]:
    """The tool calls of a message in order, whether stored as blocks, as `tool_calls` or both."""
    listed = message.get("tool_calls")
    if not listed and isinstance(message.get("content"), str):
        return []
    calls = [
        StoredCall(_text(block.get("id")), str(block.get("name") or ""), block.get("input"))
        for block in blocks_in(message, "tool_call")
    ]
    known = {call.id for call in calls if call.id is not None}
    without_id = bool(calls) and not known
    for raw in cast("list[Any]", listed) if isinstance(listed, list) else ():
        if not isinstance(raw, dict):
            continue
        call = cast("dict[str, Any]", raw)
        call_id = _text(call.get("id"))
        # The same calls in another form.
        if call_id in known or (call_id is None and without_id):
            continue
        body = call["function"] if isinstance(call.get("function"), dict) else call
        name = body.get("name") or body.get("tool") or ""
        calls.append(StoredCall(call_id, str(name), body.get("arguments")))
    return calls


def results_in(message: Mapping[str, Any]) -> list[tuple[str | None, Any]]:
    """The ids of the calls that a message has results of, each with the result's content."""
    results: list[tuple[str | None, Any]] = [
        (_text(block.get("tool_call_id")), block.get("output", block.get("content")))
        for block in blocks_in(message, "tool_result")
    ]
    own = _text(message.get("tool_call_id"))
    if message.get("role") in ("tool", "function") and own not in [
        call_id for call_id, _ in results
    ]:
        results.append((own, message.get("content")))
    return results


def as_text(value: Any) -> str:
    """A tool's input or result as text: of blocks their texts, of other data its JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    blocks = cast("list[Any]", value) if isinstance(value, list) else []
    if blocks and all(isinstance(block, dict) and "type" in block for block in blocks):
        texts = [str(block.get("text", f"({block['type']})")) for block in blocks]
        return "\n".join(texts)
    return json.dumps(value, ensure_ascii=False, default=str)


def agent_answer(result: Any) -> str | None:
    """The answer in a result of a sub-agent, without the fields for the calling model; None for other results."""
    if isinstance(result, str) and result.startswith("{") and '"session_id"' in result:
        with contextlib.suppress(ValueError):
            result = json.loads(result)
    fields = to_mapping(result)
    answer = fields.get("response") if "session_id" in fields else None
    return answer if isinstance(answer, str) else None


def blocks_in(message: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    """The content blocks of one type."""
    content = message.get("content")
    if not isinstance(content, list):
        return []
    blocks = [block if type(block) is dict else _fields(block) for block in content]
    return [block for block in blocks if block.get("type") == kind]


def text_in(message: Mapping[str, Any], between: str = "") -> str:
    """The text of a message: its content, or the texts of its blocks joined by `between`."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return between.join(str(block.get("text") or "") for block in blocks_in(message, "text"))


def _fields(block: Any) -> dict[str, Any]:
    """A block as it is stored: a mapping, or a model that a module has not turned into one yet."""
    if isinstance(block, dict):
        return cast("dict[str, Any]", block)
    dump = getattr(block, "model_dump", None)
    return cast("dict[str, Any]", dump(mode="json")) if callable(dump) else {}


def _text(value: object) -> str | None:
    return None if value is None else str(value)


class CallNumbers:
    """Numbers the tool calls of one session.

    The number of a call is its position, from 1, among all calls of the session's transcript: denied,
    malformed and parallel calls count, those of sub-sessions do not, and neither a cleared nor a
    compacted conversation starts again.
    """

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()) -> None:
        self.count = 0
        self._numbers: dict[str, int] = {}
        for record in records:
            self.add(record)

    def add(self, record: Mapping[str, Any]) -> list[int]:
        """Number the calls of the next record of the transcript."""
        if record.get("control") == "replace" and "role" not in record:
            for message in record.get("messages") or ():
                if isinstance(message, dict):
                    self._add_new(cast("dict[str, Any]", message))
            return []
        return [self._next(call) for call in calls_in(record)]

    def _add_new(self, message: Mapping[str, Any]) -> None:
        """Number the calls of a message that replaces others, unless they already have a number."""
        for call in calls_in(message):
            if call.id is None or call.id not in self._numbers:
                self._next(call)

    def _next(self, call: StoredCall) -> int:
        self.count += 1
        if call.id is not None:
            # Some providers use an id again; it then means its latest call.
            self._numbers[call.id] = self.count
        return self.count

    def of(self, call_id: str) -> int | None:
        """The number of the latest call with this id."""
        return self._numbers.get(call_id)
