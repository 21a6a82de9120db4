"""What a command line asks to be run, and what that comes to: plan, project, session, sources."""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from amplifier_app.base.errors import ConfigError, UsageError
from amplifier_app.base.offline import is_offline
from amplifier_app.base.paths import project_dir
from amplifier_app.base.stdio import Output, stdin_is_tty
from amplifier_app.plan import ResolvedPlan
from amplifier_app.plan.traffic import NO_TRAFFIC, Traffic
from amplifier_app.runtime.approvals import Policy
from amplifier_app.sources.loading import Fetching, load

if TYPE_CHECKING:
    from amplifier_app.runtime.visibility import Shown
    from amplifier_app.sources.resolver import AppModuleSourceResolver
    from amplifier_app.trust import Answer, Ask, TrustedProject
    from amplifier_app.trust.content import Content
    from amplifier_app.trust.store import Record


Screen = Literal["full", "plain", "answer"]
"""How a terminal is used: with a live region, as lines of text, or for the answer alone."""


class Request(NamedTuple):
    """What the command line of `run` asks for.

    Attributes:
        prompt: The prompt argument; None if there is none.
        whole_stdin: Whether stdin is to be read to its end, however long that takes.
        max_turns: Model calls the prompt may take.
        max_tokens: Tokens the session may take, over all its prompts.
        max_cost: US dollars the session may take.
        timeout: Seconds the prompt may take.
        show: Up to which mark blocks of the answer are shown; None is what settings say.
        screen: How the terminal is used; likewise.
        locked: Whether modules have to be what the plan's lock says.
        lock: The file of that lock; None is the plan's own.
        offline: Whether nothing may be fetched.
        record: File for what the providers are asked and answer.
        replay: File of such a recording, to answer from.
    """

    prompt: str | None = None
    whole_stdin: bool = False
    profile: str | None = None
    plan: Path | None = None
    provider: str | None = None
    model: str | None = None
    sets: tuple[str, ...] = ()
    session: str | None = None
    resume: str | None = None
    continue_last: bool = False
    save: bool = True
    quiet: bool = False
    show: Shown | None = None
    screen: Screen | None = None
    max_turns: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
    timeout: float | None = None
    approve: Policy | None = None
    locked: bool = False
    lock: Path | None = None
    offline: bool = False
    trust: bool = False
    no_project: bool = False
    record: Path | None = None
    replay: Path | None = None


class Chosen(NamedTuple):
    """What a request comes to.

    Attributes:
        plan: What is mounted.
        project: The project whose settings, profiles and modules count.
        resume: Id of the session to go on with; None for a new one.
    """

    plan: ResolvedPlan
    project: TrustedProject | None
    resume: str | None


def choose(request: Request, stdout: Output, *, lenient: bool = False) -> Chosen:
    """The plan of a request, its project trusted.

    Args:
        request: What was asked for.
        stdout: Where the answer goes; a person may be asked about trust there.
        lenient: See `amplifier_app.plan.model.ResolvedPlan`.

    Raises:
        AppError: It cannot be had, is wrong or is not trusted.
    """
    resume = _session_to_resume(request)
    project = _project(request, resume, stdout)
    return Chosen(_plan(request, resume, project, stdout, lenient), project, resume)


async def sources_of(request: Request, chosen: Chosen) -> AppModuleSourceResolver:
    """Where the modules come from.

    Raises:
        ConfigError: They are to be what a lock says, and it does not fit or is not there.
        SourceError: Nothing may be fetched, and not everything is there.
    """
    from amplifier_app.sources.plan_resolver import resolver_for

    plan = chosen.plan
    if not request.locked and not is_offline(request.offline):
        return resolver_for(plan)
    from amplifier_app.sources.locked_run import strict_sources

    if request.locked and request.lock is None and _as_saved(request, chosen.resume):
        raise ConfigError(
            "the plan that was saved with the session has no lock",
            hint="Name the plan or the profile to go on with, or the lock: --lock FILE",
        )
    return await strict_sources(
        plan, locked=request.locked, lock=request.lock, offline=is_offline(request.offline)
    )


def terminal_to_ask_on(stdout: Output) -> int | None:
    """Descriptor of the terminal a person can be asked on; None if there is nobody to ask."""
    terminal = stdout.fd if stdout.isatty() else 2
    return terminal if stdin_is_tty() and os.isatty(terminal) else None


