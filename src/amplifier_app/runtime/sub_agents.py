"""The capabilities `session.spawn` and `session.resume`: tasks for the agents of a plan.

    plan/agent_plan.py    the plan the sub-agent runs
    lineage.py               what it shares with the session that gives the task
    session.py               opens its session, like any other
    sub_session_notices.py   what of it is shown

A sub-session is saved like any other, in a folder of its own, and can be resumed by its parent or
by a person.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from amplifier_app.base.errors import AppError, ConfigError, SessionError
from amplifier_app.plan.agent_plan import Narrowing, agent_plan
from amplifier_app.runtime.attach import showable
from amplifier_app.runtime.lineage import MOST_DEPTH, Lineage
from amplifier_app.runtime.provider_preferences import preferring
from amplifier_app.runtime.sub_session_notices import SubSessionRenderer
from amplifier_app.runtime.turn import SubSession
from amplifier_app.sessions.store import SessionStore
from amplifier_app.trust import METADATA_KEY as PROJECT
from amplifier_core._foreign import origin_of

if TYPE_CHECKING:
    from amplifier_app.plan import ResolvedPlan
    from amplifier_app.runtime.observer import Renderer
    from amplifier_app.runtime.turn import TurnRecorder, TurnResult
    from amplifier_app.sessions.store import SavedSession
    from amplifier_app.sources.resolver import AppModuleSourceResolver
    from amplifier_core.session import AmplifierSession

_NARROWED = "spawned_with"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class UnknownSubSession(SessionError, FileNotFoundError):
    """There is no such sub-session to resume. Published tools look for a FileNotFoundError."""


class SubAgentFailed(AppError):
    """The turn of a sub-agent ended with an error.

    Attributes:
        session_id: Its session, which can be resumed if it is saved.
        kind: The type of the error.
    """

    def __init__(self, session_id: str, cause: BaseException) -> None:
        origin = origin_of(cause)
        super().__init__(origin.text if origin else str(cause) or type(cause).__name__)
        self.session_id = session_id
        self.kind = type(cause).__name__


class Session(Protocol):
    """What is asked of an open session here; see `amplifier_app.runtime.session.OpenSession`."""

    session: AmplifierSession
    plan: ResolvedPlan
    sources: AppModuleSourceResolver
    renderer: Renderer
    recorder: TurnRecorder
    saved: SavedSession | None
    unsaved: dict[str, Any]
    at_work: set[Any]
    turn: TurnResult

    @property
    def id(self) -> str: ...

    @property
    def depth(self) -> int: ...

    @property
    def spent(self) -> dict[str, Any] | None: ...

    @property
    def context(self) -> Any: ...

    def open_sub_session(
        self, plan: ResolvedPlan, **options: Any
    ) -> AbstractAsyncContextManager[Session]: ...

    async def begin_with(
        self, messages: Sequence[dict[str, Any]], *, resumed: bool = False
    ) -> None: ...

    async def run(self, prompt: str) -> TurnResult: ...


class _Task(NamedTuple):
    """What a sub-agent is to do, and in which session."""

    agent: str
    instruction: str
    plan: ResolvedPlan
    session_id: str
    resumed: bool = False
    narrowed: Mapping[str, Any] = {}
    messages: tuple[dict[str, Any], ...] = ()
    self_depth: int = 0
    spent: Any = None


class Unsaved(NamedTuple):
    """A sub-session of a session that is not saved: all that is left of it to go on with."""

    agent: str
    narrowed: Mapping[str, Any]
    messages: list[dict[str, Any]]
    spent: Any


async def spawn(
    parent: Session,
    agent_name: str,
    instruction: str,
    parent_session: Any = None,
    agent_configs: Any = None,
    sub_session_id: str | None = None,
    *,
    session_id: str | None = None,
    tool_inheritance: Mapping[str, Any] | None = None,
    hook_inheritance: Mapping[str, Any] | None = None,
    provider_preferences: Any = None,
    parent_messages: Any = None,
    self_delegation_depth: int = 0,
    **ignored: Any,
) -> dict[str, Any]:
    """Have an agent of the plan carry out a task in a session of its own.

    The names are those published tools use.

    Args:
        parent: The session that gives the task.
        agent_name: The agent; ``self`` is the plan as it is.
        instruction: The task.
        parent_session: Ignored: it is `parent`.
        agent_configs: Ignored: an agent is what the plan says, which is what was looked at before
            anything of it was loaded.
        sub_session_id: Id of the new session; one is made up if it is missing or cannot be one.
        session_id: The same.
        tool_inheritance: `{exclude_tools: […]}` or `{inherit_tools: […]}`, by module.
        hook_inheritance: The same for hooks.
        provider_preferences: Providers and models to ask, the first that is there; see
            `preferring`.
        parent_messages: Messages the conversation starts with.
        self_delegation_depth: Told to the sub-session's modules under this name.
        **ignored: For callers that know more.

    Returns:
        `output`, the last answer; `session_id`; `status` (``success``, ``incomplete``,
        ``cancelled``) and `reason`; `turn_count`; `usage` and `cost_usd`, those of the
        sub-agent's own sub-agents included; `agent`; `metadata` with most of it again.

    Raises:
        ConfigError: There is no such agent, or tasks may not be given any deeper.
        ModuleError: A module of its plan cannot be loaded.
        SubAgentFailed: Its turn ended with an error.
    """
    _check(parent)
    narrowed = {"tools": dict(tool_inheritance or {}), "hooks": dict(hook_inheritance or {})}
    plan = _plan(parent, agent_name, narrowed)
    plan = await preferring(plan, provider_preferences, parent.session.coordinator)
    task = _Task(
        agent=agent_name,
        instruction=instruction,
        plan=plan,
        session_id=_new_id(parent, sub_session_id or session_id, agent_name),
        narrowed={key: value for key, value in narrowed.items() if value},
        messages=tuple(dict(message) for message in parent_messages or ()),
        self_depth=self_delegation_depth,
    )
    return await _carry_out(parent, task)


async def resume(
    parent: Session, sub_session_id: str, instruction: str, **ignored: Any
) -> dict[str, Any]:
    """Go on with a sub-session that this session spawned before; see `spawn`.

    Its agent is what the plan says now.

    Raises:
        UnknownSubSession: This session has spawned no such session.
        SubAgentFailed: Its turn ended with an error.
    """
    _check(parent)
    if parent.saved is None:
        return await _resume_unsaved(parent, sub_session_id, instruction)
    metadata = _metadata_of(parent, sub_session_id)
    agent, narrowed = str(metadata["agent"]), metadata.get(_NARROWED) or {}
    plan = _plan(parent, agent, narrowed)
    task = _Task(agent, instruction, plan, sub_session_id, resumed=True, narrowed=narrowed)
    return await _carry_out(parent, task)


async def _resume_unsaved(parent: Session, session_id: str, instruction: str) -> dict[str, Any]:
    left = parent.unsaved.get(session_id)
    if left is None:
        raise UnknownSubSession(f"this session has no sub-session {session_id!r}")
    plan = _plan(parent, left.agent, left.narrowed)
    # Taken out while it is at work, so that nobody else goes on with it meanwhile.
    del parent.unsaved[session_id]
    task = _Task(
        left.agent,
        instruction,
        plan,
        session_id,
        resumed=True,
        narrowed=left.narrowed,
        messages=tuple(left.messages),
        spent=left.spent,
    )
    try:
        return await _carry_out(parent, task)
    finally:
        parent.unsaved.setdefault(session_id, left)


def _check(parent: Session) -> None:
    if parent.depth >= MOST_DEPTH:
        raise ConfigError(
            f"a sub-agent may not give tasks any deeper: there are {parent.depth} sessions above it"
        )
    if parent.session.coordinator.cancellation.is_cancelled:
        raise SessionError("not started: the turn was stopped")


def _plan(parent: Session, agent: str, narrowed: Mapping[str, Any]) -> ResolvedPlan:
    by_section = {
        section: Narrowing.of(narrowed.get(section), section) for section in ("tools", "hooks")
    }
    return agent_plan(parent.plan, agent, **by_section)


def _new_id(parent: Session, wanted: str | None, agent: str) -> str:
    if wanted is not None and _ID.fullmatch(wanted) and not SessionStore().exists(wanted):
        return wanted
    made_up = f"{parent.id}-{secrets.token_hex(8)}"
    named = f"{made_up}_{agent}"
    # Long ids come from depth; what follows the last of the names is all that tells them apart.
    return next(name for name in (named, made_up, secrets.token_hex(16)) if _ID.fullmatch(name))


def _metadata_of(parent: Session, session_id: str) -> Mapping[str, Any]:
    """What is noted of a sub-session of `parent`; of no other session, whatever a model asks for."""
    store = SessionStore()
    known = _ID.fullmatch(session_id) is not None and store.exists(session_id)
    metadata = store.metadata(session_id) if known else {}
    if metadata.get("parent") != parent.id or not isinstance(metadata.get("agent"), str):
        raise UnknownSubSession(f"this session has no sub-session {session_id!r}")
    return metadata


async def _carry_out(parent: Session, task: _Task) -> dict[str, Any]:
    """Open the sub-session, run the one turn, and close it, whatever happens."""
    coordinator = parent.session.coordinator
    lineage = Lineage(parent.id, task.agent, parent.depth + 1, coordinator, task.spent)
    renderer = SubSessionRenderer(parent.renderer, lineage, task.session_id)
    save = parent.saved is not None
    on_disk = task.resumed and save
    async with parent.open_sub_session(
        task.plan,
        session_id=None if on_disk else task.session_id,
        resume=task.session_id if on_disk else None,
        save=save,
        metadata={**_of_project(parent), **({_NARROWED: task.narrowed} if task.narrowed else {})},
        approval_system=_approvals(coordinator.approval_system, task.agent),
        renderer=renderer,
        lineage=lineage,
    ) as session:
        own = session.session.coordinator
        own.register_capability("self_delegation_depth", task.self_depth)
        renderer.began(showable(own, task.instruction), resumed=task.resumed)
        failure = await _run(parent, session, task, lineage, renderer)
    if failure is not None:
        raise SubAgentFailed(task.session_id, failure) from failure
    return _result(session, task)


async def _run(
    parent: Session,
    session: Session,
    task: _Task,
    lineage: Lineage,
    renderer: SubSessionRenderer,
) -> Exception | None:
    """The one turn: stopped with the parent's, and counted in it. Returns what made it fail."""
    above, below = parent.session.coordinator.cancellation, session.session.coordinator.cancellation
    started = time.monotonic()
    above.register_child(below)
    parent.at_work.add(session)
    try:
        await session.begin_with(task.messages, resumed=task.resumed)
        await session.run(task.instruction)
    # A provider, a module or the disk; the parent's model is told, and goes on.
    except Exception as error:
        return error
    finally:
        above.unregister_child(below)
        parent.at_work.discard(session)
        ended = _ended(session, lineage, time.monotonic() - started)
        parent.recorder.add_sub_session(ended, session.recorder)
        renderer.ended(ended)
        if session.saved is None:
            messages = await session.context.get_messages()
            parent.unsaved[session.id] = Unsaved(task.agent, task.narrowed, messages, session.spent)
    return None


