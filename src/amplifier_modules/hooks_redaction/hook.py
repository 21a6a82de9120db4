"""The handlers that redact events."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any, cast

from amplifier_core.events import (
    CONTENT_BLOCK_DELTA,
    CONTENT_BLOCK_END,
    EXECUTION_END,
    PROVIDER_ERROR,
)
from amplifier_core.models import HookResult
from amplifier_modules._shared.privacy.session_secrets import session_secrets
from amplifier_modules.hooks_redaction.config import IDENTIFYING, MODULE_ID, RedactionConfig
from amplifier_modules.hooks_redaction.stream import StreamRedactor
from amplifier_support.redaction import Redactor
from amplifier_support.secret_shapes import Shape, shape_groups
from amplifier_support.session_capabilities import Capability

ENDS = (CONTENT_BLOCK_END, PROVIDER_ERROR, EXECUTION_END)
"""Events after which the text streamed before is complete."""


class _Redacted(str):
    """A delta this hook emits itself."""

    __slots__ = ()


class RedactionHook:
    """Redact the data of events.

    Args:
        coordinator: See `amplifier_core.coordinator.ModuleCoordinator`.
        config: What to redact, and where.
    """

    def __init__(self, coordinator: Any, config: RedactionConfig) -> None:
        self._hooks = coordinator.hooks
        self._config = config
        known = session_secrets(coordinator)
        self._redactor = Redactor(known, _shapes(config), [*IDENTIFYING, *config.allowlist])
        self._listening: dict[str, Callable[[], None]] = {}
        self._streams: dict[tuple[Any, ...], tuple[dict[str, Any], StreamRedactor]] = {}

    def listen(self, names: Iterable[str]) -> None:
        """Start changing the events with these names, as far as the config allows."""
        for name in names:
            if name not in self._listening and self._changes(name):
                handler = self._on_delta if name == CONTENT_BLOCK_DELTA else self._on_event
                self._listening[name] = self._hooks.register(
                    name, handler, priority=self._config.priority, name=MODULE_ID
                )

    def redacted(self, event: str, data: Any) -> Any:
        """The data of any event without secrets, for code that shows or stores it.

        Also for events this hook does not change because their data is used as it is.
        """
        return self._redactor.value(data)

    def close(self) -> None:
        """Stop listening; a second call does nothing."""
        for unregister in self._listening.values():
            unregister()
        self._listening.clear()
        self._streams.clear()

    def _changes(self, event: str) -> bool:
        config = self._config
        return any(fnmatchcase(event, pattern) for pattern in config.events) and not any(
            fnmatchcase(event, pattern) for pattern in config.skip_events
        )

    async def _on_event(self, event: str, data: Any) -> HookResult:
        if event in ENDS and self._streams:
            await self._flush(_key(data) if event == CONTENT_BLOCK_END else None)
        return _answer(data, self._redactor.value(data))

    def _on_delta(self, event: str, data: Any) -> HookResult:
        delta = dict.get(cast("dict[str, Any]", data), "delta") if isinstance(data, dict) else None
        if isinstance(delta, _Redacted):
            return HookResult()
        if not isinstance(delta, str):
            return _answer(data, self._redactor.value(data))
        key = _key(data)
        about = {name: dict.__getitem__(data, name) for name in data if name != "delta"}
        _, stream = self._streams.get(key) or (about, StreamRedactor(self._redactor))
        self._streams[key] = about, stream
        return HookResult(action="modify", data={**about, "delta": stream.feed(delta)})

    async def _flush(self, only: tuple[Any, ...] | None) -> None:
        """Emit what was held back of one text, or of all."""
        for key in [key for key in self._streams if only is None or key == only]:
            about, stream = self._streams.pop(key)
            rest = stream.flush()
            if rest:
                await self._hooks.emit(CONTENT_BLOCK_DELTA, {**about, "delta": _Redacted(rest)})


HOOK = Capability[RedactionHook]("hooks-redaction.hook")


def _key(data: Any) -> tuple[Any, ...]:
    """The text a piece belongs to."""
    names = ("span_id", "block_type", "block_index")
    return tuple(dict.get(cast("dict[str, Any]", data), name) for name in names)


def _answer(data: Any, redacted: Any) -> HookResult:
    if redacted is data or not isinstance(redacted, dict):
        return HookResult()
    return HookResult(action="modify", data=cast("dict[str, Any]", redacted))


def _shapes(config: RedactionConfig) -> list[Shape]:
    wanted = [
        shape
        for group, shapes in shape_groups().items()
        for shape in shapes
        if (group in config.rules or shape.kind in config.rules)
        and shape.kind not in config.skip_rules
    ]
    return [
        *(Shape("custom", (), pattern, everywhere=True) for pattern in config.patterns),
        *wanted,
    ]
