"""`/model` and `/provider`: continue the session with another model."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from amplifier_app.base.errors import UsageError
from amplifier_app.base.sanitize import one_line
from amplifier_app.chat.reopening import continued
from amplifier_app.chat.slash.layout import lines, rows
from amplifier_app.chat.slash.registry import Chat, Reopen, Reply, command
from amplifier_app.plan.problems import suggest
from amplifier_app.runtime import describe
from amplifier_app.runtime.capabilities import first_provider
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


@command("/model", "Show the models, or switch to one", usage="[NAME]", complete=_complete_model)
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
            reason = one_line(str(error), 400) or type(error).__name__
            return lines(f"cannot list the models of {name}: {reason}", hint)
        listed = [(f"{'*' if one == current else ' '} {one}", about) for one, about in found]
        return lines(rows(listed), "", hint) if listed else lines(unknown, hint)
    if any(character.isspace() for character in argument):
        raise UsageError(f"model names cannot contain spaces, got {one_line(argument, 60)!r}")
    raise _reopened(chat, provider=name, model=argument)


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
        mark = {one.name: "*" if current in (one.name, one.instance_id) else " " for one in known}
        return rows(
            (f"{mark[one.name]} {one.name}", f"skipped: {one.left_out}" if one.left_out else "")
            for one in known
        )
    for one in known:
        if argument in (one.instance_id, one.module, one.name):
            raise _reopened(chat, provider=one.name, model=None)
    hint = suggest(argument, [one.name for one in known])
    raise UsageError(f"the plan has no provider {one_line(argument, 60)!r}", hint=hint)


def _of_plan(chat: Chat) -> list[Provider]:
    """The providers of the plan, with those skipped on this machine."""
    return [one for one in all_providers(chat.session.plan) if one.in_plan or one.left_out]


def _reopened(chat: Chat, **changes: Any) -> Reopen:
    """Return the signal to continue this session with other options."""
    same = continued(chat.session)
    if same is None:
        raise UsageError(
            "cannot switch the model of a session that is not saved",
            hint="Start a chat without --no-save.",
        )
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
        found = list_models()
        if inspect.isawaitable(found):
            found = await found
    _listed[provider] = [(one_line(str(one.id), 80), _limits(one)) for one in found]
    return _listed[provider]


async def _ask_for_completion(provider: Any) -> None:
    try:
        await _models(provider)
    # A provider may raise anything. Nothing is completed then; `/model` shows the reason.
    except Exception:
        return


def _limits(model: Any) -> str:
    window = getattr(model, "context_window", None)
    return f"{describe.tokens(window)} tokens" if isinstance(window, int) and window else ""
