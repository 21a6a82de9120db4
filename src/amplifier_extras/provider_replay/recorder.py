"""Wrap a provider and record its calls."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from amplifier_extras.provider_replay.plain_data import plain
from amplifier_extras.provider_replay.recording_writer import Call, Recording
from amplifier_extras.provider_replay.requests import Plain, plain_request
from amplifier_modules._shared.module.delegate import Delegate
from amplifier_support.provider_order import model_of, priority_of


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
        call = self._begin("complete", request, kwargs)
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

    def _begin(self, mode: str, request: Any, kwargs: dict[str, Any]) -> Call:
        asked = plain_request(request, kwargs)
        if model := model_of(self._inner):
            asked = {"model": model, **asked}
        return self._recording.begin(self._mounted_as, mode, asked)

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
        call = self._begin("stream", request, kwargs)
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


def recorder_for(
    inner: Any, name: str, recording: Recording, *, configured_model: str | None = None
) -> Recorder:
    """Create a recorder with the same methods as the provider."""
    streams = hasattr(type(inner), "stream_complete") or inspect.isasyncgenfunction(
        getattr(inner, "stream_complete", None)
    )
    kind = StreamingRecorder if streams else Recorder
    return kind(inner, name, recording, configured_model)


def _may_be_last(chunk: Any) -> bool:
    if isinstance(chunk, dict):
        return "content" in chunk and not str(chunk.get("type", "")).startswith("content_block")
    return hasattr(chunk, "content")


def _described(inner: Any, name: str) -> Plain:
    found: Plain = {"name": name}
    for key in ("model", "default_model", "supports_tools", "supports_schema_with_tools"):
        value = getattr(inner, key, None)
        if isinstance(value, (str, int, float, bool)):
            found[key] = value
    found["priority"] = priority_of(inner)
    found["streams"] = hasattr(type(inner), "stream_complete")
    # Third-party code; record it even if it cannot describe itself.
    with suppress(Exception):
        found["info"] = plain(inner.get_info())
    return found
