"""`amplifier run`: open the session, send the prompt, print the answer, end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from amplifier_app.base.errors import Terminated, UsageError
from amplifier_app.base.outcome import Ending, Outcome, to_outcome
from amplifier_app.base.signals import signal_behind
from amplifier_app.base.stdio import (
    claim_stdout,
    read_piped,
    stderr_is_tty,
    stdin_is_tty,
    to_stderr,
)
from amplifier_app.chat.slash.registry import all_commands, command_in, find
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.run.choose import Chosen, choose, with_fork
from amplifier_app.commands.run.request import Request
from amplifier_app.plan.documents.plan_files import is_stdin
from amplifier_app.render.result import RunReport
from amplifier_app.runtime.mount import Opening, OpeningTimedOut
from amplifier_app.sessions.summary import WAITING_FILE, short_id

if TYPE_CHECKING:
    from amplifier_app.sessions.folder import SessionFolder


def launch(request: Request, invocation: Invocation) -> Outcome:
    """Run a request to its end, and write its reports.

    Raises:
        AppError: The run cannot start, or a report cannot be written.
        Exception: Any error that ended the turn.
    """
    report = invocation.report = invocation.report or RunReport()
    if not request.report and request.notify is None:
        return _launch(request, invocation)
    from amplifier_app.commands.run.one_shot import notify, write_reports

    def report_ending(outcome: Outcome) -> None:
        try:
            write_reports(request.report or (), outcome, report)
        finally:
            if request.notify is not None:
                notify(request.notify, outcome, report)

    try:
        outcome = _launch(request, invocation)
    except BaseException as error:
        report_ending(to_outcome(signal_behind(error)))
        raise
    report_ending(outcome)
    return outcome


def _launch(request: Request, invocation: Invocation) -> Outcome:
    invocation.stdout = invocation.resources.enter_context(claim_stdout())
    chat = request.prompt is None and not request.whole_stdin and stdin_is_tty()
    if invocation.opens_chat and stdin_is_tty() and invocation.stdout.isatty():
        chat = invocation.output == "text"
    if chat and (invocation.output != "text" or not invocation.stdout.isatty()):
        raise UsageError("the prompt is missing", hint='Give one: amplifier run "…"')
    if chat and (request.schema is not None or request.check or request.report or request.notify):
        message = "--schema, --check, --report and --notify need a prompt; a chat does not use them"
        raise UsageError(message, hint='Give one: amplifier run "…"')
    schema = None
    if request.schema is not None:
        from amplifier_app.commands.run.one_shot import read_schema

        schema = read_schema(request)
    chosen = choose(request, invocation.stdout)
    if chosen.plan.default_provider is None and _can_set_up(request, invocation):
        request = _set_up(request)
        chosen = choose(request, invocation.stdout)
    answers = _answers(request, invocation, chosen)
    chat = chat and answers is None
    if chat and request.approve == "park":
        raise UsageError("--approve park needs a prompt", hint='Give one: amplifier run "…"')
    prompt = "" if chat else _prompt(request, answers, chosen.resume)
    chosen = with_fork(request, chosen)
    opening = Opening(None if request.timeout is None else time.monotonic() + request.timeout)
    try:
        if chat:
            from amplifier_app.commands.run.chat import run_chat

            return run_chat(request, invocation, chosen, opening)
        from amplifier_app.commands.run.one_shot import run_once

        return run_loop(run_once(request, invocation, chosen, prompt, opening, schema))
    except KeyboardInterrupt as error:
        if not opening.module:
            raise
        ending = Ending.TERMINATED if isinstance(error, Terminated) else Ending.INTERRUPTED
        return Outcome(ending, f"{ending.value} while mounting '{opening.module}'")
    except OpeningTimedOut as late:
        limit = f"time limit of {request.timeout:g} s reached"
        return Outcome(Ending.BUDGET, f"{limit} {late}".rstrip())


def _can_set_up(request: Request, invocation: Invocation) -> bool:
    """Return True if there is someone to ask how to set up a provider."""
    asking = invocation.output == "text" and stdin_is_tty() and stderr_is_tty()
    return asking and request.replay is None


def _set_up(request: Request) -> Request:
    """Set up a provider, or choose the demo model for this run."""
    from amplifier_app.commands.init.onboarding import onboard

    request = request._replace(is_set_up=True)
    if onboard():
        return request
    if request.plan is None and request.profile is None:
        return request._replace(profile="local")
    return request._replace(provider="local")


def _answers(request: Request, invocation: Invocation, chosen: Chosen) -> str | None:
    """The prompt that goes on with a session whose waiting questions were answered; None if it has none."""
    session = None if request.prompt is not None or invocation.opens_chat else chosen.resume
    if session is None or not (session.path / WAITING_FILE).exists():
        return None
    from amplifier_app.sessions.waiting import prompt_of_answers

    return prompt_of_answers(session.path)


def _prompt(request: Request, default: str | None, session: SessionFolder | None) -> str:
    """The prompt, with piped input appended; `default` without either.

    Raises:
        UsageError: The prompt is missing, is not text, or is a chat command.
    """
    parts = [] if request.prompt is None else [request.prompt]
    if is_stdin(request.plan) or (default is not None and stdin_is_tty()):
        piped = ""
    else:
        piped = read_piped(wait=request.whole_stdin or request.prompt is None)
    if piped is None:
        to_stderr(
            "amplifier: no data on stdin after 2 s, continuing without it "
            "(use '-' to wait for it, '< /dev/null' to skip the wait)"
        )
    elif "\0" in piped:
        hint = "Save it to a file, and attach that: amplifier run --attach FILE"
        raise UsageError("stdin is not text", hint=hint)
    elif piped.strip():
        parts.append(piped)
    prompt = "\n\n".join(parts)
    if not prompt.strip() and default is not None:
        return default
    if not prompt.strip():
        if piped == "" and request.prompt is None and not is_stdin(request.plan):
            hint = "Add it in quotes: amplifier run 'What is new?'"
            if session is not None and (session.path / WAITING_FILE).exists():
                from amplifier_app.sessions.waiting import Waiting

                if Waiting(session.path).open:
                    command = f"amplifier session approve {short_id(session.id)}"
                    hint = f"Answer what waits for approval first: {command}"
            raise UsageError("there is no prompt, and stdin is empty", hint=hint)
        raise UsageError("the prompt is empty", hint="Add it in quotes, or pipe it in.")
    command = command_in(prompt) if request.prompt is not None or "\n" not in prompt.strip() else ""
    if command:
        raise _not_a_prompt(command)
    return prompt


def _not_a_prompt(command: str) -> UsageError:
    as_it_is = "To send the text to the model, start it with a space."
    if find(command, all_commands()):
        return UsageError(
            f"{command} is a chat command; a single prompt cannot run it",
            hint=f"Start a chat with: amplifier run. {as_it_is}",
        )
    return UsageError(
        f"unknown command {command}",
        hint=f"Chat commands are listed by /help in a chat (amplifier run). {as_it_is}",
    )
