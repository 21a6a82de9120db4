"""`amplifier serve`."""

# Without `from __future__ import annotations`, whose strings Typer would compile at every start.
import asyncio

import typer

from amplifier_app.base.stdio import claim_stdout
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.typer_options import takes_options
from amplifier_serve.acp.server import Server
from amplifier_serve.json_rpc import claim_stdin

_OPTIONS = (
    *("profile", "plan", "provider", "model", "sets", "mode", "sandbox", "trust", "no_project"),
    *("no_context_files", "no_web", "tools", "max_cost", "max_tokens", "max_steps", "offline"),
)

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def serve() -> None:
    """Serve the plan to editors and other agents."""


@app.command()
@takes_options(Request, *_OPTIONS)
def acp(request: Request) -> None:
    """Speak the Agent Client Protocol on stdin and stdout, for editors.

    Each session works in the directory that the editor names. Sessions are saved like any other:
    continue one in a terminal with: amplifier run --resume ID
    """
    with claim_stdout() as output:
        asyncio.run(Server(request.validate(), claim_stdin(), output).serve())
