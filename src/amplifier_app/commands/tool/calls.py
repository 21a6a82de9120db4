"""`amplifier tool invoke`: one call of a tool, as a model would make it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amplifier_app.base.errors import Location, UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.outcome import OK, Ending, Outcome
from amplifier_app.base.sanitize import for_pipe, for_terminal
from amplifier_app.base.signals import Interrupts
from amplifier_app.base.stdio import claim_stdout, read_piped, terminal_width
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.run.choose import choose
from amplifier_app.commands.run.opening import approvals_for, open_requested_session
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.typer_options import argument, takes_options
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.overrides import without_default_of_others
from amplifier_app.plan.tree.entries import list_entries
from amplifier_app.plan.tree.nodes import to_node, with_items
from amplifier_app.render.result import RunReport
from amplifier_app.render.table import Column, OutputOption, table
from amplifier_app.render.text import StderrNotices
from amplifier_app.runtime import describe
from amplifier_app.runtime.approvals import Approvals
from amplifier_app.runtime.mount import Opening
from amplifier_app.runtime.observers.observer import Renderer
from amplifier_app.runtime.turns.turn import EventHandler, ToolUse, result_in
from amplifier_support.session_capabilities import RESUME, SPAWN
from amplifier_support.text import did_you_mean

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

    Raises:
        UsageError: Questions are to be kept, but nothing is saved.
    """
    if request.approve == "park":
        raise UsageError(
            "--approve park needs a session that is saved",
            hint="Pass --approve allow or --approve deny.",
        )
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
    providers = to_node([entry], _AT, literal=True)
    tree = with_items(plan.tree, {**plan.tree.items, "providers": providers})
    return plan.with_tree(without_default_of_others(tree, list_entries(tree, "providers")))


def _find_tool(tools: Mapping[str, Any], name: str) -> Any:
    """A tool of a session.

    Raises:
        UsageError: It has none of that name.
    """
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


_COLUMNS = (Column("TOOL"), Column("DESCRIPTION", "end", least=20))


@takes_options(Request, *(option for option in OPTIONS if option not in ("approve", "mode")))
def list_tools(context: typer.Context, request: Request, output: OutputOption = "text") -> None:
    """List the tools of the plan. Mounts its modules and asks no model.

    \b
      amplifier tool list
      amplifier tool list -f plan.yaml --output json
    """
    invocation: Invocation = context.obj
    tools = run_loop(_describe_tools(request, invocation))
    if output == "json":
        invocation.stdout.write(json_text(tools) + "\n")
        return
    rows = [(tool["name"], tool["description"].strip().partition("\n")[0]) for tool in tools]
    width = terminal_width(invocation.stdout.fd)
    invocation.stdout.write("".join(f"{line}\n" for line in table(_COLUMNS, rows, width)))


async def _describe_tools(
    request: Request, invocation: Invocation, name: str | None = None
) -> list[dict[str, Any]]:
    """The tools of the plan, or the one of that name, as data."""
    async with tool_session(request, invocation, StderrNotices(quiet=False)) as (session, _):
        tools = session.session.coordinator.get("tools")
        chosen = tools if name is None else {name: _find_tool(tools, name)}
        return [describe_tool(name, tool) for name, tool in chosen.items()]


@takes_options(Request, *(option for option in OPTIONS if option not in ("approve", "mode")))
def info(
    context: typer.Context,
    name: Annotated[str, argument("TOOL", "Name of the tool.")],
    request: Request,
    output: OutputOption = "text",
) -> None:
    """Show what a tool does and the JSON Schema of its input.

    \b
      amplifier tool info bash
      amplifier tool info read_file --output json
    """
    invocation: Invocation = context.obj
    (tool,) = run_loop(_describe_tools(request, invocation, name))
    if output == "json":
        text = json_text(tool)
    else:
        schema = json.dumps(tool["input_schema"], indent=2, ensure_ascii=False)
        text = for_terminal(f"{tool['name']}\n\n{tool['description'].strip()}\n\nInput:\n{schema}")
    invocation.stdout.write(f"{text}\n")


