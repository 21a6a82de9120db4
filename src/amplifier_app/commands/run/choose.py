"""Resolve a request to its plan, project, session and module sources."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from amplifier_app.base.errors import ConfigError, Location, UsageError
from amplifier_app.base.paths import is_offline, project_dir
from amplifier_app.base.sanitize import for_terminal
from amplifier_app.base.stdio import Output, stdin_is_tty
from amplifier_app.commands.run.request import Request
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.overrides import parse_value
from amplifier_app.plan.traffic import NO_TRAFFIC, Traffic
from amplifier_app.plan.tree.nodes import plain_data
from amplifier_app.plan.tree.problems import PlanError, Problems
from amplifier_app.runtime.budget_limits import assignment
from amplifier_app.runtime.saved.resume import settings_to_restore
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sources.loading import Fetching, load
from amplifier_app.sources.resolver import AppModuleSourceResolver, resolver_for
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.sandbox.policy import PolicyError, parse_policy

if TYPE_CHECKING:
    from amplifier_app.sessions.folder import SessionFolder
    from amplifier_app.trust import Answer, TrustedProject
    from amplifier_app.trust.content import Content
    from amplifier_app.trust.store import Record


class Chosen(NamedTuple):
    """A resolved request.

    Attributes:
        plan: The plan to mount.
        project: The project whose settings, profiles and modules apply.
        resume: The session to resume; None for a new one.
    """

    plan: ResolvedPlan
    project: TrustedProject | None
    resume: SessionFolder | None


def choose(request: Request, stdout: Output, *, lenient: bool = False) -> Chosen:
    """Load the plan of a request, asking for the project's trust if necessary.

    Args:
        request: The request.
        stdout: Where the answer goes; the trust question may be shown there.
        lenient: See `amplifier_app.plan.model.ResolvedPlan`.

    Raises:
        AppError: The plan is unavailable or invalid, or its project is not trusted.
    """
    resume = session_to_resume(request)
    project = _project(request, resume, stdout)
    return Chosen(_plan(request, resume, project, stdout, lenient), project, resume)


def with_fork(request: Request, chosen: Chosen) -> Chosen:
    """Fork the session to resume, if the request asks for it.

    Raises:
        SessionError: The source is damaged, or the fork cannot be written.
    """
    if request.fork is None or chosen.resume is None:
        return chosen
    return chosen._replace(resume=fork_with(chosen.plan, request, chosen.resume, chosen.project))


def fork_with(
    plan: ResolvedPlan,
    request: Request,
    source: SessionFolder,
    project: TrustedProject | None,
    step: int | None = None,
) -> SessionFolder:
    """Fork a session, with the plan of the request.

    Raises:
        SessionError: The source is damaged, or the fork cannot be written.
    """
    from amplifier_app.sessions.fork import fork_session

    is_saved = _uses_saved_plan(request, source)
    changed = not is_saved or request.provider or request.model or request.sets
    facts = {} if is_saved or project is None else project.session_metadata(plan)
    if request.model:
        facts["model"] = request.model
    return fork_session(
        SessionStore(),
        source,
        step=step,
        plan_yaml=plan.without_replay().to_yaml() if changed else None,
        profile=plan.name,
        **facts,
    )


async def open_sources(request: Request, chosen: Chosen) -> AppModuleSourceResolver:
    """Return the sources of the modules.

    Raises:
        ConfigError: A lock is required, and it is missing or out of date.
        SourceError: The run is offline, and a module is not on this machine.
    """
    plan = chosen.plan
    if not request.locked and not is_offline(request.offline):
        return resolver_for(plan)
    from amplifier_app.sources.plan_lock import strict_sources

    if request.locked and request.lock is None and _uses_saved_plan(request, chosen.resume):
        raise ConfigError(
            "the plan saved with the session has no lock",
            hint="Pass --plan, --profile or --lock FILE.",
        )
    return await strict_sources(
        plan, locked=request.locked, lock=request.lock, offline=is_offline(request.offline)
    )


def terminal_to_ask_on(stdout: Output) -> int | None:
    """Descriptor of the terminal to ask questions on; None without a terminal."""
    terminal = stdout.fd if stdout.isatty() else 2
    return terminal if stdin_is_tty() and os.isatty(terminal) else None


def session_to_resume(request: Request) -> SessionFolder | None:
    """The session to resume; None for a new one.

    Raises:
        SessionError: It does not exist, or its id is invalid.
    """
    store, named = SessionStore(), request.resume or request.fork
    if request.continue_last:
        return store.latest(os.getcwd())
    if named is not None:
        return store.find(named)
    return None if request.session is None else store.get(request.session)


def _project(
    request: Request, resume: SessionFolder | None, stdout: Output
) -> TrustedProject | None:
    """The project whose settings, profiles and modules apply."""
    of_session = _uses_saved_plan(request, resume)
    if not of_session and (request.no_project or project_dir() is None):
        return None
    from amplifier_app.runtime.saved.saved_plan import choose_project

    terminal = terminal_to_ask_on(stdout)

    def ask(content: Content, record: Record | None) -> Answer:
        from amplifier_app.chat.ask import ask_about_trust

        assert terminal is not None
        return ask_about_trust(content, record, terminal)

    return choose_project(
        session=resume if of_session else None,
        trust=request.trust,
        ignore=request.no_project,
        is_standalone=request.plan is not None,
        ask=None if terminal is None else ask,
    )


def _uses_saved_plan(request: Request, resume: SessionFolder | None) -> bool:
    """Return True if a session is resumed with the plan it was started with."""
    return resume is not None and request.plan is None and request.profile is None


def _plan(
    request: Request,
    resume: SessionFolder | None,
    project: TrustedProject | None,
    stdout: Output,
    lenient: bool,
) -> ResolvedPlan:
    sets = list(request.sets or ())
    if request.max_steps is not None:
        sets.append(f"session.orchestrator.config.max_iterations={request.max_steps}")
    for limit, amount in (("max_tokens", request.max_tokens), ("max_cost", request.max_cost)):
        if amount is not None:
            sets.append(assignment(limit, amount))
    if request.sandbox is not None:
        sets.append(_sandbox_set(request.sandbox))
    plan, provider, model = request.plan, request.provider, request.model
    if request.replay is not None and provider is not None:
        # A replay is mounted under the names of the plan's providers.
        provider = provider.removeprefix("provider-")
    if resume is not None and _uses_saved_plan(request, resume):
        from amplifier_app.runtime.saved.saved_plan import saved_plan, with_secrets

        plan = saved_plan(resume)
        ask = _ask_hidden if terminal_to_ask_on(stdout) is not None else None
        restored = settings_to_restore(resume.metadata)
        sets = with_secrets(plan, resume.id, (*restored.sets, *sets), ask)
        if provider is None and model is None:
            provider, model = restored.provider, restored.model
    if request.lock is not None and not request.lock.exists():
        hint = f"Write it with: amplifier plan lock -o {request.lock}"
        raise UsageError(f"--lock: {request.lock} does not exist", hint=hint)
    traffic = _traffic(request)
    try:
        loaded = load(
            plan=plan,
            profile=request.profile,
            provider=provider,
            model=model,
            sets=tuple(sets),
            traffic=traffic,
            project=None if project is None else project.folder,
            lenient=lenient,
            fetching=Fetching(
                offline=is_offline(request.offline),
                locked=request.locked,
                lock=request.lock,
                plugins=not request.no_plugins,
            ),
            adds_provider=_uses_saved_plan(request, resume),
            without=request.without,
            reads_project=True if request.trust else False if request.no_project else None,
            folder=None if request.folder is None else Path(request.folder),
        )
    except PlanError as error:
        if plan != request.plan and any(found.at.file == str(plan) for found in error.problems):
            error.hint = "Resume the session with another plan: --plan FILE or --profile NAME"
        raise
    if project is not None:
        project.check(loaded)
    name = resume.metadata.get("profile") if resume is not None else None
    # The file of a saved plan has the same name in every session.
    return loaded.named(name) if isinstance(name, str) and plan != request.plan else loaded


def _sandbox_set(text: str) -> str:
    """The change of the plan that `--sandbox` makes.

    Raises:
        UsageError: The text is not a policy.
    """
    value = parse_value(text, Location("--sandbox"), Problems())
    if value is None:
        raise UsageError(f"--sandbox '{text}' is not valid YAML")
    try:
        parse_policy(plain_data(value))
    except PolicyError as error:
        raise UsageError(f"--sandbox: {error}") from error
    return f"session.sandbox={text}"


def _traffic(request: Request) -> Traffic:
    """Return the file that the model's traffic is recorded to, or replayed from, if any.

    Raises:
        UsageError: The file cannot be recorded to, or does not exist.
    """
    if request.record is not None:
        file = request.record.absolute()
        if file.is_dir():
            raise UsageError(f"--record: {request.record} is a folder", hint="Pass a file.")
        if file.exists() and (not file.is_file() or file.stat().st_size):
            raise UsageError(
                f"--record: {request.record} already exists and is not empty",
                hint="Record to another file, or remove this one.",
            )
        if not file.parent.is_dir():
            raise UsageError(f"--record: folder {file.parent} does not exist")
        return Traffic(record=str(file))
    if request.replay is not None:
        problem = None
        if not request.replay.is_file():
            problem = "is not a file" if request.replay.exists() else "does not exist"
        elif not _begins_as_recording(request.replay):
            problem = "is not a recording"
        if problem is not None:
            how = "Record one with: amplifier run --record FILE …"
            raise UsageError(f"--replay: {request.replay} {problem}", hint=how)
        return Traffic(replay=str(request.replay.absolute()))
    return NO_TRAFFIC


def _begins_as_recording(path: Path) -> bool:
    """Return True if the first line is a header; an unreadable file is reported when it is replayed."""
    try:
        with path.open("rb") as file:
            line: Any = json.loads(file.readline(1 << 16))
    except OSError:
        return True
    except (ValueError, RecursionError):
        return False
    return isinstance(line, dict) and cast("dict[str, Any]", line).get("type") == "header"


def _ask_hidden(question: str) -> str:
    """A line typed at the terminal without being shown."""
    from getpass import getpass

    try:
        return getpass(for_terminal(question)).strip()
    except EOFError:
        return ""
