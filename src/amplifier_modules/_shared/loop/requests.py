"""Chooses the provider and builds its request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from amplifier_core.llm_errors import ConfigurationError
from amplifier_modules._shared.loop.channel import Injection
from amplifier_support.provider_order import first_mounted


def choose_provider(providers: Mapping[str, Any], wanted: str | None) -> tuple[str, Any]:
    """The provider to use, with the name it is mounted under.

    `wanted` if given; otherwise see `amplifier_support.provider_order`.

    Raises:
        ValueError: There are no providers.
        amplifier_core.llm_errors.ConfigurationError: `wanted` is not mounted.
    """
    name = first_mounted(providers, wanted)
    if name is None:
        raise ValueError("At least one provider required: no provider is mounted")
    if wanted not in (None, name):
        mounted = ", ".join(providers)
        raise ConfigurationError(
            f"default_provider '{wanted}' is not mounted; mounted providers: {mounted}"
        )
    return name, providers[name]


def with_injections(messages: list[Any], injections: list[Injection]) -> list[Any]:
    """A copy of `messages` with texts for this request only; the originals are not changed."""
    if not injections:
        return messages
    messages = list(messages)
    for text in injections:
        if text.append_to_last_tool_result and messages and _is_result(messages[-1]):
            messages[-1] = _with_text(messages[-1], text.content)
        else:
            messages.append({"role": text.role, "content": text.content})
    return messages


def _is_result(message: Any) -> bool:
    return isinstance(message, dict) and cast("dict[str, Any]", message).get("role") in (
        "tool",
        "function",
    )


def _with_text(message: dict[str, Any], text: str) -> dict[str, Any]:
    content: Any = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [*cast("list[Any]", content), {"type": "text", "text": text}]}
    return {**message, "content": f"{content}\n\n{text}" if content else text}
