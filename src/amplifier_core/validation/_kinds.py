"""The five kinds of modules: where each is mounted and which members it must have."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from amplifier_core._placement import required_arguments
from amplifier_core.validation.base import Severity

__all__ = ["KINDS", "Form", "Kind", "Member", "cleanup_of"]

Form = Literal["text", "schema", "provider_info", "callable", "async"]
"""How a member is checked, see ``amplifier_core.validation._members``."""


@dataclass(frozen=True)
class Member:
    """One member of a protocol and its check.

    Attributes:
        check: name of the check.
        name: attribute of the mounted object.
        form: how the attribute's value is checked.
        expected: the expected definition, for the failure message.
        arity: minimum number of named arguments of a callable.
        severity: severity of a failure.
        required: whether an object must have it to conform to the protocol.
    """

    check: str
    name: str
    form: Form
    expected: str
    arity: int = 0
    severity: Severity = "error"
    required: bool = True


class Mounts(Protocol):
    """The part of a coordinator that shows what a module mounted."""

    @property
    def mount_points(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Kind:
    """A kind of module.

    Attributes:
        name: ``provider``, ``tool``, ``hook``, ``orchestrator`` or ``context``.
        mount_point: key of the coordinator's mount points.
        members: what a mounted object must have.
        how_to_mount: the call that mounts one, for messages.
    """

    name: str
    mount_point: str
    members: tuple[Member, ...]
    how_to_mount: str

    def conforms(self, instance: object) -> bool:
        """Whether ``instance`` has every required member."""
        required = [member.name for member in self.members if member.required]
        return bool(required) and all(_has(instance, name) for name in required)

    def instances(self, coordinator: Mounts, returned: object) -> list[tuple[str, Any]]:
        """The mounted objects by name, or else the returned object if it conforms."""
        if self.name == "hook":
            return [("handler", returned)] if required_arguments(returned) else []
        mounted = coordinator.mount_points[self.mount_point]
        if isinstance(mounted, dict):
            found = list(mounted.items())  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        else:
            found = [] if mounted is None else [(self.name, mounted)]
        if not found and self.conforms(returned):
            found = [(str(_name_of(returned)), returned)]
        return found


def cleanup_of(returned: object) -> Callable[[], Any] | None:
    """The return value of ``mount`` if it is a cleanup: callable without arguments, not an instance."""
    if not callable(returned) or required_arguments(returned):
        return None
    return None if any(kind.conforms(returned) for kind in KINDS.values()) else returned


def _has(instance: object, name: str) -> bool:
    try:
        return hasattr(instance, name)
    # Reading a member runs the module's code; the member's check reports the exception.
    except Exception:
        return True


def _name_of(instance: object) -> Any:
    try:
        return getattr(instance, "name", "returned")
    # As above.
    except Exception:
        return "returned"


_KINDS: Final = (
    Kind(
        "provider",
        "providers",
        (
            Member("provider_name", "name", "text", "name: str"),
            Member(
                "provider_get_info",
                "get_info",
                "provider_info",
                "def get_info(self) -> ProviderInfo",
            ),
            Member(
                "provider_list_models",
                "list_models",
                "async",
                "async def list_models(self) -> list[ModelInfo]",
            ),
            Member(
                "provider_complete",
                "complete",
                "async",
                "async def complete(self, request, **kwargs) -> ChatResponse",
                arity=1,
            ),
            Member(
                "provider_parse_tool_calls",
                "parse_tool_calls",
                "callable",
                "def parse_tool_calls(self, response) -> list[ToolCall]",
            ),
        ),
        'await coordinator.mount("providers", provider, name="…")',
    ),
    Kind(
        "tool",
        "tools",
        (
            Member("tool_name", "name", "text", "name: str"),
            Member(
                "tool_description", "description", "text", "description: str", severity="warning"
            ),
            Member(
                "tool_input_schema",
                "input_schema",
                "schema",
                "input_schema: dict",
                severity="warning",
                required=False,
            ),
            Member(
                "tool_execute",
                "execute",
                "async",
                "async def execute(self, input: dict) -> ToolResult",
                arity=1,
            ),
        ),
        'await coordinator.mount("tools", tool, name="…")',
    ),
    Kind(
        "hook",
        "hooks",
        (
            Member(
                "hook_call",
                "__call__",
                "async",
                "async def __call__(self, event, data) -> HookResult",
                arity=2,
                required=False,
            ),
        ),
        "coordinator.hooks.register(event, handler)",
    ),
    Kind(
        "orchestrator",
        "orchestrator",
        (
            Member(
                "orchestrator_execute",
                "execute",
                "async",
                "async def execute(self, prompt, context, providers, tools, hooks, **kwargs) -> str",
                arity=5,
            ),
        ),
        'await coordinator.mount("orchestrator", orchestrator)',
    ),
    Kind(
        "context",
        "context",
        (
            Member(
                "context_add_message",
                "add_message",
                "async",
                "async def add_message(self, message: dict) -> None",
                arity=1,
            ),
            Member(
                "context_get_messages_for_request",
                "get_messages_for_request",
                "async",
                "async def get_messages_for_request(self, token_budget=None, provider=None)",
            ),
            Member(
                "context_get_messages",
                "get_messages",
                "async",
                "async def get_messages(self) -> list[dict]",
            ),
            Member(
                "context_set_messages",
                "set_messages",
                "async",
                "async def set_messages(self, messages: list[dict]) -> None",
                arity=1,
            ),
            Member("context_clear", "clear", "async", "async def clear(self) -> None"),
        ),
        'await coordinator.mount("context", context)',
    ),
)

KINDS: Final[dict[str, Kind]] = {kind.name: kind for kind in _KINDS}
"""Every kind by its name."""
