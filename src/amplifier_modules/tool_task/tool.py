"""The tool as models see it."""

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import AliasChoices, ConfigDict, Field

from amplifier_core.cancellation import await_result
from amplifier_core.models import ToolResult
from amplifier_modules._shared.module.config import ModuleConfig
from amplifier_modules._shared.module.spans import event_ids
from amplifier_modules._shared.module.tools import (
    CheckedTool,
    InvalidInput,
    object_schema,
    parameter,
)
from amplifier_support.fields import to_mapping
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.session_capabilities import DEPTH, RESUME, SPAWN, tool_delegates

logger = logging.getLogger(__name__)


MODULE_ID = "tool-task"

_APPROVALS = "hooks-approval"


class TaskConfig(ModuleConfig):
    """Settings of tool-task.

    Attributes:
        agents: The agents that can be given tasks; all of the plan's if unset.
        max_parallel: Tasks of this session that run in parallel; others wait.
        max_depth: How deep agents may delegate: with 1, an agent cannot give tasks itself. Also
            called `max_recursion_depth`.
        timeout: Time limit of one task, in seconds; no limit if unset.
        inherit_tools: The only tools, by module, agents keep of those they would have.
        exclude_tools: Tools that agents do not get.
        inherit_hooks: The only hooks that agents get.
        exclude_hooks: Hooks that agents do not get.
    """

    model_config = ConfigDict(populate_by_name=True)

    agents: list[str] | None = None
    max_parallel: int = Field(default=4, ge=1)
    max_depth: int = Field(
        default=1,
        ge=1,
        le=5,
        validation_alias=AliasChoices("max_depth", "max_recursion_depth"),
    )
    timeout: float | None = Field(default=None, gt=0)
    inherit_tools: list[str] | None = None
    exclude_tools: list[str] = Field(default_factory=list)
    inherit_hooks: list[str] | None = None
    exclude_hooks: list[str] = Field(default_factory=list)

    def inheritance(self, section: str) -> dict[str, list[str]]:
        """The `tools` or `hooks` inheritance passed to `session.spawn`."""
        only: list[str] | None = getattr(self, f"inherit_{section}")
        without: list[str] = getattr(self, f"exclude_{section}")
        options = {} if only is None else {f"inherit_{section}": only}
        return {**options, f"exclude_{section}": without} if without else options


TASK_START = "task:start"
TASK_END = "task:end"
TASK_EVENTS = (TASK_START, TASK_END)
"""Events this module emits in addition to the kernel's."""

_HEAD = (
    "Give a task to an agent, which works on it alone, in its own conversation and with its own "
    "tools, and answers once. It knows nothing of this conversation: include everything it needs, "
    "and say what to report back. Several calls in one message run in parallel. To continue an "
    "agent's earlier work, pass the session_id from its answer."
)
_CUT_SHORT = ("length", "content_filter")
"""Reasons of an incomplete turn whose answer is cut off."""


class _Task(NamedTuple):
    """One call of the tool."""

    agent: str | None
    instruction: str
    session_id: str
    resumed: bool


