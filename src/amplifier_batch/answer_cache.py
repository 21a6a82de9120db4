"""The cache of answers that batches share: a request that was answered before costs nothing.

It is in front of every provider of a row, so that it knows requests as loops send them, whatever service they go to.
A request is the same if everything that decides its answer is the same: the provider's entry of the plan and its address,
the model, the messages, the tools, the options, and which of several runs asks. Only a hash of that is kept, as the name
of a file, with the answer in it. The files can be removed at any time; each is written once, by the first who has the answer.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import logging
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from amplifier_app.base import paths
from amplifier_app.runtime.session import Adjustment
from amplifier_core.message_models import Usage
from amplifier_modules._shared.history.request import normalise
from amplifier_modules._shared.history.stored_response import plain, to_response
from amplifier_modules._shared.loop.channel import CUT_SHORT
from amplifier_modules._shared.loop.replies import is_response
from amplifier_modules._shared.loop.streaming import find_stream
from amplifier_modules._shared.privacy import session_redactor
from amplifier_support.delegate import Delegate
from amplifier_support.fields import read_field
from amplifier_support.files import create_atomically, make_private_folder, read_regular
from amplifier_support.provider_order import find_model
from amplifier_support.session_capabilities import REDACT_EVENT

CACHED_CALLS = "cached_calls"
"""The count in `usage` of answers that came from the cache."""

_FORMAT = 1
_IRRELEVANT = {
    "messages": {"__all__": {"metadata"}},
    **dict.fromkeys(("stream", "timeout", "metadata", "conversation_id"), True),
}
"""Fields of a request that do not change its answer."""

_TIME = re.compile(r'(<system-reminder source=\\"hooks-status\\">\\n)Time: [^"\\]*\\n')
"""The current time in a request as JSON, which would make every request a new one."""

_NAME = re.compile(r"[0-9a-f]{64}\.json")

Exchange = Callable[[str, str | None], Awaitable[str | None]]
"""Gets the content of a file of the cache on another machine, or keeps it there, by the name of the file."""

logger = logging.getLogger(__name__)


def _path(name: str) -> Path:
    return paths.cache_dir() / "answers" / name[:2] / name


def exchange_file(name: str, text: str | None) -> str | None:
    """Return the content of a file of the cache, or keep it; see `Exchange`.

    Raises:
        ValueError: It is not the name of a file of the cache.
        OSError: It cannot be read or written.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"not the name of an answer: {name!r}")
    with contextlib.suppress(FileNotFoundError, FileExistsError):
        if text is None:
            return read_regular(_path(name)).decode()
        make_private_folder(_path(name).parent)
        create_atomically(_path(name), text.encode(), mode=0o600)
    return None


class AnswerCache:
    """Puts the cache in front of the providers of a session and its sub-sessions (see `Adjustment`).

    Args:
        run: Which of several runs that send the same requests it is.
        then: Another adjustment to make.
        exchange: Reaches the cache, if it is on another machine.
    """

    def __init__(
        self, run: str, then: Adjustment | None = None, exchange: Exchange | None = None
    ) -> None:
        self.run = run
        self._then = then
        self._exchange = exchange

    def check(self, coordinator: Any) -> None:
        """See `Adjustment`."""
        if self._then is not None:
            self._then.check(coordinator)

    def apply(self, coordinator: Any) -> None:
        """Replace the providers that are not replaced yet."""
        if self._then is not None:
            self._then.apply(coordinator)
        providers: dict[str, Any] = coordinator.get("providers")
        for name, provider in providers.items():
            if not isinstance(provider, _Cached):
                kind = _Cached if find_stream(provider) is None else _CachedStream
                scope = _Scope(coordinator, name, self.run, self._exchange)
                providers[name] = kind(provider, _scope=scope)


