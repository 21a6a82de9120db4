"""Settings of hooks-redaction."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from amplifier_modules._shared.module.config import ModuleConfig
from amplifier_support.did_you_mean import did_you_mean
from amplifier_support.secret_shapes import shape_groups

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


def _known_names(given: list[str], allowed: list[str]) -> list[str]:
    for name in given:
        if name not in allowed:
            hint = did_you_mean(name, allowed) or "see 'amplifier docs hooks-redaction'"
            raise ValueError(f"unknown rule '{name}' ({hint.removesuffix('?')})")
    return given
