"""Typed keys of the capabilities that parts of a session share: `contracts/capabilities.md`.

    WORKING_DIR.register(coordinator, "/work")
    folder = WORKING_DIR.of(coordinator)  # str | None

A key adds a type to `coordinator.register_capability` and `get_capability`; the names are the contract.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from amplifier_support.named_tuple import NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from amplifier_support.provider_batches import Deferral
    from amplifier_support.sandbox.sandbox import Sandbox

_Value = TypeVar("_Value")


class HasCapabilities(Protocol):
    """The part of a coordinator that keeps capabilities."""

    def register_capability(self, name: str, value: Any) -> None: ...

    def get_capability(self, name: str) -> Any: ...


class Capability(Generic[_Value]):
    """The name of a capability, with the type of its value.

    The type is what the page of capabilities promises; the value may come from any module.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def of(self, coordinator: HasCapabilities) -> _Value | None:
        """The registered value; None if it is not registered."""
        return coordinator.get_capability(self.name)

    def register(self, coordinator: HasCapabilities, value: _Value) -> None:
        """Register the value; it replaces an earlier one."""
        coordinator.register_capability(self.name, value)

    def __repr__(self) -> str:
        return f"Capability({self.name!r})"


class SessionBudget(Protocol):
    """The limits and the usage of a session."""

    @property
    def is_limited(self) -> bool: ...

    @property
    def allowed(self) -> Mapping[str, int | float]:
        """Its limits now, by name; a hook on `budget:reached` may have raised them."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """Return the usage; `session.spent` of the session when it is resumed."""
        ...

    def listen(self, listener: Callable[[], None]) -> None:
        """Call a function whenever usage grows."""
        ...


class ModeControl(Protocol):
    """Reads and sets the mode while the session runs; sub-agents follow it."""

    @property
    def mode(self) -> str: ...

    @property
    def modes(self) -> Sequence[str]: ...

    async def set(self, mode: str) -> None:
        """Change the mode for the calls decided from now on.

        Raises:
            ValueError: There is no such mode.
        """
        ...

    async def cycle(self) -> str:
        """Change to the next mode, for a key that is easily pressed, and return it."""
        ...


class MentionResolver(Protocol):
    """Finds the files that texts of bundles mention."""

    @property
    def bundles(self) -> Mapping[str, Any]:
        """The namespaces by name, each with ``base_path`` and ``source_base_paths``."""
        ...

    def resolve(self, mention: str) -> "Path | None":
        """The file or folder of ``@NAME:path``, or ``@path`` in the working directory; None if there is
        none."""
        ...


class SentRequest(NamedTuple):
    """A model request that is about to be sent.

    Attributes:
        provider: The name of the provider.
        model: The model, if it is known.
        tools: The tools it offers, each with `name`, `description` and `parameters`.
        view: The messages that the context selected.
        messages: The messages of the request.
        injections: The texts that are in it for this request only, each with the hook it comes from.
        changes: The hooks that changed its messages, in order, each with the messages it returned.
    """

    provider: str
    model: str | None
    tools: Sequence[Any]
    view: Sequence[Any]
    messages: Sequence[Any]
    injections: Sequence[tuple[str, str]] = ()
    changes: Sequence[tuple[str, Any]] = ()


class RequestLog(Protocol):
    """Compares each model request of a session with the one before it."""

    @property
    def count(self) -> int:
        """The number of requests so far; 0 with an orchestrator that does not report them."""
        ...

    @property
    def breaks(self) -> Sequence[str]:
        """The requests that could not use the provider's cache, each with the reason."""
        ...

    def note(self, sent: SentRequest) -> None:
        """Record a request that is about to be sent."""
        ...


class EditorFiles(Protocol):
    """The files of the editor that the session is served to, by absolute path.

    Attributes:
        unsaved: The texts that were other than the saved ones when a tool last looked.
    """

    unsaved: dict[str, str]

    async def read(self, path: str) -> str | None:
        """Return the text of a file with the changes that are not saved; None if there is none."""

    async def write(self, path: str, text: str) -> None:
        """Replace the text of a file in the editor, which saves it.

        Raises:
            OSError: It cannot.
        """


class Turn:
    """A request that may be sent. This base class records nothing."""

    async def record_answer(self, status: int, headers: Mapping[str, str]) -> None:
        """Record the head of its answer; header names are looked up in lower case."""

    async def record_failure(self) -> None:
        """Record that it had no answer."""


Enter = Callable[[str, int], Awaitable[Turn]]
"""Waits until a request may be sent. Takes what identifies the account and the model, and the length of the
request in bytes."""

