"""Mount the modules of a plan on a session's coordinator and report those that fail."""

from __future__ import annotations

import asyncio
from typing import Any

from amplifier_app.base.errors import AppError, ConfigError, ModuleError
from amplifier_app.plan import ResolvedPlan
from amplifier_app.runtime.capabilities import register_capabilities, set_stored_keys
from amplifier_app.runtime.mentions import register_mentions
from amplifier_app.runtime.mounting.mount_limit import LimitedLoader, seconds_of
from amplifier_app.runtime.mounting.progress import Opening, OpeningTimedOut
from amplifier_app.runtime.observers.observer import FIRST, Renderer
from amplifier_app.runtime.sandbox import check_sandbox, register_sandbox, unused_sandbox
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.resolver import AppModuleSourceResolver
from amplifier_core.load_errors import RequiredModuleError, missing_import
from amplifier_core.mounting import ModuleSpec, mount_module
from amplifier_core.session import AmplifierSession
from amplifier_support.session_capabilities import MENTIONS, SECRET_VARIABLES


class Mounting:
    """Mounts the modules of one session.

    Args:
        session: The kernel's session, not initialized yet.
        plan: The plan of the session.
        sources: Resolves module sources.
        renderer: Shows notices about modules that were not mounted.
        opening: Deadline and progress of opening the session.

    Attributes:
        stored_keys: Environment variables set from stored keys.
    """

    def __init__(
        self,
        session: AmplifierSession,
        plan: ResolvedPlan,
        sources: AppModuleSourceResolver,
        renderer: Renderer,
        opening: Opening | None = None,
    ) -> None:
        self._session = session
        self._plan = plan
        self._sources = sources
        self._renderer = renderer
        self._opening = opening or Opening()
        self._failures: list[dict[str, Any]] = []
        self.stored_keys: tuple[str, ...] = ()
        session.coordinator.hooks.register(
            "module:load_failed", self._on_load_failed, FIRST, name="app"
        )

    @property
    def not_mounted(self) -> list[str]:
        """Why providers of the plan were not mounted, one line each."""
        return [reason_with_key(_key(failure), str(failure["error"])) for failure in self._failures]

    async def mount(self) -> None:
        """Fetch and mount every module.

        Raises:
            ModuleError: A module of the plan cannot be loaded or mounted.
            ConfigError: The config of a module is invalid, or no provider is available.
            OpeningTimedOut: The deadline passed.
        """
        deadline = self._opening.deadline
        try:
            # The event loop's clock is the monotonic one.
            async with asyncio.timeout_at(deadline):
                await self._mount()
        except (TimeoutError, AppError) as error:
            if not self._opening.expired:
                raise
            module = self._opening.module
            raise OpeningTimedOut(f"while mounting '{module}'" if module else "") from error
        self._opening.module = ""

    async def _mount(self) -> None:
        coordinator = self._session.coordinator
        self._session.loader = LimitedLoader(
            coordinator, seconds_of(self._session.config), self._opening
        )
        register_capabilities(coordinator, self._sources)
        try:
            await self._sources.prefetch(self._session.config)
        except SourceError as error:
            from amplifier_app.sources.module_problems import with_config_problems

            raise with_config_problems(self._plan, self._sources, error) from error
        await coordinator.mount("module-source-resolver", self._sources)
        if MENTIONS.of(coordinator) is None:
            namespaces = self._plan.namespaces
            for text in await register_mentions(coordinator, namespaces, self._sources.offline):
                self._renderer.notice(text, "warning", "session")
        if SECRET_VARIABLES.of(coordinator) is None:
            self._use_stored_keys()
        sandbox = register_sandbox(coordinator, self._session.config, self._plan)
        try:
            await self._initialize()
            self._check()
        except AppError:
            # If it is missing, that is why other things fail.
            check_sandbox(sandbox)
            raise
        check_sandbox(sandbox)
        if sandbox.goes_without is not None:
            self._renderer.notice(
                f"commands run without a sandbox: {sandbox.goes_without}", "warning", "session"
            )
        unused = unused_sandbox(sandbox, self._session.config)
        for text in sandbox.missing_folders if sandbox.needed else filter(None, [unused]):
            self._renderer.notice(text, "warning", "session")

    async def _initialize(self) -> None:
        try:
            await self._session.initialize()
        except AppError:
            raise
        except RequiredModuleError as error:
            session: dict[str, Any] = self._session.config["session"]
            module = session[error.kind]["module"]
            failure = {
                "module_type": error.kind,
                "module_id": module,
                "error": error.__cause__,
                "missing_import": missing_import(error.__cause__),
            }
            raise self._error([failure]) from error
        except RuntimeError as error:
            raise ModuleError(str(error)) from error
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def _use_stored_keys(self) -> None:
        filled = set_stored_keys(self._session.coordinator)
        self.stored_keys = filled.added
        for problem in filled.problems:
            self._renderer.notice(problem, "warning", "session")

    def _on_load_failed(self, event: str, data: dict[str, Any]) -> None:
        self._failures.append(dict(data))

    def _check(self) -> None:
        broken = [failure for failure in self._failures if not failure.get("degraded")]
        if broken:
            raise self._error(broken)
        reasons = self.not_mounted
        if not self._session.coordinator.get("providers"):
            from amplifier_app.plan.default_provider import NO_PROVIDER, SET_UP

            reasons += [one.note for one in self._plan.dropped if not one.is_fallback]
            raise ConfigError(NO_PROVIDER, hint="\n".join([*reasons, SET_UP]))
        self._require_chosen()
        for reason in reasons:
            self._renderer.notice(f"not mounted: {reason}", "info", "session")

    def _require_chosen(self) -> None:
        """Refuse to ask another provider than the one the user chose."""
        chosen = self._plan.chosen_provider
        for failure, reason in zip(self._failures, self.not_mounted, strict=True):
            if _key(failure) == chosen:
                from amplifier_app.plan.default_provider import CHOSEN_MISSING, SET_UP

                raise ConfigError(CHOSEN_MISSING.format(chosen), hint=f"{reason}\n{SET_UP}")

    def _error(self, failures: list[dict[str, Any]]) -> AppError:
        # Imported only on failure.
        from amplifier_app.runtime.mounting.mount_problems import MountFailure, failure_error

        mount_failures = [
            MountFailure(
                failure["module_type"],
                _key(failure),
                str(failure["error"]),
                failure["missing_import"],
            )
            for failure in failures
        ]
        return failure_error(self._plan, self._sources, mount_failures)


