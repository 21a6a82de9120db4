"""The capabilities `session.spawn` and `session.resume`: delegate tasks to the agents of a plan.

    plan/agent_plan.py       the plan of the sub-agent
    runtime/capabilities.py  what it shares with its parent session
    runtime/session.py       opens its session, like any other

A sub-session is saved like any other, in its own folder, and can be resumed by its parent or by
the user.
"""

from __future__ import annotations

import fnmatch
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

from amplifier_app.base.errors import AppError, ConfigError, SessionError
from amplifier_app.plan.agent_plan import Narrowing, agent_plan, full_agent_name
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.overrides import asking
from amplifier_app.plan.tree.problems import PlanError
from amplifier_app.runtime import describe
from amplifier_app.runtime.capabilities import MAX_DEPTH, Delegation
from amplifier_app.runtime.observers.notices import notice_handlers
from amplifier_app.runtime.observers.observer import Level, Renderer, SubSessionFacts
from amplifier_app.runtime.observers.subscriptions import redacted_text
from amplifier_app.runtime.saved.resume import BudgetRecord
from amplifier_app.runtime.saved.session_record import note_sub_session
from amplifier_app.runtime.turns.turn import (
    EventHandler,
    SubSession,
    has_succeeded,
    is_answer,
    peek,
    result_in,
)
from amplifier_app.sessions.folder import SessionFolder
from amplifier_app.sessions.fork import sub_session_of_fork
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.summary import ID
from amplifier_app.sources.requirements.missing_packages import requires_hint
from amplifier_app.trust import METADATA_KEY as PROJECT
from amplifier_core._foreign import describe_exception, find_origin
from amplifier_support.fields import read_field, to_mapping
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.session_capabilities import MODEL_ROLES, SELF_DELEGATION_DEPTH

if TYPE_CHECKING:
    from amplifier_app.runtime.turns.turn import TurnResult
    from amplifier_app.runtime.turns.turn_recorder import TurnRecorder
    from amplifier_app.sessions.folder import SavedSession
    from amplifier_app.sources.resolver import AppModuleSourceResolver
    from amplifier_core.session import AmplifierSession

logger = logging.getLogger(__name__)

_PATTERN = frozenset("*?[")


async def _read_preferences(agent: str, coordinator: Any) -> Any:
    """Return the preferences of an agent: its own, as hooks may have changed them, or those of its role.

    Args:
        agent: Its name.
        coordinator: The coordinator of the session that delegates to it.
    """
    agents = to_mapping(to_mapping(coordinator.config).get("agents"))
    config = to_mapping(agents.get(full_agent_name(agent, agents)))
    own, role = config.get("provider_preferences"), config.get("model_role")
    if own or not role:
        return own
    resolver = MODEL_ROLES.of(coordinator)
    roles = " or ".join(map(str, role)) if isinstance(role, list) else role
    if resolver is None:
        logger.info("agent %s: no module chooses a model for %s", agent, roles)
        return None
    try:
        return await resolver.resolve(role)
    # A module may raise anything; the plan's provider can do the task.
    except Exception as error:
        text = "agent %s uses the model of the plan: none can be chosen for %s: %s"
        reason, hint = describe_exception(error, None), requires_hint(str(error), "its module")
        logger.warning(text, agent, roles, f"{reason}; {hint}" if hint else reason)
        return None


async def _with_preferred_provider(
    plan: ResolvedPlan, preferences: Any, coordinator: Any
) -> ResolvedPlan:
    """Return the plan with the first available preference; unchanged if none is available.

    Args:
        plan: The plan.
        preferences: Mappings or objects with `provider` and `model`, as in published tools.
            A model may be a pattern such as `claude-haiku-*`.
        coordinator: The coordinator of a session whose providers list their models.
    """
    for preference in preferences or ():
        provider, model = _read_text(preference, "provider"), _read_text(preference, "model")
        if not provider:
            continue
        if model and _PATTERN & set(model):
            model = await _newest_like(model, provider, coordinator)
            if model is None:
                continue
        try:
            return plan.with_tree(asking(plan.tree, provider, model))
        except PlanError:
            logger.debug("The plan has no provider %r", provider)
    return plan


def _read_text(preference: Any, name: str) -> str | None:
    value = read_field(preference, name)
    return value if isinstance(value, str) and value else None