RunAgent = Callable[..., Awaitable[dict[str, Any]]]

# Registered by the app.
WORKING_DIR = Capability[str]("session.working_dir")
SESSION_DIR = Capability[str]("session.dir")
DEPTH = Capability[int]("session.depth")
SPAWN = Capability[RunAgent]("session.spawn")
RESUME = Capability[RunAgent]("session.resume")
SPENT = Capability[Mapping[str, Any] | None]("session.spent")
RESPONSE_FORMAT = Capability[Mapping[str, Any] | None]("session.response_format")
SELF_DELEGATION_DEPTH = Capability[int]("self_delegation_depth")
CONFIG_DIR = Capability[str]("config.dir")
CACHE_DIR = Capability[str]("cache.dir")
PRICES_FILE = Capability[str]("prices.file")
TRUSTED_DIR = Capability[str]("trusted.dir")
TRUSTED_PROGRAMS = Capability[Callable[[], None]]("trusted.programs")
MENTIONS = Capability[MentionResolver]("mention_resolver")
OFFLINE = Capability[bool]("offline")
SECRET_VARIABLES = Capability[Iterable[str]]("secrets.variables")
PACE = Capability[Enter]("provider.pace")
REPLICATE: "Capability[Callable[[Path], Awaitable[None]]]" = Capability("session.replicate")
SANDBOX: "Capability[Sandbox]" = Capability("session.sandbox")
REQUEST_LOG = Capability[RequestLog]("session.request_log")
DEFERRAL: "Capability[Deferral]" = Capability("provider.deferral")
EDITOR_FILES = Capability[EditorFiles]("editor.files")

# Registered by orchestrators.
BUDGET = Capability[SessionBudget]("session.budget")
STEER = Capability[Callable[[str], Any]]("session.steer")

# Registered by hooks, tools and providers.
REGISTER_APPROVAL_PROVIDER = Capability[Callable[[Any], Any]]("approval.register_provider")
MODE = Capability[ModeControl]("approval.mode")
APPROVAL_POLICY = Capability[Callable[..., dict[str, Any]]]("approval.policy")
TestGuards = Callable[[Sequence[str], str, Mapping[str, Any]], Awaitable[list[dict[str, Any]]]]
TEST_GUARDS = Capability[TestGuards]("guards.test")
REMEMBERED_APPROVALS = Capability[Any]("approval.remembered")
ACCEPTED_TOOLS = Capability[dict[str, dict[str, str]]]("mcp.accepted")
START_BACKGROUND = Capability[Callable[[str], Awaitable[str]]]("bash.start_background")
OUTSIDE_SANDBOX = Capability[dict[str, str]]("approval.outside_sandbox")
REDACT_EVENT = Capability[Callable[[str, dict[str, Any]], dict[str, Any]]]("redaction.event")
UNDO = Capability[Callable[..., Any]]("backup.undo")
UNDO_LIST = Capability[Callable[..., Any]]("backup.list")
BACKUPS = Capability[Any]("backup.session")
TODO_ITEMS = Capability[Callable[[], list[dict[str, Any]]]]("todo.items")
MODEL_ROLES = Capability[Any]("model_role_resolver")
COMMAND_REGISTRY = Capability[Any]("slash_command_registry")
COMMAND_EXECUTOR = Capability[Any]("slash_command_executor")
TOOL_OUTPUT_DIR = Capability[str]("tool.output_dir")
ANNOUNCED_EVENTS = Capability[Any]("observability.events")

# Contribution channels that several modules use.
SKILLS_CHANNEL = "skills"

# Registered by host applications.
BEFORE_PROVIDER = Capability[Callable[..., Any]]("provider.before_load")
PROVIDER_FAILURE = Capability[Callable[..., Any]]("provider.load_failure")


def tool_working_dir(tool: str) -> Capability[Callable[[], Any]]:
    """The working directory of the next command of a tool, such as ``bash.working_dir``."""
    return Capability(f"{tool}.working_dir")


def tool_check(tool: str) -> Capability[Callable[[Mapping[str, Any], str | None], Awaitable[bool]]]:
    """The check of whether a call of a tool cannot succeed, such as ``edit_file.check``."""
    return Capability(f"{tool}.check")


def tool_delegates(tool: str) -> Capability[Callable[[], bool]]:
    """The check that a tool only gives work to sub-agents that ask for approval themselves: ``task.delegates``."""
    return Capability(f"{tool}.delegates")


def tool_sandbox(tool: str) -> "Capability[Callable[[], Sandbox | None]]":
    """The sandbox of the commands that a tool runs, such as ``bash.sandbox``."""
    return Capability(f"{tool}.sandbox")
