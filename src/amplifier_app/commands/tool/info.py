"""`amplifier tool info`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from amplifier_app.base.json_text import json_text
from amplifier_app.base.sanitize import for_terminal
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.tool.session import OPTIONS, describe_tool, find_tool, tool_session
from amplifier_app.commands.typer_options import takes_options_of
from amplifier_app.render.table import OutputOption
from amplifier_app.render.text import StderrNotices

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@takes_options_of(Request, *(one for one in OPTIONS if one not in ("approve", "mode")))
def info(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="TOOL", help="Name of the tool.")],
    request: Request,
    output: OutputOption = "text",
) -> None:
    """Show what a tool does and the JSON Schema of its input.

    \b
      amplifier tool info bash
      amplifier tool info read_file --output json
    """
    invocation: Invocation = context.obj
    tool = run_loop(_tool(name, request, invocation))
    if output == "json":
        text = json_text(tool)
    else:
        schema = json.dumps(tool["input_schema"], indent=2, ensure_ascii=False)
        text = for_terminal(f"{tool['name']}\n\n{tool['description'].strip()}\n\nInput:\n{schema}")
    invocation.stdout.write(f"{text}\n")


async def _tool(name: str, request: Request, invocation: Invocation) -> dict[str, Any]:
    async with tool_session(request, invocation, StderrNotices(quiet=False)) as (session, _):
        return describe_tool(name, find_tool(session, name))
