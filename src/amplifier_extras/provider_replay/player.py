"""Replace a provider and answer as recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, cast

from amplifier_core.llm_errors import AbortError, InvalidRequestError
from amplifier_core.message_models import ToolCall
from amplifier_core.models import ModelInfo, ProviderInfo
from amplifier_extras.provider_replay.plain_data import error_of, response_of
from amplifier_extras.provider_replay.recording_reader import RecordedCall, Tape
from amplifier_extras.provider_replay.recording_writer import is_of_a_call
from amplifier_extras.provider_replay.requests import Plain, plain_request
from amplifier_modules._shared.module.spans import event_ids
from amplifier_support.provider_order import DEFAULT_PRIORITY
from amplifier_support.redaction import Redactor

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
        changed = model if model and model not in model_names(described) else None
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
            found: Any = cast("Mapping[str, Any]", response).get("tool_calls")
        else:
            found = response.tool_calls
        calls = cast("list[Any]", found or [])
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
        found = self._tape.find(self.name, asked)
        if isinstance(found, RecordedCall):
            return found
        raise RequestDiffers(
            "\n".join(
                [f"the request to {self.name} is not the one recorded in {self._tape.path}", *found]
            ),
            provider=self.name,
            model=self.model,
        )

    async def _play(self, call: RecordedCall) -> AsyncGenerator[Any]:
        """Yield the chunks of a recorded call and its response, emitting its events."""
        elapsed = 0.0
        for step in self._tape.steps_of(call):
            if self._speed and step.at > elapsed:
                await asyncio.sleep((step.at - elapsed) / self._speed)
                elapsed = step.at
            if step.kind == "event" and is_of_a_call(step.line["event"]):
                await self._emit(step.line["event"], step.line["data"])
            elif step.kind == "chunk":
                yield step.line["chunk"]
            elif step.kind == "response":
                mapping = step.line.get("form") == "mapping"
                yield response_of(step.line["response"], as_mapping=mapping)
                return
            elif step.kind == "error":
                raise error_of(step.line["error"])
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


def model_names(described: Plain) -> list[str]:
    """The names of a provider's model: in the plan, and from the provider."""
    return [described[name] for name in _MODEL_NAMES if name in described]
