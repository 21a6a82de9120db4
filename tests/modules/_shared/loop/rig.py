"""A session in small: the real coordinator and hooks, provider-mock, and a context that is a list."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.events import ALL_EVENTS
from amplifier_core.models import HookResult, ToolResult
from amplifier_extras.loop_events.turn import EventsConfig, EventsOrchestrator
from amplifier_modules._shared.loop.config import LoopConfig
from amplifier_modules._shared.loop.turn import LoopOrchestrator
from amplifier_modules._shared.module.config import parse_config
from amplifier_modules.provider_mock.provider import MockConfig, MockProvider, create

DECISIONS = ("plan:", "step:", "loop:", "provider:resolve", "tools:", "tool:select")
EVERY_EVENT = [*ALL_EVENTS, *EventsOrchestrator.events]


class ListContext:
    """Stores what it is given."""

    def __init__(self, messages: Sequence[dict[str, Any]] = ()) -> None:
        self.messages = list(messages)

    async def add_message(self, message: dict[str, Any]) -> None:
        self.messages.append(message)

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any = None
    ) -> list[dict[str, Any]]:
        return list(self.messages)

    async def get_messages(self) -> list[dict[str, Any]]:
        return list(self.messages)

    def roles(self) -> list[str]:
        return [message["role"] for message in self.messages]

    def results(self) -> dict[str, Any]:
        """Contents of the tool results by call id."""
        return {m["tool_call_id"]: m["content"] for m in self.messages if m["role"] == "tool"}


class FunctionTool:
    """A tool made of an async function of its input."""

    def __init__(self, name: str, function: Any, schema: dict[str, Any] | None = None) -> None:
        self.name = name
        self.description = f"tool {name}"
        self.input_schema = schema or {}
        self.inputs: list[dict[str, Any]] = []
        self._function = function

    async def execute(self, input: dict[str, Any]) -> Any:
        self.inputs.append(input)
        return await self._function(input)


async def shout(input: dict[str, Any]) -> ToolResult:
    return ToolResult(output=str(input.get("text", "")).upper())


def echo_tool(name: str = "echo") -> FunctionTool:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    return FunctionTool(name, shout, schema)


def call(name: str = "echo", id: str | None = None, **input: Any) -> dict[str, Any]:
    """A scripted tool call."""
    return {"name": name, "input": input, **({"id": id} if id else {})}


def calls(*tool_calls: dict[str, Any], text: str | None = None) -> dict[str, Any]:
    """A scripted reply that asks for tools."""
    return {"tool_calls": list(tool_calls), **({"text": text} if text else {})}


class Rig:
    """Everything `execute` needs, and the events that came of it."""

    def __init__(self, kind: type[LoopOrchestrator]) -> None:
        self.kind = kind
        self.config_model = EventsConfig if kind is EventsOrchestrator else LoopConfig
        self.config: dict[str, Any] = {}
        self.plan: dict[str, Any] = {"session": {}}
        self.coordinator = self._coordinator(None, None)
        self.context = ListContext()
        self.providers: dict[str, Any] = {}
        self.tools: dict[str, Any] = {}
        self.loop = self.make_loop()
        """The orchestrator of the last run."""
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._listen()

    def _coordinator(self, approval: Any, display: Any) -> ModuleCoordinator:
        session = SimpleNamespace(session_id="session-1", parent_id=None, config=self.plan)
        coordinator = ModuleCoordinator(session, approval, display)
        coordinator.hooks.set_default_fields(session_id="session-1")
        return coordinator

    def with_people(self, approval: Any = None, display: Any = None) -> None:
        """Give the session an approval provider and a display."""
        self.coordinator.approval_system = approval
        self.coordinator.display_system = display

    def _listen(self) -> None:
        def record(event: str, data: dict[str, Any]) -> None:
            self.events.append((event, dict(data)))

        for event in EVERY_EVENT:
            self.coordinator.hooks.register(event, record, priority=1000, name="rig")

    def replies(self, *replies: Any, **config: Any) -> MockProvider:
        """Mount provider-mock with these replies."""
        settings = parse_config(MockConfig, {"replies": list(replies), **config}, "provider-mock")
        provider = create(settings, settings.replies, self.coordinator)
        self.providers["mock"] = provider
        return provider

    def add_tool(self, tool: Any) -> Any:
        self.tools[tool.name] = tool
        return tool

    def on(self, event: str, answer: Any, name: str = "hook") -> None:
        """Have a hook answer `event`: a HookResult, or a function of the data that gives one."""

        def handler(_: str, data: dict[str, Any]) -> HookResult | None:
            return answer(data) if callable(answer) else answer

        self.coordinator.hooks.register(event, handler, name=name)

    def make_loop(self) -> LoopOrchestrator:
        return self.kind(parse_config(self.config_model, self.config, self.kind.name))

    async def run(self, prompt: str = "hello", *, alone: bool = False) -> str:
        """Execute a turn; `alone` without a coordinator."""
        await self.coordinator.mount("context", self.context)
        self.loop = self.make_loop()
        more: dict[str, Any] = {} if alone else {"coordinator": self.coordinator}
        return await self.loop.execute(
            prompt=prompt,
            context=self.context,
            providers=self.providers,
            tools=self.tools,
            hooks=self.coordinator.hooks,
            **more,
        )

    def names(self, *, streaming: bool = False, decisions: bool = False) -> list[str]:
        """Names of the events in order.

        Args:
            streaming: With those that repeat a stream.
            decisions: With those by which loop-events asks for decisions.
        """
        noise = () if streaming else ("content_block:", "provider:stream", "llm:")
        noise += () if decisions else DECISIONS
        return [name for name, _ in self.events if not name.startswith(noise)]

    def of(self, event: str) -> list[dict[str, Any]]:
        return [data for name, data in self.events if name == event]

    def last(self, event: str) -> Mapping[str, Any]:
        return self.of(event)[-1]
