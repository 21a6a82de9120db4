"""One hook: a command, when it runs, what it is given and what its answer means."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, cast

from pydantic import Field, field_validator

from amplifier_modules._shared.module.config import ModuleConfig, listed
from amplifier_modules._shared.privacy import PlainCopy
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.process.with_input import Answered
from amplifier_support.text import cut_text

COMPLETED = "shell_hook:completed"
FAILED = "shell_hook:failed"
EVENTS = (COMPLETED, FAILED)

UNLESS_NAMED = (*EVENTS, "content_block:delta", "thinking:delta", "provider:stream", "llm:stream_*")
"""Events a pattern does not mean: its own, which would never end, and those that come by the thousand."""

CLOSED = ("tool:pre",)
"""Events that are denied if the command fails, unless configured otherwise."""

_MAX_TITLE = 60


REFUSED = 2
"""Exit code that denies, with the reason on standard error."""

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
        goes_on: Whether the agent goes on with the context, although its turn is about to end.
    """

    decision: Decision = "continue"
    reason: str | None = None
    context: str | None = None
    data: dict[str, Any] | None = None
    message: str | None = None
    goes_on: bool = False


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
    return _to_answer(_renamed(cast("dict[str, Any]", value)))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object; a duplicate key is refused, as its meaning is ambiguous."""
    read = dict(pairs)
    if len(read) < len(pairs):
        raise InvalidAnswer("it printed JSON with a duplicate key")
    return read


def _no_constant(name: str) -> Any:
    raise InvalidAnswer(f"it printed {name}, which is not JSON")


def _renamed(answer: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in answer.items():
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


def _to_answer(fields: dict[str, Any]) -> Answer:
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


class ShellHook(ModuleConfig):
    """A command and when to run it.

    Attributes:
        event: Shell pattern for the event's name, or several.
        command: Command line for `sh`, or a program with its arguments.
        tool: Shell pattern for the tool's name, or several. If set, the command runs only on events
            of tool calls.
        name: Its name in messages; by default the command.
        timeout: Time limit in seconds; it is then killed with everything it started.
        output: Meaning of its output: `json`, an answer as in the README; `context`, text for the
            model; `ignore`, nothing. The exit code always counts.
        on_failure: What happens to the event if the command fails; by default `deny` for `tool:pre`
            and `allow` for others.
        environment: Variables to set for it.
        env_passthrough: Environment variables to pass although their names or values look like
            secrets; `*` matches any characters.
    """

    event: str | list[str]
    command: str | list[str]
    tool: str | list[str] | None = None
    name: str | None = None
    timeout: float = Field(default=60, gt=0, allow_inf_nan=False)
    output: Literal["json", "context", "ignore"] = "json"
    on_failure: Literal["allow", "deny"] | None = None
    environment: dict[str, str] = Field(default_factory=dict[str, str])
    env_passthrough: list[str] = Field(default_factory=list[str])

    @field_validator("event", "command", "tool")
    @classmethod
    def _has_text(cls, value: str | list[str] | None) -> str | list[str] | None:
        if value is not None and (not value or not listed(value)[0].strip()):
            raise ValueError("it is empty")
        if any("\0" in part for part in listed(value)):
            raise ValueError("it contains a NUL character")
        return value

    @field_validator("environment")
    @classmethod
    def _are_variables(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not name or "=" in name or "\0" in name + text:
                raise ValueError(f"{name!r} is not an environment variable")
        return value

    @property
    def title(self) -> str:
        """Its name in messages."""
        text = " ".join((self.name or listed(self.command)[0]).split())
        return cut_text(text, _MAX_TITLE)

    def means_event(self, event: str) -> bool:
        """Return True if it runs on events with this name."""
        patterns = listed(self.event)
        if event in patterns:
            return event not in EVENTS
        if any(fnmatchcase(event, pattern) for pattern in UNLESS_NAMED):
            return False
        return any(fnmatchcase(event, pattern) for pattern in patterns)

    def means_data(self, data: Mapping[str, Any]) -> bool:
        """Return True if it runs on an event with this data."""
        if self.tool is None:
            return True
        tool = data.get("tool_name")
        return isinstance(tool, str) and any(fnmatchcase(tool, p) for p in listed(self.tool))

    def refuses_on_failure(self, event: str) -> bool:
        """Return True if the event is denied if the command fails."""
        if self.on_failure is None:
            return event in CLOSED
        return self.on_failure == "deny"

    def write_input(
        self, event: str, data: Mapping[str, Any], session_id: str, folder: str
    ) -> dict[str, Any]:
        """Return what it gets on stdin.

        Args:
            event: The event's name.
            data: The event's data.
            session_id: The session.
            folder: The working directory of the session.
        """
        copy = PlainCopy().of(data)
        return {"session_id": session_id, **copy, "event": event, "working_dir": folder}

    def read_answer(self, ran: Answered, data: Mapping[str, Any]) -> Answer:
        """Return the answer of the command, which has ended.

        Raises:
            InvalidAnswer: It failed, or its answer is invalid.
        """
        if ran.problem is not None:
            raise InvalidAnswer(ran.problem)
        if ran.exit_code == REFUSED:
            return self.refuse(ran.errors.decode("utf-8", "replace").strip())
        if ran.exit_code != 0:
            raise InvalidAnswer(f"it exited with code {ran.exit_code}")
        return self.parse(ran.output, data)

    def refuse(self, reason: str) -> Answer:
        """Return the answer of a command that refused."""
        return Answer("deny", reason or None)

    def parse(self, output: bytes, data: Mapping[str, Any]) -> Answer:
        """Return the answer in the output of a command that succeeded.

        Raises:
            InvalidAnswer: The output is no answer.
        """
        if self.output == "json":
            return read_answer(output)
        if self.output == "context":
            return Answer(context=output.decode("utf-8", "replace").strip() or None)
        return Answer()
