"""A session with the tools of a plan, whose model is a script."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any

from amplifier_app.base.errors import Location, UsageError
from amplifier_app.base.stdio import claim_stdout
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.run.choose import choose
from amplifier_app.commands.run.opening import approvals_for, open_requested_session
from amplifier_app.commands.run.request import Request
from amplifier_app.plan import ResolvedPlan
from amplifier_app.plan.overrides import without_default_of_others
from amplifier_app.plan.tree.entries import entries_of
from amplifier_app.plan.tree.nodes import node_of, with_items
from amplifier_app.render.result import RunReport
from amplifier_app.runtime.approvals.requests import Approvals
from amplifier_app.runtime.mounting.progress import Opening
from amplifier_app.runtime.observers.observer import Renderer
from amplifier_support.did_you_mean import did_you_mean

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession

OPTIONS = ("profile", "plan", "sets", "approve", "mode", "trust", "no_project", "offline")
"""The options of `run` that apply."""

_AT = Location("amplifier tool")
_SCRIPTED = "provider-mock"


@contextlib.asynccontextmanager
async def tool_session(
    request: Request, invocation: Invocation, renderer: Renderer, replies: Sequence[Any] = ()
) -> AsyncGenerator[tuple[OpenSession, Approvals]]:
    """Open an unsaved session of the plan that needs no key and asks no model.

    Args:
        request: The plan, and who may approve calls.
        invocation: The invocation.
        renderer: Shows the session.
        replies: The script of the model.
    """
    invocation.stdout = invocation.resources.enter_context(claim_stdout())
    invocation.report = RunReport()
    request = request.validate()._replace(no_save=True)
    chosen = choose(request, invocation.stdout)
    chosen = chosen._replace(plan=_with_script(chosen.plan, replies))
    approvals = approvals_for(request, renderer, invocation.stdout, is_plain=False)
    try:
        async with open_requested_session(
            request, invocation, chosen, renderer, approvals, Opening()
        ) as session:
            yield session, approvals
    finally:
        # The result of a command other than `run` contains only its outcome.
        invocation.report = None


def _with_script(plan: ResolvedPlan, replies: Sequence[Any]) -> ResolvedPlan:
    """The plan with a scripted model in place of its providers."""
    entry = {"module": _SCRIPTED, "config": {"replies": list(replies)}}
    providers = node_of([entry], _AT, literal=True)
    tree = with_items(plan.tree, {**plan.tree.items, "providers": providers})
    return plan.with_tree(without_default_of_others(tree, entries_of(tree, "providers")))


def find_tool(session: OpenSession, name: str) -> Any:
    """A tool of the session.

    Raises:
        UsageError: It has none of that name.
    """
    tools = session.session.coordinator.get("tools")
    if name in tools:
        return tools[name]
    listed = f"Available tools: {', '.join(tools)}" if tools else "It has no tools."
    raise UsageError(f"the plan has no tool {name!r}", hint=did_you_mean(name, tools) or listed)


def describe_tool(name: str, tool: Any) -> dict[str, Any]:
    """A tool as data."""
    schema = getattr(tool, "input_schema", None) or getattr(tool, "parameters", None)
    return {
        "name": name,
        "description": str(getattr(tool, "description", "") or ""),
        "input_schema": schema if isinstance(schema, dict) else None,
    }
