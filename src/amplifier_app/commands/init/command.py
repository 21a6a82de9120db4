"""`amplifier init`: set up a provider."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.base.keys import problem_of_key
from amplifier_app.base.outcome import OK, Ending, Outcome
from amplifier_app.base.stdio import claim_stdout, read_line, stdin_is_tty
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.option import Option, parse_duration
from amplifier_app.commands.typer_options import takes_options
from amplifier_support.named_tuple import NamedTuple

_KEY_SECONDS = 60.0


class InitOptions(NamedTuple):
    """The options of `amplifier init`."""

    provider: Annotated[
        str | None,
        Option("-p, --provider NAME", "Provider, as 'provider list' shows it.", group="Provider"),
    ] = None
    model: Annotated[
        str | None,
        Option(
            "-m, --model NAME", "Model to use; '' for the default.", empty=True, group="Provider"
        ),
    ] = None
    base_url: Annotated[
        str | None,
        Option(
            "--base-url URL",
            "Address of the API; '' for the provider's own.",
            empty=True,
            group="Provider",
        ),
    ] = None
    key_stdin: Annotated[
        bool, Option("--key-stdin", "Read the key from the first line of stdin.", group="Key")
    ] = False
    key_in: Annotated[
        Literal["keyring", "file"] | None,
        Option(
            "--key-in",
            "Where to store the key. [default: keyring if there is one, otherwise file]",
            group="Key",
        ),
    ] = None
    no_test: Annotated[bool, Option("--no-test", "Save without testing the connection.")] = False
    yes: Annotated[
        bool, Option("-y, --yes", "Do not prompt; keep current values for anything not given.")
    ] = False
    timeout: Annotated[str, Option("--timeout TIME", "Time limit of the test: 90, 90s, 5m.")] = "2m"
    verbose: Annotated[
        bool, Option("-v, --verbose", "Show tracebacks and log messages of modules.")
    ] = False


@takes_options(InitOptions)
def init(context: typer.Context, options: InitOptions) -> None:
    """Set up a provider: its key, address and model, tested with one small request.

    \b
      amplifier init
      amplifier init -p openai --base-url http://localhost:11434/v1
      pass show key | amplifier init -p anthropic --key-stdin

    Prompts for anything you leave out, and for what the agent may do without asking. In scripts (no terminal, --yes or --key-stdin) nothing
    is asked; pass --provider.

    The key is stored in the system's keyring, or else in a file that only you can read, and acts
    like an environment variable. Everything else goes into your settings.yaml; its comments and
    other contents are kept. Run init again to change something. If the test fails in a script,
    nothing is saved and the exit code is that of 'provider test'.
    """
    invocation: Invocation = context.obj
    invocation.verbose = invocation.verbose or options.verbose
    invocation.stdout = invocation.resources.enter_context(claim_stdout())
    seconds = None if options.no_test else parse_duration(options.timeout)
    asking = stdin_is_tty() and os.isatty(2) and not (options.yes or options.key_stdin)
    if options.provider is None and not asking:
        hint = "Run it on a terminal, or pass --provider, and the key with --key-stdin."
        raise UsageError("cannot ask for the provider without a terminal", hint=hint)
    from amplifier_app.commands.init.interview import ask_mode, choose_provider
    from amplifier_app.commands.init.setup import Given, report_saved, save, show_suggestions

    key = _key_from_stdin(options.provider) if options.key_stdin else None
    values = Given(key, options.model, options.base_url)
    choice = choose_provider(
        options.provider, values, asking=asking, seconds=seconds, verbose=invocation.verbose
    )
    if choice is None:
        invocation.outcome = Outcome(Ending.INTERRUPTED, "nothing was saved")
        return
    saved = save(choice, options.key_in)
    report_saved(choice, saved)
    if asking:
        ask_mode()
    if saved.asked_first:
        show_suggestions(as_commands=True)
    invocation.outcome = OK


def _key_from_stdin(provider: str | None) -> str:
    from amplifier_app.commands.init.interview import HOW_TO_PIPE, clean

    how = HOW_TO_PIPE.format(provider or "NAME")
    if stdin_is_tty():
        raise UsageError("--key-stdin needs a pipe, but stdin is a terminal", hint=how)
    line = read_line(_KEY_SECONDS)
    if line is None:
        message = f"no key on stdin after {_KEY_SECONDS:g} s"
        raise UsageError(message, hint=how)
    key = clean(line)
    problem = problem_of_key(key)
    if problem:
        raise UsageError(f"the key from stdin is unusable: {problem}", hint=how)
    return key