async def _newest_like(pattern: str, provider: str, coordinator: Any) -> str | None:
    """Return the last model by name that matches a pattern."""
    providers: dict[str, Any] = coordinator.get("providers")
    mounted = providers.get(provider) or providers.get(provider.removeprefix("provider-"))
    if mounted is None:
        return None
    try:
        models = [str(model.id) for model in await mounted.list_models()]
    # A provider may raise anything, for example offline; try the next preference.
    except Exception as error:
        logger.warning("Cannot list the models of %s for %r: %s", provider, pattern, error)
        return None
    return max(fnmatch.filter(models, pattern), default=None)


class SubSessionRenderer(Renderer):
    """Forwards to the renderer of the parent; text and results of the sub-session are not shown.

    Args:
        parent: The renderer of the parent session.
        agent: The agent of the plan that runs the sub-session.
        session_id: The id of the sub-session.
    """

    def __init__(self, parent: Renderer, agent: str, session_id: str) -> None:
        super().__init__()
        self._parent = parent
        self.retries, self.longest_note = parent.retries, parent.longest_note
        self.draws_retries = parent.draws_retries
        # What concerns the sub-sessions below it, and questions.
        self.paused = parent.paused
        self.sub_session_started = parent.sub_session_started
        self.sub_session_doing = parent.sub_session_doing
        self.sub_session_retries = parent.sub_session_retries
        self.sub_session_changed = parent.sub_session_changed
        self.sub_session_ended = parent.sub_session_ended
        self._agent = agent
        self._id = session_id
        self._seen: set[Any] = set()  # ids of calls that the user has allowed

    def handlers(self) -> dict[str, EventHandler]:
        return {
            **notice_handlers(self),
            "provider:request": self._on_request,
            "provider:retry": self._on_retry,
            "tool:pre": self._on_tool,
            "approval:granted": self._on_approval,
            "tool:post": self._on_tool_end,
        }

    def notice(self, message: str, level: Level, source: str) -> None:
        if source == "session" and level == "info":
            return  # The parent has shown the same notice.
        self._parent.notice(f"{self._agent}: {message}", level, source)

    def _on_request(self, event: str, data: dict[str, Any]) -> None:
        self.sub_session_doing(self._id, "")

    def _on_retry(self, event: str, data: dict[str, Any]) -> None:
        if self.draws_retries:
            self.retries.is_new_event(data)
            self.sub_session_retries(self._id, data)
        else:
            notice_handlers(self)[event](event, data)

    def _on_tool(self, event: str, data: dict[str, Any]) -> None:
        what = f"{describe.tool_name(data)} {describe.tool_input(data)}".strip()
        self.sub_session_doing(self._id, what)

    def _on_approval(self, event: str, data: dict[str, Any]) -> None:
        if is_answer(data):
            self._seen.add(peek(data, "tool_call_id"))

    def _on_tool_end(self, event: str, data: dict[str, Any]) -> None:
        if describe.changed_files(data) and has_succeeded(result_in(data)):
            was_seen = peek(data, "tool_call_id") in self._seen
            self.sub_session_changed(self._agent, data, was_seen=was_seen)


_NARROWED = "spawned_with"


class UnknownSubSession(SessionError, FileNotFoundError):
    """The sub-session does not exist. Published tools expect a FileNotFoundError."""


class SubAgentFailed(AppError):
    """The turn of a sub-agent ended with an error.

    Attributes:
        session_id: Its session, which can be resumed if it is saved.
        kind: The type of the error.
    """

    def __init__(self, session_id: str, cause: BaseException) -> None:
        origin = find_origin(cause)
        super().__init__(origin.text if origin else str(cause) or type(cause).__name__)
        self.session_id = session_id
        self.kind = type(cause).__name__


class Session(Protocol):
    """The part of `amplifier_app.runtime.session.OpenSession` that is used here."""

    session: AmplifierSession
    plan: ResolvedPlan
    sources: AppModuleSourceResolver
    renderer: Renderer
    recorder: TurnRecorder
    saved: SavedSession | None
    unsaved: dict[str, Any]
    active: set[Any]
    budget: BudgetRecord
    asks_at_limits: bool
    turn: TurnResult

    @property
    def id(self) -> str: ...

    @property
    def depth(self) -> int: ...

    @property
    def context(self) -> Any: ...

    def ask_at_limits(self) -> None: ...

    def open_sub_session(
        self, plan: ResolvedPlan, **options: Any
    ) -> AbstractAsyncContextManager[Session]: ...

    async def begin_with(
        self, messages: Sequence[dict[str, Any]], *, resumed: bool = False
    ) -> None: ...

    async def run(self, prompt: str) -> TurnResult: ...


