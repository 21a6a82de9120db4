"""Mount recorders around providers, or players in their place."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from amplifier_extras.provider_replay.config import MODULE_ID, ReplayConfig
from amplifier_extras.provider_replay.player import Player, StreamingPlayer, model_names
from amplifier_extras.provider_replay.recorder import Recorder, recorder_for
from amplifier_extras.provider_replay.recording_reader import Tape
from amplifier_extras.provider_replay.recording_writer import Recording, current_call, is_of_a_call
from amplifier_extras.provider_replay.requests import Plain
from amplifier_modules._shared.module.announced_events import announced_events
from amplifier_modules._shared.privacy.session_secrets import session_secrets
from amplifier_support.redaction import Redactor
from amplifier_support.session_capabilities import WORKING_DIR, Capability

TAKE_OVER = Capability[Callable[[], Awaitable[None]]]("replay.take_over")
"""Capability: mounts this module's parts in place of providers mounted since."""

_EVENTS = (
    "llm:request",
    "llm:response",
    "provider:retry",
    "provider:throttle",
    "provider:tool_sequence_repaired",
)
"""Prefixes of the events that providers emit during a call."""
_BEFORE_OTHERS = -1000

logger = logging.getLogger(__name__)

Cleanup = Callable[[], Awaitable[None]]


async def mount(coordinator: Any, settings: ReplayConfig) -> Cleanup | None:
    """Record the providers mounted so far, or mount those of a recording in their place.

    Returns:
        The cleanup; None, with a warning in the log, when there is nothing to record or replay.

    Raises:
        ValueError: The config is not valid, or the recording cannot be written or read.
    """
    if settings.replay:
        return await _replay(coordinator, settings, settings.replay)
    if settings.record:
        return await _record(coordinator, settings.record)
    logger.warning("%s does nothing: set record or replay in its config", MODULE_ID)
    return None


async def on_session_ready(coordinator: Any) -> None:
    """Do the same with providers that were mounted later."""
    again = TAKE_OVER.of(coordinator)
    if again is not None:
        await again()


async def _record(coordinator: Any, file: str) -> Cleanup | None:
    providers: dict[str, Any] = coordinator.get("providers")
    if not providers:
        logger.warning("%s records nothing: no provider is mounted before it", MODULE_ID)
        return None
    folder = _folder(coordinator)
    redactor = Redactor(session_secrets(coordinator))
    recording = Recording.shared(str(Path(folder) / file), folder, redactor)

    async def put_in_front() -> None:
        for name, provider in list(providers.items()):
            if not isinstance(provider, Recorder):
                recorder = recorder_for(
                    provider, name, recording, configured_model=_configured_model(coordinator, name)
                )
                await coordinator.mount("providers", recorder, name=name)

    await put_in_front()
    forget = await _listen(coordinator)
    TAKE_OVER.register(coordinator, put_in_front)

    async def cleanup() -> None:
        for unregister in forget:
            unregister()
        recording.release()

    return cleanup


async def _listen(coordinator: Any) -> list[Callable[[], None]]:
    """Record events that providers emit during calls; returns a function to stop."""

    def note(event: str, data: dict[str, Any]) -> None:
        call = current_call()
        if call is not None:
            call.event(event, dict(data))

    announced = filter(is_of_a_call, await announced_events(coordinator))
    return [
        coordinator.hooks.register(event, note, _BEFORE_OTHERS, name=MODULE_ID)
        for event in dict.fromkeys([*_EVENTS, *announced])
    ]


async def _replay(coordinator: Any, config: ReplayConfig, file: str) -> Cleanup | None:
    folder = _folder(coordinator)
    tape = Tape.shared(
        str(Path(folder) / file), folder, config.ignore, structure=config.match == "structure"
    )
    players = _players(coordinator, config, tape)
    if not players:
        tape.release()
        if config.provider is None:
            raise ValueError(f"{MODULE_ID}: the recording {tape.path} has no provider")
        logger.warning("%s: %s is not in the recording %s", MODULE_ID, config.provider, tape.path)
        return None
    mounted: dict[str, Any] = coordinator.get("providers")

    async def take_their_place() -> None:
        for name in [name for name in mounted if name not in players]:
            logger.warning("%s: %s is not in the recording and is removed", MODULE_ID, name)
            await coordinator.unmount("providers", name)
        for name, player in players.items():
            if mounted.get(name) is not player:
                await coordinator.mount("providers", player, name=name)

    if config.provider is None:
        await take_their_place()
        TAKE_OVER.register(coordinator, take_their_place)
    else:
        await coordinator.mount("providers", players[config.provider], name=config.provider)

    async def cleanup() -> None:
        if left := tape.release():
            numbers = ", ".join(str(call.number) for call in left)
            logger.warning("%s: not requested: call %s of %s", MODULE_ID, numbers, tape.path)

    return cleanup


def _players(coordinator: Any, config: ReplayConfig, tape: Tape) -> dict[str, Player]:
    """The players for the recorded providers, by name.

    A provider that sub-agents used with another model is described more than once: the description
    with the model of this config is used, otherwise the first.
    """
    chosen: dict[str, Plain] = {}
    for described in tape.providers:
        name = described["name"]
        fits = config.model is not None and config.model in model_names(described)
        if config.provider in (None, name) and (name not in chosen or fits):
            chosen[name] = described
    redactor = Redactor(session_secrets(coordinator))
    return {
        name: (StreamingPlayer if described.get("streams") else Player)(
            described,
            tape,
            coordinator,
            redactor,
            speed=config.speed,
            model=config.model,
            priority=config.priority,
        )
        for name, described in chosen.items()
    }


def _configured_model(coordinator: Any, name: str) -> str | None:
    """The model the plan sets for the provider with this name."""
    for entry in (getattr(coordinator, "config", None) or {}).get("providers") or ():
        if not isinstance(entry, dict):
            continue
        module = str(entry.get("module", ""))
        if (entry.get("instance_id") or module.removeprefix("provider-")) == name:
            config = entry.get("config") or {}
            return config.get("model") or config.get("default_model")
    return None


def _folder(coordinator: Any) -> str:
    return WORKING_DIR.of(coordinator) or os.getcwd()
