"""From a mount plan to mounted modules: what a session does to initialize itself.

The orchestrator and the context must mount. Any other module that fails is
logged and reported as ``module:load_failed``, and the session goes on without it; what it
had mounted is unmounted. A module is mounted once, and what it mounted is checked then.
"""

import asyncio
import inspect
import logging
from typing import Any, NamedTuple, cast

from amplifier_core import events
from amplifier_core._foreign import belonging_to, describe_exception, root_of, warnings_logged
from amplifier_core._placing import Footprint, check_declaration, log_remarks, place
from amplifier_core.cancellation import task_cancel_count
from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.load_errors import (
    ModuleMountError,
    NothingMountedError,
    RequiredModuleError,
    missing_import,
    module_failure_reason,
)
from amplifier_core.loader import LoadedModule

__all__ = [
    "ModuleSpec",
    "NothingMountedError",
    "check_provider_ids",
    "initialize_session",
    "mount_module",
    "optional_specs",
    "required_spec",
]

logger = logging.getLogger(__name__)


class ModuleSpec(NamedTuple):
    """One module of a mount plan."""

    kind: str
    module: str
    source: Any
    config: dict[str, Any]
    instance_id: str | None = None

    @property
    def key(self) -> str:
        """What a person calls this entry."""
        return self.instance_id or self.module


_SECTIONS = (("providers", "provider"), ("tools", "tool"), ("hooks", "hook"))


def required_spec(config: Any, kind: str) -> ModuleSpec:
    """The orchestrator or context of a plan, in either spelling.

    The short spelling is the module's id alone, with ``session.<kind>_source`` and the
    top-level ``<kind>.config`` beside it.

    Raises:
        ValueError: It names no module.
    """
    session = config["session"]
    value = session[kind]
    if isinstance(value, dict):
        entry = cast("dict[str, Any]", value)
        if not entry.get("module"):
            raise ValueError(f"session.{kind} of the mount plan has no 'module': {entry!r}")
        return ModuleSpec(kind, entry["module"], entry.get("source"), entry.get("config") or {})
    beside = config.get(kind)
    settings = beside.get("config") if isinstance(beside, dict) else None
    return ModuleSpec(kind, str(value), session.get(f"{kind}_source"), settings or {})


def optional_specs(config: Any) -> list[ModuleSpec]:
    """Providers, tools and hooks of a plan, in that order; entries without `module` are none.

    Raises:
        ValueError: An entry is no mapping.
    """
    specs: list[ModuleSpec] = []
    for section, kind in _SECTIONS:
        for index, entry in enumerate(config.get(section) or ()):
            if not isinstance(entry, dict):
                raise ValueError(
                    f"{section}[{index}] of the mount plan is {entry!r}; "
                    "write a mapping with 'module'"
                )
            if entry.get("module"):
                source, settings = entry.get("source"), entry.get("config") or {}
                named = entry.get("instance_id")
                specs.append(ModuleSpec(kind, entry["module"], source, settings, named))
    return specs


def check_provider_ids(specs: list[ModuleSpec]) -> None:
    """Entries of one provider module must be told apart.

    Raises:
        ValueError: Two of them have the same `instance_id`, or more than one has none.
    """
    seen: set[tuple[str, str | None]] = set()
    for spec in specs:
        if spec.kind != "provider":
            continue
        identity = (spec.module, spec.instance_id)
        if identity in seen:
            raise ValueError(
                f"Provider '{spec.module}' is configured more than once with "
                f"instance_id {spec.instance_id!r}; give each entry an instance_id of its own"
            )
        seen.add(identity)


async def initialize_session(config: Any, coordinator: ModuleCoordinator) -> list[str]:
    """Mount everything `config` asks for; returns why providers are missing, a line each.

    Raises:
        RequiredModuleError: The orchestrator or the context cannot be mounted.
        ValueError: An entry is no mapping, or provider entries cannot be told apart.
    """
    for kind, title in (("orchestrator", "orchestrator"), ("context", "context manager")):
        try:
            await mount_module(required_spec(config, kind), coordinator)
        # A module is foreign code and may raise anything; the cause goes along.
        except Exception as error:
            message = f"Cannot initialize without {title}: {error}"
            raise RequiredModuleError(message, kind) from error
    specs = optional_specs(config)
    check_provider_ids(specs)
    missing: list[str] = []
    for spec in specs:
        try:
            await mount_module(spec, coordinator)
        # As above; the session goes on without this one.
        except Exception as error:
            await _report(spec, error, coordinator)
            if spec.kind == "provider":
                missing.append(f"{spec.key}: {error}")
                await _after_provider_failure(spec, _raised(error), coordinator)
    await _session_ready(coordinator)
    return missing