def _of_project(parent: Session) -> dict[str, Any]:
    """The project the parent's plan drew on, without whose trust the sub-session is not resumed."""
    noted = parent.saved.metadata.get(PROJECT) if parent.saved is not None else None
    return {} if noted is None else {PROJECT: noted}


def _approvals(approvals: Any, agent: str) -> Any:
    """The parent's approval system; one that can is told who asks."""
    for_agent = getattr(approvals, "for_agent", None)
    return approvals if for_agent is None else for_agent(agent)


def _ended(session: Session, lineage: Lineage, seconds: float) -> SubSession:
    own = session.recorder.own_usage
    return SubSession(
        session_id=session.id,
        parent_id=lineage.parent_id,
        agent=lineage.agent,
        status=session.turn.status,
        turns=session.turn.turns,
        usage=dict(own.tokens),
        cost=own.cost_usd,
        duration=round(seconds, 3),
    )


def _result(session: Session, task: _Task) -> dict[str, Any]:
    turn = session.turn
    about = {
        "agent": task.agent,
        "reason": turn.reason,
        "usage": turn.usage,
        "cost_usd": None if turn.cost is None else str(turn.cost),
    }
    return {
        "output": turn.response,
        "session_id": session.id,
        "status": turn.status,
        "turn_count": turn.turns,
        **about,
        "metadata": about,
    }
