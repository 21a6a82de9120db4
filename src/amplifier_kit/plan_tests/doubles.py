"""Test doubles of a session: tools that do not run, and providers whose requests are recorded."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from amplifier_app.base.errors import ConfigError
from amplifier_app.plan.traffic import read_recording
from amplifier_app.plan.tree.nodes import Node, plain_data
from amplifier_core.models import ToolResult
from amplifier_kit.plan_tests.grammar import RECORDED
from amplifier_support.did_you_mean import did_you_mean
from amplifier_support.fields import field_of
from amplifier_support.journal import readable_records
from amplifier_support.provider_order import model_of

_REQUESTS = ("complete", "stream_complete")


class Sent(NamedTuple):
    """A request that was sent to a model.

    Attributes:
        provider: The name of the provider.
        model: The model of the request, or else of the provider; None if neither names one.
        system: Its system prompt.
        prompt: The text of the user in it.
        tools: The names of the tools that it offers.
        session_id: The session that sent it.
        by_agent: Whether that is a sub-session.
    """

    provider: str
    model: str | None
    system: str
    prompt: str
    tools: tuple[str, ...]
    session_id: str
    by_agent: bool


class Doubles:
    """The doubles of one session and its sub-sessions (see `Adjustment`).

    Args:
        stubs: The results of tools, by name.
        recording: The recording that recorded results come from.

    Attributes:
        sent: The requests of all sessions, in order.
        problems: What went wrong in a double.
    """

    def __init__(self, stubs: Mapping[str, Node], recording: Path | None) -> None:
        self.sent: list[Sent] = []
        self.problems: list[str] = []
        self._stubs = {name: plain_data(node) for name, node in stubs.items()}
        self._first: Any = None
        self._recorded: RecordedResults | None = None
        if recording is not None and RECORDED in self._stubs.values():
            self._recorded = RecordedResults(recording)

    def check(self, coordinator: Any) -> None:
        """Check that the plan has the tools.

        Raises:
            ConfigError: A tool is missing.
        """
        known = list(coordinator.get("tools"))
        for name in self._stubs:
            if name not in known:
                hint = did_you_mean(name, known) or f"its tools: {', '.join(known) or 'none'}"
                raise ConfigError(f"tools: the plan has no tool {name!r}; {hint}")

    def apply(self, coordinator: Any) -> None:
        """Put the doubles in place of tools and providers."""
        self._first = self._first or coordinator
        tools: dict[str, Any] = coordinator.get("tools")
        for name, stub in self._stubs.items():
            if name in tools and not isinstance(tools[name], _StubbedTool):
                tools[name] = _StubbedTool(tools[name], name, stub, self)
        providers: dict[str, Any] = coordinator.get("providers")
        for name, provider in list(providers.items()):
            if not isinstance(provider, _WatchedProvider):
                by_agent = coordinator is not self._first
                sender = coordinator.session_id, by_agent
                providers[name] = _WatchedProvider(provider, name, self.sent, sender)

    def recorded_result(self, tool: str, given: Any) -> ToolResult:
        """The recorded result of a call."""
        output = None if self._recorded is None else self._recorded.take(tool, given)
        if output is None:
            what = f"{tool} was called with an input that the recording does not have"
            self.problems.append(f"{what}: {json.dumps(given, default=str)[:500]}")
            return ToolResult(success=False, error={"message": what})
        return ToolResult(success=True, output=output)


class _Wrapper:
    """All attributes of another object, except those that a subclass defines."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # A copy has no attributes yet.
            raise AttributeError(name)
        return getattr(self._inner, name)


class _StubbedTool(_Wrapper):
    def __init__(self, inner: Any, name: str, stub: Any, doubles: Doubles) -> None:
        super().__init__(inner)
        self._called_as = name
        self._doubles = doubles
        self._stub = stub
        self._left = deque(cast("list[Any]", stub)) if isinstance(stub, list) else None

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        """The result of the stub."""
        if self._stub == RECORDED:
            return self._doubles.recorded_result(self._called_as, input)
        result = self._stub
        if self._left is not None:
            if not self._left:
                what = f"{self._called_as} was called more often than it has results"
                self._doubles.problems.append(what)
                return ToolResult(success=False, error={"message": what})
            result = self._left.popleft()
        if "error" in result:
            return ToolResult(success=False, error={"message": result["error"]})
        return ToolResult(success=True, output=result["output"])


class _WatchedProvider(_Wrapper):
    def __init__(self, inner: Any, name: str, sent: list[Sent], sender: tuple[str, bool]) -> None:
        super().__init__(inner)
        self._mounted_as = name
        self._sent = sent
        self._sender = sender

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name not in _REQUESTS:
            return found

        # A method that the provider lacks is missing here, too: loops choose by what exists.
        def request(asked: Any, **options: Any) -> Any:
            self._sent.append(self._described(asked, options))
            return found(asked, **options)

        return request

    def _described(self, request: Any, options: Mapping[str, Any]) -> Sent:
        model = options.get("model") or field_of(request, "model") or model_of(self._inner)
        tools: Sequence[Any] = field_of(request, "tools") or ()
        return Sent(
            self._mounted_as,
            model,
            _texts(request, "system", "developer"),
            _texts(request, "user"),
            tuple(str(field_of(tool, "name")) for tool in tools),
            *self._sender,
        )


def _texts(request: Any, *roles: str) -> str:
    messages: Sequence[Any] = field_of(request, "messages") or ()
    found = [_text(field_of(one, "content")) for one in messages if field_of(one, "role") in roles]
    return "\n\n".join(found)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks: Sequence[Any] = content if isinstance(content, (list, tuple)) else ()
    return "\n".join(str(text) for one in blocks if (text := field_of(one, "text")))


class RecordedResults:
    """The results of tools in a recording; calls with the same input get their results in order.

    Args:
        file: The recording.

    Raises:
        ConfigError: It cannot be read.
    """

    def __init__(self, file: Path) -> None:
        self._left: dict[str, deque[str]] = {}
        calls: dict[str, str] = {}
        for line in recorded_lines(file):
            request = line.get("request")
            messages = request.get("messages") if isinstance(request, dict) else None
            for message in messages if isinstance(messages, list) else ():
                self._read(message, calls)

    def _read(self, message: Any, calls: dict[str, str]) -> None:
        content = field_of(message, "content")
        for block in content if isinstance(content, list) else ():
            if field_of(block, "type") == "tool_call":
                calls[str(field_of(block, "id"))] = _key(
                    field_of(block, "name"), field_of(block, "input")
                )
        answered = field_of(message, "tool_call_id")
        if field_of(message, "role") == "tool" and answered in calls:
            # Later requests are stored without the messages of earlier ones.
            key = calls.pop(answered)
            self._left.setdefault(key, deque()).append(_text(content))

    def take(self, tool: str, given: Any) -> str | None:
        """The next result of a call; None if there is none left."""
        left = self._left.get(_key(tool, given))
        return left.popleft() if left else None


def recorded_lines(file: Path) -> list[dict[str, Any]]:
    """The lines of a recording; invalid lines are left out.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        return readable_records(read_recording(file))
    except OSError as error:
        hint = "Check that you may read it."
        raise ConfigError(
            f"cannot read the recording {file}: {error.strerror}", hint=hint
        ) from error


def _key(tool: Any, given: Any) -> str:
    return json.dumps([tool, given], sort_keys=True, default=str)
