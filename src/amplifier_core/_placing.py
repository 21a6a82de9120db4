"""What a mount function changed on a coordinator, and whether that is what its section asks for.

The section of the plan names the kind of a module; its id never does.
"""

import inspect
import logging
from typing import Any, Protocol

from amplifier_core import _load_validation as load_validation
from amplifier_core._foreign import where_defined
from amplifier_core.discovery import TYPE_TO_MOUNT_POINT
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

SECTIONS = {
    "orchestrator": "session.orchestrator",
    "context": "session.context",
    "provider": "providers",
    "tool": "tools",
    "hook": "hooks",
}
"""Where a mount plan lists the modules of a kind."""

_HOW_TO_MOUNT = {
    "orchestrator": 'await coordinator.mount("orchestrator", orchestrator)',
    "context": 'await coordinator.mount("context", context)',
    "provider": 'await coordinator.mount("providers", provider)',
    "tool": 'await coordinator.mount("tools", tool)',
}


class PlanEntry(Protocol):
    """What is needed of an entry of a plan."""

    @property
    def kind(self) -> str: ...
    @property
    def module(self) -> str: ...


def check_declaration(entry: PlanEntry, declared: str | None) -> None:
    """
    Raises:
        ModuleValidationError: The module declares another kind than its section asks for.
    """
    if declared is None or declared == entry.kind or declared not in SECTIONS:
        return
    raise ModuleValidationError(
        f"Module '{entry.module}' is listed under '{SECTIONS[entry.kind]}', but it declares "
        f"__amplifier_module_type__ = {declared!r}; list it under '{SECTIONS[declared]}'",
        reason_code="invalid_module_metadata",
    )


class Footprint:
    """What is on a coordinator before a module is mounted, to be compared afterwards."""

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator
        self._mounted = {kind: _mounted(kind, coordinator) for kind in _PROTOCOLS}
        self._registered = _registered(coordinator)

    def mounted(self, kind: str) -> dict[str, Any]:
        """What was there before where modules of a kind are mounted, by name."""
        return self._mounted[kind]

    def added(self, kind: str) -> dict[str, Any]:
        """What is new where modules of a kind are mounted, by name."""
        before = self._mounted.get(kind, {})
        now = _mounted(kind, self._coordinator) if kind in _PROTOCOLS else {}
        return {name: module for name, module in now.items() if before.get(name) is not module}

    def kinds(self) -> list[str]:
        """The kinds of which something was mounted."""
        return [kind for kind in _PROTOCOLS if self.added(kind)]

    def kind(self, returned: Any) -> str | None:
        """What a module is by what its mount function mounted, returned or registered."""
        kinds = self.kinds()
        if kinds:
            return kinds[0]
        # A tool has all that an orchestrator must have, hence the order.
        for kind in ("provider", "context", "tool", "orchestrator"):
            if _is_instance(kind, returned):
                return kind
        return "hook" if any("handler" in text for text in self.registered()) else None

    def registered(self) -> list[str]:
        """What was registered, for a sentence: ``a handler of tool:pre``, ``the capability x``."""
        now = _registered(self._coordinator)
        return [text for text, count in now.items() if count > self._registered.get(text, 0)]

    def undo(self) -> None:
        """Mount again what was mounted before, and nothing else."""
        for kind, before in self._mounted.items():
            point = TYPE_TO_MOUNT_POINT[kind]
            mounted = self._coordinator.get(point)
            if isinstance(mounted, dict):
                mounted.clear()  # pyright: ignore[reportUnknownMemberType]
                mounted.update(before)  # pyright: ignore[reportUnknownMemberType]
            elif mounted is not before[point]:
                self._coordinator.mount(point, before[point])


def _mounted(kind: str, coordinator: Any) -> dict[str, Any]:
    point = TYPE_TO_MOUNT_POINT[kind]
    mounted = coordinator.get(point)
    return dict(mounted) if isinstance(mounted, dict) else {point: mounted}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _registered(coordinator: Any) -> dict[str, int]:
    handlers = coordinator.hooks.list_handlers()
    found = {f"a handler of {event}": len(names) for event, names in handlers.items()}
    found.update({f"the capability {name}": 1 for name in coordinator.to_dict()["capabilities"]})
    found.update({f"a contribution to {n}": len(c) for n, c in coordinator.channels.items()})
    return found