class _Task(NamedTuple):
    """The task of a sub-agent, and its session: one to create, to resume, or to continue with its messages."""

    agent: str
    instruction: str
    plan: ResolvedPlan
    session_id: str
    resumed: bool = False
    narrowed: Mapping[str, Any] = {}
    messages: tuple[dict[str, Any], ...] = ()
    self_depth: int = 0
    spent: Any = None
    saved: SessionFolder | None = None


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
    """Run a task with an agent of the plan, in a session of its own.

    Parameter names are those used by published tools.

    Args:
        parent: The session that delegates the task.
        agent_name: The agent; ``self`` is the unchanged plan.
        instruction: The task.
        parent_session: Ignored: it is `parent`.
        agent_configs: Ignored: only agents of the plan were checked before loading.
        sub_session_id: Id of the new session; generated if missing, invalid or taken.
        session_id: Alias of `sub_session_id`.
        tool_inheritance: `{exclude_tools: […]}` or `{inherit_tools: […]}`, by module.
        hook_inheritance: Likewise for hooks.
        provider_preferences: Providers and models to use, the first available one, instead of those of
            the agent; see `_with_preferred_provider`.
        parent_messages: Messages at the start of the conversation.
        self_delegation_depth: Passed to the sub-session's modules as a capability of this name.
        **ignored: Unknown arguments of newer callers.

    Returns:
        `output`, the last answer; `session_id`; `status` (``success``, ``incomplete``,
        ``cancelled``) and `reason`; `turn_count`; `usage` and `cost_usd`, including the
        sub-agent's own sub-agents; `agent`; `metadata`, which repeats most of it.

    Raises:
        ConfigError: The agent is unknown, or the maximum depth is reached.
        ModuleError: A module of its plan cannot be loaded.
        SubAgentFailed: Its turn ended with an error.
    """
    _check(parent)
    narrowed = {"tools": dict(tool_inheritance or {}), "hooks": dict(hook_inheritance or {})}
    plan = await _plan(parent, agent_name, narrowed, provider_preferences)
    task = _Task(
        agent=agent_name,
        instruction=instruction,
        plan=plan,
        session_id=_new_id(parent, sub_session_id or session_id, agent_name),
        narrowed={key: value for key, value in narrowed.items() if value},
        messages=tuple(dict(message) for message in parent_messages or ()),
        self_depth=self_delegation_depth,
    )
    return await _run_task(parent, task)


async def resume(
    parent: Session, sub_session_id: str, instruction: str, **ignored: Any
) -> dict[str, Any]:
    """Resume a sub-session that this session spawned before; see `spawn`.

    Its agent is taken from the current plan.

    Raises:
        UnknownSubSession: This session did not spawn that session.
        SubAgentFailed: Its turn ended with an error.
    """
    _check(parent)
    if parent.saved is None:
        return await _resume_unsaved(parent, sub_session_id, instruction)
    saved = _saved_sub_session(parent, sub_session_id)
    agent, narrowed = str(saved.metadata["agent"]), saved.metadata.get(_NARROWED) or {}
    plan = await _plan(parent, agent, narrowed)
    task = _Task(agent, instruction, plan, saved.id, resumed=True, narrowed=narrowed, saved=saved)
    return await _run_task(parent, task)


async def _resume_unsaved(parent: Session, session_id: str, instruction: str) -> dict[str, Any]:
    # Removed while it runs, so that it cannot be resumed twice at the same time.
    left: _Task | None = parent.unsaved.pop(session_id, None)
    if left is None:
        raise UnknownSubSession(f"this session has no sub-session {session_id!r}")
    try:
        plan = await _plan(parent, left.agent, left.narrowed)
        return await _run_task(parent, left._replace(instruction=instruction, plan=plan))
    finally:
        parent.unsaved.setdefault(session_id, left)


def _check(parent: Session) -> None:
    if parent.depth >= MAX_DEPTH:
        raise ConfigError(
            f"cannot delegate: the maximum depth of {MAX_DEPTH} sub-sessions is reached"
        )
    if parent.session.coordinator.cancellation.is_cancelled:
        raise SessionError("not started: the prompt was stopped")


async def _plan(
    parent: Session, agent: str, narrowed: Mapping[str, Any], preferences: Any = None
) -> ResolvedPlan:
    by_section = {
        section: Narrowing.of(narrowed.get(section), section) for section in ("tools", "hooks")
    }
    plan, coordinator = agent_plan(parent.plan, agent, **by_section), parent.session.coordinator
    preferences = preferences or await _read_preferences(agent, coordinator)
    return await _with_preferred_provider(plan, preferences, coordinator)


