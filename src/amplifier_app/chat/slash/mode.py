"""`/mode`, `/approve` and `/sandbox`: which tool calls need approval, who answers, and what commands may do."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from amplifier_app.base.errors import AppError, ModuleError, UsageError
from amplifier_app.base.paths import short_path
from amplifier_app.base.sanitize import one_line
from amplifier_app.chat.slash.layout import lines, marked_rows
from amplifier_app.chat.slash.registry import Chat, Reply, SlashCommand, command, parse_choice
from amplifier_app.runtime.approvals import (
    MEANINGS,
    NO_MODES,
    NO_MODES_HINT,
    Approvals,
    Policy,
    mode_control,
    policy_other_than_asking,
)
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
from amplifier_app.runtime.sandbox import own_policies
from amplifier_support.sandbox.policy import PolicyError, SandboxPolicy, parse_policy
from amplifier_support.sandbox.sandbox import SandboxUnavailable
from amplifier_support.session_capabilities import REMEMBERED_APPROVALS, SANDBOX

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
        known = module_modes(coordinator, is_trusted=is_trusted)
        left_out = [
            mode for mode in module_modes(coordinator, is_trusted=True) if mode not in known
        ]
    except ModuleError as error:
        renderer.notice(error.message, "warning", "chat")
        return ()
    if left_out:
        names = ", ".join(mode.name for mode in left_out)
        text = f"modes of a project that is not trusted are left out: {names}"
        renderer.notice(f"{text}; see 'amplifier trust'", "warning", "chat")
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


_ANSWERS = {
    "ask": "ask you each time",
    "allow": "allow without asking",
    "deny": "deny without asking",
    "policy": "use each request's own default",
}
_FORGET = "forget"


def answered(coordinator: Any) -> str:
    """Return how approval requests are answered, if not by asking, to be added to the mode."""
    policy = policy_other_than_asking(coordinator)
    return "" if policy is None else f"; approval requests: {_ANSWERS[policy]}"


def _complete_mode(chat: Chat, argument: str) -> Iterable[tuple[str, str]]:
    coordinator = chat.session.session.coordinator
    listed = listed_modes(chat.session)
    return (
        *(() if mode_control(coordinator) is None else MEANINGS.items()),
        *listed,
        *([(OFF, "no mode of a module")] if listed else []),
    )


@command(
    "/mode",
    "Show or set what needs approval, or a module's mode",
    usage="[NAME|off]",
    during_turn=True,
    complete=_complete_mode,
    aliases=("/modes",),
)
async def mode(chat: Chat, argument: str) -> Reply:
    coordinator = chat.session.session.coordinator
    control = mode_control(coordinator)
    if control is not None and argument in control.modes:
        await control.set(argument)
        text = f"mode {control.mode}: {MEANINGS.get(control.mode, '')}{answered(coordinator)}"
        sandbox = SANDBOX.of(coordinator)
        if control.mode == "auto" and (sandbox is None or not sandbox.enforced):
            text += "; commands run without a sandbox, with all your rights"
        return text
    modes = () if control is None else control.modes
    of_module = module_modes(coordinator, is_trusted=_is_trusted(chat.session))
    if not modes and not of_module:
        raise AppError(NO_MODES, hint=NO_MODES_HINT)
    if not argument:
        current = None if control is None else control.mode
        approval = marked_rows(((name, MEANINGS.get(name, "")) for name in modes), current)
        if not of_module:
            return approval
        others = marked_rows(of_module, active_module_mode(coordinator))
        return lines(approval, "", others) if modes else others
    if not of_module:
        parse_choice("/mode", argument, modes)
    return switch_mode(chat, argument)


@command(
    "/approve",
    "Show or set how approval requests are answered",
    usage="[ask|allow|deny|policy|forget]",
    during_turn=True,
    complete=lambda chat, argument: (
        *_ANSWERS.items(),
        (_FORGET, "ask again about what this session allowed"),
    ),
)
async def approve(chat: Chat, argument: str) -> Reply:
    coordinator = chat.session.session.coordinator
    approvals = coordinator.approval_system
    if not isinstance(approvals, Approvals):
        raise AppError("approval requests of this session are not answered here")
    if argument == _FORGET:
        approvals.forget()
        remembered = REMEMBERED_APPROVALS.of(coordinator)
        if isinstance(remembered, set):
            remembered.clear()
        return "Calls allowed for this session ask again."
    if not argument:
        return marked_rows(_ANSWERS.items(), approvals.policy)
    parse_choice("/approve", argument, (*_ANSWERS, _FORGET))
    approvals.policy = cast("Policy", argument)
    return f"approval requests: {_ANSWERS[argument]}"


_POLICIES = {
    "workspace": "commands change files in the working directory, without network",
    "read-only": "commands change nothing, without network",
    "off": "commands run with all your rights",
    "network none": "no network",
    "network all": "the whole network",
    "network HOST": "only these hosts, separated by spaces",
}


@command(
    "/sandbox",
    "Show or change what commands may do",
    usage="[workspace|read-only|off|network none|all|HOST…]",
    during_turn=True,
    complete=lambda chat, argument: list(_POLICIES.items())[:-1],
)
async def sandbox(chat: Chat, argument: str) -> Reply:
    coordinator = chat.session.session.coordinator
    current = SANDBOX.of(coordinator)
    if current is None:
        raise AppError("this session has no sandbox for commands")
    if argument:
        try:
            current.change(_parse_policy(argument, current.policy))
        except (PolicyError, SandboxUnavailable) as error:
            raise UsageError(f"/sandbox {one_line(argument, 60)}: {error}") from error
    lines = current.describe()
    own = [
        f"{name} has a policy of its own: {policy}"
        for name, policy in own_policies(coordinator.config or {})
    ]
    if argument:
        return "\n".join([f"From the next command on: {lines[0]}", *lines[1:], *own])
    hosts = current.hosts_file
    if hosts is not None and os.path.exists(hosts):
        own.append(f"hosts that are always allowed are in {short_path(hosts)}")
    change = f"Change it for this session: /sandbox {' | '.join(_POLICIES)}"
    return "\n".join([*lines, *own, change])


def _parse_policy(argument: str, policy: SandboxPolicy | None) -> SandboxPolicy | None:
    """
    Raises:
        PolicyError: It is not a policy.
    """
    name, *values = argument.split()
    if name != "network":
        return parse_policy(argument)
    network = values[0] if values in (["none"], ["all"]) else values
    base = {} if policy is None else policy.as_value()
    return parse_policy({**base, "network": network})
