"""`amplifier run`: one prompt to an answer, or a chat."""

# Without `from __future__ import annotations`, whose strings Typer would compile at every start.
from pathlib import Path
from typing import Annotated, Literal

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.commands.finish import Invocation

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def run(
    context: typer.Context,
    prompt: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROMPT] [-]",
            help="What to do. '-' reads stdin whole; without it stdin is added to the prompt if "
            "it is piped with data. Nothing at all on a terminal starts a chat.",
            show_default=False,
        ),
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", "-P", metavar="NAME", help="Profile to run.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", "-f", metavar="FILE", help="Mount plan to run.")
    ] = None,
    provider: Annotated[
        str | None, typer.Option("--provider", "-p", metavar="NAME", help="Provider to ask.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="NAME", help="Model to ask for.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Change a value of the plan; repeatable."),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="ID", help="Resume this session, or create it."),
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="ID", help="Resume this session.")
    ] = None,
    continue_: Annotated[
        bool, typer.Option("--continue", help="Resume the last session of this directory.")
    ] = False,
    no_save: Annotated[bool, typer.Option("--no-save", help="Save nothing.")] = False,
    output: Annotated[
        Literal["text", "json", "stream-json"],
        typer.Option("--output", help="What stdout gets."),
    ] = "text",
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Only warnings and errors on stderr.")
    ] = False,
    show: Annotated[
        Literal["user", "developer", "internal"] | None,
        typer.Option(
            "--show",
            help="Show blocks of the answer up to this mark; 'internal' shows all. [default: user]",
            show_default=False,
        ),
    ] = None,
    screen: Annotated[
        Literal["full", "plain", "answer"] | None,
        typer.Option(
            "--screen",
            help="On a terminal: 'plain' has no live region and no styles; 'answer' leaves the "
            "screen to a module that draws it, such as hooks-streaming-ui. [default: full]",
            show_default=False,
        ),
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Short for --screen plain.")] = False,
    max_turns: Annotated[
        int | None,
        typer.Option("--max-turns", min=1, metavar="N", help="Model calls a prompt may take."),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens-total",
            min=1,
            metavar="N",
            help="Tokens the session may take, over all its prompts and sub-agents.",
        ),
    ] = None,
    max_cost: Annotated[
        float | None,
        typer.Option("--max-cost", metavar="DOLLARS", help="US dollars the session may take."),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="TIME", help="Stop after this long: 90, 90s, 5m, 1h."),
    ] = None,
    approve: Annotated[
        Literal["ask", "deny", "allow", "policy"] | None,
        typer.Option(
            "--approve",
            help="How to answer approval requests; 'policy' takes the default of each request. "
            "[default: ask on a terminal, otherwise deny]",
            show_default=False,
        ),
    ] = None,
    locked: Annotated[
        bool,
        typer.Option("--locked", help="Run only what the plan's lock says (amplifier plan lock)."),
    ] = False,
    lock: Annotated[
        Path | None,
        typer.Option("--lock", metavar="FILE", help="The same with the lock in this file."),
    ] = None,
    offline: Annotated[
        bool,
        typer.Option(
            "--offline",
            help="Fetch nothing: use no network but the provider's. Also AMPLIFIER_OFFLINE=1.",
        ),
    ] = False,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record",
            metavar="FILE",
            help="Write what the model is asked and answers to this file, a new or empty one.",
        ),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            "--replay",
            metavar="FILE",
            help="Answer from such a file instead of asking a model; no key, no network.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Mount everything, ask no model, and say what is wrong (plan check)."
        ),
    ] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Trust the project's .amplifier folder for this run.")
    ] = False,
    no_project: Annotated[
        bool, typer.Option("--no-project", help="Leave the project's .amplifier folder out.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Tracebacks and the modules' own logging.")
    ] = False,
) -> None:
    """Send a prompt and print the answer, or start a chat."""
    invocation: Invocation = context.obj
    invocation.output = output
    invocation.verbose = invocation.verbose or verbose
    ids = [value for value in (session, resume, continue_ or None) if value is not None]
    if len(ids) > 1:
        raise UsageError("--session, --resume and --continue exclude each other")
    if no_save and ids:
        raise UsageError("--no-save cannot go with --session, --resume or --continue")
    if max_cost is not None and not 0 < max_cost < float("inf"):
        raise UsageError(f"--max-cost {max_cost:g} is no amount of dollars above 0")
    if trust and no_project:
        raise UsageError("--trust and --no-project exclude each other")
    if plain and screen not in (None, "plain"):
        raise UsageError(f"--plain and --screen {screen} are mutually exclusive")
    if record is not None and replay is not None:
        raise UsageError("--record and --replay exclude each other")
    from amplifier_app.commands.run.launch import launch, parse_duration
    from amplifier_app.commands.run.request import Request

    request = Request(
        prompt=_one_prompt(prompt or []),
        whole_stdin="-" in (prompt or []),
        profile=profile,
        plan=plan,
        provider=provider,
        model=model,
        sets=tuple(sets or ()),
        session=session,
        resume=resume,
        continue_last=continue_,
        save=not no_save,
        quiet=quiet,
        show=show,
        screen="plain" if plain else screen,
        max_turns=max_turns,
        max_tokens=max_tokens,
        max_cost=max_cost,
        timeout=None if timeout is None else parse_duration(timeout),
        approve=approve,
        locked=locked or lock is not None,
        lock=lock,
        offline=offline,
        trust=trust,
        no_project=no_project,
        # A dry run asks nobody: there would be nothing to record.
        record=None if dry_run else record,
        replay=replay,
    )
    if dry_run:
        from amplifier_app.commands.run.dry_run import dry_run as check

        raise typer.Exit(check(request, invocation))
    invocation.outcome = launch(request, invocation)


def _one_prompt(words: list[str]) -> str | None:
    texts = [word for word in words if word != "-"]
    if len(texts) > 1:
        raise UsageError(
            f"one prompt, please, not {len(texts)}", hint='Put it in quotes: amplifier run "…"'
        )
    return texts[0] if texts else None