class TaskTool(CheckedTool):
    """Give tasks to the agents of a session's plan (Tool Contract): a failure is a result.

    Sessions are opened by the app, through its capabilities `session.spawn` and `session.resume`.

    Raises:
        ValueError: The config names agents that the plan does not have.
    """

    name = "task"
    input_schema: ClassVar[dict[str, Any]] = object_schema(
        "instruction",
        agent=parameter("string", "Which agent; not needed with session_id"),
        instruction=parameter("string", "The task, with everything the agent needs to know"),
        session_id=parameter(
            "string", "Continue an agent's earlier work: the session_id from its answer"
        ),
    )

    def __init__(self, coordinator: Any, config: TaskConfig) -> None:
        self._coordinator = coordinator
        self._config = config
        self._free = asyncio.Semaphore(config.max_parallel)
        unknown = sorted({*(config.agents or ())} - {*self._agents()})
        if unknown:
            raise ValueError(
                f"{MODULE_ID}: config is not valid: 'agents' names {', '.join(unknown)}, "
                "which the plan does not have"
            )

    @property
    def description(self) -> str:
        """The description of the tool, with the list of agents."""
        agents = self._agents()
        if not agents:
            return f"{_HEAD}\n\nNo agents are available in this session."
        return "\n".join([_HEAD, "", "Agents:", *map(_line, agents.items())])

    def delegates(self) -> bool:
        """Return True if hooks-approval decides on every call that an agent makes."""
        only, without = self._config.inherit_hooks, self._config.exclude_hooks
        agents = self._agents().values()
        return (
            (only is None or _APPROVALS in only)
            and _APPROVALS not in without
            and not any(_APPROVALS in (agent.get("exclude") or ()) for agent in agents)
        )

    def _agents(self) -> dict[str, Mapping[str, Any]]:
        """The agents that can be given tasks, by name."""
        known = to_mapping(self._coordinator.config.get("agents"))
        names = self._config.agents
        return {
            name: to_mapping(agent)
            for name, agent in known.items()
            if names is None or name in names
        }

    async def run(self, values: dict[str, Any]) -> ToolResult:
        """Carry out a task; `error` of a failure has `message`, `type` and any `session_id`."""
        task = self._task(values)
        call = self._call(task)
        async with self._free:
            return await self._carry_out(task, call)

    def _task(self, values: Mapping[str, Any]) -> _Task:
        instruction = str(values["instruction"]).strip()
        if not instruction:
            raise InvalidInput("the instruction is empty")
        resumed = str(values.get("session_id") or "").strip()
        agent = str(values.get("agent") or "").strip() or None
        if resumed:
            return _Task(agent, instruction, resumed, True)
        known = self._agents()
        if agent not in known:
            names = ", ".join(sorted(known))
            has = f"available agents: {names}" if names else "no agents are available"
            raise InvalidInput(
                f"unknown agent {agent!r}; {has}" if agent else f"'agent' is required; {has}"
            )
        session_id = f"{self._coordinator.session_id}-{secrets.token_hex(8)}_{agent}"
        return _Task(agent, instruction, session_id, False)

    def _call(self, task: _Task) -> Any:
        """A function without arguments that carries out the task."""
        capability = RESUME if task.resumed else SPAWN
        run = capability.of(self._coordinator)
        if not callable(run):
            raise InvalidInput(
                f"this program cannot run agents: the capability '{capability.name}' is missing"
            )
        arguments: dict[str, Any] = {
            "instruction": task.instruction,
            "sub_session_id": task.session_id,
        }
        if not task.resumed:
            arguments |= {
                "agent_name": task.agent,
                "parent_session": self._coordinator.session,
                "agent_configs": self._coordinator.config.get("agents") or {},
                "tool_inheritance": self._config.inheritance("tools"),
                "hook_inheritance": self._config.inheritance("hooks"),
            }
        return lambda: run(**arguments)

    async def _carry_out(self, task: _Task, call: Any) -> ToolResult:
        about = {"agent": task.agent, "sub_session_id": task.session_id, **event_ids()}
        emit, started = self._coordinator.hooks.emit, time.monotonic()
        await emit(TASK_START, {**about, "instruction": task.instruction, "resumed": task.resumed})
        answer: Mapping[str, Any] = {}
        result = _failure("interrupted", "Interrupted")
        try:
            async with asyncio.timeout(self._config.timeout):
                value = await await_result(call())
                answer = value if isinstance(value, Mapping) else {"output": value}
            result = _result(answer, task)
        except TimeoutError as error:
            result = self._timed_out(task, error)
        except asyncio.CancelledError:
            # At a stop, the model needs the session to continue. Nothing else ends a call like this in a session that goes on.
            if not self._coordinator.cancellation.is_cancelled:
                raise
            result = _result({"status": "cancelled"}, task)
        # The session is opened by the app and runs modules of all kinds. A failure there is a
        # result here: the model that gave the task decides how to continue.
        except Exception as error:
            logger.debug("The task for %s failed", task.agent, exc_info=True)
            result = _failed(error, task)
        finally:
            await emit(TASK_END, {**about, **_ending(answer, result, started)})
        return result

    def _timed_out(self, task: _Task, error: TimeoutError) -> ToolResult:
        if self._config.timeout is None:
            return _failed(error, task)
        message = f"the task reached its time limit of {self._config.timeout:g} s"
        return _failure(message, "Timeout", task.session_id)


