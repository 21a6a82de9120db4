"""Parse a command's answer strictly: an unreadable answer must not count as a yes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast

Decision = Literal["continue", "deny", "ask"]

_DECISIONS: dict[str, Decision] = {
    "allow": "continue",
    "approve": "continue",
    "continue": "continue",
    "deny": "deny",
    "block": "deny",
    "ask": "ask",
    "ask_user": "ask",
}
_KEYS = ("decision", "reason", "context", "data", "message")
_OTHER_NAMES = {"action": "decision", "contextInjection": "context", "systemMessage": "message"}

FIXED = frozenset(
    {
        *("session_id", "turn_id", "span_id", "parent_span_id", "iteration", "timestamp"),
        *("tool_name", "tool_call_id", "request_id"),
    }
)
"""Keys that identify what an event belongs to."""


class InvalidAnswer(Exception):
    """The output is not a valid answer; the message says why, as `it …`."""


class Answer(NamedTuple):
    """A command's answer.

    Attributes:
        decision: What happens to the event.
        reason: The reason for the model or, with `ask`, the question for the user.
        context: Text for the model.
        data: Changes to the event's data.
        message: Text for the user.
    """

    decision: Decision = "continue"
    reason: str | None = None
    context: str | None = None
    data: dict[str, Any] | None = None
    message: str | None = None


def read_answer(output: bytes) -> Answer:
    """Parse an answer printed as JSON; empty output means no decision.

    Raises:
        InvalidAnswer: The output is invalid.
    """
    if not output.strip():
        return Answer()
    try:
        value: Any = json.loads(
            output.decode("utf-8"), object_pairs_hook=_object, parse_constant=_no_constant
        )
    except UnicodeDecodeError as error:
        raise InvalidAnswer("it printed text that is not UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise InvalidAnswer(f"it printed text that is not JSON: {_excerpt(output)}") from error
    if not isinstance(value, dict):
        raise InvalidAnswer(f"it printed JSON that is not an object: {_excerpt(output)}")
    return _answer(_renamed(cast("dict[str, Any]", value)))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object; a duplicate key is refused, as its meaning is ambiguous."""
    read = dict(pairs)
    if len(read) < len(pairs):
        raise InvalidAnswer("it printed JSON with a duplicate key")
    return read


def _no_constant(name: str) -> Any:
    raise InvalidAnswer(f"it printed {name}, which is not JSON")


def _renamed(given: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in given.items():
        name = _OTHER_NAMES.get(key, key)
        if name not in _KEYS:
            raise InvalidAnswer(
                f"its answer has an unknown key {key!r} (known: {', '.join(_KEYS)})"
            )
        if name in fields:
            raise InvalidAnswer(f"its answer gives {name!r} under two names")
        if value is not None:
            fields[name] = value
    return fields


def _answer(fields: dict[str, Any]) -> Answer:
    decision = fields.pop("decision", "continue")
    if not isinstance(decision, str) or decision not in _DECISIONS:
        raise InvalidAnswer(
            f"its decision is {decision!r} not one of {', '.join(sorted(_DECISIONS))}"
        )
    data = fields.pop("data", None)
    if data is not None:
        _check_data(data)
    for name, text in fields.items():
        if not isinstance(text, str):
            raise InvalidAnswer(f"its {name!r} is {type(text).__name__}, not text")
    answer = Answer(_DECISIONS[decision], data=data, **fields)
    if answer.data and answer.context:
        raise InvalidAnswer("its answer has both 'data' and 'context'; they are mutually exclusive")
    if answer.decision != "continue" and (answer.data or answer.context):
        raise InvalidAnswer(
            f"its answer has 'data' or 'context', which have no effect with '{decision}'"
        )
    return answer


def _check_data(data: Any) -> None:
    if not isinstance(data, dict):
        raise InvalidAnswer(f"its 'data' is {type(data).__name__}, not an object")
    fixed = sorted(FIXED.intersection(cast("dict[str, Any]", data)))
    if fixed:
        raise InvalidAnswer(f"its 'data' changes {', '.join(fixed)}, which cannot be changed")


def _excerpt(output: bytes) -> str:
    return repr(output[:80].decode("utf-8", "replace"))
