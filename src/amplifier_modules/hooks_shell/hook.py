"""The hooks of a session: each command on its events, and what its answer does."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import Field

from amplifier_core.events import ALL_EVENTS
from amplifier_core.llm_errors import ConfigurationError
from amplifier_core.models import HookResult
from amplifier_modules._shared.module.config import ModuleConfig, listed
from amplifier_modules._shared.module.spans import announced_events
from amplifier_modules._shared.privacy import raw_data
from amplifier_modules._shared.sandbox import (
    SandboxValue,
    command_environment,
    command_sandbox,
)
from amplifier_modules.hooks_shell.foreign import (
    PROJECT,
    ROOTS,
    ForeignHook,
    Format,
    read_file,
    read_hooks,
)
from amplifier_modules.hooks_shell.shell_hook import (
    COMPLETED,
    EVENTS,
    FAILED,
    Answer,
    InvalidAnswer,
    ShellHook,
)
from amplifier_support.process.commands import ProcessRunner
from amplifier_support.process.with_input import Answered, run_with_input
from amplifier_support.project_folders import HOOK_FILES, find_hook_files, project_folders
from amplifier_support.session_capabilities import (
    DEPTH,
    TEST_GUARDS,
    TRUSTED_DIR,
    TRUSTED_PROGRAMS,
    WORKING_DIR,
    Capability,
)

logger = logging.getLogger(__name__)


MODULE_ID = "hooks-shell"

_UNANSWERED = ("session:start", "session:resume")
"""Events whose emitter does not apply what hooks answer."""


class PluginHooks(ModuleConfig):
    """Hooks of a plugin, in the format of Claude Code.

    Attributes:
        root: The folder of the plugin.
        hooks: Event → list of matchers.
    """

    root: str
    hooks: dict[str, Any]


class ShellConfig(ModuleConfig):
    """Settings of hooks-shell.

    Attributes:
        hooks: The commands; for one event they run in sequence, in this order.
        claude: Hooks in the format of Claude Code: event → list of matchers.
        codex: Hooks in the format of Codex.
        imports: Programs whose hooks are read from the trusted project.
        plugins: Hooks of plugins, by the plugin's name.
        sandbox: What they may do, as `session.sandbox` of a plan, which is the default.
        priority: Order among the hooks of an event. Before approvals, so that the call approved is
            the one the command has changed.
    """

    hooks: list[ShellHook] = Field(default_factory=list[ShellHook])
    claude: dict[str, Any] = Field(default_factory=dict[str, Any])
    codex: dict[str, Any] = Field(default_factory=dict[str, Any])
    imports: list[Format] = Field(default_factory=list[Format], alias="import")
    plugins: dict[str, PluginHooks] = Field(default_factory=dict[str, PluginHooks])
    sandbox: SandboxValue = None
    priority: int = 50

    def list_hooks(self, project: str | None = None) -> tuple[list[ShellHook], list[str]]:
        """Return all hooks in their order, and a line for each that cannot be used.

        Args:
            project: The trusted project to import hooks from.

        Raises:
            ConfigurationError: The hooks of the project are unreadable.
        """
        problems: list[str] = []
        documents: list[tuple[Format, Mapping[str, Any], dict[str, str]]] = [
            *(
                ("claude", plugin.hooks, dict.fromkeys(ROOTS, plugin.root))
                for plugin in self.plugins.values()
            ),
            ("claude", self.claude, {}),
            ("codex", self.codex, {}),
        ]
        if project is not None:
            for program in self.imports:
                file = os.path.join(project, HOOK_FILES[program])
                documents.append((program, read_file(file), {PROJECT: project}))
        hooks = [
            hook
            for program, groups, variables in documents
            for hook in read_hooks(groups, program, variables=variables, problems=problems)
        ]
        return [*self.hooks, *hooks], problems


_DECISIONS = {"deny": "deny", "ask_user": "ask"}
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
        project = _project(coordinator) if config.imports else None
        self._hooks, problems = config.list_hooks(project)
        for problem in problems:
            logger.warning("a hook is left out: %s", problem)
        sandbox = command_sandbox(coordinator, config.sandbox) if self._hooks else None
        self._runner = ProcessRunner(sandbox)
        self._listening: dict[tuple[int, str], list[Callable[[], None]]] = {}
        self._contexts: dict[tuple[str, Any], HookResult] = {}  # of answers that also change data
        named = {name for hook in self._hooks for name in listed(hook.event)}
        self.listen(name for name in named if not set("*?[") & set(name))

    def listen(self, names: Iterable[str]) -> None:
        """Start running the commands on the events with these names."""
        for name in names:
            for number, hook in enumerate(self._hooks):
                if (number, name) not in self._listening and hook.means_event(name):
                    # For each: the registry passes changes on to the next one, and stops at the
                    # first that denies. A result changes data or has a text, so a second handler
                    # gives the text.
                    self._listening[number, name] = [
                        self._coordinator.hooks.register(
                            name,
                            handler,
                            priority=self._config.priority,
                            name=f"{MODULE_ID}:{hook.title}",
                        )
                        for handler in (partial(self._decide, hook), self._give_context)
                    ]

    async def close(self) -> None:
        """Stop listening and kill what commands left running; a second call does nothing."""
        for unregister in chain(*self._listening.values()):
            unregister()
        self._listening.clear()
        await self._runner.close()

    async def test(
        self, programs: Sequence[str], tool: str, values: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """See the capability `guards.test`."""
        data = {"tool_name": tool, "tool_input": dict(values), "tool_call_id": "test"}
        rows: list[dict[str, Any]] = []
        for hook in self._hooks:
            if not isinstance(hook, ForeignHook) or hook.on != "PreToolUse":
                continue
            for program in programs:
                guard = hook.model_copy(update={"format": program})
                runs = guard.means_data(data)
                result = await self._decide(guard, "tool:pre", data) if runs else None
                decision = _DECISIONS.get(result.action, "allow") if result else None
                reason = (result.reason or result.approval_prompt) if result else None
                row = {"guard": hook.title, "program": program, "decision": decision}
                rows.append({**row, "reason": reason})
        return rows

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

    def _give_context(self, event: str, data: Any) -> HookResult | None:
        return self._contexts.pop((event, raw_data(data).get("tool_call_id")), None)

    async def _on_event(self, hook: ShellHook, event: str, held: dict[str, Any]) -> HookResult:
        if not hook.means_data(held):
            return HookResult()
        is_stop = isinstance(hook, ForeignHook) and hook.on == "Stop"
        if is_stop and DEPTH.of(self._coordinator):
            return HookResult()  # The turn of a sub-agent is part of a tool call.
        folder = WORKING_DIR.of(self._coordinator) or os.getcwd()
        payload = hook.write_input(event, held, self._coordinator.session_id, folder)
        ran = await run_with_input(
            self._runner,
            hook.command,
            stdin=json.dumps(payload).encode("ascii") + b"\n",
            environment=self._environment(hook, event, held, folder),
            folder=folder,
            timeout=hook.timeout,
        )
        try:
            answer = hook.read_answer(ran, held)
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
            injected = HookResult(
                action="inject_context",
                context_injection=answer.context,
                context_injection_role="user",
                **spoken,
            )
            if event in _UNANSWERED or answer.goes_on:
                await self._coordinator.process_hook_result(injected, event, MODULE_ID)
            elif answer.data:
                self._contexts[event, held.get("tool_call_id")] = injected
            else:
                return injected
            if answer.goes_on:
                return HookResult(action="modify", data={**held, "goes_on": True})
        elif spoken:
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

    def _environment(
        self, hook: ShellHook, event: str, held: Mapping[str, Any], folder: str
    ) -> dict[str, str]:
        environment = command_environment(self._coordinator, hook.env_passthrough)
        tool = held.get("tool_name")
        variables = {
            "PWD": folder,
            "AMPLIFIER_EVENT": event,
            "AMPLIFIER_WORKING_DIR": folder,
            PROJECT: folder,
            "AMPLIFIER_SESSION_ID": str(self._coordinator.session_id),
            **({"AMPLIFIER_TOOL_NAME": tool} if isinstance(tool, str) and "\0" not in tool else {}),
        }
        return {**environment, **variables, **hook.environment}


HOOKS = Capability[ShellHooks]("hooks-shell.hooks")


def _project(coordinator: Any) -> str | None:
    """Return the project that hooks are imported from; None if it is not trusted.

    Raises:
        ConfigurationError: It has changed since it was trusted: without its guards, nothing shall run.
    """
    project, check = TRUSTED_DIR.of(coordinator), TRUSTED_PROGRAMS.of(coordinator)
    if project is None or check is None:
        folders = project_folders(WORKING_DIR.of(coordinator) or os.getcwd())
        for file in (file for folder in folders for file in find_hook_files(Path(folder))):
            logger.warning("the hooks in %s do not run: the project is not trusted", file)
        return None
    try:
        check()
    # The app's errors are unknown here.
    except Exception as error:
        raise ConfigurationError(f"cannot import hooks: {error}") from error
    return project


def _with_twins(held: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes under both names of values that have two."""
    both = dict(changes)
    for name, twin in _TWINS.items():
        for key, other in ((name, twin), (twin, name)):
            if key in changes and other in held and other not in changes:
                both[other] = changes[key]
    return both


async def mount(coordinator: Any, settings: ShellConfig) -> Callable[[], Coroutine[Any, Any, None]]:
    """Run the configured commands on their events; settings as in `ShellConfig`.

    Returns:
        A cleanup function that removes the hooks and kills what commands left running.
    """
    hooks = ShellHooks(coordinator, settings)
    hooks.listen(ALL_EVENTS)
    HOOKS.register(coordinator, hooks)
    TEST_GUARDS.register(coordinator, hooks.test)
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(EVENTS))
    return hooks.close


async def on_session_ready(coordinator: Any) -> None:
    """Also listen to the events other modules announce: patterns may match them."""
    hooks = HOOKS.of(coordinator)
    if hooks is not None:
        hooks.listen(await announced_events(coordinator))