def _line(agent: tuple[str, Mapping[str, Any]]) -> str:
    name, config = agent
    description = " ".join(str(config.get("description") or "").split())
    return f"- {name}: {description}" if description else f"- {name}"


def _result(answer: Mapping[str, Any], task: _Task) -> ToolResult:
    """The sub-session's answer as a result for the model."""
    session_id = str(answer.get("session_id") or task.session_id)
    response = str(answer.get("output") or "")
    status, reason = str(answer.get("status") or "success"), answer.get("reason")
    if status == "cancelled":
        return _failure("the agent was interrupted before it finished", "Interrupted", session_id)
    if status == "error":
        return _failure(response or "the agent failed", "AgentError", session_id)
    if status == "incomplete" and reason not in _CUT_SHORT:
        why = f" ({reason})" if reason else ""
        reported = f": {response}" if response else ""
        return _failure(
            f"the agent stopped without an answer{why}{reported}", "Incomplete", session_id
        )
    output: dict[str, Any] = {"response": response, "session_id": session_id}
    if status == "incomplete":
        output["note"] = f"the answer is cut off ({reason})"
    output["usage"] = _usage(answer)
    return ToolResult(output=output)


def _usage(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Tokens, and the cost if known; a provider need not report either."""
    usage = dict(to_mapping(answer.get("usage")))
    cost: Any = answer.get("cost_usd")
    return usage if cost is None else {**usage, "cost_usd": str(cost)}


def _failed(error: Exception, task: _Task) -> ToolResult:
    kind = getattr(error, "kind", None)
    session_id = getattr(error, "session_id", None)
    message = str(error) or type(error).__name__
    who = f"agent {task.agent!r}" if task.agent else "the agent"
    return _failure(f"{who} failed: {message}", str(kind or type(error).__name__), session_id)


def _ending(answer: Mapping[str, Any], result: ToolResult, started: float) -> dict[str, Any]:
    status = "success" if result.success else "error"
    if result.error is not None and result.error["type"] == "Interrupted":
        status = "cancelled"
    ending: dict[str, Any] = {
        "success": result.success,
        "status": str(answer.get("status") or status),
        "usage": _usage(answer),
        "duration_ms": round((time.monotonic() - started) * 1000, 1),
    }
    return ending if result.success else {**ending, "error": result.error}


def _failure(message: str, kind: str, session_id: Any = None) -> ToolResult:
    error = {"message": message, "type": kind}
    if isinstance(session_id, str) and session_id:
        more = f"; continue with session_id {session_id}"
        error = {"message": message + more, "type": kind, "session_id": session_id}
    return ToolResult(success=False, error=error)


async def mount(coordinator: Any, settings: TaskConfig) -> None:
    """Mount `task`, unless the session is as deep as tasks may be given. Settings as in
    `TaskConfig`.
    """
    # Before it decides not to mount a tool: a module that does nothing at all is reported as a fault.
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(TASK_EVENTS))
    depth = DEPTH.of(coordinator)
    if isinstance(depth, int) and depth >= settings.max_depth:
        return
    tool = TaskTool(coordinator, settings)
    tool_delegates(tool.name).register(coordinator, tool.delegates)
    await coordinator.mount("tools", tool, name=tool.name)
