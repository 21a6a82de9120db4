"""The modes that a module defines, of which one at a time can be active: guidance for the model, and rules for tools.

The published hooks-mode keeps them in `session_state` of the coordinator: `mode_discovery` lists and finds
them, `active_mode` is the name of the active one, and `mode_hooks` has warned about tools in it. Its tool
changes `active_mode`, too. The approval mode is a different one; see `amplifier_app.runtime.approvals`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from amplifier_app.base.errors import ConfigError, ModuleError
from amplifier_app.base.sanitize import one_line
from amplifier_app.trust import METADATA_KEY
from amplifier_core._foreign import describe_exception
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.session_capabilities import MODE

T = TypeVar("T")

OFF = "off"
"""The word that ends a mode, in place of a name."""

_ACTIVE = "active_mode"
_SAVED = "module_mode"
_MAX_SUMMARY = 200


class ModuleMode(NamedTuple):
    """A mode.

    Attributes:
        name: Its name.
        summary: What it is for, and where it comes from.
    """

    name: str
    summary: str


def active_module_mode(coordinator: Any) -> str | None:
    """The name of the active mode; None if none is."""
    name = coordinator.session_state.get(_ACTIVE)
    return name if isinstance(name, str) and name else None


def module_modes(coordinator: Any, *, is_trusted: bool) -> list[ModuleMode]:
    """Return the modes, sorted by name; none if no module defines any.

    Args:
        coordinator: The session's coordinator.
        is_trusted: Whether the project is trusted; otherwise its modes are left out.

    Raises:
        ModuleError: The module cannot list them.
    """
    discovery = coordinator.session_state.get("mode_discovery")
    if discovery is None:
        return []
    listed = _called(
        "list its modes", lambda: [_mode(*fields) for fields in discovery.list_modes()]
    )
    return [mode for mode, source in listed if is_trusted or source != "project"]


def module_mode_shortcuts(coordinator: Any, *, is_trusted: bool) -> Mapping[str, ModuleMode]:
    """Return the modes that a slash command switches to, by its name without the slash; see `module_modes`.

    Raises:
        ModuleError: The module cannot list them.
    """
    discovery = coordinator.session_state.get("mode_discovery")
    if discovery is None:
        return {}
    modes = {mode.name: mode for mode in module_modes(coordinator, is_trusted=is_trusted)}
    shortcuts = _called("list its modes", lambda: dict(discovery.get_shortcuts()))
    return {str(word): modes[name] for word, name in shortcuts.items() if name in modes}


def switch_module_mode(
    coordinator: Any, name: str | None, *, is_trusted: bool
) -> ModuleMode | None:
    """Make a mode the active one, or none, and return it; see `module_modes`.

    Raises:
        ConfigError: There is no such mode.
        ModuleError: The module cannot list its modes.
    """
    modes = {mode.name: mode for mode in module_modes(coordinator, is_trusted=is_trusted)}
    if name is not None and name not in modes:
        known = [*(() if (control := MODE.of(coordinator)) is None else control.modes), *modes]
        raise ConfigError(
            f"there is no mode '{one_line(name, 60)}'",
            hint=f"available: {', '.join(known)}" if known else None,
            is_usage=True,
        )
    coordinator.session_state[_ACTIVE] = name
    forget_warnings = getattr(coordinator.session_state.get("mode_hooks"), "reset_warnings", None)
    if callable(forget_warnings):
        _called("switch its mode", forget_warnings)
    return None if name is None else modes[name]


def module_mode_to_save(coordinator: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the metadata of a session is to say about the active mode."""
    name = active_module_mode(coordinator)
    return {} if name is None and _SAVED not in metadata else {_SAVED: name}


def restore_module_mode(coordinator: Any, metadata: Mapping[str, Any]) -> str | None:
    """Make the mode active that was active when the session was left.

    Returns:
        Why it cannot be; None if it is, or if there was none.
    """
    name = metadata.get(_SAVED)
    if not isinstance(name, str) or not name:
        return None
    try:
        switch_module_mode(coordinator, name, is_trusted=METADATA_KEY in metadata)
    except (ConfigError, ModuleError) as error:
        return f"the session continues without its mode '{one_line(name, 60)}': {error.message}"
    return None


def _mode(name: Any, summary: Any = "", source: Any = "", *_: Any) -> tuple[ModuleMode, Any]:
    # Older versions list no source.
    texts = (one_line(str(summary or ""), _MAX_SUMMARY), f"({source})" if source else "")
    return ModuleMode(str(name), " ".join(filter(None, texts))), source


def _called(what: str, function: Callable[[], T]) -> T:
    try:
        return function()
    # A module may raise anything.
    except Exception as error:
        reason = describe_exception(error, None)
        raise ModuleError(f"the module that defines modes cannot {what}: {reason}") from error
