"""`/model` and `/provider`: continue the session with another model."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from amplifier_app.base.errors import UsageError
from amplifier_app.base.sanitize import one_line
from amplifier_app.chat.picker import Picker
from amplifier_app.chat.slash.layout import lines, mark, marked_rows
from amplifier_app.chat.slash.registry import (
    Chat,
    Reopen,
    Reply,
    ask_module,
    command,
    describe_error,
)
from amplifier_app.plan.tree.problems import suggest
from amplifier_app.render.ansi import cells
from amplifier_app.runtime import describe
from amplifier_app.runtime.capabilities import first_provider
from amplifier_app.runtime.continuation import reopening_options
from amplifier_app.runtime.provider_access import Provider, all_providers

_LIST_SECONDS = 10.0

_listed: WeakKeyDictionary[Any, list[tuple[str, str]]] = WeakKeyDictionary()
"""Provider → its models with their limits, once asked."""

_asking: set[asyncio.Task[Any]] = set()


def _complete_model(chat: Chat, argument: str) -> Iterable[tuple[str, str]]:
    _, provider = first_provider(chat.session.session)
    if provider in _listed:
        return _listed[provider]
    # Asked once, in the background: the next key shows the list.
    _listed[provider] = []
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
            found = await _models(provider)
        # A provider may raise anything; the user can still name a model.
        except Exception as error:
            return lines(f"cannot list the models of {name}: {describe_error(error)}", hint)
        if not found:
            return lines(unknown, hint)
        if current and current not in dict(found):
            found = [(current, "not listed by the provider"), *found]
        if chat.is_plain:
            return lines(marked_rows(found, current), "", hint)
        chosen = await chat.pick(_ModelPicker(found, current))
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
        self.select(next((one for one in models if one[0] == current), models[0]))

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
    complete=lambda chat, argument: (one.name for one in _of_plan(chat)),
)
async def provider(chat: Chat, argument: str) -> Reply:
    current, _ = first_provider(chat.session.session)
    known = _of_plan(chat)
    if not argument:
        used = next((one.name for one in known if current in (one.name, one.instance_id)), None)
        return marked_rows(
            ((one.name, f"skipped: {one.left_out}" if one.left_out else "") for one in known), used
        )
    for one in known:
        if argument in (one.instance_id, one.module, one.name):
            raise _reopen_with(chat, provider=one.name, model=None)
    hint = suggest(argument, [one.name for one in known])
    raise UsageError(f"the plan has no provider {one_line(argument, 60)!r}", hint=hint)


def _of_plan(chat: Chat) -> list[Provider]:
    """The providers of the plan, with those skipped on this machine."""
    return [one for one in all_providers(chat.session.plan) if one.in_plan or one.left_out]


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
        found = await ask_module(list_models)
    _listed[provider] = [(one_line(str(one.id), 80), _limits(one)) for one in found]
    return _listed[provider]


async def _ask_for_completion(provider: Any) -> None:
    # A provider may raise anything. Nothing is completed then; `/model` shows the reason.
    with contextlib.suppress(Exception):
        await _models(provider)


def _limits(model: Any) -> str:
    window = getattr(model, "context_window", None)
    return f"{describe.tokens(window)} tokens" if isinstance(window, int) and window else ""