class _Scope:
    """The answers for one provider of a session."""

    def __init__(self, coordinator: Any, name: str, run: str, exchange: Exchange | None) -> None:
        self._coordinator = coordinator
        self._name = name
        self._run = run
        self._exchange = exchange

    def find_file(self, provider: Any, request: Any, options: Mapping[str, Any]) -> Path:
        """The file of the answer to a request, whether or not it exists."""
        redact = session_redactor(self._coordinator).value
        asked = normalise(request).model_dump(
            mode="json", exclude=_IRRELEVANT, exclude_none=True, by_alias=True
        )
        key = {
            "format": _FORMAT,
            "run": self._run,
            # Secrets change without a change of the answers.
            "provider": redact([self._name, self._entries(), _addresses()]),
            "model": find_model(provider),
            "request": asked,
            "options": options,
        }
        text = _TIME.sub(r"\1", json.dumps(key, sort_keys=True, default=str))
        if self._exchange is not None:
            # A node has another one for each batch; an answer that names it is not kept.
            text = text.replace(_working_folder(), "")
        name = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return _path(f"{name}.json")

    def _entries(self) -> list[Any]:
        """The provider's entry of the plan; all of them if none has its name."""
        entries: list[Any] = list(self._coordinator.config.get("providers") or ())
        names = (self._name, f"provider-{self._name}")
        own = [entry for entry in entries if (entry.get("instance_id") or entry["module"]) in names]
        return own or entries

    async def find(self, file: Path) -> Any:
        """The answer in a file, which may be on another machine; None if there is none."""
        if self._exchange is not None and not file.exists():
            text = await self._exchange(file.name, None)
            if text is not None:
                exchange_file(file.name, text)
        return self.read(file)

    async def keep(self, file: Path, response: Any) -> None:
        """Keep an answer, also on the other machine."""
        self.write(file, response)
        if self._exchange is not None and (text := exchange_file(file.name, None)) is not None:
            if _working_folder() in text:
                file.unlink(missing_ok=True)
            else:
                await self._exchange(file.name, text)

    def read(self, file: Path) -> Any:
        """The answer in a file, at no cost; None if there is none."""
        try:
            stored: Any = json.loads(read_regular(file))
            response = to_response(stored["response"], as_mapping=stored["is_mapping"])
            if not is_response(response):
                raise ValueError("it is not an answer")
            return _without_cost(response)
        except FileNotFoundError:
            return None
        except Exception as error:  # Anything may be in the file.
            logger.warning("asking again: cannot read the cached answer %s: %s", file, error)
            with contextlib.suppress(OSError):
                file.unlink()
            return None

    def write(self, file: Path, response: Any) -> None:
        """Keep an answer, if it is complete and has no secrets."""
        if not is_response(response) or read_field(response, "finish_reason") in CUT_SHORT:
            return
        stored = {"response": plain(response), "is_mapping": isinstance(response, dict)}
        if self._has_secrets(stored):
            return
        try:
            make_private_folder(file.parent)
            create_atomically(file, json.dumps(stored).encode(), mode=0o600)
        except FileExistsError:  # Another worker was faster.
            return
        except (OSError, ValueError) as error:
            logger.warning("cannot keep the answer for other batches: %s: %s", file, error)

    def _has_secrets(self, stored: dict[str, Any]) -> bool:
        if session_redactor(self._coordinator).value(stored) is not stored:
            return True
        redact = REDACT_EVENT.of(self._coordinator)  # The plan may have more rules.
        return redact is not None and redact("provider:response", stored) != stored


def _working_folder() -> str:
    """The working directory as it is in JSON."""
    return json.dumps(os.getcwd())[1:-1]


def _addresses() -> dict[str, str]:
    """The addresses of services that the environment sets."""
    return {name: value for name, value in os.environ.items() if name.endswith("_BASE_URL")}


def _without_cost(response: Any) -> Any:
    none = dict.fromkeys(("input_tokens", "output_tokens", "total_tokens"), 0)
    usage = {**none, **plain(read_field(response, "usage") or {}), "cost_usd": "0", CACHED_CALLS: 1}
    if isinstance(response, dict):
        return {**response, "usage": usage}
    response.usage = Usage.model_validate(usage)
    return response


class _Cached(Delegate):
    """A provider that asks its service only what is not in the cache."""

    _scope: _Scope

    async def complete(self, request: Any, **options: Any) -> Any:
        """Return the answer from the cache, or else the provider's."""
        scope = self._scope
        file = scope.find_file(self._inner, request, options)
        response = await scope.find(file)
        if response is None:
            response = await self._inner.complete(request, **options)
            await scope.keep(file, response)
        return response


class _CachedStream(_Cached):
    """The same for a provider that streams."""

    async def stream_complete(self, request: Any, **options: Any) -> AsyncGenerator[Any]:
        """Yield the answer from the cache, or else the provider's chunks, the last one being the answer."""
        scope = self._scope
        file = scope.find_file(self._inner, request, options)
        response = await scope.find(file)
        if response is not None:
            yield response
            return
        stream = self._inner.stream_complete(request, **options)
        async with aclosing(await stream if inspect.isawaitable(stream) else stream) as chunks:
            async for chunk in chunks:
                response = chunk
                yield chunk
        await scope.keep(file, response)