def _session_to_resume(request: Request) -> str | None:
    """Id of the session to go on with; None for a new one."""
    if request.resume is None and request.session is None and not request.continue_last:
        return None
    from amplifier_app.sessions.store import SessionStore

    store = SessionStore()
    if request.continue_last:
        return store.latest(os.getcwd())
    if request.resume is not None:
        return store.find(request.resume).name
    assert request.session is not None
    return request.session if store.exists(request.session) else None


def _project(request: Request, resume: str | None, stdout: Output) -> TrustedProject | None:
    """The project whose settings, profiles and modules count."""
    of_session = _as_saved(request, resume)
    if not of_session and (request.no_project or project_dir() is None):
        return None
    from amplifier_app.runtime.project import choose_project

    return choose_project(
        session=resume if of_session else None,
        trust=request.trust,
        ignore=request.no_project,
        stands_alone=request.plan is not None,
        ask=_ask(terminal_to_ask_on(stdout)),
    )


def _ask(terminal: int | None) -> Ask | None:
    """What asks at the terminal whether a project is trusted."""
    if terminal is None:
        return None

    def ask(content: Content, record: Record | None) -> Answer:
        from amplifier_app.chat.trust_question import ask_on_terminal

        return ask_on_terminal(content, record, terminal)

    return ask


def _as_saved(request: Request, resume: str | None) -> bool:
    """Whether a session goes on with the plan it began with."""
    return resume is not None and request.plan is None and request.profile is None


def _plan(
    request: Request,
    resume: str | None,
    project: TrustedProject | None,
    stdout: Output,
    lenient: bool,
) -> ResolvedPlan:
    sets = request.sets
    if request.max_turns is not None:
        sets = (*sets, f"session.orchestrator.config.max_iterations={request.max_turns}")
    for limit, amount in (("max_tokens", request.max_tokens), ("max_cost", request.max_cost)):
        if amount is not None:
            # Without an exponent, which YAML reads as text: 1e-06.
            sets = (*sets, f"session.budget.{limit}={Decimal(str(amount)):f}")
    plan = request.plan
    if resume is not None and _as_saved(request, resume):
        from amplifier_app.runtime.saved_plan import saved_plan, with_secrets

        plan = saved_plan(resume)
        ask = _hidden if terminal_to_ask_on(stdout) is not None else None
        sets = with_secrets(plan, resume, sets, ask)
    traffic = _traffic(request)
    loaded = load(
        plan=plan,
        profile=request.profile,
        provider=_provider(request),
        model=request.model,
        sets=sets,
        traffic=traffic,
        project=None if project is None else project.folder,
        lenient=lenient,
        fetching=Fetching(
            offline=is_offline(request.offline), locked=request.locked, lock=request.lock
        ),
    )
    if project is not None:
        project.check(loaded)
    return loaded


def _provider(request: Request) -> str | None:
    """The provider that is asked first."""
    if request.replay is not None and request.provider is not None:
        # What stands in for the plan's providers goes by the names they are mounted under.
        return request.provider.removeprefix("provider-")
    return request.provider


def _traffic(request: Request) -> Traffic:
    """What is to become of the traffic with the model.

    Raises:
        UsageError: A file cannot be recorded to, or there is no recording.
    """
    if request.record is not None:
        file = request.record.absolute()
        if file.exists() and (not file.is_file() or file.stat().st_size):
            raise UsageError(
                f"--record: {request.record} is there already and not empty",
                hint="Record to another file, or remove this one.",
            )
        if not file.parent.is_dir():
            raise UsageError(f"--record: there is no folder {file.parent}")
        return Traffic(record=str(file))
    if request.replay is not None:
        if not request.replay.is_file():
            raise UsageError(
                f"--replay: there is no file {request.replay}",
                hint="Make one with: amplifier run --record FILE …",
            )
        return Traffic(replay=str(request.replay.absolute()))
    return NO_TRAFFIC


def _hidden(question: str) -> str:
    """What a person types without it being shown."""
    from getpass import getpass

    from amplifier_app.base.sanitize import for_terminal

    try:
        return getpass(for_terminal(question)).strip()
    except EOFError:
        return ""
