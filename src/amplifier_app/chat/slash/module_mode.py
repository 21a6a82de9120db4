"""The modes that a module defines, in `/mode` and as slash commands of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from amplifier_app.base.errors import ModuleError, UsageError
from amplifier_app.base.sanitize import one_line
from amplifier_app.chat.slash.registry import Chat, Reply, SlashCommand
from amplifier_app.runtime.module_modes import (
    OFF,
    ModuleMode,
    active_module_mode,
    module_mode_shortcuts,
    module_mode_to_save,
    module_modes,
    switch_module_mode,
)
from amplifier_app.runtime.observers.observer import Renderer

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession

_listed: WeakKeyDictionary[Any, Sequence[ModuleMode]] = WeakKeyDictionary()
"""Coordinator → its modes, once asked by completion; every key asks again."""


def listed_modes(session: OpenSession) -> Sequence[ModuleMode]:
    """Return the modes for completion."""
    coordinator = session.session.coordinator
    if coordinator not in _listed:
        try:
            _listed[coordinator] = module_modes(coordinator, is_trusted=_is_trusted(session))
        except ModuleError:  # `/mode` shows the reason.
            return ()
    return _listed[coordinator]


def mode_commands(session: OpenSession, renderer: Renderer) -> Iterable[SlashCommand]:
    """Return a slash command for each mode that has one; report the modes that are left out."""
    coordinator, is_trusted = session.session.coordinator, _is_trusted(session)
    try:
        shortcuts = module_mode_shortcuts(coordinator, is_trusted=is_trusted)
        known = set(module_modes(coordinator, is_trusted=is_trusted))
        left_out = [one for one in module_modes(coordinator, is_trusted=True) if one not in known]
    except ModuleError as error:
        renderer.notice(error.message, "warning", "chat")
        return ()
    if left_out:
        names = ", ".join(one.name for one in left_out)
        text = (
            f"modes of a project that is not trusted are left out: {names}; see 'amplifier trust'"
        )
        renderer.notice(text, "warning", "chat")
    return [_command(word, mode) for word, mode in sorted(shortcuts.items())]


def _is_trusted(session: OpenSession) -> bool:
    return session.plan.project is not None


def _command(word: str, mode: ModuleMode) -> SlashCommand:
    async def run(chat: Chat, argument: str) -> Reply:
        if not argument or argument in ("on", OFF):
            return switch_mode(chat, f"{mode.name} {argument}")
        reply = switch_mode(chat, f"{mode.name} on")
        chat.send(argument)
        return reply

    return SlashCommand(f"/{word}", mode.summary, run, "[PROMPT]", module="modes")


def switch_mode(chat: Chat, argument: str) -> str:
    """Do what follows `/mode`: NAME, which again ends it, NAME on, NAME off or off.

    Raises:
        UsageError: Something else follows.
        ConfigError: There is no such mode.
    """
    coordinator = chat.session.session.coordinator
    before = active_module_mode(coordinator)
    name, _, how = argument.strip().partition(" ")
    if how.strip() not in ("", "on", OFF):
        raise UsageError(
            f"/mode expects NAME, 'NAME on', 'NAME off' or 'off', got {one_line(argument, 40)!r}"
        )
    ends = name == OFF or how == OFF or (not how and name == before)
    if ends and name not in (OFF, before):
        return f"the mode {name} is not active"
    is_trusted = _is_trusted(chat.session)
    mode = switch_module_mode(coordinator, None if ends else name, is_trusted=is_trusted)
    saved = chat.session.saved
    if saved is not None and chat.session.is_saved:
        # Turns save it, too. The session may be left before the next one.
        saved.update(**module_mode_to_save(coordinator, saved.metadata))
    if mode is not None:
        return f"mode {mode.name}: {mode.summary}"
    return "no mode is active" if before is None else f"mode {before} is off"
