"""Mount the modules of a mount plan when a session is initialized.

The orchestrator and the context are required. Any other module that fails is logged and
reported as ``module:load_failed``; what it had mounted is unmounted and the session continues
without it. A module is mounted once, and what it mounted is checked at that time.

Public: apps use `mount_module` to mount one module of a plan, for example to check it.
"""

import inspect
import logging
from typing import Any, NamedTuple, cast

from amplifier_core import events
from amplifier_core._foreign import belonging_to, describe_exception, root_of, warnings_logged
from amplifier_core._placement import Footprint, check_declaration, log_remarks, place
from amplifier_core.cancellation import is_failure, task_cancel_count
from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.discovery import SECTION_KINDS
from amplifier_core.llm_errors import ConfigurationError
from amplifier_core.load_errors import (
    MISCONFIGURED,
    ModuleMountError,
    NothingMountedError,
    RequiredModuleError,
    missing_import,
    module_failure_reason,
)
from amplifier_core.loader import LoadedModule, MountFunction
from amplifier_support.session_capabilities import BEFORE_PROVIDER, PROVIDER_FAILURE

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
        """Name of this entry in messages."""
        return self.instance_id or self.module


def required_spec(config: Any, kind: str) -> ModuleSpec:
    """The orchestrator or context of a plan, in its long or short form.

    The short form is the module's id, with its source in ``session.<kind>_source`` and its
    config in the top-level section ``<kind>.config``.

    Raises:
        ValueError: The entry names no module.
    """
    session = config["session"]
    value = session[kind]
    if isinstance(value, dict):
        entry = cast("dict[str, Any]", value)
        if not entry.get("module"):
            raise ValueError(f"session.{kind} of the mount plan has no 'module': {entry!r}")
        return ModuleSpec(kind, entry["module"], entry.get("source"), entry.get("config") or {})
    section = config.get(kind)
    settings = section.get("config") if isinstance(section, dict) else None
    return ModuleSpec(kind, str(value), session.get(f"{kind}_source"), settings or {})


def optional_specs(config: Any) -> list[ModuleSpec]:
    """Providers, tools and hooks of a plan, in that order; entries without `module` are skipped.

    Raises:
        ValueError: An entry is not a mapping.
    """
    specs: list[ModuleSpec] = []
    for section, kind in SECTION_KINDS.items():
        for index, entry in enumerate(config.get(section) or ()):
            if not isinstance(entry, dict):
                raise ValueError(
                    f"{section}[{index}] of the mount plan must be a mapping with 'module' "
                    f"(got {entry!r})"
                )
            if entry.get("module"):
                source, settings = entry.get("source"), entry.get("config") or {}
                named = entry.get("instance_id")
                specs.append(ModuleSpec(kind, entry["module"], source, settings, named))
    return specs


