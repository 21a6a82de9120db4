"""Replace a provider and answer as recorded."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, Literal, Self, cast

from pydantic import AliasChoices, Field, field_validator, model_validator

from amplifier_core.llm_errors import AbortError, InvalidRequestError
from amplifier_core.message_models import ToolCall
from amplifier_core.models import ModelInfo, ProviderInfo
from amplifier_extras.provider_replay.recording_writer import (
    Call,
    RecordedCall,
    Recording,
    Tape,
    current_call,
    is_of_a_call,
    open_shared,
)
from amplifier_extras.provider_replay.requests import Plain, plain_request, to_exception
from amplifier_modules._shared.history.stored_response import plain, to_response
from amplifier_modules._shared.loop.streaming import find_stream
from amplifier_modules._shared.module.config import ModuleConfig
from amplifier_modules._shared.module.spans import announced_events, event_ids
from amplifier_modules._shared.privacy import session_redactor
from amplifier_support.delegate import Delegate
from amplifier_support.provider_order import DEFAULT_PRIORITY, find_model, read_priority
from amplifier_support.redaction import Redactor
from amplifier_support.session_capabilities import WORKING_DIR, Capability

logger = logging.getLogger(__name__)


_MODEL_NAMES = ("configured_model", "model", "default_model")
_IDS = frozenset(
    ("turn_id", "span_id", "parent_span_id", "iteration", "session_id", "parent_id", "timestamp")
)


class RequestDiffers(InvalidRequestError):
    """The recording does not have this request; the message says what changed."""

    is_failed_check = True
    """The run differs from the recording; used for the exit code."""


class Player:
    """One provider of a recording (Provider Contract).

    Args:
        described: The provider's self-description.
        tape: The recording.
        coordinator: Its hooks get the recorded events.
        redactor: Removed secrets from the recording.
        speed: Replay speed; 0 without delays.
        model: The provider's current model, if it is to be compared.
        priority: Replaces the recorded one.
    """

    def __init__(
        self,
        described: Plain,
        tape: Tape,
        coordinator: Any,
        redactor: Redactor,
        *,
        speed: float = 0,
        model: str | None = None,
        priority: int | None = None,
    ) -> None:
        self.name: str = described["name"]
        changed = model if model and model not in _model_names(described) else None
        self.model: str = changed or described.get("model") or described.get("default_model") or ""
        self.priority = (
            described.get("priority", DEFAULT_PRIORITY) if priority is None else priority
        )
        self.supports_tools: bool = described.get("supports_tools", True)
        self.supports_schema_with_tools: bool = described.get("supports_schema_with_tools", False)
        self._info: Plain = described.get("info") or {"id": self.name, "display_name": self.name}
        self._tape = tape
        self._coordinator = coordinator
        self._redactor = redactor
        self._speed = speed
        self._changed_model = changed

    def get_info(self) -> ProviderInfo:
        """The provider's self-description; it needs no key now."""
        return ProviderInfo.model_validate({**self._info, "credential_env_vars": []})

    async def list_models(self) -> list[ModelInfo]:
        """The model requested, as far as known."""
        defaults = self._info.get("defaults") or {}
        model = self.model or defaults.get("model")
        if not model:
            return []
        return [
            ModelInfo(
                id=model,
                display_name=model,
                context_window=defaults.get("context_window") or 0,
                max_output_tokens=defaults.get("max_output_tokens") or 0,
                capabilities=list(self._info.get("capabilities") or ()),
            )
        ]

    def parse_tool_calls(self, response: Any) -> list[ToolCall]:
        """The tool calls of the response, in order."""
        if isinstance(response, Mapping):
            items: Any = cast("Mapping[str, Any]", response).get("tool_calls")
        else:
            items = response.tool_calls
        calls = cast("list[Any]", items or [])
        return [c if isinstance(c, ToolCall) else ToolCall.model_validate(c) for c in calls]

    async def complete(self, request: Any, **kwargs: Any) -> Any:
        """Return the recorded response.

        Raises:
            RequestDiffers: The request is not in the recording.
            AbortError: The recorded call did not end.
            Exception: The recorded error.
        """
        response: Any = None
        async with aclosing(self._play(self._find(request, kwargs))) as chunks:
            async for chunk in chunks:
                response = chunk
        return response

    def _find(self, request: Any, kwargs: Mapping[str, Any]) -> RecordedCall:
        asked = self._redactor.value(plain_request(request, kwargs))
        if "model" not in asked and self._changed_model:
            asked = {"model": self._changed_model, **asked}
        call = self._tape.find(self.name, asked)
        if isinstance(call, RecordedCall):
            return call
        raise RequestDiffers(
            "\n".join(
                [f"the request to {self.name} is not the one recorded in {self._tape.path}", *call]
            ),
            provider=self.name,
            model=self.model,
        )

    async def _play(self, call: RecordedCall) -> AsyncGenerator[Any]:
        """Yield the chunks of a recorded call and its response, emitting its events."""
        elapsed = 0.0
        for step in self._tape.build_steps(call):
            if self._speed and step.at > elapsed:
                await asyncio.sleep((step.at - elapsed) / self._speed)
                elapsed = step.at
            if step.kind == "event" and is_of_a_call(step.line["event"]):
                await self._emit(step.line["event"], step.line["data"])
            elif step.kind == "chunk":
                yield step.line["chunk"]
            elif step.kind == "response":
                mapping = step.line.get("form") == "mapping"
                yield to_response(step.line["response"], as_mapping=mapping)
                return
            elif step.kind == "error":
                raise to_exception(step.line["error"])
        raise AbortError(
            f"call {call.number} of {self._tape.path} has no answer: it was broken off when it was "
            "recorded",
            provider=self.name,
            model=self.model,
        )

    async def _emit(self, event: str, data: Mapping[str, Any]) -> None:
        hooks = getattr(self._coordinator, "hooks", None)
        if hooks is not None:
            about = {key: value for key, value in data.items() if key not in _IDS}
            await hooks.emit(event, {**event_ids(), **about})


