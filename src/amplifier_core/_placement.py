"""Check what a mount function mounted against the section of the plan, and mount what it returned.

The section of the plan determines the kind of a module; the module's id does not.
"""

import logging
from typing import Any, Protocol

from amplifier_core._foreign import required_arguments, where_defined
from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.discovery import PARTS, SECTION_KINDS, TYPE_TO_MOUNT_POINT
from amplifier_core.interfaces import ContextManager, Orchestrator, Provider, Tool
from amplifier_core.load_errors import (
    ModuleValidationError,
    NothingMountedError,
    validation_failure,
)
from amplifier_core.loader import LoadedModule

logger = logging.getLogger(__name__)

_PROTOCOLS: dict[str, Any] = {
    "orchestrator": Orchestrator,
    "context": ContextManager,
    "provider": Provider,
    "tool": Tool,
}

SECTIONS = {part: f"session.{part}" for part in PARTS} | {
    kind: section for section, kind in SECTION_KINDS.items()
}
"""The section of a mount plan that lists the modules of a kind."""


class PlanEntry(Protocol):
    """The part of a plan entry that is needed here."""

    @property
    def kind(self) -> str: ...
    @property
    def module(self) -> str: ...


def check_declaration(entry: PlanEntry, declared: str | None) -> None:
    """
    Raises:
        ModuleValidationError: The module declares a different kind than its section requires.
    """
    if declared is None or declared == entry.kind or declared not in SECTIONS:
        return
    raise ModuleValidationError(
        f"Module '{entry.module}' is listed under '{SECTIONS[entry.kind]}', but declares "
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

    def kind(self, returned: Any) -> str | None:
        """The kind of a module, judged by what its mount function mounted, returned or registered."""
        kinds = self.kinds()
        if kinds:
            return kinds[0]
        # A tool also has every member of an orchestrator, hence the order.
        for kind in ("provider", "context", "tool", "orchestrator"):
            if _is_instance(kind, returned):
                return kind
        return "hook" if any("handler" in text for text in self.registered()) else None

    def registered(self) -> list[str]:
        """What was registered since the snapshot, as ``a handler of tool:pre``, ``the capability x``."""
        now = _registered(self._coordinator)
        return [text for text, count in now.items() if count > self._registered.get(text, 0)]

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


def _registered(coordinator: ModuleCoordinator) -> dict[str, int]:
    handlers = coordinator.hooks.list_handlers()
    found = {f"a handler of {event}": len(names) for event, names in handlers.items()}
    found.update({f"the capability {name}": 1 for name in coordinator.to_dict()["capabilities"]})
    found.update({f"a contribution to {n}": len(c) for n, c in coordinator.channels.items()})
    return found


async def place(
    entry: PlanEntry,
    result: Any,
    before: Footprint,
    coordinator: ModuleCoordinator,
    loaded: LoadedModule | None,
    logged: list[str],
) -> list[str]:
    """Handle what a mount function mounted and returned.

    A returned instance is mounted if it is not mounted yet; any other callable is a cleanup.

    Args:
        entry: The plan's entry of the module.
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
    added = before.added(entry.kind)
    remarks: list[str] = []
    if not any(instance is result for instance in added.values()):
        if not added and _is_instance(entry.kind, result):
            point = TYPE_TO_MOUNT_POINT[entry.kind]
            await coordinator.mount(point, result, name=_instance_name(entry, result))
            added = before.added(entry.kind)
        else:
            remarks += _register_cleanup(result, coordinator)
    if entry.kind == "tool":
        replaced = [repr(name) for name in added if name in before.mounted("tool")]
        if replaced:
            remarks.append(f"it replaces {', '.join(replaced)} of a module mounted before it")
    if loaded is None:
        return remarks
    if added:
        _check_instances(entry, added, loaded)
    elif entry.kind == "hook":
        _check_hook(entry, result, before, loaded, logged)
    else:
        remarks += _check_nothing(entry, result, before, loaded, logged)
    return remarks


def log_remarks(entry: PlanEntry, remarks: list[str]) -> None:
    """Log the warnings that `place` returned for a mounted module."""
    for remark in remarks:
        logger.warning("%s '%s': %s", entry.kind, entry.module, remark)


def _is_instance(kind: str, result: Any) -> bool:
    return (
        kind in _PROTOCOLS and not isinstance(result, type) and isinstance(result, _PROTOCOLS[kind])
    )


def _instance_name(entry: PlanEntry, instance: Any) -> str:
    name = getattr(instance, "name", None)
    return name if isinstance(name, str) else entry.module.removeprefix(f"{entry.kind}-")


def _register_cleanup(result: Any, coordinator: ModuleCoordinator) -> list[str]:
    if not callable(result) or isinstance(result, type):
        return []
    wanted = required_arguments(result)
    if wanted:
        return [
            f"mount() returned a function that is not a cleanup, because it requires {wanted} "
            f"({where_defined(result)}); it will not be called"
        ]
    coordinator.register_cleanup(result)
    return []


def _check_instances(entry: PlanEntry, added: dict[str, Any], loaded: LoadedModule) -> None:
    # Modules of the environment are validated only if they do not satisfy their protocol.
    if loaded.folder is None and all(_is_instance(entry.kind, one) for one in added.values()):
        return
    from amplifier_core.module_checks import check_instances, select_errors

    failed = select_errors(check_instances(entry.kind, list(added.items())))
    if failed:
        raise validation_failure(entry.module, failed)


def _check_hook(
    entry: PlanEntry, result: Any, before: Footprint, loaded: LoadedModule, logged: list[str]
) -> None:
    kinds = before.kinds()
    if before.registered() or loaded.ready is not None:
        return
    wrong = [kind for kind in kinds if kind in PARTS]
    if wrong and loaded.declared is None:
        raise _wrong_kind_error(entry, wrong)
    if not kinds and not callable(result):
        raise NothingMountedError("; ".join(logged) or "its mount function registered nothing")


def _check_nothing(
    entry: PlanEntry, result: Any, before: Footprint, loaded: LoadedModule, logged: list[str]
) -> list[str]:
    reason = "; ".join(logged)
    kinds, registered = before.kinds(), before.registered()
    if kinds:
        raise _wrong_kind_error(entry, kinds)
    if result is not None and (isinstance(result, type) or not callable(result)):
        # Probably meant to be the instance: report why it is not one.
        _check_instances(entry, {"returned": result}, loaded)
    if entry.kind in PARTS:
        raise ModuleValidationError(
            f"Module '{entry.module}' mounted no {entry.kind}{_instead(result, registered)}"
            + (
                f" (it logged: {reason})"
                if reason
                else f"; mount it with `{_how_to_mount(entry.kind)}`"
            )
        )
    if entry.kind == "tool" and (registered or loaded.ready is not None):
        # It may mount tools later.
        if loaded.declared is not None:
            return []
        return [
            f"it mounted no tool{_instead(result, registered)}; if it is a hook, list it under 'hooks'"
        ]
    if not reason:
        reason = f"its mount function mounted no {entry.kind}{_instead(result, registered)}"
        if callable(result):
            # Such as a module for servers whose config names none: nothing is wrong with it.
            reason += "; it may need settings"
    raise NothingMountedError(reason)


def _how_to_mount(kind: str) -> str:
    return f'await coordinator.mount("{TYPE_TO_MOUNT_POINT[kind]}", {kind})'


def _instead(result: Any, registered: list[str]) -> str:
    shown = registered[:3]
    if len(registered) > len(shown):
        shown.append(f"{len(registered) - len(shown)} more")
    done = f", registered {', '.join(shown)}" if shown else ""
    if result is None:
        return f"{done} and returned None"
    what = "a cleanup" if callable(result) else type(result).__name__
    return f"{done} and returned {what}"


def _wrong_kind_error(entry: PlanEntry, kinds: list[str]) -> ModuleValidationError:
    kind = kinds[0]
    return ModuleValidationError(
        f"Module '{entry.module}' is listed under '{SECTIONS[entry.kind]}', but mounted a "
        f"module of kind {kind!r} and no {entry.kind}; list it under '{SECTIONS[kind]}'"
    )