_MAX_ERROR = 100_000


class _Result(StderrNotices):
    """Keeps the result of the call."""

    def __init__(self) -> None:
        super().__init__(quiet=False)
        self.text = ""
        self.data: Any = None

    def handlers(self) -> dict[str, EventHandler]:
        return {**super().handlers(), "tool:post": self._on_result, "tool:error": self._on_error}

    def _on_result(self, event: str, data: dict[str, Any]) -> None:
        self.text = describe.result_text(data)
        self.data = getattr(result_in(data), "output", None)

    def _on_error(self, event: str, data: dict[str, Any]) -> None:
        self.text = describe.error_text(data, _MAX_ERROR)


@takes_options(Request, *OPTIONS)
def invoke(
    context: typer.Context,
    name: Annotated[str, argument("TOOL", "Name of the tool.")],
    argument: Annotated[
        str, argument("INPUT", "The input as a JSON object; '-' reads it from stdin.")
    ] = "{}",
    *,
    request: Request,
) -> None:
    """Run a tool with JSON input and print its output.

    \b
      amplifier tool invoke read_file '{"file_path": "README.md"}'
      amplifier tool invoke bash '{"command": "pytest -q"}' --approve allow
      jq -n '{pattern: "TODO"}' | amplifier tool invoke grep -

    The call passes the hooks and approval rules of the plan, as a model's call does; no model is
    asked. Exits with 1 if the tool fails, 8 if the call is denied.
    """
    arguments = _arguments(argument)
    invocation: Invocation = context.obj
    invocation.outcome = run_loop(_invoke(name, arguments, request, invocation))


def _arguments(argument: str) -> dict[str, Any]:
    text = read_piped(wait=True) if argument == "-" else argument
    hint = """Write an object in quotes: '{"file_path": "README.md"}'"""
    try:
        value = json.loads(text or "")
    except (ValueError, RecursionError) as error:
        raise UsageError(f"INPUT is not valid JSON: {error}", hint=hint) from None
    if not isinstance(value, dict):
        raise UsageError("INPUT is not a JSON object", hint=hint)
    return value


async def _invoke(
    name: str, arguments: dict[str, Any], request: Request, invocation: Invocation
) -> Outcome:
    result = _Result()
    replies = [{"tool_calls": [{"name": name, "input": arguments}]}, "done"]
    async with tool_session(request, invocation, result, replies) as (session, approvals):
        _find_tool(session.session.coordinator.get("tools"), name)
        # The script of the model has no lines for sub-agents.
        for capability in (SPAWN, RESUME):
            capability.register(session.session.coordinator, _no_agents)
        with Interrupts(session.stop) as interrupts:
            turn = await session.run(f"Call {name}.")
        if interrupts.received is not None:
            ending = Ending.TERMINATED if interrupts.terminated else Ending.INTERRUPTED
            return Outcome(ending, ending.value)
        use = turn.tools[0] if turn.tools else None
        if use is None or use.outcome != "ok":
            return approvals.denial or _failure(name, use, result.text)
        clean = for_terminal if invocation.stdout.isatty() else for_pipe
        text = clean(result.text)
        invocation.stdout.write(text if text.endswith("\n") or not text else f"{text}\n")
        return OK


def _failure(name: str, use: ToolUse | None, text: str) -> Outcome:
    if use is not None and use.outcome == "denied":
        return Outcome(Ending.DENIED, f"{name} was denied: {use.reason or text}")
    hint = f"Show the input it takes: amplifier tool info {name}"
    return Outcome(Ending.ERROR, f"{name} failed: {text or 'no result'}", hint)


async def _no_agents(*args: Any, **options: Any) -> Any:
    raise UsageError("tool invoke cannot start sub-agents", hint="Use: amplifier run")
