"""Mount the modules of a plan on a session's coordinator and report those that fail.

The import and the mount function of each module have a time limit. Awaiting code is cancelled by the event
loop. Blocking code is interrupted by a timer signal, which reaches Python code and most system calls, but
not a loop in native code.
"""

from __future__ import annotations

import asyncio
import os
import sysconfig
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import amplifier_core
from amplifier_app.base import blocked_loop
from amplifier_app.base.blocked_loop import LoopBlocked, block_limit
from amplifier_app.base.errors import AppError, ConfigError, ModuleError
from amplifier_app.base.sanitize import for_terminal
from amplifier_app.base.slow_steps import slow_step
from amplifier_app.base.stdio import to_stderr
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.resolution import CHOSEN_MISSING, NO_PROVIDER, SET_UP
from amplifier_app.runtime.capabilities import (
    GuardedLoader,
    register_capabilities,
    register_mentions,
    register_trusted_dir,
    set_stored_keys,
)
from amplifier_app.runtime.observers.observer import FIRST, Renderer
from amplifier_app.runtime.sandbox import check_sandbox, register_sandbox, unused_sandbox
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.resolver import AppModuleSourceResolver, resolver_for
from amplifier_core._foreign import describe_place, find_root
from amplifier_core.cancellation import leave_late
from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.loader import LoadedModule, ModuleLoader, MountFunction
from amplifier_core.module_sources import (
    ModuleImportError,
    ModuleLoadError,
    ModuleMountError,
    ModuleNotFoundError,
    RequiredModuleError,
    missing_import,
)
from amplifier_core.mounting import ModuleSpec, mount_module
from amplifier_core.session import AmplifierSession
from amplifier_support.session_capabilities import MENTIONS, SECRET_VARIABLES

if TYPE_CHECKING:
    from amplifier_app.sources.lockfile import Pins


class Opening:
    """Progress of opening a session.

    Args:
        deadline: When it must be open, by the monotonic clock; None for no limit.

    Attributes:
        module: The id of the module being imported or mounted; empty if none is.
    """

    def __init__(self, deadline: float | None = None) -> None:
        self.deadline = deadline
        self.module = ""

    def begin(self, module_id: str) -> None:
        """Set the current module, unless the deadline has passed."""
        if not self.expired:
            self.module = module_id

    @property
    def expired(self) -> bool:
        # A timer of the system counts whole microseconds, so it can end that much earlier.
        return self.deadline is not None and time.monotonic() >= self.deadline - _EARLY


class OpeningTimedOut(Exception):
    """A session was not open by its deadline; the text names the current step."""


DEFAULT_SECONDS = 120.0
"""Time limit for importing a module, and again for mounting it, unless the plan sets
`session.mount_timeout`."""

_EARLY = 0.001
_NEVER = 1e8
"""Seconds of a limit that is never over, so that the timer is set once for all modules."""


