"""Mount plan → open session: the only place where the app and the kernel meet."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from amplifier_app.base.errors import SessionError
from amplifier_app.base.sanitize import one_line
from amplifier_app.plan import ResolvedPlan
from amplifier_app.runtime.approvals import give_approval_provider
from amplifier_app.runtime.attach import attach, showable
from amplifier_app.runtime.budget_record import Spending
from amplifier_app.runtime.capabilities import first_provider, model_of
from amplifier_app.runtime.foreign_faults import blaming, checked_answer, messages_of
from amplifier_app.runtime.lineage import Lineage, share
from amplifier_app.runtime.mount_limit import Opening
from amplifier_app.runtime.mounting import Mounting
from amplifier_app.runtime.observer import Display, Renderer, SessionFacts
from amplifier_app.runtime.session_record import Keeper, saved_session
from amplifier_app.runtime.steering import Steering
from amplifier_app.runtime.turn import NO_TURN, Status, TurnRecorder, TurnResult, Usage
from amplifier_app.runtime.unsupported import unkept
from amplifier_app.runtime.visibility import shown_text
from amplifier_app.sessions.recording_context import answers_to_interrupted, is_unbegun
from amplifier_app.sessions.store import SavedSession
from amplifier_app.sources.plan_resolver import resolver_for
from amplifier_app.sources.resolver import AppModuleSourceResolver
from amplifier_core.session import AmplifierSession

CLEANUP_SECONDS = 10.0
"""How long modules may take to clean up before they are left behind."""


@contextlib.asynccontextmanager
async def open_session(
    plan: ResolvedPlan,
    *,
    session_id: str | None = None,
    resume: str | None = None,
    save: bool = True,
    metadata: Mapping[str, Any] = MappingProxyType({}),
    approval_system: Any = None,
    renderer: Renderer | None = None,
    sources: AppModuleSourceResolver | None = None,
    lineage: Lineage | None = None,
    opening: Opening | None = None,
) -> AsyncGenerator[OpenSession]:
    """A session of `plan`, its modules mounted, ready for prompts.

    Args:
        plan: What to mount.
        session_id: Id of a new session; a fresh one when missing.
        resume: Id, or beginning of one, of the saved session to go on with.
        save: Whether a new session is saved at all.
        metadata: What else to note of a new session.
        approval_system: See `amplifier_core.approval.ApprovalSystem`.
        renderer: What shows the session; nothing does when missing.
        sources: Where modules come from; by default what the plan and its settings say.
        lineage: Which session spawns it.
        opening: How long opening it may take.

    Raises:
        SessionError: The saved session is unknown, taken, locked or damaged.
        ModuleError: A module of the plan cannot be loaded or mounted.
        ConfigError: No provider is left, with the reason for each.
    """
    renderer = renderer or Renderer()
    if lineage is not None:
        metadata = {**metadata, **lineage.noted()}
    with saved_session(plan, session_id, resume, save, metadata) as saved:
        opened = OpenSession(
            plan,
            saved,
            session_id=session_id,
            resumed=resume is not None,
            approval_system=approval_system,
            renderer=renderer,
            sources=sources or resolver_for(plan),
            lineage=lineage,
            opening=opening,
        )
        try:
            await opened.start()
            yield opened
        finally:
            await opened.close()


class OpenSession:
    """One conversation, from the first prompt to the last.

    Attributes:
        session: The kernel's session.
        plan: What it was made of.
        sources: Where its modules come from.
        renderer: What shows it.
        recorder: Counts what its turns do.
        at_work: Its sub-sessions whose turn is under way.
        unsaved: Its sub-sessions by id, where it is not saved; see `amplifier_app.runtime.sub_agents`.
        saved: Where it is saved; None with ``save=False``.
        facts: What is worth saying about it.
        usage: Tokens and cost of all turns since it was opened.
        turn: The last turn, whole or cut short.
        steering: Messages for the turn under way.
    """

    def __init__(
        self,
        plan: ResolvedPlan,
        saved: SavedSession | None,
        *,
        session_id: str | None,
        resumed: bool,
        approval_system: Any,
        renderer: Renderer,
        sources: AppModuleSourceResolver,
        lineage: Lineage | None = None,
        opening: Opening | None = None,
    ) -> None:
        self.plan = plan
        self.sources = sources
        self.saved = saved
        self._keeper = Keeper(saved, resumed=resumed) if saved else None
        self._resumed = resumed
        self.renderer = renderer
        if lineage is None and saved is not None:
            lineage = Lineage.noted_in(saved.metadata)
        self._lineage = lineage
        self.session = AmplifierSession(
            plan.mount_plan(),
            session_id=saved.id if saved else session_id,
            parent_id=lineage.parent_id if lineage else None,
            approval_system=approval_system,
            display_system=Display(renderer),
            is_resumed=resumed,
        )
        self.steering = Steering(self.session.coordinator)
        self._mounting = Mounting(self.session, plan, sources, renderer, opening)
        self.facts: SessionFacts
        self.usage = Usage()
        self.turn: TurnResult = NO_TURN
        self.recorder = TurnRecorder()
        self.at_work: set[OpenSession] = set()
        self.unsaved: dict[str, Any] = {}
        self._task: asyncio.Task[str] | None = None
        self._spending: Spending
        self._told: set[asyncio.Task[Any]] = set()
        renderer.on_failure = lambda: self.stop(immediate=True)

    @property
    def id(self) -> str:
        return self.session.session_id

    @property
    def depth(self) -> int:
        """How many sessions there are above it."""
        return self._lineage.depth if self._lineage else 0

    @property
    def is_saved(self) -> bool:
        """Whether there is something to resume."""
        return self._keeper is not None and self._keeper.touched

    @property
    def spent(self) -> dict[str, Any] | None:
        """What it has used of its budget; None if its orchestrator does not count."""
        return self._spending.as_dict()

    @property
    def not_mounted(self) -> list[str]:
        """Why providers of the plan are missing, a line each."""
        return self._mounting.not_mounted

    @property
    def stored_keys(self) -> tuple[str, ...]:
        """The variables that are set because their keys are stored."""
        return self._mounting.stored_keys

    def credential_variable(self) -> str | None:
        """The environment variable that made the first provider available, if one did."""
        _, provider = first_provider(self.session)
        try:
            names = provider.get_info().credential_env_vars
        # Providers are foreign code; what this is for is one word in a sentence.
        except Exception:
            return None
        return next((name for name in names if os.environ.get(name)), None)

    @property
    def context(self) -> Any:
        return self.session.coordinator.get("context")

    # Opening

    async def start(self) -> None:
        """Mount everything and restore the conversation."""
        coordinator = self.session.coordinator
        attach(coordinator, self.renderer, self.recorder)
        if self.saved is not None:
            coordinator.register_capability("session.dir", str(self.saved.path.absolute()))
        share(self._lineage, coordinator)
        coordinator.register_capability("session.spawn", self._spawn)
        coordinator.register_capability("session.resume", self._resume)
        self._spending = Spending(coordinator, self._keeper)
        await self._mounting.mount()
        await give_approval_provider(coordinator)
        for remark in await unkept(coordinator, counts=self._spending.watch()):
            self.renderer.notice(remark, "warning", "session")
        if self._keeper is not None:
            with blaming(self.session):
                remarks = await self._keeper.restore(coordinator)
            for level, remark in remarks:
                self.renderer.notice(remark, level, "session")
        self.facts = self._describe()
        self.renderer.session_opened(self.facts)

    def _describe(self) -> SessionFacts:
        coordinator = self.session.coordinator
        name, provider = first_provider(self.session)
        return SessionFacts(
            session_id=self.id,
            saved=self.saved is not None,
            resumed=self._resumed,
            working_dir=os.getcwd(),
            profile=self.plan.name,
            provider=name,
            model=model_of(provider),
            tools=tuple(coordinator.get("tools")),
        )

    # Prompts

    async def run(self, prompt: str) -> TurnResult:
        """Send one prompt and see the turn through.

        A turn that was stopped (`stop`) is a result with the status ``cancelled``.

        Raises:
            Exception: Whatever ended the turn; `turn` then tells how far it came.
        """
        self.recorder.begin()
        self.renderer.turn_started()
        if not self._runs_for_parent:
            self.session.coordinator.cancellation.reset()
        response, answer, status = "", "", None
        try:
            with blaming(self.session):
                await self._begin_conversation()
                self._task = asyncio.create_task(self.session.execute(prompt))
                answer = checked_answer(self.session, await self._task)
                response = await self._shown(answer)
            if self._stopping and not response:
                status = "cancelled"
        except asyncio.CancelledError:
            status = "cancelled"
            if not self._stopping:
                raise
        except BaseException:
            status = "error"
            raise
        finally:
            self._task = None
            hidden = bool(answer and not response.strip())
            self._turn_ended(prompt, response, status, hidden)
        return self.turn

    async def _shown(self, response: str) -> str:
        """The answer without the blocks that are not to be seen."""
        if not response:
            return response
        return shown_text(
            response,
            await messages_of(self.session),
            self.renderer.visibility,
            lambda text: showable(self.session.coordinator, text),
        )

    @property
    def _runs_for_parent(self) -> bool:
        """Whether the parent waits for it, so that what stops the parent stops it too."""
        return self._lineage is not None and self._lineage.coordinator is not None

    @property
    def _stopping(self) -> bool:
        return self.session.coordinator.cancellation.is_cancelled

    async def begin_with(
        self, messages: Sequence[dict[str, Any]], *, resumed: bool = False
    ) -> None:
        """Start the conversation with what was said elsewhere.

        Args:
            messages: What was said.
            resumed: Whether that was all of a conversation, which goes on.
        """
        if messages and not resumed:
            await self._begin_conversation()
        for message in (*messages, *(answers_to_interrupted([*messages]) if resumed else ())):
            await self.context.add_message(message)

    async def _begin_conversation(self) -> None:
        instruction = self.plan.instruction
        # A context may begin with messages of its own, such as what a file says.
        if instruction and is_unbegun(instruction, await messages_of(self.session)):
            await self.context.add_message({"role": "system", "content": instruction})

    def _turn_ended(self, prompt: str, response: str, status: Status | None, hidden: bool) -> None:
        self.turn = self.recorder.result(response, status)._replace(is_hidden=hidden)
        self.usage.merge(self.recorder.usage)
        self.renderer.turn_ended(self.turn)
        if self._keeper is not None:
            self._keeper.note_turn(
                one_line(showable(self.session.coordinator, prompt), 80),
                self.turn.usage,
                spent=self._spending.as_dict(),
                provider=self.facts.provider,
                model=self.facts.model,
            )

    def stop(self, immediate: bool) -> None:
        """Stop the turn under way: after its step in flight, or now."""
        token = self.session.coordinator.cancellation
        changed = token.request_immediate() if immediate else token.request_graceful()
        if changed:
            self._tell_of_stop(immediate)
            if not immediate:
                note = "stopping after this step; interrupt again to stop at once"
                self.renderer.notice(note, "info", "session")
        if immediate and self._task is not None:
            self._task.cancel()

    def _tell_of_stop(self, immediate: bool) -> None:
        """Tell the modules, and those of sub-agents at work, which the request reaches as well."""
        hooks = self.session.coordinator.hooks
        event = hooks.emit("cancel:requested", {"immediate": immediate})
        task = asyncio.get_running_loop().create_task(event)
        self._told.add(task)
        task.add_done_callback(self._told.discard)
        for session in self.at_work:
            session._tell_of_stop(immediate)

    async def clear(self) -> None:
        """Forget the conversation; the instruction is given anew with the next prompt."""
        await self.context.clear()

    # Sub-agents

    def open_sub_session(
        self, plan: ResolvedPlan, **options: Any
    ) -> contextlib.AbstractAsyncContextManager[OpenSession]:
        """A session of its own for an agent, with this one's module sources; see `open_session`."""
        return open_session(plan, sources=self.sources, **options)

    async def _spawn(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The capability `session.spawn`."""
        from amplifier_app.runtime.sub_agents import spawn  # Most sessions have no sub-agents.

        return await spawn(self, *args, **kwargs)

    async def _resume(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The capability `session.resume`."""
        from amplifier_app.runtime.sub_agents import resume

        return await resume(self, *args, **kwargs)

    # Closing

    async def close(self) -> None:
        """Clean up every module; a session that never began leaves nothing behind."""
        try:
            async with asyncio.timeout(CLEANUP_SECONDS):
                await self.session.cleanup()
        except TimeoutError:
            self.renderer.notice(
                f"modules did not clean up within {CLEANUP_SECONDS:g} s", "warning", "session"
            )
        finally:
            self.renderer.close()
            if self._keeper is not None:
                self._keeper.end()


__all__ = ["OpenSession", "SessionError", "open_session"]
