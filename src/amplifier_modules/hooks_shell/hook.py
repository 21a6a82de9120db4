"""The hooks: which command runs when, and what its answer does."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal, cast

from pydantic import Field, field_validator

from amplifier_core.events import ALL_EVENTS
from amplifier_core.models import HookResult
from amplifier_modules._shared.module.config import ModuleConfig, listed
from amplifier_modules._shared.module.spans import announced_events
from amplifier_modules._shared.privacy import PlainCopy, raw_data
from amplifier_modules._shared.process.sandbox import (
    SandboxValue,
    command_environment,
    command_sandbox,
)
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.process.commands import ProcessRunner
from amplifier_support.process.with_input import Answered, run_with_input
from amplifier_support.session_capabilities import WORKING_DIR, Capability
from amplifier_support.text import cut_text

# -- settings of hooks-shell -------------------------------------------------------------


MODULE_ID = "hooks-shell"

COMPLETED = "shell_hook:completed"
FAILED = "shell_hook:failed"
EVENTS = (COMPLETED, FAILED)

UNLESS_NAMED = (*EVENTS, "content_block:delta", "thinking:delta", "provider:stream", "llm:stream_*")
"""Events a pattern does not mean: its own, which would never end, and those that come by the thousand."""

CLOSED = ("tool:pre",)
"""Events that are denied if the command fails, unless configured otherwise."""

_MAX_TITLE = 60


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

    def means_tool(self, tool: object) -> bool:
        """Return True if it runs on an event that names this tool, or None."""
        if self.tool is None:
            return True
        return isinstance(tool, str) and any(fnmatchcase(tool, p) for p in listed(self.tool))

    def refuses_on_failure(self, event: str) -> bool:
        """Return True if the event is denied if the command fails."""
        if self.on_failure is None:
            return event in CLOSED
        return self.on_failure == "deny"


class ShellConfig(ModuleConfig):
    """Settings of hooks-shell.

    Attributes:
        hooks: The commands; for one event they run in sequence, in this order.
        sandbox: What they may do, as `session.sandbox` of a plan, which is the default.
        priority: Order among the hooks of an event. Before approvals, so that the call approved is
            the one the command has changed.
    """

    hooks: list[ShellHook] = Field(default_factory=list[ShellHook])
    sandbox: SandboxValue = None
    priority: int = 50


# -- the hooks: which command runs when, and what its answer does ------------------------


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
    return _to_answer(_renamed(cast("dict[str, Any]", value)))


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


logger = logging.getLogger(__name__)

REFUSED = 2
"""Exit code that denies, with the reason on standard error."""

_TWINS = {"tool_input": "input", "tool_result": "result"}
_CARRIED = (
    *("session_id", "turn_id", "span_id", "parent_span_id", "iteration"),
    *("tool_name", "tool_call_id"),
)


class ShellHooks:
    """Run the commands of one session.

    Args:
        coordinator: See `amplifier_core.coordinator.ModuleCoordinator`.
        config: The commands.

    Raises:
        SandboxUnavailable: The machine cannot enforce the sandbox.
    """

    def __init__(self, coordinator: Any, config: ShellConfig) -> None:
        self._coordinator = coordinator
        self._config = config
        sandbox = command_sandbox(coordinator, config.sandbox) if config.hooks else None
        self._runner = ProcessRunner(sandbox)
        self._listening: dict[tuple[int, str], Callable[[], None]] = {}
        named = {name for hook in config.hooks for name in listed(hook.event)}
        self.listen(name for name in named if not set("*?[") & set(name))

    def listen(self, names: Iterable[str]) -> None:
        """Start running the commands on the events with these names."""
        for name in names:
            for number, hook in enumerate(self._config.hooks):
                if (number, name) not in self._listening and hook.means_event(name):
                    # One handler for each: the registry passes changes on to the next one, and
                    # stops at the first that denies.
                    self._listening[number, name] = self._coordinator.hooks.register(
                        name,
                        partial(self._decide, hook),
                        priority=self._config.priority,
                        name=f"{MODULE_ID}:{hook.title}",
                    )

    async def close(self) -> None:
        """Stop listening and kill what commands left running; a second call does nothing."""
        for unregister in self._listening.values():
            unregister()
        self._listening.clear()
        await self._runner.close()

    async def _decide(self, hook: ShellHook, event: str, data: Any) -> HookResult:
        """Handle an event. A handler that raises is skipped, so its own errors count as
        failures."""
        held = raw_data(data)
        try:
            return await self._on_event(hook, event, held)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            problem = "it was cancelled"
        except Exception as error:
            logger.debug("%s: %s", MODULE_ID, hook.title, exc_info=True)
            problem = f"it could not be run ({type(error).__name__}: {error})"
        return await self._failed(hook, event, held, Answered(None, b"", b"", None, 0.0), problem)

    async def _on_event(self, hook: ShellHook, event: str, held: dict[str, Any]) -> HookResult:
        if not hook.means_tool(held.get("tool_name")):
            return HookResult()
        folder = WORKING_DIR.of(self._coordinator) or os.getcwd()
        ran = await run_with_input(
            self._runner,
            hook.command,
            stdin=self._input(event, held, folder),
            environment=self._environment(hook, event, held, folder),
            folder=folder,
            timeout=hook.timeout,
        )
        try:
            answer = _answer(hook, ran)
        except InvalidAnswer as problem:
            return await self._failed(hook, event, held, ran, str(problem))
        await self._emit(COMPLETED, hook, event, held, ran, {"decision": answer.decision})
        return await self._result(hook, event, held, answer)

    async def _result(
        self, hook: ShellHook, event: str, held: dict[str, Any], answer: Answer
    ) -> HookResult:
        spoken: dict[str, Any] = {}
        if answer.message:
            spoken = {"user_message": answer.message, "user_message_source": hook.title}
        reason = answer.reason or f"denied by the hook '{hook.title}'"
        if answer.decision == "deny":
            return HookResult(action="deny", reason=reason, **spoken)
        if answer.decision == "ask":
            prompt = answer.reason or f"The hook '{hook.title}' asks: allow this?"
            return HookResult(action="ask_user", approval_prompt=prompt, **spoken)
        if answer.context:
            return HookResult(
                action="inject_context",
                context_injection=answer.context,
                context_injection_role="user",
                **spoken,
            )
        if spoken:
            # The registry drops messages of answers without consequences.
            await self._coordinator.process_hook_result(HookResult(**spoken), event, MODULE_ID)
        if answer.data:
            return HookResult(action="modify", data={**held, **_with_twins(held, answer.data)})
        return HookResult()

    async def _failed(
        self, hook: ShellHook, event: str, held: dict[str, Any], ran: Answered, problem: str
    ) -> HookResult:
        error_output = ran.errors.decode("utf-8", "replace").strip()[-500:]
        problem += f" ({error_output})" if error_output else ""
        refuses = hook.refuses_on_failure(event)
        outcome = "deny" if refuses else "allow"
        await self._emit(FAILED, hook, event, held, ran, {"problem": problem, "outcome": outcome})
        rest = "it is denied" if refuses else "continuing without the hook"
        logger.warning("The hook '%s' on %s failed: %s; %s", hook.title, event, problem, rest)
        if not refuses:
            return HookResult()
        reason = f"the hook '{hook.title}', which must allow it, failed: {problem}"
        return HookResult(action="deny", reason=reason)

    async def _emit(
        self,
        name: str,
        hook: ShellHook,
        event: str,
        held: Mapping[str, Any],
        ran: Answered,
        facts: Mapping[str, Any],
    ) -> None:
        carried = {key: held[key] for key in _CARRIED if key in held}
        took = {"exit_code": ran.exit_code, "duration_ms": round(ran.seconds * 1000, 1)}
        await self._coordinator.hooks.emit(
            name, {**carried, "hook": hook.title, "on": event, **took, **facts}
        )

    def _input(self, event: str, held: dict[str, Any], folder: str) -> bytes:
        session = {"session_id": self._coordinator.session_id}
        about = {"event": event, "working_dir": folder}
        return json.dumps({**session, **PlainCopy().of(held), **about}).encode("ascii") + b"\n"

    def _environment(
        self, hook: ShellHook, event: str, held: Mapping[str, Any], folder: str
    ) -> dict[str, str]:
        environment = command_environment(self._coordinator, hook.env_passthrough)
        tool = held.get("tool_name")
        variables = {
            "PWD": folder,
            "AMPLIFIER_EVENT": event,
            "AMPLIFIER_WORKING_DIR": folder,
            "AMPLIFIER_SESSION_ID": str(self._coordinator.session_id),
            **({"AMPLIFIER_TOOL_NAME": tool} if isinstance(tool, str) and "\0" not in tool else {}),
        }
        return {**environment, **variables, **hook.environment}


HOOKS = Capability[ShellHooks]("hooks-shell.hooks")


def _answer(hook: ShellHook, ran: Answered) -> Answer:
    """The answer of a command that ended.

    Raises:
        InvalidAnswer: It failed, or its answer is invalid.
    """
    if ran.problem is not None:
        raise InvalidAnswer(ran.problem)
    if ran.exit_code == REFUSED:
        return Answer("deny", ran.errors.decode("utf-8", "replace").strip() or None)
    if ran.exit_code != 0:
        raise InvalidAnswer(f"it exited with code {ran.exit_code}")
    if hook.output == "json":
        return read_answer(ran.output)
    if hook.output == "context":
        return Answer(context=ran.output.decode("utf-8", "replace").strip() or None)
    return Answer()


def _with_twins(held: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes under both names of values that have two."""
    both = dict(changes)
    for name, twin in _TWINS.items():
        for one, other in ((name, twin), (twin, name)):
            if one in changes and other in held and other not in changes:
                both[other] = changes[one]
    return both


async def mount(coordinator: Any, settings: ShellConfig) -> Callable[[], Coroutine[Any, Any, None]]:
    """Run the configured commands on their events; settings as in `ShellConfig`.

    Returns:
        A cleanup function that removes the hooks and kills what commands left running.
    """
    hooks = ShellHooks(coordinator, settings)
    hooks.listen(ALL_EVENTS)
    HOOKS.register(coordinator, hooks)
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(EVENTS))
    return hooks.close


async def on_session_ready(coordinator: Any) -> None:
    """Also listen to the events other modules announce: patterns may match them."""
    hooks = HOOKS.of(coordinator)
    if hooks is not None:
        hooks.listen(await announced_events(coordinator))