def _key(failure: dict[str, Any]) -> str:
    return str(failure.get("instance_id") or failure["module_id"])


def reason_with_key(key: str, error: str) -> str:
    """Why a module was not mounted, with its key in the plan."""
    # The log lines of most providers begin with their name.
    return error if error.startswith(key) else f"{key}: {error}"


async def support_loop(coordinator: Any, *, budget: bool) -> None:
    """Apply settings of the session that the orchestrator does not apply itself.

    Args:
        coordinator: The coordinator of a session whose modules are mounted.
        budget: Whether its budget is one of them.
    """
    wanted = bool(coordinator.config["session"].get("fallbacks"))
    fallbacks = wanted and not await _has_fallbacks(coordinator)
    if budget or fallbacks:
        # Most sessions need no support.
        from amplifier_app.sources.lock_check import LOOP_SUPPORT

        config = {"budget": budget, "fallbacks": fallbacks}
        await mount_module(ModuleSpec("hook", LOOP_SUPPORT, None, config), coordinator)


async def _has_fallbacks(coordinator: Any) -> bool:
    announced = await coordinator.collect_contributions("observability.events")
    # Third-party modules may contribute anything; ignore what is not a list of names.
    lists = [events for events in announced if isinstance(events, (list, tuple, set))]
    return any("provider:fallback" in events for events in lists)
