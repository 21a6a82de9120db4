"""`amplifier serve`."""

# Without `from __future__ import annotations`, whose strings Typer would compile at every start.
from typing import Annotated

from amplifier_app.base.json_rpc import claim_stdin
from amplifier_app.base.stdio import Output, claim_stdout
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.group import eager_group
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.typer_options import option, takes_options
from amplifier_serve.acp.server import Server
from amplifier_serve.agent import without_untrusted_project

_OPTIONS = (
    *("profile", "plan", "provider", "model", "sets", "mode", "sandbox", "trust", "no_project"),
    *("no_context_files", "no_web", "no_skills", "no_plugins", "tools"),
    *("max_cost", "max_tokens", "max_steps", "offline"),
)

app = eager_group("Serve the plan to editors and other agents.")


@app.command()
@takes_options(Request, *_OPTIONS)
def acp(
    *,
    request: Request,
    editor_files: Annotated[
        bool,
        option(
            "--editor-files",
            "Read and change files with unsaved changes through the editor. It follows links "
            "that a command may put in the place of a file.",
        ),
    ] = False,
) -> None:
    """Speak the Agent Client Protocol on stdin and stdout, for editors.

    \b
      amplifier serve acp
      amplifier serve acp --profile review --mode read-only

    Each session works in the directory that the editor names. Sessions are saved like any other:
    continue one in a terminal with: amplifier run --resume ID
    """
    with claim_stdout() as output:
        run_loop(Server(request.validate(), claim_stdin(), output, editor_files).serve())


@app.command()
@takes_options(Request, *_OPTIONS)
def mcp(
    *,
    request: Request,
    http: Annotated[
        int | None,
        option(
            "--http PORT",
            "Serve HTTP on this port of 127.0.0.1 instead of stdin and stdout; 0 chooses one. Clients "
            "need the token in AMPLIFIER_SERVE_TOKEN, or the one that is printed.",
            min=0,
            max=65535,
        ),
    ] = None,
) -> None:
    """Speak the Model Context Protocol, for other agents.

    \b
      amplifier serve mcp
      amplifier serve mcp --http 8080 --mode read-only

    The plan and each of its agents is a tool. They work in the current directory.
    """
    # Imports what a run needs, which an editor's server does not.
    from amplifier_app.commands.run.choose import choose
    from amplifier_serve.mcp_http import serve_http
    from amplifier_serve.mcp_server import McpServer, serve_stdio

    with claim_stdout() as output:
        request, notice = without_untrusted_project(request.validate())
        server = McpServer(request, choose(request, Output(-1)), notice)
        if http is None:
            run_loop(serve_stdio(server, claim_stdin(), output))
        else:
            run_loop(serve_http(server, http))
