"""Mount the modules of a mount plan when a session is initialized.

The orchestrator and the context are required. Any other module that fails is logged and
reported as ``module:load_failed``; what it had mounted is unmounted and the session continues
without it. A module is mounted once, and what it mounted is checked at that time against the section of
the plan, which determines the kind of a module; the module's id does not.

Apps use `mount_module` to mount one module of a plan, for example to check it.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

from amplifier_core import events
from amplifier_core._foreign import (
    belonging_to,
    describe_exception,
    find_root,
    required_arguments,
    warnings_logged,
    where_defined,
)
from amplifier_core.cancellation import await_result, is_failure, task_cancel_count
from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.interfaces import ContextManager, Orchestrator, Provider, Tool
from amplifier_core.llm_errors import ConfigurationError
from amplifier_core.loader import LoadedModule, MountFunction
from amplifier_core.module_sources import (
    MISCONFIGURED,
    PARTS,
    SECTION_KINDS,
    TYPE_TO_MOUNT_POINT,
    ModuleMountError,
    ModuleValidationError,
    NothingMountedError,
    RequiredModuleError,
    missing_import,
    module_failure_reason,
    validation_failure,
)
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.session_capabilities import BEFORE_PROVIDER, PROVIDER_FAILURE

logger = logging.getLogger(__name__)
# Apart from the failures of modules, which an app reports in its own way.
_remarks = logging.getLogger(f"{__name__}.remarks")

_PROTOCOLS: dict[str, Any] = {
    "orchestrator": Orchestrator,
    "context": ContextManager,
    "provider": Provider,
    "tool": Tool,
}

_MEMBERS = {
    kind: [(name, callable(member)) for name, member in vars(protocol).items() if name[0] != "_"]
    for kind, protocol in _PROTOCOLS.items()
}
"""The members of each protocol, and whether they are methods."""

SECTIONS = {part: f"session.{part}" for part in PARTS} | {
    kind: section for section, kind in SECTION_KINDS.items()
}
"""The section of a mount plan that lists the modules of a kind."""


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


def _check_declaration(spec: ModuleSpec, declared: str | None) -> None:
    """
    Raises:
        ModuleValidationError: The module declares a different kind than its section requires.
    """
    if declared is None or declared == spec.kind or declared not in SECTIONS:
        return
    raise ModuleValidationError(
        f"Module '{spec.module}' is listed under '{SECTIONS[spec.kind]}', but declares "
        f"__amplifier_module_type__ = {declared!r}; list it under '{SECTIONS[declared]}'",
        reason_code="invalid_module_metadata",
    )


class Footprint:
    """Snapshot of a coordinator before a module is mounted, for comparison afterwards."""

    def __init__(self, coordinator: ModuleCoordinator) -> None:
        self._coordinator = coordinator
        self._mounted = {kind: _mounted(kind, coordinator) for kind in _PROTOCOLS}
        self._registered = _registered(coordinator)

    def mounted(self, kind: str) -> dict[str, Any]:
        """Modules of a kind that were already mounted, by name."""
        return self._mounted[kind]

    def added(self, kind: str) -> dict[str, Any]:
        """Modules of a kind mounted since the snapshot, by name."""
        before = self._mounted.get(kind, {})
        now = _mounted(kind, self._coordinator) if kind in _PROTOCOLS else {}
        return {name: module for name, module in now.items() if before.get(name) is not module}

    def kinds(self) -> list[str]:
        """The kinds of the modules mounted since the snapshot."""
        return [kind for kind in _PROTOCOLS if self.added(kind)]

    def registered(self) -> list[str]:
        """Return the registrations since the snapshot, as ``a handler of tool:pre``, ``the
        capability x``.
        """
        now = _registered(self._coordinator)
        return [
            f"{what} {name}"
            for what, before in self._registered.items()
            for name, each in now[what].items()
            if len(each) > len(before.get(name, ()))
        ]

    def undo(self) -> None:
        """Restore the mount points to the snapshot."""
        for kind, before in self._mounted.items():
            point = TYPE_TO_MOUNT_POINT[kind]
            mounted = self._coordinator.get(point)
            if isinstance(mounted, dict):
                mounted.clear()  # pyright: ignore[reportUnknownMemberType]
                mounted.update(before)  # pyright: ignore[reportUnknownMemberType]
            elif mounted is not before[point]:
                self._coordinator.mount(point, before[point])


def _mounted(kind: str, coordinator: ModuleCoordinator) -> dict[str, Any]:
    point = TYPE_TO_MOUNT_POINT[kind]
    mounted = coordinator.get(point)
    return dict(mounted) if isinstance(mounted, dict) else {point: mounted}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _registered(coordinator: ModuleCoordinator) -> dict[str, Mapping[str, Sequence[Any]]]:
    """Each handler, contribution and capability, by what it is and its name."""
    return {
        "a handler of": coordinator.hooks.registrations(),
        "the capability": dict.fromkeys(coordinator.to_dict()["capabilities"], (None,)),
        "a contribution to": {name: (*each,) for name, each in coordinator.channels.items()},
    }


async def place(
    spec: ModuleSpec,
    result: Any,
    before: Footprint,
    coordinator: ModuleCoordinator,
    loaded: LoadedModule | None,
    logged: list[str],
) -> list[str]:
    """Handle what a mount function mounted and returned.

    A returned instance is mounted if it is not mounted yet; any other callable is a cleanup.

    Args:
        spec: The plan's entry of the module.
        result: What its mount function returned.
        before: Snapshot taken before mounting.
        coordinator: Where it was mounted.
        loaded: The loader's record of the module; None if it came from another loader.
        logged: The warnings that were logged while it was mounted.

    Returns:
        Warnings about a module that is mounted all the same.

    Raises:
        NothingMountedError: It mounted nothing.
        ModuleValidationError: It mounted something other than its section requires.
    """
    added = before.added(spec.kind)
    remarks: list[str] = []
    if not any(instance is result for instance in added.values()):
        if not added and _is_instance(spec.kind, result):
            point = TYPE_TO_MOUNT_POINT[spec.kind]
            name = getattr(result, "name", None)
            name = name if isinstance(name, str) else spec.module.removeprefix(f"{spec.kind}-")
            await coordinator.mount(point, result, name=name)
            added = before.added(spec.kind)
        else:
            remarks += _register_cleanup(result, coordinator)
    if spec.kind == "tool":
        replaced = [repr(name) for name in added if name in before.mounted("tool")]
        if replaced:
            remarks.append(f"it replaces {', '.join(replaced)} of a module mounted before it")
    if loaded is None:
        return remarks
    if added:
        _check_instances(spec, added, loaded)
    elif spec.kind == "hook":
        _check_hook(spec, result, before, loaded, logged)
    else:
        remarks += _check_nothing(spec, result, before, loaded, logged)
    return remarks


def _is_instance(kind: str, result: Any) -> bool:
    # Not `isinstance`, which collects the members of the protocol each time.
    return (
        kind in _PROTOCOLS
        and not isinstance(result, type)
        and all(
            hasattr(result, name) and (not is_method or getattr(result, name) is not None)
            for name, is_method in _MEMBERS[kind]
        )
    )


def _register_cleanup(result: Any, coordinator: ModuleCoordinator) -> list[str]:
    if not callable(result) or isinstance(result, type):
        return []
    arguments = required_arguments(result)
    if arguments:
        return [
            f"mount() returned a function that is not a cleanup, because it requires {arguments} "
            f"({where_defined(result)}); it will not be called"
        ]
    coordinator.register_cleanup(result)
    return []


def _check_instances(spec: ModuleSpec, added: dict[str, Any], loaded: LoadedModule) -> None:
    # Modules of the environment are validated only if they do not satisfy their protocol.
    if loaded.folder is None and all(
        _is_instance(spec.kind, instance) for instance in added.values()
    ):
        return
    from amplifier_core.module_checks import check_instances, select_errors

    failed = select_errors(check_instances(spec.kind, list(added.items())))
    if failed:
        raise validation_failure(spec.module, failed)


def _check_hook(
    spec: ModuleSpec, result: Any, before: Footprint, loaded: LoadedModule, logged: list[str]
) -> None:
    kinds = before.kinds()
    if loaded.ready is not None or before.registered():
        return
    wrong = [kind for kind in kinds if kind in PARTS]
    if wrong and loaded.declared is None:
        raise _wrong_kind_error(spec, wrong)
    if not kinds and not callable(result):
        raise NothingMountedError("; ".join(logged) or "its mount function registered nothing")


def _check_nothing(
    spec: ModuleSpec, result: Any, before: Footprint, loaded: LoadedModule, logged: list[str]
) -> list[str]:
    reason = "; ".join(logged)
    kinds, registered = before.kinds(), before.registered()
    if kinds:
        raise _wrong_kind_error(spec, kinds)
    if result is not None and (isinstance(result, type) or not callable(result)):
        # Probably meant to be the instance: report why it is not one.
        _check_instances(spec, {"returned": result}, loaded)
    if spec.kind in PARTS:
        point = TYPE_TO_MOUNT_POINT[spec.kind]
        advice = f'; mount it with `await coordinator.mount("{point}", {spec.kind})`'
        raise ModuleValidationError(
            f"Module '{spec.module}' mounted no {spec.kind}{_instead(result, registered)}"
            + (f" (it logged: {reason})" if reason else advice)
        )
    if spec.kind == "tool" and (registered or loaded.ready is not None):
        # It may mount tools later.
        if loaded.declared is not None:
            return []
        return [
            f"it mounted no tool{_instead(result, registered)}; if it is a hook, list it under 'hooks'"
        ]
    if not reason:
        reason = f"its mount function mounted no {spec.kind}{_instead(result, registered)}"
        if callable(result):
            # Such as a module for servers whose config names none: nothing is wrong with it.
            reason += "; it may need settings"
    raise NothingMountedError(reason)


def _instead(result: Any, registered: list[str]) -> str:
    entries = registered[:3]
    if len(registered) > len(entries):
        entries.append(f"{len(registered) - len(entries)} more")
    done = f", registered {', '.join(entries)}" if entries else ""
    if result is None:
        return f"{done} and returned None"
    what = "a cleanup" if callable(result) else type(result).__name__
    return f"{done} and returned {what}"


def _wrong_kind_error(spec: ModuleSpec, kinds: list[str]) -> ModuleValidationError:
    kind = kinds[0]
    return ModuleValidationError(
        f"Module '{spec.module}' is listed under '{SECTIONS[spec.kind]}', but mounted a "
        f"module of kind {kind!r} and no {spec.kind}; list it under '{SECTIONS[kind]}'"
    )


def _required_spec(config: Any, kind: str) -> ModuleSpec:
    """The orchestrator or context of a plan, in its long or short form.

    The short form is the module's id, with its source in ``session.<kind>_source`` and its
    config in the top-level section ``<kind>.config``.

    Raises:
        ValueError: The entry names no module.
    """
    session = config["session"]
    value = session[kind]
    if isinstance(value, dict):
        if not value.get("module"):
            raise ValueError(f"session.{kind} of the mount plan has no 'module': {value!r}")
        return _read_entry(kind, cast("dict[str, Any]", value))
    section = config.get(kind)
    settings = section.get("config") if isinstance(section, dict) else None
    return ModuleSpec(kind, str(value), session.get(f"{kind}_source"), settings or {})


def _optional_specs(config: Any) -> list[ModuleSpec]:
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
                specs.append(_read_entry(kind, cast("dict[str, Any]", entry)))
    return specs


def _read_entry(kind: str, entry: dict[str, Any]) -> ModuleSpec:
    settings, named = entry.get("config") or {}, entry.get("instance_id")
    return ModuleSpec(kind, entry["module"], entry.get("source"), settings, named)


def _check_provider_ids(specs: list[ModuleSpec]) -> None:
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
            await mount_module(_required_spec(config, kind), coordinator)
        # A module is foreign code and may raise anything.
        except Exception as error:
            message = f"Cannot initialize without {title}: {error}"
            raise RequiredModuleError(message, kind) from error
    specs = _optional_specs(config)
    _check_provider_ids(specs)
    missing: list[str] = []
    for spec in specs:
        try:
            await mount_module(spec, coordinator)
        # As above; the session continues without this module.
        except Exception as error:
            if spec.kind == "provider":
                missing.append(f"{spec.key}: {error}")
            await _report(spec, error, coordinator)
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
            await await_result(prepare(coordinator, _entry(spec)))
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
        _check_declaration(spec, loaded.declared)
    with warnings_logged() as logged, belonging_to(spec.kind, spec.module):
        result = await _call_mount(spec, mount, loaded, coordinator)
        remarks = await place(spec, result, before, coordinator, loaded, logged)
        if spec.kind == "provider":
            _name_provider(spec, before, coordinator, logged)
    for remark in remarks:
        _remarks.warning("%s '%s': %s", spec.kind, spec.module, remark)
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
        root = find_root(loaded.package) if loaded.package is not None else None
        raise ModuleMountError(
            f"Module '{spec.module}' cannot be mounted: mount() raised "
            f"{describe_exception(error, root)}"
        ) from error


def _name_provider(
    spec: ModuleSpec, before: Footprint, coordinator: ModuleCoordinator, logged: list[str]
) -> None:
    """Rename a provider to its `instance_id`, and restore the one that had its default name."""
    changed = before.added("provider")
    if not changed:
        raise NothingMountedError("; ".join(logged) or "its mount function mounted nothing")
    if not spec.instance_id:
        return
    providers, earlier = coordinator.get("providers"), before.mounted("provider")
    default = spec.module.removeprefix("provider-")
    name = default if default in changed else next(iter(changed))
    if name in earlier:
        # Keep the position: the order of providers matters if priorities are equal.
        providers[name] = earlier[name]
    else:
        del providers[name]
    providers[spec.instance_id] = changed[name]


def _entry(spec: ModuleSpec) -> dict[str, Any]:
    """A copy of a provider's plan entry."""
    entry = {"module": spec.module, "source": spec.source, "config": dict(spec.config)}
    return {**entry, "instance_id": spec.instance_id} if spec.instance_id else entry


async def _report(spec: ModuleSpec, error: Exception, coordinator: ModuleCoordinator) -> None:
    logger.warning("%s '%s' was not mounted: %s", spec.kind.capitalize(), spec.key, error)
    data = {
        "module_type": spec.kind,
        "module_id": spec.module,
        "error": str(error),
        "error_type": type(_raised(error)).__name__,
        "reason_code": module_failure_reason(error),
        "missing_import": missing_import(error),
        "degraded": isinstance(error, NothingMountedError),
    }
    if spec.instance_id:
        data["instance_id"] = spec.instance_id
    await coordinator.hooks.emit(events.MODULE_LOAD_FAILED, data)
    failed = PROVIDER_FAILURE.of(coordinator) if spec.kind == "provider" else None
    if failed is not None:
        await await_result(failed(coordinator, _entry(spec), _raised(error)))


def _raised(error: Exception) -> Exception:
    """The exception raised by the module's mount function, if that was the failure."""
    cause = error.__cause__ if isinstance(error, ModuleMountError) else None
    return cause if isinstance(cause, Exception) else error


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
                events.MODULE_ON_SESSION_READY_FAILED, {"module_id": module_id, "error": str(error)}
            )
    loader.clear_on_session_ready_queue()