async def place(
    entry: PlanEntry,
    result: Any,
    before: Footprint,
    coordinator: Any,
    loaded: LoadedModule | None,
    said: list[str],
) -> list[str]:
    """Deal with what a mount function mounted and returned.

    An instance that it returned is mounted if it was not, another callable is a cleanup.

    Args:
        entry: The plan's entry of the module.
        result: What its mount function returned.
        before: What was there before.
        coordinator: Where it was mounted.
        loaded: What the loader knows of the module; None if another loader gave the function.
        said: The warnings it logged while it was mounted.

    Returns:
        What is not as it should be, but no reason to do without the module.

    Raises:
        NothingMountedError: It declined: it mounted nothing.
        ModuleValidationError: What it mounted is not what its section asks for.
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
    if loaded is None:
        return remarks
    if added:
        _check_instances(entry, added, loaded)
    elif entry.kind == "hook":
        _check_hook(entry, result, before, loaded, said)
    else:
        remarks += _check_nothing(entry, result, before, loaded, said)
    return remarks


def log_remarks(entry: PlanEntry, remarks: list[str]) -> None:
    """Log what `place` remarked on a module that is mounted all the same."""
    for remark in remarks:
        logger.warning("%s '%s': %s", entry.kind, entry.module, remark)


def _is_instance(kind: str, result: Any) -> bool:
    return (
        kind in _PROTOCOLS and not isinstance(result, type) and isinstance(result, _PROTOCOLS[kind])
    )


def _instance_name(entry: PlanEntry, instance: Any) -> str:
    name = getattr(instance, "name", None)
    return name if isinstance(name, str) else entry.module.removeprefix(f"{entry.kind}-")


def _register_cleanup(result: Any, coordinator: Any) -> list[str]:
    if not callable(result) or isinstance(result, type):
        return []
    wanted = required_arguments(result)
    if wanted:
        return [
            f"the function that mount() returned is no cleanup, because it requires {wanted} "
            f"({where_defined(result)}); it will not be called"
        ]
    coordinator.register_cleanup(result)
    return []


def required_arguments(function: Any) -> str:
    """Names of the arguments that `function` cannot be called without, for a sentence."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        # Not callable, or compiled code that does not tell.
        return ""
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [
        repr(parameter.name)
        for parameter in parameters
        if parameter.default is inspect.Parameter.empty and parameter.kind not in open_ended
    ]
    return ", ".join(required)


def _check_instances(entry: PlanEntry, added: dict[str, Any], loaded: LoadedModule) -> None:
    # What the environment offers is looked at closely only where something is wrong with it.
    if loaded.folder is None and all(_is_instance(entry.kind, one) for one in added.values()):
        return
    validator = load_validation.installed()
    failed = validator.instances(entry.kind, list(added.items())) if validator is not None else ()
    if failed:
        raise validation_failure(entry.module, failed)


def _check_hook(
    entry: PlanEntry, result: Any, before: Footprint, loaded: LoadedModule, said: list[str]
) -> None:
    kinds = before.kinds()
    if before.registered() or loaded.ready is not None:
        return
    wrong = [kind for kind in kinds if kind in ("orchestrator", "context")]
    if wrong and loaded.declared is None:
        raise _listed_elsewhere(entry, wrong)
    if not kinds and not callable(result):
        raise NothingMountedError("; ".join(said) or "its mount function registered nothing")


def _check_nothing(
    entry: PlanEntry, result: Any, before: Footprint, loaded: LoadedModule, said: list[str]
) -> list[str]:
    reason = "; ".join(said)
    kinds, registered = before.kinds(), before.registered()
    if kinds:
        raise _listed_elsewhere(entry, kinds)
    if result is not None and (isinstance(result, type) or not callable(result)):
        # Meant to be the instance, and not one.
        _check_instances(entry, {"returned": result}, loaded)
    if entry.kind in ("orchestrator", "context"):
        raise ModuleValidationError(
            f"Module '{entry.module}' mounted no {entry.kind}{_instead(result, registered)}"
            + (
                f" (it logged: {reason})"
                if reason
                else f"; mount it with `{_HOW_TO_MOUNT[entry.kind]}`"
            )
        )
    if entry.kind == "tool" and (registered or loaded.ready is not None):
        # It may mount tools later on.
        if loaded.declared is not None:
            return []
        return [f"it mounted no tool{_instead(result, registered)}; list a hook under 'hooks'"]
    if not reason:
        reason = f"its mount function mounted no {entry.kind}{_instead(result, registered)}"
        if callable(result):
            reason += f"; mount it with `{_HOW_TO_MOUNT[entry.kind]}`"
    raise NothingMountedError(reason)


def _instead(result: Any, registered: list[str]) -> str:
    shown = registered[:3]
    if len(registered) > len(shown):
        shown.append(f"{len(registered) - len(shown)} more")
    done = f", registered {', '.join(shown)}" if shown else ""
    if result is None:
        return f"{done} and returned None"
    what = "a cleanup" if callable(result) else type(result).__name__
    return f"{done} and returned {what}"


def _listed_elsewhere(entry: PlanEntry, kinds: list[str]) -> ModuleValidationError:
    kind = kinds[0]
    return ModuleValidationError(
        f"Module '{entry.module}' is listed under '{SECTIONS[entry.kind]}', but it mounted a "
        f"module of kind {kind!r} and no {entry.kind}; list it under '{SECTIONS[kind]}'"
    )
