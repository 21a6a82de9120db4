"""The rules for tool calls, as the module of the plan applies them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from amplifier_app.base.errors import ConfigError
from amplifier_app.base.sanitize import for_terminal
from amplifier_app.base.stdio import to_stderr
from amplifier_app.plan import ResolvedPlan
from amplifier_app.runtime.approvals.requests import ADD_MODULE
from amplifier_app.runtime.capabilities import register_capabilities
from amplifier_app.runtime.mentions import register_mentions
from amplifier_app.sources.plan_resolver import resolver_for
from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.loader import ModuleLoader
from amplifier_support.session_capabilities import APPROVAL_POLICY


class Decision(NamedTuple):
    """The decision on a tool call.

    Attributes:
        action: ``allow``, ``ask`` or ``deny``.
        by: The rule or setting that decided.
        reason: The reason; None if there is none.
        rule: The address of the rule in the plan; None if no rule decided.
    """

    action: str
    by: str
    reason: str | None
    rule: tuple[str, ...] | None


class Decide(Protocol):
    """Decides on a call like the session would, without asking."""

    def __call__(
        self,
        tool: str,
        input: Mapping[str, Any],
        *,
        working_dir: str | None = None,
        mode: str | None = None,
    ) -> Decision: ...


@contextlib.asynccontextmanager
async def policy_of(plan: ResolvedPlan) -> AsyncGenerator[Decide]:
    """The policy of a plan, from its own module, mounted without the rest of the plan.

    Raises:
        ConfigError: No hook of the plan applies rules, or its config is invalid.
        SourceError: The module is not available.
    """
    mount_plan = plan.mount_plan()
    entries = _entries(mount_plan)
    sources = resolver_for(plan)
    coordinator = ModuleCoordinator()
    coordinator.config.update(mount_plan)
    register_capabilities(coordinator, sources)
    for text in await register_mentions(coordinator, plan.namespaces, sources.offline):
        to_stderr(for_terminal(f"amplifier: warning: {text}"))
    await sources.prefetch_modules((entry["module"], entry.get("source")) for entry in entries)
    await coordinator.mount("module-source-resolver", sources)
    loader = ModuleLoader(coordinator)
    try:
        for entry in entries:
            try:
                mount = await loader.load(entry["module"], entry["config"], entry.get("source"))
                coordinator.register_cleanup(await mount(coordinator))
            except ValueError as error:
                raise ConfigError(str(error)) from error
        decide = APPROVAL_POLICY.of(coordinator)
        if decide is None:
            raise ConfigError(f"the plan '{plan.name}' has no approval rules", hint=ADD_MODULE)
        yield _as_decisions(decide, entries)
    finally:
        await coordinator.cleanup()


def policy_of_session(plan: ResolvedPlan, coordinator: Any) -> Decide | None:
    """The policy that an open session of the plan applies now; None if it has none."""
    decide = APPROVAL_POLICY.of(coordinator)
    return None if decide is None else _as_decisions(decide, _entries(plan.mount_plan()))


def _entries(mount_plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [entry for entry in mount_plan["hooks"] if "approval" in entry["module"]]


def _as_decisions(decide: Any, entries: Sequence[Mapping[str, Any]]) -> Decide:
    keys = [str(entry.get("instance_id") or entry["module"]) for entry in entries]

    def decision(
        tool: str,
        input: Mapping[str, Any],
        *,
        working_dir: str | None = None,
        mode: str | None = None,
    ) -> Decision:
        decided = decide(tool, input, working_dir=working_dir, mode=mode)
        rule = None
        if decided["rule"] is not None:
            key, number = decided["rule"]
            rule = (key, str(number))
            if key != "approvals":
                rule = ("hooks", keys[-1], "config", *rule) if keys else None
        return Decision(decided["decision"], decided["by"], decided["reason"], rule)

    return decision


def place_of_rule(plan: ResolvedPlan, decision: Decision) -> str | None:
    """The file and line of the rule that decided; None if none did."""
    if decision.rule is None:
        return None
    at = plan.origin(decision.rule)
    file = at.file if not os.path.isabs(at.file) else os.path.relpath(at.file)
    shown = at.file if file.startswith("..") else file
    return f"{shown}:{at.line}" if at.line else shown
