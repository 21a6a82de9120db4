"""A session: initialize, execute, clean up."""

import asyncio
import inspect
import logging
import os
import time
import uuid
from collections.abc import Mapping
from typing import Any, Self, cast

from amplifier_core import events
from amplifier_core.approval import ApprovalSystem, DisplaySystem
from amplifier_core.cancellation import leave_late
from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.loader import ModuleLoader
from amplifier_core.models import SessionStatus
from amplifier_core.module_sources import PARTS
from amplifier_core.mounting import initialize_session
from amplifier_support.clock import local_now
from amplifier_support.redaction import redact_config
from amplifier_support.session_capabilities import SECRET_VARIABLES

__all__ = ["AmplifierSession", "ModuleLoader", "initialize_session"]

logger = logging.getLogger(__name__)


class AmplifierSession:
    """One conversation with the modules of one mount plan.

    Args:
        config: The mount plan; kept by reference.
        loader: Loads the modules; default: a new `ModuleLoader`.
        session_id: Id of the session; default: a new uuid4.
        parent_id: Id of the session that this one was forked from.
        approval_system: Asks the user on behalf of hooks.
        display_system: Shows messages of hooks.
        is_resumed: Whether the session continues an earlier one.

    Raises:
        ValueError: The plan is empty or names no orchestrator or no context.
        TypeError: The plan is not a mapping.
    """

    def __init__(
        self,
        config: dict[str, Any],
        loader: ModuleLoader | None = None,
        session_id: str | None = None,
        parent_id: str | None = None,
        approval_system: ApprovalSystem | None = None,
        display_system: DisplaySystem | None = None,
        is_resumed: bool = False,
    ) -> None:
        _check(config)
        self.config = config
        self.session_id = session_id or str(uuid.uuid4())
        self.parent_id = parent_id
        self.is_resumed = is_resumed
        # Nothing to validate here, and building a validator takes longer than creating the session.
        self.status = SessionStatus.model_construct(
            session_id=self.session_id, started_at=local_now()
        )
        self.coordinator = ModuleCoordinator(self, approval_system, display_system)
        self.coordinator.hooks.set_default_fields(
            session_id=self.session_id, parent_id=self.parent_id
        )
        self.coordinator.loader = (
            ModuleLoader(coordinator=self.coordinator) if loader is None else loader
        )
        self._turns = 0
        self._created = time.monotonic()
        self._initialized = False
        self._initializing = asyncio.Lock()
        self._initializer: asyncio.Task[Any] | None = None
        self._started = False
        self._ended = False
        self._missing_providers: list[str] = []

    @property
    def loader(self) -> Any:
        """Loader of the session's modules."""
        return self.coordinator.loader

    @loader.setter
    def loader(self, loader: Any) -> None:
        self.coordinator.loader = loader

    @property
    def initialized(self) -> bool:
        return self._initialized

    async def initialize(self) -> None:
        """Mount the plan's modules; a second call waits for the first and does nothing.

        Raises:
            RequiredModuleError: The orchestrator or the context cannot be mounted.
            ValueError: An entry is not a mapping, or provider entries share an `instance_id`.
        """
        if self._initialized:
            return
        if self._initializer is not None and self._initializer is asyncio.current_task():
            # Called by a module that is being mounted, as part of the first call.
            return
        async with self._initializing:
            # Another task may have initialized it while this one waited for the lock.
            if self._initialized:
                return
            self._initializer = asyncio.current_task()
            try:
                self._missing_providers = await initialize_session(self.config, self.coordinator)
                self._initialized = True
                if self.parent_id:
                    await self._emit_lifecycle(events.SESSION_FORK, {"parent": self.parent_id})
            finally:
                self._initializer = None

    async def execute(self, prompt: str) -> str:
        """Run one turn and return the final text. Initializes the session if necessary.

        Raises:
            RuntimeError: No orchestrator, context or provider is mounted.
            Exception: Any exception of the orchestrator, unchanged.
        """
        await self.initialize()
        mounted = self._required()
        if not self._started:
            self._started = True
            event = events.SESSION_RESUME if self.is_resumed else events.SESSION_START
            await self._emit_lifecycle(event, {"parent_id": self.parent_id})
        # The status reflects the last turn, not earlier failures.
        self.status.status = "running"
        self._turns += 1
        execute = mounted["orchestrator"].execute
        more = {"coordinator": self.coordinator} if accepts_keyword(execute, "coordinator") else {}
        try:
            result = await execute(
                prompt=prompt,
                context=mounted["context"],
                providers=mounted["providers"],
                tools=mounted["tools"],
                hooks=self.coordinator.hooks,
                **more,
            )
        except BaseException as error:
            await self._report_failure(error)
            raise
        if self.coordinator.cancellation.is_cancelled:
            self.status.status = "cancelled"
            await self._emit_cancelled()
        return result

    def _required(self) -> dict[str, Any]:
        points = self.coordinator.mount_points
        if points["orchestrator"] is None:
            raise RuntimeError("No orchestrator module mounted: session.orchestrator mounted none")
        if points["context"] is None:
            raise RuntimeError("No context manager mounted: session.context mounted none")
        if not points["providers"]:
            why = "; ".join(self._missing_providers) or "the mount plan names none"
            raise RuntimeError(f"No providers mounted: {why}")
        return points

    async def _report_failure(self, error: BaseException) -> None:
        cancelled = self.coordinator.cancellation.is_cancelled
        failed = isinstance(error, Exception) and not cancelled
        self.status.status = "failed" if failed else "cancelled"
        self.status.last_error = {"message": str(error), "type": type(error).__name__}
        if cancelled:
            await self._emit_cancelled(error=str(error))

    async def _emit_cancelled(self, **more: Any) -> None:
        was_immediate = self.coordinator.cancellation.is_immediate
        await self.coordinator.hooks.emit(
            events.CANCEL_COMPLETED, {"was_immediate": was_immediate, **more}
        )

    async def _emit_lifecycle(self, event: str, fields: dict[str, Any]) -> None:
        settings = self.config.get("session", {})
        config = self._redacted()
        data = {"session_id": self.session_id, **fields, "config": config}
        if settings.get("metadata"):
            data["metadata"] = settings["metadata"]
        if settings.get("raw"):
            data["raw"] = config
        await self.coordinator.hooks.emit(event, data)
        if settings.get("raw") and event != events.SESSION_FORK:
            await self.coordinator.hooks.emit(
                "session:config", {"session_id": self.session_id, "raw": config}
            )

    def _redacted(self) -> Any:
        """The mount plan without secrets; None if it is not a `Mapping`."""
        if not isinstance(self.config, Mapping):
            return None
        names = SECRET_VARIABLES.of(self.coordinator) or ()
        return redact_config(self.config, [os.environ.get(name, "") for name in names])

    async def _stats(self) -> dict[str, Any]:
        """Contributions of modules to ``session.stats``, plus the kernel's own counts."""
        stats: dict[str, Any] = {}
        for contributed in await self.coordinator.collect_contributions("session.stats"):
            if isinstance(contributed, Mapping):
                stats.update(cast("Mapping[str, Any]", contributed))
            else:
                logger.warning("Ignored a contribution to session.stats: not a mapping")
        seconds = round(time.monotonic() - self._created, 3)
        return {**stats, "turns": self._turns, "duration_seconds": seconds}

    async def cleanup(self) -> None:
        """End the session: ``session:end`` once, then every cleanup in reverse order.

        Raises:
            BaseException: A cancellation or interrupt during cleanup, after all have run.
        """
        try:
            if self._initialized and not self._ended:
                self._ended = True
                if self.status.status == "running":
                    self.status.status = "completed"
                self.status.ended_at = local_now()
                stats = await self._stats()
                data = {"session_id": self.session_id, "status": self.status.status, "stats": stats}
                await leave_late(self.coordinator.hooks.emit(events.SESSION_END, data))
        finally:
            try:
                await self.coordinator.cleanup()
            finally:
                self._initialized = False
                self.coordinator.loader.cleanup()

    async def __aenter__(self) -> Self:
        try:
            await self.initialize()
        except BaseException:
            # Modules mounted before the failure may hold resources.
            await self.cleanup()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.cleanup()


def accepts_keyword(function: Any, name: str) -> bool:
    """Return True if `function` accepts the keyword `name`.

    The samples of the Orchestrator Contract accept only its five arguments.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        # Compiled code may have no signature; most orchestrators accept the keyword.
        return True
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _check(config: Any) -> None:
    if not config:
        raise ValueError("Configuration is required")
    if not isinstance(config, Mapping) and not hasattr(config, "get"):
        raise TypeError(f"Configuration must be a mapping, not {type(config).__name__}")
    session = config.get("session") or {}
    if not hasattr(session, "get"):
        raise TypeError(f"session in the mount plan must be a mapping, not {session!r}")
    for field in PARTS:
        if not session.get(field):
            raise ValueError(f"Configuration must specify session.{field}")
