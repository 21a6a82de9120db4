"""Settings of hooks-approval."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, cast, get_args

from pydantic import BeforeValidator, Field, field_validator, model_validator

from amplifier_modules._shared.module.config import (
    ModuleConfig,
    Published,
    alias_for,
    ignored,
    listed,
    refused,
)
from amplifier_support.session_capabilities import MODE

Mode = Literal["ask", "edits", "propose", "read-only", "auto"]
MODES: tuple[Mode, ...] = get_args(Mode)

PROPOSE = "propose"
"""The mode in which nothing changes before the user accepts a proposal, and the tool that hands one in."""

MODE_CHANGED = "approval:mode_changed"
"""Event with `mode` and `previous`."""


PROPOSED = "proposal:made"
"""Event with `proposal`, `todos` and `decision`: `accepted`, `revise`, `declined`, or `open` if no one was asked."""


class ApprovalMode:
    """The mode of a session.

    Args:
        mode: The mode at the start.
        hooks: Where changes are emitted.

    Attributes:
        modes: Every mode.
        configured: The mode at the start.
    """

    modes = MODES

    def __init__(self, mode: Mode, hooks: Any) -> None:
        self._mode: Mode = mode
        self.configured = mode
        self._hooks = hooks

    @property
    def mode(self) -> Mode:
        return self._mode

    async def set(self, mode: str) -> None:
        """Change the mode for the calls decided from now on.

        Raises:
            ValueError: There is no such mode.
        """
        known: Mode | None = next((name for name in MODES if name == mode), None)
        if known is None:
            raise ValueError(f"unknown mode {mode!r}; the modes are {', '.join(MODES)}")
        previous, self._mode = self._mode, known
        if previous != mode:
            await self._hooks.emit(MODE_CHANGED, {"mode": mode, "previous": previous})

    async def cycle(self) -> str:
        """Change to the next mode and return it; never to `auto`, which must not be set by accident."""
        usual = [mode for mode in MODES if mode != "auto"]
        at = usual.index(self._mode) if self._mode in usual else -1
        await self.set(usual[(at + 1) % len(usual)])
        return self._mode


def resolve_mode(coordinator: Any, configured: Mode) -> ApprovalMode:
    """The mode of the session, or of its parent session; registered if it is new.

    A sub-agent follows its parent, but one that its own config makes read-only stays so.
    """
    inherited = cast("ApprovalMode | None", MODE.of(coordinator))
    if inherited is not None and configured in ("ask", "edits", "auto", inherited.configured):
        return inherited
    own = ApprovalMode(configured, coordinator.hooks)
    MODE.register(coordinator, own)
    return own


MODULE_ID = "hooks-approval"

Action = Literal["allow", "ask", "deny"]
RuleAction = Literal["allow", "sandboxed", "ask", "deny"]

READ_ONLY = (
    "read_file",
    "list_directory",
    "grep",
    "glob",
    "todo",
    "skill",
    "tool_search",
    "bash_output",
)
"""Tools of the bundled modules that change nothing outside the session."""


_PUBLISHED_ACTIONS: dict[Any, str] = {"auto_approve": "allow", "auto_deny": "deny"}

_PUBLISHED_RULE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "pattern": {"type": "string", "description": "Pattern for a `bash` command."},
        "action": {"enum": list(_PUBLISHED_ACTIONS), "description": "What to do with it."},
        "description": {
            "type": ["string", "null"],
            "default": None,
            "description": "Why, for the model and the user.",
        },
    },
    "required": ["pattern", "action"],
    "additionalProperties": False,
}


class Rule(ModuleConfig):
    """The decision on calls that match all of its patterns.

    Attributes:
        action: allow, ask or deny; `sandboxed` allows commands that the sandbox restricts.
        tool: Shell pattern for the tool's name, or several.
        path: Pattern for the paths the call names, or several. A relative one starts at the working
            directory; `**` matches any number of folders.
        command: Pattern for a shell command, or several, compared word by word. A final `*` matches
            any further words.
        host: Pattern for the host of the `url` in the input, or several.
        reason: Shown to the model if the call is denied, and to the user when asking.
    """

    action: RuleAction
    tool: str | list[str] = "*"
    path: str | list[str] | None = None
    command: str | list[str] | None = None
    host: str | list[str] | None = None
    reason: str | None = None

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> dict[str, Any]:
        """A rule, in either of its two forms."""
        return {"anyOf": [handler(core), _PUBLISHED_RULE]}

    @model_validator(mode="before")
    @classmethod
    def _of_published_form(cls, value: Any) -> Any:
        """Convert a published rule: a pattern for the whole `bash` command (`*` wildcard)."""
        if not isinstance(value, dict) or "pattern" not in value:
            return value
        rest = dict(cast("dict[str, Any]", value))
        pattern, action = rest.pop("pattern"), rest.pop("action", None)
        reason = rest.pop("description", None)
        if not isinstance(pattern, str) or set("?[") & set(pattern) or pattern.startswith("*"):
            raise ValueError(
                "'pattern' has no equivalent here; write {action: …, tool: bash, command: …}"
            )
        command = [pattern, f"{pattern} *"] if "*" in pattern else pattern
        own = {"tool": "bash", "command": command, "reason": reason}
        return {**own, "action": _PUBLISHED_ACTIONS.get(action, action), **rest}

    @field_validator("tool", "path", "command", "host")
    @classmethod
    def _has_text(cls, value: str | list[str] | None) -> str | list[str] | None:
        # An empty list would match nothing, or everything.
        if value is not None and (not value or any(not text.strip() for text in listed(value))):
            raise ValueError("a pattern is empty")
        return value

    @field_validator("path")
    @classmethod
    def _stays_a_path(cls, value: str | list[str] | None) -> str | list[str] | None:
        for pattern in listed(value):
            if ".." in pattern.split("/") or "\0" in pattern:
                raise ValueError(f"'{pattern}' must not contain '..' or NUL")
        return value


class PlanRules(ModuleConfig):
    """The rules of a plan.

    Attributes:
        rules: `approvals` of the plan.
    """

    rules: list[Rule] = Field(default_factory=list[Rule])


def _enabled(value: Any) -> Any:
    """A switch, also in the published form `{enabled: true}`."""
    return value.get("enabled", True) if isinstance(value, dict) else value


class ApprovalConfig(ModuleConfig):
    """Settings of hooks-approval.

    Attributes:
        rules: Checked in order; the first match decides.
        mode: Which calls need no approval if no rule matches: `ask` only what reads, `edits` also changes of
            files in the working directory, `auto` all but dangerous ones; `read-only` denies what
            could change something, `propose` until the user has accepted a proposal. It can be
            changed while the session runs.
        default: What to do with calls that no rule matches and the mode does not decide.
        read_only: Tools allowed if no rule matches, whatever the default.
        remember: Offer to remember an answer for the session or always.
        timeout: Seconds to wait for an answer; the call is denied after that.
        audit: Write every decision to `approvals.jsonl` in the session's folder.
        priority: Order among the hooks of a call. After those that change a call, so that the
            decision is on what runs.
    """

    published: ClassVar[Mapping[str, Published]] = {
        "default_timeout": alias_for("timeout"),
        "default_action": ignored("an unanswered question means no"),
        "policy_driven_only": ignored("'rules' and 'default' decide on every call"),
        "auto_approve": ignored("set 'default: allow'"),
        **dict.fromkeys(
            ("patterns", "tools"),
            refused("write them as rules, such as {action: ask, tool: …, command: …}", [], {}),
        ),
    }

    rules: list[Rule] = Field(default_factory=list[Rule])
    mode: Mode = "ask"
    default: Action = "ask"
    read_only: list[str] = Field(default_factory=lambda: list(READ_ONLY))
    remember: bool = True
    timeout: float = Field(default=300, gt=0, allow_inf_nan=False)
    audit: Annotated[
        bool, BeforeValidator(_enabled, json_schema_input_type=bool | dict[str, Any])
    ] = True
    priority: int = 90