async def clean_up(cleanup: Coroutine[Any, Any, Any], seconds: float) -> bool:
    """Await the cleanup of modules, whatever they do; return False if it did not end in so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            with block_limit(seconds):
                await leave_late(cleanup, seconds)
    except TimeoutError:
        return False
    return True


class LimitedLoader(GuardedLoader):
    """Loads modules, each within a time limit.

    Args:
        coordinator: See `ModuleLoader`.
        seconds: Time limit for each module; None for no limit.
        opening: Records the current module, and sets a deadline for all of them.
    """

    def __init__(
        self, coordinator: Any, seconds: float | None, opening: Opening | None = None
    ) -> None:
        super().__init__(coordinator)
        self._seconds = seconds
        self._opening = opening or Opening()

    async def load(self, module_id: str, *args: Any, **kwargs: Any) -> MountFunction:
        self._opening.begin(module_id)
        try:
            with (
                block_limit(self._seconds_left(), 0.0),
                slow_step(f"importing '{module_id}'{self._note()}"),
            ):
                mount = await super().load(module_id, *args, **kwargs)
        except LoopBlocked as reached:
            where = _where(reached, None)
            raise ModuleImportError(
                f"Module '{module_id}' cannot be imported: it did not finish within "
                f"{self._limit()}{where}"
            ) from reached
        return self._with_time_limit(module_id, mount)

    def _with_time_limit(self, module_id: str, mount: Any) -> MountFunction:
        async def limited(coordinator: Any) -> Any:
            self._opening.begin(module_id)
            section = coordinator.config.get("session")
            timer = asyncio.timeout(self._seconds_left())
            try:
                with (
                    block_limit(self._seconds_left(), 0.0),
                    slow_step(f"mounting '{module_id}'{self._note()}"),
                ):
                    result = await leave_late(mount(coordinator), timer=timer)
            except (LoopBlocked, TimeoutError) as reached:
                if isinstance(reached, TimeoutError) and not timer.expired():
                    raise
                loaded: LoadedModule = mount.__amplifier_module__
                raise ModuleMountError(
                    f"Module '{module_id}' cannot be mounted: mount() did not finish within "
                    f"{self._limit()}{_where(reached.__cause__ or reached.__context__ or reached, loaded)}"
                ) from reached
            if section and not coordinator.config.get("session"):
                # The limits of the plan would be gone with it.
                message = "it removed 'session' from coordinator.config, which all modules share"
                raise ModuleMountError(f"Module '{module_id}' cannot be mounted: {message}")
            self._opening.begin("")
            return result

        vars(limited).update(vars(mount))
        return limited

    def _limit(self) -> str:
        if self._opening.expired or self._seconds is None:
            return "the time limit of the run"
        return f"{self._seconds:g} s (session.mount_timeout)"

    def _note(self) -> str:
        left = self._seconds_left()
        return "" if left is None else f" (limit {left:.3g} s)"

    def _seconds_left(self) -> float | None:
        deadline = self._opening.deadline
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        return min((limit for limit in (left, self._seconds) if limit is not None), default=None)


def _where(reached: BaseException, loaded: LoadedModule | None) -> str:
    package = loaded.package if loaded is not None else None
    place = (
        describe_place(reached, find_root(package)) if package is not None else _last_line(reached)
    )
    return f"; it was at {place}" if place else ""


def _last_line(reached: BaseException) -> str:
    """Return the innermost line outside the standard library and the loader."""
    own = (sysconfig.get_path("stdlib") + os.sep, "<", str(Path(amplifier_core.__file__).parent))
    line, trace = "", reached.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(own) and file not in (__file__, blocked_loop.__file__):
            line = f"{file}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return line


def read_mount_timeout(plan: dict[str, Any]) -> float | None:
    """Return the limit that a mount plan sets for each module; None for no limit.

    Raises:
        ConfigError: The limit is not a number.
    """
    session: dict[str, Any] = plan.get("session") or {}
    seconds: Any = session.get("mount_timeout", DEFAULT_SECONDS)
    try:
        return None if seconds is None else float(seconds)
    except (TypeError, ValueError) as error:
        message = f"session.mount_timeout must be a number of seconds (got {seconds!r})"
        raise ConfigError(message) from error


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
            "module:load_failed",
            lambda event, data: self._failures.append(dict(data)),
            FIRST,
            name="app",
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
            coordinator, read_mount_timeout(self._session.config), self._opening
        )
        register_capabilities(coordinator, self._sources)
        register_trusted_dir(coordinator, self._plan.chosen.reads_project)
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
            with block_limit(_NEVER):
                await self._initialize()
            self._check()
            await self._check_pins()
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

    def _check(self) -> None:
        broken = [failure for failure in self._failures if not failure.get("degraded")]
        if broken:
            raise self._error(broken)
        reasons = self.not_mounted
        if not self._session.coordinator.get("providers"):
            reasons += [entry.note for entry in self._plan.dropped if not entry.is_fallback]
            raise ConfigError(NO_PROVIDER, hint="\n".join([*reasons, SET_UP]))
        self._require_chosen()
        if len(reasons) > 1:
            names = ", ".join(map(_key, self._failures))
            reasons = [f"{names}; 'amplifier plan check' shows why"]
        for reason in reasons:
            self._renderer.notice(f"not mounted: {reason}", "info", "session")

    async def _check_pins(self) -> None:
        lock, coordinator = self._sources.lock, self._session.coordinator
        if lock is not None and (unpinned := await check_pins(coordinator, lock.pins, self._plan)):
            self._renderer.notice(unpinned, "warning", "session")

    def _require_chosen(self) -> None:
        """Refuse to ask another provider than the one the user chose."""
        chosen = self._plan.chosen_provider
        for failure, reason in zip(self._failures, self.not_mounted, strict=True):
            if _key(failure) == chosen:
                raise ConfigError(CHOSEN_MISSING.format(chosen), hint=f"{reason}\n{SET_UP}")

    def _error(self, failures: list[dict[str, Any]]) -> AppError:
        # Imported only on failure.
        from amplifier_app.runtime.mount_problems import failure_error

        keyed = [{**failure, "key": _key(failure)} for failure in failures]
        return failure_error(self._plan, self._sources, keyed)


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
    is_configured = bool(coordinator.config["session"].get("fallbacks"))
    fallbacks = is_configured and not await _has_fallbacks(coordinator)
    if budget or fallbacks:
        # Most sessions need no support.
        from amplifier_app.sources.lockfile import LOOP_SUPPORT

        config = {"budget": budget, "fallbacks": fallbacks}
        await mount_module(ModuleSpec("hook", LOOP_SUPPORT, None, config), coordinator)


async def _has_fallbacks(coordinator: Any) -> bool:
    announced = await coordinator.collect_contributions("observability.events")
    # Third-party modules may contribute anything; ignore what is not a list of names.
    lists = [events for events in announced if isinstance(events, (list, tuple, set))]
    return any("provider:fallback" in events for events in lists)


# -- without a session -------------------------------------------------------------------


@asynccontextmanager
async def mount_entries(
    plan: ResolvedPlan, entries: Sequence[Mapping[str, Any]], *, runs_commands: bool = False
) -> AsyncGenerator[ModuleCoordinator]:
    """Mount only these modules of a plan on a coordinator, for commands that need only what they do.

    Args:
        plan: The plan.
        entries: Their entries in its mount plan.
        runs_commands: Whether they start programs, and read files of the project.

    Raises:
        ConfigError: The config of a module is invalid.
        ModuleError: A module cannot be mounted.
        SourceError: A module is not available.
    """
    mount_plan = plan.mount_plan()
    sources = resolver_for(plan)
    coordinator = ModuleCoordinator()
    coordinator.config.update(mount_plan)
    register_capabilities(coordinator, sources)
    if runs_commands:
        register_trusted_dir(coordinator, plan.chosen.reads_project)
        register_sandbox(coordinator, mount_plan, plan)
    for text in await register_mentions(coordinator, plan.namespaces, sources.offline):
        to_stderr(for_terminal(f"amplifier: warning: {text}"))
    await sources.prefetch_modules((entry["module"], entry.get("source")) for entry in entries)
    await coordinator.mount("module-source-resolver", sources)
    loader = ModuleLoader(coordinator)
    try:
        for entry in entries:
            try:
                mount = await loader.load(entry["module"], entry["config"], entry.get("source"))
                coordinator.register_cleanup(await mount(coordinator))
            except ValueError as error:
                raise ConfigError(str(error)) from error
            except (AppError, ModuleLoadError, ModuleNotFoundError):
                raise
            # Mount functions are foreign code, which may raise anything.
            except Exception as error:
                raise ModuleError(f"cannot mount {entry['module']}: {error}") from error
        yield coordinator
    finally:
        await coordinator.cleanup()


# -- pins --------------------------------------------------------------------------------
#
# Modules may bring content from outside their own code, which a lock pins: MCP tools, skills. They
# contribute it on the channel `lock.pins`: name → part → text or digest.

PIN_CHANNEL = "lock.pins"
PIN_PROBLEM = "problem"
"""The part of what cannot be pinned: the reason."""
_PINNING = ("tool-mcp", "tool-skills")
"""The modules that contribute: only these are mounted for a lock."""


async def find_pins(plan: ResolvedPlan) -> Pins:
    """Return what the modules of a plan bring now; this starts its MCP servers.

    Raises:
        ConfigError: One of these modules cannot be mounted, or a server does not answer.
        SourceError: One of them is not available.
    """
    tools = plan.mount_plan()["tools"]
    entries = [entry for entry in tools if entry["module"] in _PINNING]
    if not entries:
        return {}
    async with mount_entries(plan, entries, runs_commands=True) as coordinator:
        pins = await collect_pins(coordinator)
    for name, parts in pins.items():
        if PIN_PROBLEM in parts:
            raise ConfigError(f"cannot pin {name}: {parts[PIN_PROBLEM]}")
    return pins


async def collect_pins(coordinator: Any) -> Pins:
    """Return what the mounted modules of a session bring."""
    pins: dict[str, Mapping[str, str]] = {}
    for contribution in await coordinator.collect_contributions(PIN_CHANNEL):
        pins |= contribution
    return dict(sorted(pins.items()))


async def check_pins(coordinator: Any, locked: Pins | None, plan: ResolvedPlan) -> str:
    """Compare what the modules of a session bring with the lock.

    Args:
        coordinator: The session's.
        locked: The pins of the lock; None for a lock without them. In a sub-session, only the names that
            its modules bring are compared.

    Returns:
        A warning that names what the lock does not pin; empty if it pins everything.

    Raises:
        ConfigError: Something differs.
    """
    pins = await collect_pins(coordinator)
    is_agent = coordinator.parent_id is not None
    unpinned = [name for name in pins if locked is None or (is_agent and name not in locked)]
    if locked is not None:
        from amplifier_app.sources.plan_lock import drift_error, pin_differences

        if is_agent:
            locked = {name: parts for name, parts in locked.items() if name in pins}
            pins = {name: parts for name, parts in pins.items() if name in locked}
        if differences := pin_differences(locked, pins):
            raise drift_error(map(str, differences), plan)
    why = "locks do not pin what agents add" if is_agent else "pin with: amplifier plan lock"
    return f"not pinned by the lock: {', '.join(unpinned)}; {why}" if unpinned else ""
