"""The handlers that redact events."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any, cast

from pydantic import Field, field_validator

from amplifier_core.events import (
    ALL_EVENTS,
    CONTENT_BLOCK_DELTA,
    CONTENT_BLOCK_END,
    EXECUTION_END,
    PROVIDER_ERROR,
)
from amplifier_core.models import HookResult
from amplifier_modules._shared.module.config import ModuleConfig
from amplifier_modules._shared.module.declaration import Listening
from amplifier_modules._shared.module.spans import announced_events
from amplifier_modules._shared.privacy import session_secrets
from amplifier_support.redaction import Redactor
from amplifier_support.secret_shapes import Shape, shape_groups
from amplifier_support.session_capabilities import REDACT_EVENT, Capability
from amplifier_support.text import did_you_mean

MODULE_ID = "hooks-redaction"

FLOWING = (
    *("prompt:submit", "tool:pre", "tool:post", "provider:request", "provider:response"),
    *("steer:injected", "tool:selecting", "tools:offer", "loop:next"),
    *("plan:start", "plan:end", "step:start", "step:end"),
)
"""Events whose data goes on to a tool, the model or the conversation."""

IDENTIFYING = (
    *("session_id", "parent_id", "parent", "request_id", "timestamp", "ts", "seq"),
    *("turn_id", "span_id", "parent_span_id", "tool_call_id", "tool_name"),
    *("provider", "model", "orchestrator", "status", "block_type", "type", "level"),
)
"""Keys whose values identify what an event belongs to; never changed."""


def kinds() -> list[str]:
    """Every kind of secret, each once."""
    return list(dict.fromkeys(shape.kind for group in shape_groups().values() for shape in group))


class RedactionConfig(ModuleConfig):
    """Settings of hooks-redaction.

    Attributes:
        rules: What to look for: ``secrets``, ``pii-basic`` (e-mail addresses and telephone
            numbers), or single kinds such as ``jwt``. Known values are always replaced.
        skip_rules: Kinds to ignore.
        patterns: More regular expressions, without capturing groups; a match becomes
            ``[REDACTED:custom]``.
        allowlist: Keys, or dotted paths such as ``usage.cost_usd``, to leave alone, in addition to
            the ids of every event.
        events: Events to change, as shell patterns for their names.
        skip_events: Events not to change. By default those whose data goes on to a tool, the model
            or the conversation; a list here replaces the default.
        priority: Order among the hooks of an event; early, so that others see no secret.
    """

    rules: list[str] = Field(default_factory=lambda: ["secrets"])
    skip_rules: list[str] = Field(default_factory=list)
    patterns: list[str] = Field(default_factory=list)
    allowlist: list[str] = Field(default_factory=list)
    events: list[str] = Field(default_factory=lambda: ["*"])
    skip_events: list[str] = Field(default_factory=lambda: list(FLOWING))
    priority: int = 10

    @field_validator("rules")
    @classmethod
    def _are_rules(cls, rules: list[str]) -> list[str]:
        return _known_names(rules, [*shape_groups(), *kinds()])

    @field_validator("skip_rules")
    @classmethod
    def _are_kinds(cls, rules: list[str]) -> list[str]:
        return _known_names(rules, kinds())

    @field_validator("patterns")
    @classmethod
    def _can_be_joined(cls, patterns: list[str]) -> list[str]:
        for pattern in patterns:
            try:
                # In the form in which it is joined with others.
                compiled = re.compile(f"x|(?:{pattern})")
            except re.error as error:
                raise ValueError(
                    f"{pattern!r} is not a valid regular expression: {error}"
                ) from None
            if compiled.groups:
                raise ValueError(f"{pattern!r} has a group that captures; write (?:…)")
            if compiled.match(""):
                raise ValueError(f"{pattern!r} matches an empty text")
        return patterns


def _known_names(names: list[str], allowed: list[str]) -> list[str]:
    for name in names:
        if name not in allowed:
            hint = did_you_mean(name, allowed) or "see 'amplifier docs hooks-redaction'"
            raise ValueError(f"unknown rule '{name}' ({hint.removesuffix('?')})")
    return names


MAX_HELD = 20_000
"""Most characters held back; secrets are not longer."""

CONTEXT = 400
"""Characters shown before that may say what the next words are: ``Authorization: Basic``."""

_BEGUN = re.compile(r"-----BEGIN[^-]{0,60}-{0,5}(?>(?:[^-]|-(?!----))*)\Z")
"""A private key that has not ended yet."""


class StreamRedactor:
    """Redact one stream of text.

    Args:
        redactor: Replaces the secrets in the text.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._shown = ""
        self._held = ""

    def feed(self, piece: str) -> str:
        """Add the next piece; returns the text that is now safe to show."""
        held = self._held + piece
        cut = len(held)
        if cut <= MAX_HELD:
            cut = self._redactor.begun_at(held, _safe_end(held))
        self._held = held[cut:]
        return self._redacted(held[:cut])

    def flush(self) -> str:
        """The rest, at the end of the stream."""
        held, self._held = self._held, ""
        return self._redacted(held)

    def _redacted(self, text: str) -> str:
        if not text:
            return ""
        before = self._shown
        tail = (before + text)[-CONTEXT:]
        # A cut may have left the end of a word at the start.
        self._shown = tail if len(tail) < CONTEXT else re.sub(r"\A\S+", "", tail)
        start = self._redactor.text(before)
        both = self._redactor.text(before + text)
        # Text that was shown stays as it was; no secret starts in it, because its last word is complete.
        return both[len(start) :] if both.startswith(start) else self._redactor.text(text)


def _safe_end(text: str) -> int:
    """The start of the last word, if it is complete and no private key has begun."""
    end = len(text)
    while end and not text[end - 1].isspace():
        end -= 1
    begun = _BEGUN.search(text, 0, end)
    return end if begun is None else begun.start()


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
        self._listening = Listening(coordinator, MODULE_ID, config.priority)
        self._streams: dict[tuple[Any, ...], tuple[dict[str, Any], StreamRedactor]] = {}

    def listen(self, names: Iterable[str]) -> None:
        """Start changing the events with these names, as far as the config allows."""
        for name in names:
            if self._changes(name):
                handler = self._on_delta if name == CONTENT_BLOCK_DELTA else self._on_event
                self._listening.on(name, handler)

    def redacted(self, event: str, data: Any) -> Any:
        """The data of any event without secrets, for code that shows or stores it.

        Also for events this hook does not change because their data is used as it is.
        """
        return self._redactor.value(data)

    def close(self) -> None:
        """Stop listening; a second call does nothing."""
        self._listening.close()
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
    selection = [
        shape
        for group, shapes in shape_groups().items()
        for shape in shapes
        if (group in config.rules or shape.kind in config.rules)
        and shape.kind not in config.skip_rules
    ]
    return [
        *(Shape("custom", (), pattern, everywhere=True) for pattern in config.patterns),
        *selection,
    ]


async def mount(coordinator: Any, settings: RedactionConfig) -> Callable[[], None]:
    """Redact the events the kernel names; settings as in `RedactionConfig`.

    Returns:
        A cleanup function that removes the hook.
    """
    hook = RedactionHook(coordinator, settings)
    hook.listen([*ALL_EVENTS, "provider:stream", "session:config"])
    REDACT_EVENT.register(coordinator, hook.redacted)
    HOOK.register(coordinator, hook)
    return hook.close


async def on_session_ready(coordinator: Any) -> None:
    """Also redact the events other modules announce."""
    hook = HOOK.of(coordinator)
    if hook is not None:
        hook.listen(await announced_events(coordinator))
