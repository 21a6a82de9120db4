"""The interfaces of `tests.support.llm_server` and how to reach them: module, path and config of a provider."""

from typing import Any

from amplifier_modules import provider_anthropic, provider_openai

APIS: dict[str, tuple[Any, str, dict[str, str]]] = {
    "anthropic": (provider_anthropic, "", {"model": "claude-sonnet-5-5"}),
    "chat": (provider_openai, "/v1", {"model": "m", "api": "chat"}),
    "responses": (provider_openai, "/v1", {"model": "m", "api": "responses"}),
}