async def mount_module(spec: ModuleSpec, coordinator: ModuleCoordinator) -> None:
    """Load one module, mount it and check what it mounted; on failure nothing of it stays mounted.

    Raises:
        NothingMountedError: Its mount function went through and mounted nothing.
        ModuleMountError: Its mount function raised.
        ModuleValidationError: It is not what its section of the plan asks for.
        Exception: Whatever loading it raises.
    """
    if spec.kind == "provider":
        prepare = coordinator.get_capability("provider.before_load")
        if prepare is not None:
            await _call(prepare, coordinator, _entry(spec))
    before = Footprint(coordinator)
    try:
        await _mount(spec, before, coordinator)
    except BaseException:
        before.undo()
        raise


async def _mount(spec: ModuleSpec, before: Footprint, coordinator: ModuleCoordinator) -> None:
    loader = coordinator.loader
    mount = await loader.load(
        spec.module, spec.config, source_hint=spec.source, coordinator=coordinator
    )
    loaded: LoadedModule | None = getattr(mount, "__amplifier_module__", None)
    if loaded is not None:
        check_declaration(spec, loaded.declared)
    with warnings_logged() as said, belonging_to(spec.kind, spec.module):
        result = await _call_mount(spec, mount, loaded, coordinator)
        remarks = await place(spec, result, before, coordinator, loaded, said)
        if spec.kind == "provider":
            _name_provider(spec, before, coordinator, said)
    log_remarks(spec, remarks)
    ready = getattr(mount, "__on_session_ready__", None)
    if ready is not None:
        loader.enqueue_on_session_ready(*ready)


async def _call_mount(
    spec: ModuleSpec, mount: Any, loaded: LoadedModule | None, coordinator: ModuleCoordinator
) -> Any:
    if loaded is None:
        # Of another loader: what it gives is its own business.
        return await mount(coordinator)
    cancels = task_cancel_count()
    try:
        return await mount(coordinator)
    except ModuleMountError:
        # The app's loader may say more of it, such as a time limit.
        raise
    # A module is foreign code: it may raise anything, also what would end the process.
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and task_cancel_count() > cancels:
            raise
        root = root_of(loaded.package) if loaded.package is not None else None
        raise ModuleMountError(
            f"Module '{spec.module}' cannot be mounted: mount() raised "
            f"{describe_exception(error, root)}"
        ) from error


def _name_provider(
    spec: ModuleSpec, before: Footprint, coordinator: ModuleCoordinator, said: list[str]
) -> None:
    changed = list(before.added("provider"))
    if not changed:
        raise NothingMountedError("; ".join(said) or "its mount function mounted nothing")
    if spec.instance_id:
        _rename(coordinator.get("providers"), before.mounted("provider"), changed, spec)


def _rename(
    providers: dict[str, Any], before: dict[str, Any], changed: list[str], spec: ModuleSpec
) -> None:
    """Give a provider its `instance_id` and its default name back to who had it."""
    default = spec.module.removeprefix("provider-")
    name = default if default in changed else changed[0]
    provider = providers[name]
    if name in before:
        # In its place: the order of providers decides among those of one priority.
        providers[name] = before[name]
    else:
        del providers[name]
    providers[cast("str", spec.instance_id)] = provider


def _entry(spec: ModuleSpec) -> dict[str, Any]:
    """The plan's entry of a provider, as a copy."""
    entry = {"module": spec.module, "source": spec.source, "config": dict(spec.config)}
    return {**entry, "instance_id": spec.instance_id} if spec.instance_id else entry


async def _call(function: Any, *args: Any) -> None:
    result = function(*args)
    if inspect.isawaitable(result):
        await result


async def _report(spec: ModuleSpec, error: Exception, coordinator: ModuleCoordinator) -> None:
    degraded = isinstance(error, NothingMountedError)
    logger.warning("%s '%s' was not mounted: %s", spec.kind.capitalize(), spec.key, error)
    data = {
        "module_type": spec.kind,
        "module_id": spec.module,
        "error": str(error),
        "error_type": type(_raised(error)).__name__,
        "reason_code": module_failure_reason(error),
        "missing_import": missing_import(error),
        "degraded": degraded,
    }
    if spec.instance_id:
        data["instance_id"] = spec.instance_id
    await coordinator.hooks.emit(events.MODULE_LOAD_FAILED, data)


def _raised(error: Exception) -> Exception:
    """What the module's own code raised, where that was the failure."""
    cause = error.__cause__ if isinstance(error, ModuleMountError) else None
    return cause if isinstance(cause, Exception) else error


async def _after_provider_failure(
    spec: ModuleSpec, error: Exception, coordinator: ModuleCoordinator
) -> None:
    tell = coordinator.get_capability("provider.load_failure")
    if tell is not None:
        await _call(tell, coordinator, _entry(spec), error)


async def _session_ready(coordinator: ModuleCoordinator) -> None:
    loader = coordinator.loader
    for module_id, ready in loader.get_on_session_ready_queue():
        try:
            with belonging_to("module", module_id):
                await ready(coordinator)
        # Foreign code: one module's failure is told and leaves the others as they are.
        except Exception as error:
            logger.exception("on_session_ready of '%s' failed", module_id)
            await coordinator.hooks.emit(
                events.MODULE_ON_SESSION_READY_FAILED,
                {"module_id": module_id, "error": str(error)},
            )
    loader.clear_on_session_ready_queue()
