"""Mount plan → open session: the only place where the app and the kernel meet."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncGenerator, Generator, Mapping
from types import MappingProxyType
from typing import Any

from amplifier_app.errors import AppError, ConfigError, ModuleError, SessionError
from amplifier_app.hosting import give_keys, model_of, register_capabilities
from amplifier_app.plan import ResolvedPlan
from amplifier_app.render.base import BEFORE_EVENTS, FIRST, LAST, Display, Renderer, SessionFacts
from amplifier_app.render.sanitize import one_line
from amplifier_app.sessions.recording import RecordingContext, answers_to_interrupted
from amplifier_app.sessions.store import SavedSession, SessionStore
from amplifier_app.sources.for_plan import resolver_for
from amplifier_app.sources.resolver import AppModuleSourceResolver
from amplifier_app.turn import NO_TURN, EventHandler, Status, TurnRecorder, TurnResult, Usage
from amplifier_core.load_errors import RequiredModuleError
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

    Raises:
        SessionError: The saved session is unknown, taken, locked or damaged.
        ModuleError: A module of the plan cannot be loaded or mounted.
        ConfigError: No provider is left, with the reason for each.
    """
    renderer = renderer or Renderer()
    with _saved_session(plan, session_id, resume, save, metadata) as saved:
        opened = OpenSession(
            plan,
            saved,
            session_id=session_id,
            resumed=resume is not None,
            approval_system=approval_system,
            renderer=renderer,
            sources=sources or resolver_for(plan),
        )
        try:
            await opened.start()
            yield opened
        finally:
            await opened.close()


@contextlib.contextmanager
def _saved_session(
    plan: ResolvedPlan,
    session_id: str | None,
    resume: str | None,
    save: bool,
    metadata: Mapping[str, Any],
) -> Generator[SavedSession | None]:
    if resume is not None:
        saved = SessionStore().open(resume)
    elif save:
        saved = SessionStore().create(
            session_id,
            project=os.getcwd(),
            plan_yaml=plan.to_yaml(),
            profile=plan.name,
            **metadata,
        )
    else:
        yield None
        return
    try:
        yield saved
    finally:
        saved.close()


