"""`amplifier run`: one prompt to an answer, or a chat."""

# Without `from __future__ import annotations`, whose strings Typer would compile at every start.
import sys
from typing import Annotated

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.commands.finish import Invocation, OutputFormat
from amplifier_app.commands.option import Option
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.typer_options import argument, takes_options
from amplifier_support.named_tuple import NamedTuple


class Variation(NamedTuple):
    """The part of running and showing a request that is not in the request itself."""

    output: Annotated[OutputFormat, Option("--output", "Output format.", group="Output")] = "text"
    plain: Annotated[
        bool, Option("--plain", "Plain output: no colours, no redrawing.", group="Output")
    ] = False
    dry_run: Annotated[
        bool,
        Option(
            "--dry-run",
            "Check the plan without asking a model (same as 'plan check').",
            group="Reproducible runs",
        ),
    ] = False
    detach: Annotated[
        bool,
        Option(
            "--detach",
            "Go on in the background: print the session id, and keep the JSON result as run.json in the "
            "session's folder; see 'amplifier session join'.",
            group="Output",
        ),
    ] = False
    verbose: Annotated[
        bool,
        Option("-v, --verbose", "Show tracebacks and log messages of modules.", group="Output"),
    ] = False


@takes_options(Request)
@takes_options(Variation)
def run(
    context: typer.Context,
    prompt: Annotated[
        list[str] | None,
        argument(
            "PROMPT",
            "The prompt. Piped input is appended to it; use '-' to read the prompt from "
            "stdin. With no prompt on a terminal, starts a chat.",
            rich_help_panel="Arguments",
        ),
    ] = None,
    *,
    request: Request,
    how: Variation,
) -> None:
    """Send one prompt and print the answer, or chat.

    \b
      amplifier run "Which tests cover src/app.py?"
      git diff | amplifier run "Review this."
      amplifier run --continue "And in src/db.py?"
    """
    invocation: Invocation = context.obj
    invocation.output = how.output
    invocation.verbose = invocation.verbose or how.verbose
    words = prompt or []
    request = request.validate()._replace(prompt=_one_prompt(words), whole_stdin="-" in words)
    if how.plain:
        if request.screen not in (None, "plain"):
            raise UsageError(f"--plain and --screen {request.screen} are mutually exclusive")
        request = request._replace(screen="plain")
    if how.detach:
        from amplifier_app.commands.run.detached import detach

        invocation.outcome = detach(request, invocation, _words_of_run())
        return
    if how.dry_run:
        from amplifier_app.commands.run.dry_run import dry_run as check

        # Without model calls there is nothing to record.
        raise typer.Exit(check(request._replace(record=None), invocation))
    from amplifier_app.commands.run.launch import launch

    invocation.outcome = launch(request, invocation)


def _words_of_run() -> list[str]:
    """The command line after `amplifier run`."""
    words = sys.argv[1:]
    return words[1:] if words[:1] == ["run"] else words


def _one_prompt(words: list[str]) -> str | None:
    texts = [word for word in words if word != "-"]
    if len(texts) > 1:
        raise UsageError(
            f"expected one prompt, got {len(texts)}", hint='Put it in quotes: amplifier run "…"'
        )
    return texts[0] if texts else None