class StreamingPlayer(Player):
    """A player for a provider that streams."""

    async def stream_complete(self, request: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        """Yield the recorded chunks, the last one being the response; errors as in `complete`."""
        async with aclosing(self._play(self._find(request, kwargs))) as chunks:
            async for chunk in chunks:
                yield chunk


def _model_names(described: Plain) -> list[str]:
    """The names of a provider's model: in the plan, and from the provider."""
    return [described[name] for name in _MODEL_NAMES if name in described]


class Recorder(Delegate):
    """Forward calls to a provider and record them; other attributes are the provider's.

    Args:
        inner: The provider.
        name: Its mounted name.
        recording: The recording to write to.
        configured_model: The model set in the plan.
    """

    def __init__(
        self, inner: Any, name: str, recording: Recording, configured_model: str | None = None
    ) -> None:
        super().__init__(inner, _mounted_as=name, _recording=recording)
        described = _described(inner, name)
        if configured_model:
            described["configured_model"] = configured_model
        recording.describe(described)

    async def complete(self, request: Any, **kwargs: Any) -> Any:
        """Return the provider's whole response and record it; errors are the provider's."""
        call = self._begin(request, kwargs)
        try:
            with call.current():
                response = await self._inner.complete(request, **kwargs)
        except Exception as error:
            call.record_error(error)
            raise
        except BaseException:
            call.record_cut()
            raise
        call.record_response(response, self._own_calls(response))
        return response

    def _begin(self, request: Any, kwargs: dict[str, Any]) -> Call:
        asked = plain_request(request, kwargs)
        if model := find_model(self._inner):
            asked = {"model": model, **asked}
        return self._recording.begin(self._mounted_as, asked)

    def _own_calls(self, response: Any) -> Any:
        """The tool calls of a response, which only its provider can parse."""
        tool_calls = response.get("tool_calls") if isinstance(response, dict) else None
        if tool_calls or getattr(response, "tool_calls", None):
            return None
        # Third-party code: if it fails, the loop will get the same error.
        with suppress(Exception):
            calls = self._inner.parse_tool_calls(response)
            return None if inspect.isawaitable(calls) else calls
        return None


class StreamingRecorder(Recorder):
    """A recorder for a provider that streams."""

    async def stream_complete(self, request: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        """Yield the provider's chunks, recording each one."""
        call = self._begin(request, kwargs)
        stream: Any = None
        last: Any = None
        try:
            with call.current():
                stream = self._inner.stream_complete(request, **kwargs)
                if inspect.isawaitable(stream):
                    stream = await stream
                stream = aiter(stream)
            while True:
                with call.current():
                    try:
                        chunk = await anext(stream)
                    except StopAsyncIteration:
                        break
                if last is not None:
                    call.chunk(last)
                    last = None
                if _may_be_last(chunk):
                    last = chunk
                else:
                    call.chunk(chunk)
                yield chunk
        except Exception as error:
            call.record_error(error)
            raise
        finally:
            with call.current():
                close = getattr(stream, "aclose", None)
                if close is not None:
                    await close()
            if last is None:
                call.record_cut()
            else:
                call.record_response(last, self._own_calls(last))


def _recorder_for(
    inner: Any, name: str, recording: Recording, *, configured_model: str | None = None
) -> Recorder:
    """Create a recorder with the same methods as the provider."""
    kind = Recorder if find_stream(inner) is None else StreamingRecorder
    return kind(inner, name, recording, configured_model)


def _may_be_last(chunk: Any) -> bool:
    if isinstance(chunk, dict):
        return "content" in chunk and not str(chunk.get("type", "")).startswith("content_block")
    return hasattr(chunk, "content")


def _described(inner: Any, name: str) -> Plain:
    description: Plain = {"name": name}
    for key in ("model", "default_model", "supports_tools", "supports_schema_with_tools"):
        value = getattr(inner, key, None)
        if isinstance(value, (str, int, float, bool)):
            description[key] = value
    description["priority"] = read_priority(inner)
    description["streams"] = hasattr(type(inner), "stream_complete")
    # Third-party code; record it even if it cannot describe itself.
    with suppress(Exception):
        description["info"] = plain(inner.get_info())
    return description


MODULE_ID = "provider-replay"


class ReplayConfig(ModuleConfig):
    """Settings of provider-replay: one of `record` and `replay`.

    Attributes:
        record: File to record the other providers' requests and responses to; new or empty.
        replay: File of such a recording, to answer from without contacting any provider.
        provider: Recorded provider to replace; by default all, and others are removed.
        speed: Replay speed: 1 as recorded, 2 twice as fast, 0 without delays.
        ignore: Regular expressions for text to ignore when comparing requests.
        match: Which parts of a request must be as recorded: `all`, or its `structure`, which is the model's own
            turns, the tools and the options, but not the texts of prompts and tool results.
        model: The provider's current model, if it is to be compared with the recorded one (also
            `default_model`).
        priority: Replaces the recorded priorities.
    """

    record: str | None = None
    replay: str | None = None
    provider: str | None = None
    speed: float = Field(default=0, ge=0)
    ignore: list[str] = Field(default_factory=list[str])
    match: Literal["all", "structure"] = "all"
    model: str | None = Field(default=None, validation_alias=AliasChoices("model", "default_model"))
    priority: int | None = None

    @field_validator("ignore")
    @classmethod
    def _are_patterns(cls, value: list[str]) -> list[str]:
        for pattern in value:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(
                    f"{pattern!r} is not a valid regular expression: {error}"
                ) from error
        return value

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.record and self.replay:
            raise ValueError("'record' and 'replay' are mutually exclusive")
        return self


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
    redactor = session_redactor(coordinator)
    recording = open_shared(Recording, str(Path(folder) / file), folder, redactor)

    async def put_in_front() -> None:
        for name, provider in list(providers.items()):
            if not isinstance(provider, Recorder):
                recorder = _recorder_for(
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
    path, structure = str(Path(folder) / file), config.match == "structure"
    tape = open_shared(Tape, path, folder, config.ignore, structure=structure)
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
        fits = config.model is not None and config.model in _model_names(described)
        if config.provider in (None, name) and (name not in chosen or fits):
            chosen[name] = described
    redactor = session_redactor(coordinator)
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