def check_provider_ids(specs: list[ModuleSpec]) -> None:
    """Check that entries of the same provider module have different `instance_id`s.

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
                f"instance_id {spec.instance_id!r}; give each entry a different instance_id"
            )
        seen.add(identity)


async def initialize_session(config: Any, coordinator: ModuleCoordinator) -> list[str]:
    """Mount all modules of `config`; returns a line with the reason for each missing provider.

    Raises:
        RequiredModuleError: The orchestrator or the context cannot be mounted.
        ValueError: An entry is not a mapping, or provider entries share an `instance_id`.
    """
    for kind, title in (("orchestrator", "orchestrator"), ("context", "context manager")):
        try:
            await mount_module(required_spec(config, kind), coordinator)
        # A module is foreign code and may raise anything.
        except Exception as error:
            message = f"Cannot initialize without {title}: {error}"
            raise RequiredModuleError(message, kind) from error
    specs = optional_specs(config)
    check_provider_ids(specs)
    missing: list[str] = []
    for spec in specs:
        try:
            await mount_module(spec, coordinator)
        # As above; the session continues without this module.
        except Exception as error:
            await _report(spec, error, coordinator)
            if spec.kind == "provider":
                missing.append(f"{spec.key}: {error}")
                await _after_provider_failure(spec, _raised(error), coordinator)
    await _session_ready(coordinator)
    return missing


async def mount_module(spec: ModuleSpec, coordinator: ModuleCoordinator) -> None:
    """Load and mount one module and check what it mounted; after a failure, everything is unmounted.

    Raises:
        NothingMountedError: Its mount function returned without mounting anything.
        ModuleMountError: Its mount function raised.
        ModuleValidationError: It is not of the kind that its section of the plan requires.
        Exception: Any error of loading it.
    """
    if spec.kind == "provider":
        prepare = BEFORE_PROVIDER.of(coordinator)
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
    with warnings_logged() as logged, belonging_to(spec.kind, spec.module):
        result = await _call_mount(spec, mount, loaded, coordinator)
        remarks = await place(spec, result, before, coordinator, loaded, logged)
        if spec.kind == "provider":
            _name_provider(spec, before, coordinator, logged)
    log_remarks(spec, remarks)
    ready = getattr(mount, "__on_session_ready__", None)
    if ready is not None:
        loader.enqueue_on_session_ready(*ready)


async def _call_mount(
    spec: ModuleSpec,
    mount: MountFunction,
    loaded: LoadedModule | None,
    coordinator: ModuleCoordinator,
) -> Any:
    if loaded is None:
        # From another loader, which handles errors itself.
        return await mount(coordinator)
    cancels = task_cancel_count()
    try:
        return await mount(coordinator)
    except ModuleMountError:
        # Raised by the app's loader with more detail, such as a time limit.
        raise
    # A module is foreign code: it may raise anything, even SystemExit.
    except BaseException as error:
        if not is_failure(error, cancels):
            raise
        if isinstance(error, ConfigurationError):
            # Its message is for the user; where it was raised would not help them.
            raise ModuleMountError(f"Module '{spec.module}' {MISCONFIGURED}{error}") from error
        root = root_of(loaded.package) if loaded.package is not None else None
        raise ModuleMountError(
            f"Module '{spec.module}' cannot be mounted: mount() raised "
            f"{describe_exception(error, root)}"
        ) from error


def _name_provider(
    spec: ModuleSpec, before: Footprint, coordinator: ModuleCoordinator, logged: list[str]
) -> None:
    changed = list(before.added("provider"))
    if not changed:
        raise NothingMountedError("; ".join(logged) or "its mount function mounted nothing")
    if spec.instance_id:
        _rename(coordinator.get("providers"), before.mounted("provider"), changed, spec)


def _rename(
    providers: dict[str, Any], before: dict[str, Any], changed: list[str], spec: ModuleSpec
) -> None:
    """Rename a provider to its `instance_id`, and restore the one that had its default name."""
    default = spec.module.removeprefix("provider-")
    name = default if default in changed else changed[0]
    provider = providers[name]
    if name in before:
        # Keep the position: the order of providers matters if priorities are equal.
        providers[name] = before[name]
    else:
        del providers[name]
    providers[cast("str", spec.instance_id)] = provider


def _entry(spec: ModuleSpec) -> dict[str, Any]:
    """A copy of a provider's plan entry."""
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
    """The exception raised by the module's mount function, if that was the failure."""
    cause = error.__cause__ if isinstance(error, ModuleMountError) else None
    return cause if isinstance(cause, Exception) else error


async def _after_provider_failure(
    spec: ModuleSpec, error: Exception, coordinator: ModuleCoordinator
) -> None:
    callback = PROVIDER_FAILURE.of(coordinator)
    if callback is not None:
        await _call(callback, coordinator, _entry(spec), error)


async def _session_ready(coordinator: ModuleCoordinator) -> None:
    loader = coordinator.loader
    cancels = task_cancel_count()
    for module_id, ready in loader.get_on_session_ready_queue():
        try:
            with belonging_to("module", module_id):
                await ready(coordinator)
        # Foreign code: one module's failure is reported and does not affect the others.
        except BaseException as error:
            if not is_failure(error, cancels):
                raise
            logger.exception("on_session_ready of '%s' failed", module_id)
            await coordinator.hooks.emit(
                events.MODULE_ON_SESSION_READY_FAILED,
                {"module_id": module_id, "error": str(error)},
            )
    loader.clear_on_session_ready_queue()
