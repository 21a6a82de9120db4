"""`amplifier tool invoke`: one call of a tool, as a model would make it."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.base.outcome import OK, Ending, Outcome
from amplifier_app.base.sanitize import for_pipe, for_terminal
from amplifier_app.base.signals import Interrupts
from amplifier_app.base.stdio import read_piped
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.tool.session import OPTIONS, find_tool, tool_session
from amplifier_app.commands.typer_options import takes_options_of
from amplifier_app.render.text import StderrNotices
from amplifier_app.runtime import describe
from amplifier_app.runtime.turns.event_data import EventHandler, result_in
from amplifier_app.runtime.turns.turn import ToolUse
from amplifier_support.session_capabilities import RESUME, SPAWN

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_MAX_ERROR = 100_000


class _Result(StderrNotices):
    """Keeps the result of the call."""

    def __init__(self) -> None:
        super().__init__(quiet=False)
        self.text = ""
        self.data: Any = None

    def handlers(self) -> dict[str, EventHandler]:
        return {
            **super().handlers(),
            "tool:post": self._on_result,
            "tool:error": self._on_error,
        }

    def _on_result(self, event: str, data: dict[str, Any]) -> None:
        self.text = describe.result_text(data)
        self.data = getattr(result_in(data), "output", None)

    def _on_error(self, event: str, data: dict[str, Any]) -> None:
        self.text = describe.error_text(data, _MAX_ERROR)


@app.command()
@takes_options_of(Request, *OPTIONS)
def invoke(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="TOOL", help="Name of the tool.")],
    given: Annotated[
        str,
        typer.Argument(
            metavar="INPUT", help="The input as a JSON object; '-' reads it from stdin."
        ),
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
    arguments = _arguments(given)
    invocation: Invocation = context.obj
    invocation.outcome = run_loop(_invoke(name, arguments, request, invocation))


def _arguments(given: str) -> dict[str, Any]:
    text = read_piped(wait=True) if given == "-" else given
    try:
        value = json.loads(text or "")
    except (ValueError, RecursionError) as error:
        raise UsageError(f"INPUT is not valid JSON: {error}", hint=_EXAMPLE) from None
    if not isinstance(value, dict):
        raise UsageError("INPUT is not a JSON object", hint=_EXAMPLE)
    return value


_EXAMPLE = """Write an object in quotes: '{"file_path": "README.md"}'"""


async def _invoke(
    name: str, arguments: dict[str, Any], request: Request, invocation: Invocation
) -> Outcome:
    result = _Result()
    replies = [{"tool_calls": [{"name": name, "input": arguments}]}, "done"]
    async with tool_session(request, invocation, result, replies) as (session, approvals):
        find_tool(session, name)
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