class OpenSession:
    """One conversation, from the first prompt to the last.

    Attributes:
        session: The kernel's session.
        saved: Where it is saved; None with ``save=False``.
        facts: What is worth saying about it.
        stored_keys: The variables that are set because their keys are stored.
        usage: Tokens and cost of all turns since it was opened.
        turn: The last turn, whole or cut short.
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
    ) -> None:
        self._plan = plan
        self._sources = sources
        self.saved = saved
        self._resumed = resumed
        self._renderer = renderer
        self.session = AmplifierSession(
            plan.mount_plan(),
            session_id=saved.id if saved else session_id,
            approval_system=approval_system,
            display_system=Display(renderer),
            is_resumed=resumed,
        )
        self.facts: SessionFacts
        self.stored_keys: tuple[str, ...] = ()
        self.usage = Usage()
        self.turn: TurnResult = NO_TURN
        self._recorder = TurnRecorder()
        self._failures: list[dict[str, Any]] = []
        self._touched = resumed
        self._task: asyncio.Task[str] | None = None
        self._told: set[asyncio.Task[Any]] = set()
        renderer.on_failure = lambda: self.stop(immediate=True)

    @property
    def id(self) -> str:
        return self.session.session_id

    @property
    def is_saved(self) -> bool:
        """Whether there is something to resume."""
        return self.saved is not None and self._touched

    @property
    def not_mounted(self) -> list[str]:
        """Why providers of the plan are missing, a line each."""
        return [f"{_key(failure)}: {failure['error']}" for failure in self._failures]

    def credential_variable(self) -> str | None:
        """The environment variable that made the first provider available, if one did."""
        _, provider = self._first_provider()
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
        self._listen()
        register_capabilities(coordinator, self._sources)
        if self.saved is not None:
            coordinator.register_capability("session.dir", str(self.saved.path.absolute()))
        await self._sources.prefetch(self.session.config)
        await coordinator.mount("module-source-resolver", self._sources)
        self._use_stored_keys()
        try:
            await self.session.initialize()
        except AppError:
            raise
        except RequiredModuleError as error:
            session: dict[str, Any] = self.session.config["session"]
            module = session[error.kind]["module"]
            failure = {"module_type": error.kind, "module_id": module, "error": error.__cause__}
            raise self._mount_error([failure]) from error
        except RuntimeError as error:
            raise ModuleError(str(error)) from error
        except ValueError as error:
            raise ConfigError(str(error)) from error
        self._check_modules()
        await self._restore()
        self.facts = self._describe()
        self._renderer.session_opened(self.facts)

    def _use_stored_keys(self) -> None:
        filled = give_keys(self.session.coordinator)
        self.stored_keys = filled.added
        for problem in filled.problems:
            self._renderer.notice(problem, "warning", "session")

    def _listen(self) -> None:
        hooks = self.session.coordinator.hooks
        hooks.register("module:load_failed", self._on_load_failed, FIRST, name="app")
        for event, handler in self._recorder.handlers().items():
            # What it keeps of an error is shown; of other events it keeps names and numbers.
            handler = self._redacting(handler) if event == "tool:error" else handler
            hooks.register(event, handler, FIRST, name="app-recorder")
        for event, handler in self._renderer.handlers().items():
            priority = FIRST if event in BEFORE_EVENTS else LAST
            hooks.register(event, self._redacting(handler), priority, name="app-renderer")

    def _redacting(self, handler: EventHandler) -> EventHandler:
        """`handler`, told of events as the session's redaction, if it has one, lets them be shown.

        Some events no hook may redact: a tool or the model needs what they carry.
        """
        capability = self.session.coordinator.get_capability

        def shown(event: str, data: dict[str, Any]) -> None:
            redact = capability("redaction.event")
            handler(event, data if redact is None else redact(event, data))

        return shown

    def _on_load_failed(self, event: str, data: dict[str, Any]) -> None:
        self._failures.append(dict(data))

    def _check_modules(self) -> None:
        broken = [failure for failure in self._failures if not failure.get("degraded")]
        if broken:
            raise self._mount_error(broken)
        reasons = self.not_mounted
        if not self.session.coordinator.get("providers"):
            reasons += self._plan.notes
            reasons += ["Set one up with: amplifier init"] if reasons else []
            raise ConfigError(
                "no model provider is available",
                hint="\n".join(
                    reasons or ["The plan names none; add one under 'providers'."],
                ),
            )
        for reason in reasons:
            self._renderer.notice(f"not mounted: {reason}", "info", "session")

    def _mount_error(self, failures: list[dict[str, Any]]) -> AppError:
        # Only read when something is wrong.
        from amplifier_app.mount_problems import MountFailure, failure_error

        told = [
            MountFailure(failure["module_type"], _key(failure), str(failure["error"]))
            for failure in failures
        ]
        return failure_error(self._plan, self._sources, told)

    async def _restore(self) -> None:
        if self.saved is None:
            return
        context = self.context
        messages = self.saved.messages()
        if messages:
            await context.set_messages(messages)
        recording = RecordingContext(context, self._record)
        await self.session.coordinator.mount("context", recording)
        if self.saved.repaired:
            self._renderer.notice(
                f"the last record of the session was torn and is left out "
                f"({self.saved.repaired} bytes)",
                "warning",
                "session",
            )
        project = self.saved.metadata.get("project")
        if self._resumed and project and project != os.getcwd():
            note = f"the session was started in {project}; its tools now work in {os.getcwd()}"
            self._renderer.notice(note, "info", "session")
        for answer in answers_to_interrupted(messages):
            await recording.add_message(answer)

    def _record(self, record: dict[str, Any]) -> None:
        assert self.saved is not None
        self.saved.append(record)
        self._touched = True

    def _describe(self) -> SessionFacts:
        coordinator = self.session.coordinator
        name, provider = self._first_provider()
        return SessionFacts(
            session_id=self.id,
            saved=self.saved is not None,
            resumed=self._resumed,
            working_dir=os.getcwd(),
            profile=self._plan.name,
            provider=name,
            model=model_of(provider),
            tools=tuple(coordinator.get("tools")),
        )

    def _first_provider(self) -> tuple[str, Any]:
        """The provider orchestrators ask: the plan's, else the one of lowest priority number."""
        providers: dict[str, Any] = self.session.coordinator.get("providers")
        orchestrator = self.session.config["session"]["orchestrator"]
        config = orchestrator.get("config") or {} if isinstance(orchestrator, dict) else {}
        wanted = config.get("default_provider")
        if wanted in providers:
            return wanted, providers[wanted]
        return min(providers.items(), key=lambda item: _priority_of(item[1]))

    # Prompts

    async def run(self, prompt: str) -> TurnResult:
        """Send one prompt and see the turn through.

        A turn that was stopped (`stop`) is a result with the status ``cancelled``.

        Raises:
            Exception: Whatever ended the turn; `turn` then tells how far it came.
        """
        self._recorder.begin()
        self._renderer.turn_started()
        self.session.coordinator.cancellation.reset()
        response, status = "", None
        try:
            await self._begin_conversation()
            self._task = asyncio.create_task(self.session.execute(prompt))
            response = await self._task
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
            self._turn_ended(prompt, response, status)
        return self.turn

    @property
    def _stopping(self) -> bool:
        return self.session.coordinator.cancellation.is_cancelled

    async def _begin_conversation(self) -> None:
        instruction = self._plan.instruction
        if instruction and not await self.context.get_messages():
            await self.context.add_message({"role": "system", "content": instruction})

    def _turn_ended(self, prompt: str, response: str, status: Status | None) -> None:
        self.turn = self._recorder.result(response, status)
        self.usage.merge(self._recorder.usage)
        self._renderer.turn_ended(self.turn)
        if self.saved is not None and self._touched:
            self._note_turn(self.saved, prompt)

    def _note_turn(self, saved: SavedSession, prompt: str) -> None:
        before: dict[str, Any] = dict(saved.metadata)
        tokens: dict[str, int] = dict(before.get("usage") or {})
        for name, count in self.turn.usage.items():
            tokens[name] = tokens.get(name, 0) + count
        saved.update(
            title=before.get("title") or one_line(self._showable(prompt), 80),
            turns=(before.get("turns") or 0) + 1,
            provider=self.facts.provider,
            model=self.facts.model,
            usage=tokens,
        )

    def _showable(self, prompt: str) -> str:
        redact = self.session.coordinator.get_capability("redaction.event")
        return prompt if redact is None else redact("prompt:submit", {"prompt": prompt})["prompt"]

    def stop(self, immediate: bool) -> None:
        """Stop the turn under way: after its step in flight, or now."""
        coordinator = self.session.coordinator
        token = coordinator.cancellation
        changed = token.request_immediate() if immediate else token.request_graceful()
        if changed:
            event = coordinator.hooks.emit("cancel:requested", {"immediate": immediate})
            task = asyncio.get_running_loop().create_task(event)
            self._told.add(task)
            task.add_done_callback(self._told.discard)
            if not immediate:
                note = "stopping after this step; interrupt again to stop at once"
                self._renderer.notice(note, "info", "session")
        if immediate and self._task is not None:
            self._task.cancel()

    async def clear(self) -> None:
        """Forget the conversation; the instruction is given anew with the next prompt."""
        await self.context.clear()

    # Closing

    async def close(self) -> None:
        """Clean up every module; a session that never began leaves nothing behind."""
        try:
            async with asyncio.timeout(CLEANUP_SECONDS):
                await self.session.cleanup()
        except TimeoutError:
            self._renderer.notice(
                f"modules did not clean up within {CLEANUP_SECONDS:g} s", "warning", "session"
            )
        finally:
            self._renderer.close()
            if self.saved is not None and not self._touched:
                shutil.rmtree(self.saved.path, ignore_errors=True)


def _key(failure: dict[str, Any]) -> str:
    return str(failure.get("instance_id") or failure["module_id"])


def _priority_of(provider: Any) -> float:
    priority = getattr(provider, "priority", None)
    if priority is None:
        config = getattr(provider, "config", None)
        priority = config.get("priority") if isinstance(config, dict) else None
    return priority if isinstance(priority, (int, float)) else 100


__all__ = ["OpenSession", "SessionError", "open_session"]
