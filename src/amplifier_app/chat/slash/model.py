"""Commands on the model, and on permissions: which tool calls need approval, who answers, what commands may do."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from amplifier_app.base.errors import AppError, ModuleError, UsageError
from amplifier_app.base.paths import short_path
from amplifier_app.base.sanitize import one_line
from amplifier_app.chat.picker import Picker
from amplifier_app.chat.slash.layout import lines, mark, marked_rows
from amplifier_app.chat.slash.registry import (
    Chat,
    Reopen,
    Reply,
    SlashCommand,
    ask_module,
    command,
    describe_error,
    parse_choice,
)
from amplifier_app.plan.tree.problems import suggest
from amplifier_app.render.ansi import cells
from amplifier_app.runtime import describe
from amplifier_app.runtime.approvals import (
    ADD_MODULE,
    MEANINGS,
    NO_MODES,
    Approvals,
    Policy,
    policy_other_than_asking,
)
from amplifier_app.runtime.capabilities import first_provider
from amplifier_app.runtime.continuation import reopening_options
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
from amplifier_app.runtime.provider_access import Provider, all_providers
from amplifier_app.runtime.sandbox import own_policies
from amplifier_support.sandbox.policy import PolicyError, SandboxPolicy, parse_policy
from amplifier_support.sandbox.sandbox import SandboxUnavailable
from amplifier_support.session_capabilities import MODE, REMEMBERED_APPROVALS, SANDBOX

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession

_LIST_SECONDS = 10.0

_models_listed: WeakKeyDictionary[Any, list[tuple[str, str]]] = WeakKeyDictionary()
"""Provider → its models with their limits, once asked."""

_asking: set[asyncio.Task[Any]] = set()


def _complete_model(chat: Chat, argument: str) -> Iterable[tuple[str, str]]:
    _, provider = first_provider(chat.session.session)
    if provider in _models_listed:
        return _models_listed[provider]
    # Asked once, in the background: the next key shows the list.
    _models_listed[provider] = []
    task = asyncio.get_running_loop().create_task(_ask_for_completion(provider))
    _asking.add(task)
    task.add_done_callback(_asking.discard)
    return ()


@command(
    "/model",
    "Choose a model, or switch to one by its name",
    usage="[NAME]",
    complete=_complete_model,
)
async def model(chat: Chat, argument: str) -> Reply:
    name, provider = first_provider(chat.session.session)
    current = chat.session.facts.model
    if not argument:
        unknown = f"{name} does not list its models; the current one is {current or 'its default'}"
        hint = "Switch with: /model NAME, or /provider NAME"
        try:
            models = await _models(provider)
        # A provider may raise anything; the user can still name a model.
        except Exception as error:
            return lines(f"cannot list the models of {name}: {describe_error(error)}", hint)
        if not models:
            return lines(unknown, hint)
        if current and current not in dict(models):
            models = [(current, "not listed by the provider"), *models]
        if chat.is_plain:
            return lines(marked_rows(models, current), "", hint)
        chosen = await chat.pick(_ModelPicker(models, current))
        if chosen is None or chosen == current:
            return None
        argument = chosen
    if any(character.isspace() for character in argument):
        raise UsageError(f"model names cannot contain spaces, got {one_line(argument, 60)!r}")
    raise _reopen_with(chat, provider=name, model=argument)


class _ModelPicker(Picker[tuple[str, str], str]):
    """The models of a provider with their limits, beginning at the current one."""

    keys = "Enter switches · Esc keeps the model"
    nothing = "no model"

    def __init__(self, models: Sequence[tuple[str, str]], current: str | None) -> None:
        super().__init__(models)
        self._model = current
        self._width = max(cells(name) for name, _ in models)
        self.select(next((model for model in models if model[0] == current), models[0]))

    def row(self, entry: tuple[str, str]) -> str:
        name, about = entry
        space = " " * (self._width - cells(name))
        return f"{mark(name, self._model)} {name}{space}  {about}".rstrip()

    def search_text(self, entry: tuple[str, str]) -> str:
        return entry[0].casefold()

    def accept(self) -> str | None:
        return self.current[0] if self.current is not None else None


@command(
    "/provider",
    "Show the providers, or switch to one",
    usage="[NAME]",
    complete=lambda chat, argument: (entry.name for entry in _of_plan(chat)),
)
async def provider(chat: Chat, argument: str) -> Reply:
    current, _ = first_provider(chat.session.session)
    known = _of_plan(chat)
    if not argument:
        used = next((each.name for each in known if current in (each.name, each.instance_id)), None)
        rows = [(each.name, f"skipped: {each.left_out}" if each.left_out else "") for each in known]
        return marked_rows(rows, used)
    for entry in known:
        if argument in (entry.instance_id, entry.module, entry.name):
            raise _reopen_with(chat, provider=entry.name, model=None)
    hint = suggest(argument, [entry.name for entry in known])
    raise UsageError(f"the plan has no provider {one_line(argument, 60)!r}", hint=hint)


def _of_plan(chat: Chat) -> list[Provider]:
    """The providers of the plan, with those skipped on this machine."""
    return [each for each in all_providers(chat.session.plan) if each.in_plan or each.left_out]


def _reopen_with(chat: Chat, **changes: Any) -> Reopen:
    """Return the signal to continue this session with other options."""
    same = reopening_options(chat.session)
    if same is None:
        raise UsageError(
            "cannot switch the model of a session that is not saved",
            hint="Start a chat without --no-save.",
        )
    saved, mode = chat.session.saved, same["mode"]
    if saved is not None and chat.session.is_saved and mode is not None:
        # Turns save it. One that was set since the last turn is not a change to report.
        saved.update(mode=mode)
    if not chat.session.is_saved and chat.is_unanswered:
        # Nothing else keeps the prompt, which is all of the conversation.
        changes["prompt"] = chat.last_prompt
    return Reopen(greets=False, **same, **changes)


async def _models(provider: Any) -> Sequence[tuple[str, str]]:
    """Return the provider's models with their limits; empty if it does not list them.

    Raises:
        Exception: The provider raised it, or did not answer in time.
    """
    list_models = getattr(provider, "list_models", None)
    if list_models is None:
        return ()
    async with asyncio.timeout(_LIST_SECONDS):
        models = await ask_module(list_models)
    _models_listed[provider] = [(one_line(str(model.id), 80), _limits(model)) for model in models]
    return _models_listed[provider]


async def _ask_for_completion(provider: Any) -> None:
    # A provider may raise anything. Nothing is completed then; `/model` shows the reason.
    with contextlib.suppress(Exception):
        await _models(provider)


def _limits(model: Any) -> str:
    window = getattr(model, "context_window", None)
    return f"{describe.tokens(window)} tokens" if isinstance(window, int) and window else ""


# -- permissions: /mode, /approve and /sandbox


def _listed_modes(session: OpenSession) -> Sequence[ModuleMode]:
    """Return the modes for completion."""
    try:
        return module_modes(session.session.coordinator, is_trusted=_is_trusted(session))
    except ModuleError:  # `/mode` shows the reason.
        return ()


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
            return _switch_mode(chat, f"{mode.name} {argument}")
        reply = _switch_mode(chat, f"{mode.name} on")
        chat.send(argument)
        return reply

    return SlashCommand(f"/{word}", mode.summary, run, "[PROMPT]", module="modes")


def _switch_mode(chat: Chat, argument: str) -> str:
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
    listed = _listed_modes(chat.session)
    return (
        *(() if MODE.of(coordinator) is None else MEANINGS.items()),
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
    control = MODE.of(coordinator)
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
        raise AppError(NO_MODES, hint=ADD_MODULE)
    if not argument:
        current = None if control is None else control.mode
        approval = marked_rows(((name, MEANINGS.get(name, "")) for name in modes), current)
        if not of_module:
            return approval
        others = marked_rows(of_module, active_module_mode(coordinator))
        return lines(approval, "", others) if modes else others
    if not of_module:
        parse_choice("/mode", argument, modes)
    return _switch_mode(chat, argument)


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
