"""Turn a resolved plan into an open session of the kernel."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from amplifier_app.base.errors import UsageError
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.runtime import budget_limits
from amplifier_app.runtime.approvals import (
    check_policy,
    current_mode,
    give_approval_provider,
    set_mode,
)
from amplifier_app.runtime.capabilities import Delegation, first_provider, read_capabilities, share
from amplifier_app.runtime.mount import Mounting, Opening, clean_up, support_loop
from amplifier_app.runtime.observers.observer import Display, Renderer, SessionFacts
from amplifier_app.runtime.observers.subscriptions import redacted_text, subscribe
from amplifier_app.runtime.observers.visibility import Visibility, shown_text
from amplifier_app.runtime.request_log import RequestLog
from amplifier_app.runtime.saved.resume import BudgetRecord, Resumption, State
from amplifier_app.runtime.saved.session_record import SessionRecord, saved_session
from amplifier_app.runtime.steering import Steering, Stopping
from amplifier_app.runtime.turns.module_faults import blaming, checked_answer, read_messages
from amplifier_app.runtime.turns.turn import NO_TURN, Status, TurnResult, Usage
from amplifier_app.runtime.turns.turn_recorder import TurnRecorder
from amplifier_app.sessions.conversation import goes_on
from amplifier_app.sessions.folder import SavedSession, SessionFolder
from amplifier_app.sessions.recording_context import answers_to_interrupted, is_unbegun
from amplifier_app.sessions.summary import short_id
from amplifier_app.sources.resolver import AppModuleSourceResolver, resolver_for
from amplifier_core.cancellation import await_result, leave_late
from amplifier_core.capabilities import LOCAL, VISION
from amplifier_core.session import AmplifierSession
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.provider_order import find_model
from amplifier_support.session_capabilities import (
    MODE,
    REQUEST_LOG,
    RESUME,
    SANDBOX,
    SESSION_DIR,
    SPAWN,
)
from amplifier_support.text import did_you_mean
from amplifier_support.working_folder import working_folder

if TYPE_CHECKING:
    from amplifier_app.runtime.attachments import AttachedImage
    from amplifier_support.sandbox.sandbox import Sandbox


class Adjustment(Protocol):
    """A change of the modules that a session and its sub-sessions have mounted."""

    def apply(self, coordinator: Any) -> None:
        """Make the change: once the plan is mounted, and again before each prompt."""

    def check(self, coordinator: Any) -> None:
        """Check that the change can be made in a session that is not a sub-session.

        Raises:
            AppError: It cannot.
        """


class ToolSelection(NamedTuple):
    """The tools to keep.

    Attributes:
        patterns: Their names; `*` matches any part.
    """

    patterns: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> ToolSelection:
        """The selection of a list separated by commas."""
        return cls(tuple(name for part in text.split(",") if (name := part.strip())))

    def apply(self, coordinator: Any) -> None:
        """Unmount all other tools."""
        for name in list(coordinator.get("tools")):
            if not any(fnmatchcase(name, pattern) for pattern in self.patterns):
                coordinator.unmount("tools", name)

    def check(self, coordinator: Any) -> None:
        """Check that every name is one of a mounted tool.

        Raises:
            UsageError: One is not.
        """
        known = list(coordinator.get("tools"))
        for pattern in self.patterns:
            if not any(fnmatchcase(name, pattern) for name in known):
                listed = f"Available tools: {', '.join(known)}" if known else "It has no tools."
                raise UsageError(
                    f"--tools: the plan has no tool {pattern!r}",
                    hint=did_you_mean(pattern, known) or listed,
                )


CLEANUP_SECONDS = 10.0
"""Seconds that modules may take to clean up before they are abandoned."""


@contextlib.asynccontextmanager
async def open_session(
    plan: ResolvedPlan,
    *,
    session_id: str | None = None,
    resume: SessionFolder | None = None,
    save: bool = True,
    metadata: Mapping[str, Any] = MappingProxyType({}),
    approval_system: Any = None,
    mode: str | None = None,
    renderer: Renderer | None = None,
    sources: AppModuleSourceResolver | None = None,
    delegation: Delegation | None = None,
    opening: Opening | None = None,
    adjustment: Adjustment | None = None,
) -> AsyncGenerator[OpenSession]:
    """Open a session of `plan`, with its modules mounted, ready for prompts.

    Args:
        plan: The plan to mount.
        session_id: Id of a new session; generated if missing.
        resume: The saved session to resume.
        save: Whether to save a new session.
        metadata: More metadata of a new session.
        approval_system: See `amplifier_core.approval.ApprovalSystem`.
        mode: The approval mode; by default that of the saved session, or else the plan's.
        renderer: Shows the session; None shows nothing.
        sources: Resolves module sources; by default those of the plan and its settings.
        delegation: The link to the parent session of a sub-session.
        opening: Deadline and progress of opening.
        adjustment: Changes what is mounted, also in sub-sessions.

    Raises:
        UsageError: The plan has none of the tools of a name.
        SessionError: The saved session is in use or damaged, or its id is taken.
        ModuleError: A module of the plan cannot be loaded or mounted.
        ConfigError: No provider is available, with the reason for each; or `mode` cannot be set.
    """
    renderer = renderer or Renderer()
    if delegation is not None:
        metadata = {**metadata, **delegation.as_metadata()}
    with saved_session(plan, session_id, resume, save, metadata) as saved:
        opened = OpenSession(
            plan,
            saved,
            session_id=session_id,
            resumed=resume is not None,
            approval_system=approval_system,
            renderer=renderer,
            sources=sources or resolver_for(plan),
            delegation=delegation,
            opening=opening,
            adjustment=adjustment,
        )
        try:
            await opened.start(mode)
            yield opened
        finally:
            await opened.close()


class OpenSession:
    """One conversation, from the first prompt to the last.

    Attributes:
        session: The session of the kernel.
        plan: Its plan.
        sources: Resolves its module sources.
        renderer: Shows the session.
        recorder: Records what a turn does.
        active: Its sub-sessions with a running turn.
        stopping: Stops its running turn.
        asks_at_limits: See `ask_at_limits`.
        goes_on: Whether the next prompt belongs to an earlier one, and is not counted.
        unsaved: Its sub-sessions by id, if it is not saved; see `amplifier_app.runtime.spawning`.
        saved: The saved session; None with ``save=False``.
        facts: Profile, provider, model and tools, for display.
        turn: The last turn, complete or not.
        steering: Messages for the running turn.
        budget: How much of its budget it has used, and its limits.
        mounting: Mounts its modules; it has what was not mounted.
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
        delegation: Delegation | None = None,
        opening: Opening | None = None,
        adjustment: Adjustment | None = None,
    ) -> None:
        self.plan = plan
        self._adjustment = adjustment
        self.sources = sources
        self.saved = saved
        self._record = SessionRecord(saved, resumed=resumed) if saved else None
        self._resumed = resumed
        self._resumption = Resumption(plan, saved, resumed=resumed)
        self.renderer = renderer
        if delegation is None and saved is not None:
            delegation = Delegation.from_metadata(saved.metadata)
        self._delegation = delegation
        self.session = AmplifierSession(
            plan.mount_plan(),
            session_id=saved.id if saved else session_id,
            parent_id=delegation.parent_id if delegation else None,
            approval_system=approval_system,
            display_system=Display(renderer),
            is_resumed=resumed,
        )
        self.steering = Steering(self.session)
        self.mounting = Mounting(self.session, plan, sources, renderer, opening)
        self.facts: SessionFacts
        self._usage = Usage.of_saved(saved.metadata) if resumed and saved is not None else Usage()
        self.turn: TurnResult = NO_TURN
        self.recorder = TurnRecorder()
        self.active: set[OpenSession] = set()
        self.stopping = Stopping(self.session.coordinator, self.recorder, renderer, self.active)
        self.unsaved: dict[str, Any] = {}
        self._images: list[AttachedImage] = []
        self.asks_at_limits = False
        self.goes_on = False
        self._task: asyncio.Task[str] | None = None
        self.budget: BudgetRecord
        if saved is not None:
            renderer.call_number = lambda call_id: saved.calls.of(call_id)
            renderer.saved_as = short_id(saved.id)
        renderer.on_failure = lambda: self.stop(immediate=True)

    @property
    def id(self) -> str:
        return self.session.session_id

    @property
    def depth(self) -> int:
        """The number of sessions above it."""
        return self._delegation.depth if self._delegation else 0

    @property
    def is_saved(self) -> bool:
        """True if it is saved and can be resumed."""
        return self._record is not None and self._record.is_resumable

    @property
    def sandbox(self) -> Sandbox | None:
        """The sandbox of its commands."""
        return SANDBOX.of(self.session.coordinator)

    def ask_at_limits(self) -> None:
        """Ask the user for more when a limit of the budget is reached, also in sub-sessions."""
        self.asks_at_limits = True
        budget_limits.ask_at_limits(
            self.session.coordinator, self.renderer, is_sub_session=self._runs_for_parent
        )

    @property
    def usage(self) -> Usage:
        """Tokens and cost so far, including earlier runs of the session and a running turn."""
        total = Usage()
        total.merge(self._usage)
        total.merge(self.recorder.usage)
        return total

    @property
    def context(self) -> Any:
        return self.session.coordinator.get("context")

    # Opening

    async def start(self, mode: str | None = None) -> None:
        """Mount everything and restore the conversation and the approval mode."""
        coordinator: Any = self.session.coordinator
        subscribe(coordinator, self.renderer, self.recorder)
        if self.saved is not None:
            folder = str(self.saved.path.absolute())
            SESSION_DIR.register(coordinator, folder)
            # Published modules look for the attribute.
            coordinator.session_dir = folder
        REQUEST_LOG.register(coordinator, RequestLog(coordinator, self.plan, self.saved))
        share(self._delegation, coordinator)
        SPAWN.register(coordinator, self._spawn)
        RESUME.register(coordinator, self._resume)
        self.budget = BudgetRecord(coordinator, self._record)
        # With a lock, the lock decides what is accepted.
        if self._record is not None and (self.sources.lock is None or not self.sources.lock.pins):
            self._record.restore_accepted(coordinator)
        await self.mounting.mount()
        if self._adjustment is not None:
            if not self._runs_for_parent:
                self._adjustment.check(coordinator)
            self._adjustment.apply(coordinator)
        check_policy(coordinator)
        await give_approval_provider(coordinator)
        await self._set_mode(mode)
        await support_loop(coordinator, budget=self.budget.is_missing)
        self.budget.watch()
        if self._record is not None:
            with blaming(self.session):
                remarks = await self._record.restore(coordinator)
            for level, remark in remarks:
                self.renderer.notice(remark, level, "session")
        name, provider = first_provider(self.session)
        self.facts = SessionFacts(
            session_id=self.id,
            saved=self.saved is not None,
            resumed=self._resumed,
            working_dir=working_folder(),
            profile=self.plan.name,
            provider=name,
            model=find_model(provider),
            tools=tuple(coordinator.get("tools")),
        )
        self.renderer.session_opened(self.facts)
        if self._resumed and not self._runs_for_parent:
            for line in self._resumption.differences(self._state()):
                self.renderer.notice(line, "info", "session")

    async def _set_mode(self, mode: str | None) -> None:
        coordinator = self.session.coordinator
        if mode is None and not self._runs_for_parent:
            mode = self._resumption.mode(MODE.of(coordinator))
        if mode is not None:
            await set_mode(coordinator, mode)

    # Prompts

    def attach(self, images: Sequence[AttachedImage]) -> None:
        """Send images along with the next prompt.

        Raises:
            UsageError: The model takes no images.
        """
        known = read_capabilities(first_provider(self.session)[1]) if images else ()
        if known and VISION not in known:
            raise UsageError(
                f"{self.facts.provider} takes no images", hint="Use another provider, or --model."
            )
        self._images += images

    async def add_images(self) -> None:
        """Add the attached images to the conversation."""
        if self._images:
            from amplifier_app.runtime.attachments import as_message

            images, self._images = self._images, []
            await self.context.add_message(as_message(images))

    async def run(self, prompt: str) -> TurnResult:
        """Send one prompt and run the turn to its end.

        A stopped turn (`stop`) returns a result with the status ``cancelled``.

        Raises:
            Exception: The error that ended the turn; `turn` then holds the partial result.
        """
        # Of the last turn and of what was requested after it.
        self._usage.merge(self.recorder.usage)
        self.recorder.begin()
        self.renderer.turn_started()
        if self._record is not None:
            self._record.begin_prompt(prompt, is_counted=not (self.goes_on or goes_on(prompt)))
        self.goes_on = False
        if not self._runs_for_parent:
            self.session.coordinator.cancellation.reset()
        if self._adjustment is not None:
            # Modules may mount tools at any time.
            self._adjustment.apply(self.session.coordinator)
        response, answer, status = "", "", None
        try:
            with blaming(self.session):
                await self._begin_conversation()
                await self.add_images()
                self._task = asyncio.create_task(self._execute_or_leave(prompt))
                returned = await self._task
                if self.recorder.provider_error is not None:
                    raise self.recorder.provider_error
                answer = self.recorder.proposal or checked_answer(self.session, returned)
                response = await _shown_answer(self.session, self.renderer.visibility, answer)
            if self.stopping.is_requested and not response:
                status = "cancelled"
        except asyncio.CancelledError:
            status = "cancelled"
            if not self.stopping.is_requested:
                raise
            if self.recorder.has_requested:
                partial = await _partial_answer(self.session)
                response = await _shown_answer(self.session, self.renderer.visibility, partial)
        except BaseException:
            status = "error"
            raise
        finally:
            self._task = None
            self._turn_ended(response, status, bool(answer) and not response.strip())
        return self.turn

    async def _execute_or_leave(self, prompt: str) -> str:
        # Not before this task begins: one that is stopped at once executes nothing.
        executed = asyncio.create_task(self._execute(prompt))
        return await leave_late(await_result(executed), CLEANUP_SECONDS)

    async def _execute(self, prompt: str) -> str:
        # A SystemExit that ends a task would end the event loop, too.
        with blaming(self.session):
            return await self.session.execute(prompt)

    @property
    def _runs_for_parent(self) -> bool:
        """True if a parent waits for it, so that stopping the parent stops it too."""
        return self._delegation is not None and self._delegation.coordinator is not None

    async def begin_with(
        self, messages: Sequence[dict[str, Any]], *, resumed: bool = False
    ) -> None:
        """Start the conversation with existing messages.

        Args:
            messages: The messages.
            resumed: Whether they are a whole conversation to continue.
        """
        if messages and not resumed:
            await self._begin_conversation()
        for message in (*messages, *(answers_to_interrupted([*messages]) if resumed else ())):
            await self.context.add_message(message)

    async def _begin_conversation(self) -> None:
        instruction = self.plan.instruction
        # A context may start with its own messages, for example from a file.
        if instruction and is_unbegun(instruction, await read_messages(self.session)):
            await self.context.add_message({"role": "system", "content": instruction})

    def _turn_ended(self, response: str, status: Status | None, hidden: bool) -> None:
        self.turn = self.recorder.result(response, status)._replace(
            is_hidden=hidden, is_proposal=self.recorder.proposal is not None
        )
        self.budget.add(self.turn)
        self.renderer.turn_ended(self.turn)
        if self._record is not None:
            self._record.save_turn(
                self.usage.tokens,
                self.recorder.answered,
                spent=self.budget.as_dict(),
                **self._state().as_metadata(),
            )

    async def request_title(self) -> None:
        """Replace the title, the start of a prompt, by one that the model writes; call it after an answer.

        Without a context that can request one, or if the request fails or is cancelled, the title stays
        as it is. A call after the next answer requests it again, a few times at most.
        """
        request = getattr(self.context, "suggest_title", None)
        is_local = LOCAL in read_capabilities(first_provider(self.session)[1])
        if request is None or self._record is None or is_local or self.sources.offline:
            return
        if not self._record.begin_title_request():
            return
        title: str | None = ""
        self.renderer.retries.is_muted = True
        # A module may raise anything, and a title is worth no message.
        with contextlib.suppress(Exception):
            try:
                prompts = SessionFolder(self._record.saved.path).conversation().prompts
                asked = "\n\n".join(dict.fromkeys(prompt.text for prompt in prompts))
                title = await request(asked, self.turn.response)
                if title is not None:
                    title = redacted_text(self.session.coordinator, str(title))
            finally:
                self.renderer.retries.is_muted = False
                # A request without an answer may cost something, too.
                if title is not None:
                    self._record.save_title(title, self.usage.tokens, self.budget.as_dict())

    def _state(self) -> State:
        mode = current_mode(self.session.coordinator)
        facts, raised = self.facts, self.budget.raised
        return self._resumption.state(facts.provider, facts.model, mode, self.sources, raised)

    def stop(self, immediate: bool) -> None:
        """Stop the running turn; see `Stopping.request`."""
        if self.stopping.request(immediate=immediate) and self._task is not None:
            self._task.cancel()

    # Sub-agents

    def open_sub_session(
        self, plan: ResolvedPlan, **options: Any
    ) -> contextlib.AbstractAsyncContextManager[OpenSession]:
        """Open a session for an agent, with the same module sources; see `open_session`."""
        return open_session(plan, sources=self.sources, adjustment=self._adjustment, **options)

    async def _spawn(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The capability `session.spawn`."""
        # Most sessions have no sub-agents.
        from amplifier_app.runtime.spawning import spawn

        return await spawn(self, *args, **kwargs)

    async def _resume(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The capability `session.resume`."""
        from amplifier_app.runtime.spawning import resume

        return await resume(self, *args, **kwargs)

    # Closing

    async def close(self) -> None:
        """Clean up every module; an unused session is deleted."""
        try:
            if not await clean_up(self.session.cleanup(), CLEANUP_SECONDS):
                text = f"modules did not clean up within {CLEANUP_SECONDS:g} s"
                self.renderer.notice(text, "warning", "session")
        finally:
            self.renderer.close()
            if self._record is not None:
                self._record.close()


async def _shown_answer(session: AmplifierSession, visibility: Visibility, answer: str) -> str:
    """Return an answer without hidden blocks and, if the session redacts, without secrets."""
    if not answer:
        return answer

    def redact(text: str) -> str:
        return redacted_text(session.coordinator, text)

    # Loops need not use what hooks make of the answer in `prompt:complete`.
    return shown_text(redact(answer), await read_messages(session), visibility, redact)


async def _partial_answer(session: AmplifierSession) -> str:
    """Return what a stopped turn has kept of its answer."""
    messages = await read_messages(session)
    last = messages[-1] if messages else None
    if not isinstance(last, dict) or last.get("role") != "assistant":
        return ""
    content = last.get("content")
    return content if isinstance(content, str) else ""
