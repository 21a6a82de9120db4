"""`amplifier tool list`."""

from __future__ import annotations

from typing import Any

import typer

from amplifier_app.base.json_text import json_text
from amplifier_app.base.stdio import terminal_width
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.tool.session import OPTIONS, describe_tool, tool_session
from amplifier_app.commands.typer_options import takes_options_of
from amplifier_app.render.table import Column, OutputOption, table
from amplifier_app.render.text import StderrNotices

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_COLUMNS = (Column("TOOL"), Column("DESCRIPTION", "end", least=20))


@app.command()
@takes_options_of(Request, *(one for one in OPTIONS if one not in ("approve", "mode")))
def list_tools(context: typer.Context, request: Request, output: OutputOption = "text") -> None:
    """List the tools of the plan. Mounts its modules and asks no model.

    \b
      amplifier tool list
      amplifier tool list -f plan.yaml --output json
    """
    invocation: Invocation = context.obj
    tools = run_loop(_tools(request, invocation))
    if output == "json":
        invocation.stdout.write(json_text(tools) + "\n")
        return
    rows = [(one["name"], one["description"].strip().partition("\n")[0]) for one in tools]
    width = terminal_width(invocation.stdout.fd)
    invocation.stdout.write("".join(f"{line}\n" for line in table(_COLUMNS, rows, width)))


async def _tools(request: Request, invocation: Invocation) -> list[dict[str, Any]]:
    async with tool_session(request, invocation, StderrNotices(quiet=False)) as (session, _):
        tools = session.session.coordinator.get("tools")
        return [describe_tool(name, tool) for name, tool in tools.items()]