def _new_id(parent: Session, own_id: str | None, agent: str) -> str:
    if own_id is not None and ID.fullmatch(own_id) and SessionStore().get(own_id) is None:
        return own_id
    generated = f"{parent.id}-{secrets.token_hex(8)}"
    named = f"{generated}_{agent}"
    # Ids grow with depth; fall back to shorter ones that are still unique.
    return next(name for name in (named, generated, secrets.token_hex(16)) if ID.fullmatch(name))


def _saved_sub_session(parent: Session, session_id: str) -> SessionFolder:
    """Return a saved sub-session of `parent`, or its copy of one that it took over as a fork."""
    store = SessionStore()
    saved = store.get(session_id)
    metadata = {} if saved is None else saved.metadata
    if metadata.get("parent") != parent.id and parent.saved is not None:
        saved = sub_session_of_fork(store, SessionFolder(parent.saved.path), session_id)
        metadata = {} if saved is None else saved.metadata
    if saved is None or not isinstance(metadata.get("agent"), str):
        raise UnknownSubSession(f"this session has no sub-session {session_id!r}")
    return saved


async def _run_task(parent: Session, task: _Task) -> dict[str, Any]:
    """Open the sub-session, run one turn, and always close it."""
    coordinator = parent.session.coordinator
    delegation = Delegation(parent.id, task.agent, parent.depth + 1, coordinator, task.spent)
    renderer = SubSessionRenderer(parent.renderer, task.agent, task.session_id)
    metadata: dict[str, Any] = {_NARROWED: task.narrowed} if task.narrowed else {}
    # Questions name the agent, if the system supports that.
    system = coordinator.approval_system
    for_agent = getattr(system, "for_agent", None)
    if parent.saved is not None:
        note_sub_session(parent.saved, task.session_id)
        if parent.saved.metadata.get(PROJECT) is not None:
            # The project of the parent's plan must be trusted to resume the sub-session.
            metadata[PROJECT] = parent.saved.metadata[PROJECT]
    async with parent.open_sub_session(
        task.plan,
        session_id=None if task.saved else task.session_id,
        resume=task.saved,
        save=parent.saved is not None,
        metadata=metadata,
        approval_system=system if for_agent is None else for_agent(task.agent),
        renderer=renderer,
        delegation=delegation,
    ) as session:
        own = session.session.coordinator
        SELF_DELEGATION_DEPTH.register(own, task.self_depth)
        if parent.asks_at_limits:
            session.ask_at_limits()
        facts = SubSessionFacts(
            session_id=task.session_id,
            parent_id=parent.id,
            agent=task.agent,
            depth=delegation.depth,
            resumed=task.resumed,
            instruction=redacted_text(own, task.instruction),
        )
        parent.renderer.sub_session_started(facts)
        failure = await _run(parent, session, task)
    if failure is not None:
        raise SubAgentFailed(task.session_id, failure) from failure
    return _result(session, task)


async def _run(parent: Session, session: Session, task: _Task) -> Exception | None:
    """Run one turn, stopped with the parent's turn and counted in it; return its error, if any."""
    parent_token = parent.session.coordinator.cancellation
    token = session.session.coordinator.cancellation
    started = time.monotonic()
    parent_token.register_child(token)
    parent.active.add(session)
    try:
        await session.begin_with(task.messages, resumed=task.resumed)
        await session.run(task.instruction)
    # A provider, a module or the disk; the error is reported to the parent's model.
    except Exception as error:
        return error
    finally:
        parent_token.unregister_child(token)
        parent.active.discard(session)
        usage = session.recorder.own_usage
        ended = SubSession(
            session_id=session.id,
            parent_id=parent.id,
            agent=task.agent,
            status=session.turn.status,
            steps=session.turn.steps,
            usage=dict(usage.tokens),
            cost=usage.cost_usd,
            duration_ms=round((time.monotonic() - started) * 1000),
            response=session.turn.response,
            tools=session.turn.tools,
        )
        parent.recorder.add_sub_session(ended, session.recorder)
        parent.renderer.sub_session_ended(ended)
        if session.saved is None:
            messages = await session.context.get_messages()
            spent = session.budget.as_dict()
            parent.unsaved[session.id] = task._replace(
                resumed=True, messages=tuple(messages), self_depth=0, spent=spent
            )
    return None


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
        "turn_count": turn.steps,
        **about,
        "metadata": about,
    }
