"""The provider: Claude through Anthropic's Messages API."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from decimal import Decimal
from functools import partial
from typing import Any

from amplifier_core.llm_errors import (
    NetworkError,
    NotFoundError,
    StreamError,
)
from amplifier_core.message_models import (
    ChatRequest,
    ChatResponse,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    Usage,
)
from amplifier_core.models import ConfigField, ModelInfo, ProviderInfo
from amplifier_modules._shared.history.request import normalise
from amplifier_modules._shared.history.values import clean_value, portable_id
from amplifier_modules._shared.http.client import Endpoint
from amplifier_modules._shared.http.errors import unexpected_answer
from amplifier_modules._shared.http.event_stream import text_or_none
from amplifier_modules._shared.pacing import find_pacing
from amplifier_modules._shared.providers.answer_stream import find_tool_calls
from amplifier_modules._shared.providers.base import (
    Chunk,
    HTTPProvider,
    add_lost,
    as_estimate,
    at_batch_price,
    combine_degradations,
    output_tokens,
)
from amplifier_modules._shared.providers.catalogue import (
    PriceSource,
    Tokens,
    find_price_lists,
    limit_in,
    read_pages,
)
from amplifier_modules._shared.providers.settings import find_access
from amplifier_modules.provider_anthropic.config import AnthropicConfig
from amplifier_modules.provider_anthropic.request import (
    NEWEST_VERSION,
    UNKNOWN_CONTEXT_WINDOW,
    UNKNOWN_MAX_OUTPUT,
    Prepared,
    default_max_tokens,
    find_model,
    known_models,
    listed_names,
    prepare,
    shipped_prices,
)
from amplifier_modules.provider_anthropic.stream import StreamAssembly
from amplifier_modules.provider_anthropic.transport import (
    API_KEY,
    AUTH_TOKEN,
    BASE_URL,
    BASE_URL_VARIABLE,
    COUNT_TOKENS,
    MODELS,
    PROVIDER,
    HTTPTransport,
    Transport,
)
from amplifier_support.provider_access import Access
from amplifier_support.usage import token_count, token_counts

_FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
_BLOCKS = {
    "text": TextBlock,
    "thinking": ThinkingBlock,
    "redacted_thinking": RedactedThinkingBlock,
    "tool_call": ToolCallBlock,
}
_COUNTED = ("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config")
_COUNTS = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)
_PAGE = 1000
_SEARCH_PRICE = Decimal("0.01")
"""US dollars for a search of the web, from the same price list as `models.json`."""

logger = logging.getLogger(__package__)


async def mount(
    coordinator: Any, settings: AnthropicConfig
) -> Callable[[], Awaitable[None]] | None:
    """Mount the provider; without credentials only warn and return None.

    Raises:
        ConfigurationError: The address or the key is invalid, or a package is missing.
    """
    transport = open_transport(settings, coordinator)
    if transport is None:
        reason = _find_access(settings).ignored or (
            "no API key. Set ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN, or `api_key` in its config"
        )
        logger.warning("provider-anthropic skipped: %s", reason)
        return None
    provider = AnthropicProvider(settings, transport, coordinator)
    await coordinator.mount("providers", provider, name=provider.name)
    return provider.aclose


def _find_access(config: AnthropicConfig) -> Access:
    configured = {"api_key": config.api_key, "auth_token": config.auth_token}
    return find_access(config, configured, (API_KEY, AUTH_TOKEN), BASE_URL_VARIABLE, BASE_URL)


def open_transport(config: AnthropicConfig, coordinator: Any = None) -> Transport | None:
    """The transport for the settings and the environment; None without credentials.

    Raises:
        ConfigurationError: The address or the key is invalid, or a package is missing.
    """
    if config.transport != "http":
        from amplifier_modules.provider_anthropic.sdk import CloudTransport

        return CloudTransport(config, PROVIDER)
    access = _find_access(config)
    key = access.keys.get("api_key") or access.keys.get(API_KEY)
    token = access.keys.get("auth_token") or access.keys.get(AUTH_TOKEN)
    if not (key or token):
        return None
    # A key takes precedence over a token, as in Anthropic's clients; sending both is refused.
    headers = {"x-api-key": key} if key else {"authorization": f"Bearer {token}"}
    endpoint = Endpoint(
        (access.address or BASE_URL).rstrip("/").removesuffix("/v1"),
        {**headers, "anthropic-version": config.api_version or NEWEST_VERSION},
        provider=PROVIDER,
        enter=find_pacing(coordinator),
        connect_timeout=config.connect_timeout,
        idle_timeout=config.idle_timeout,
        address_from=access.address_from,
    )
    if config.client == "sdk":
        from amplifier_modules.provider_anthropic.sdk import SDKTransport

        return SDKTransport(endpoint, config, key, token)
    return HTTPTransport(endpoint)


class AnthropicProvider(HTTPProvider):
    """Claude (Provider Contract, Protocol Definition).

    Args:
        config: Its settings.
        transport: The transport to the API.
        coordinator: Its hooks are notified of calls and retries.
    """

    def __init__(
        self, config: AnthropicConfig, transport: Transport, coordinator: Any = None
    ) -> None:
        if config.tool_references is None:
            config = config.model_copy(update={"tool_references": transport.is_anthropic})
        super().__init__(PROVIDER, config, coordinator)
        self._config = config
        self._transport = transport
        self._prices = PriceSource(
            config.prices,
            config.list_prices,
            at_vendor=transport.is_anthropic,
            lists=find_price_lists(coordinator, PROVIDER, shipped_prices()),
            names=listed_names,
        )
        self.batches = transport.batches  # none at a cloud
        self.model_pricing = self._prices.pricing
        self.price_file = self._prices.price_file

    supports_schema_with_tools = True
    """True if a model may call tools although its answer must match a schema."""

    def get_info(self) -> ProviderInfo:
        """Describe the provider and its requirements; `defaults` describe the configured model."""
        model = find_model(self.model)
        max_tokens = default_max_tokens(self._config, self.model)
        return ProviderInfo.model_construct(
            id=PROVIDER,
            display_name="Anthropic",
            credential_env_vars=[API_KEY, AUTH_TOKEN],
            capabilities=["streaming", "tools", "thinking", "vision", "json_mode"],
            defaults={
                "model": self.model,
                "max_tokens": max_tokens,
                # Contexts subtract the reserved response from their budget.
                "max_output_tokens": max_tokens,
                "context_window": model.context_window if model else UNKNOWN_CONTEXT_WINDOW,
            },
            config_fields=_config_fields(),
        )

    async def list_models(self) -> list[ModelInfo]:
        """The models the account may use; the known ones if the service is unreachable.

        Raises:
            LLMError: The service refuses the request, for instance the key.
        """
        pages = read_pages(partial(self._transport.get, MODELS), _PAGE, self.name)
        try:
            return [self._model_info(entry) async for page in pages for entry in page]
        except (NetworkError, NotFoundError) as error:
            logger.warning("cannot list models, using those known to this version: %s", error)
            return [self._model_info({"id": model.id}) for model in known_models()]

    async def count_tokens(self, request: ChatRequest | Mapping[str, Any]) -> int:
        """Count the input tokens of the request.

        Raises:
            LLMError: The service refuses the request or is unreachable.
        """
        asked = self._prepare_request(normalise(request), {})
        prepared = prepare(asked, self._config)
        body = {key: value for key, value in prepared.body.items() if key in _COUNTED}
        counted = prepared._replace(body=body, degradations=[])
        answer = await self._retrying(lambda: self._transport.post(COUNT_TOKENS, counted), asked)
        tokens = token_count(answer.get("input_tokens"))
        if tokens is None:
            what = "answered the request to count tokens without a count"
            raise unexpected_answer(what, provider=self.name)
        return tokens

    async def aclose(self) -> None:
        """Close the provider's connections."""
        await self._transport.aclose()

    async def _attempt(self, request: ChatRequest) -> AsyncGenerator[Chunk]:
        prepared = prepare(request, self._config)
        names = {portable_id(tool.name): tool.name for tool in request.tools or ()}
        assembly = StreamAssembly(provider=self.name, model=request.model, names=names)
        answer = await self._batch_answer(request, prepared.body, prepared.headers)
        if answer is not None:
            for chunk in assembly.take_whole(answer.body):
                yield chunk
            yield at_batch_price(self._response(assembly, prepared), answer)
            return
        streamed = self._transport.stream(prepared, assembly, request.timeout)
        try:
            async with aclosing(streamed):
                async for chunks in streamed:
                    for chunk in chunks:
                        yield chunk
            if not assembly.is_whole:
                raise StreamError(
                    f"{self.name} ended the stream before the answer was finished",
                    provider=self.name,
                    model=request.model,
                )
        except BaseException:
            add_lost(self._lost_usage(assembly, prepared.model))
            raise
        yield self._response(assembly, prepared)

    def _response(self, assembly: StreamAssembly, prepared: Prepared) -> ChatResponse:
        stop_reason = text_or_none(assembly.stop.get("stop_reason"))
        model = text_or_none(assembly.message.get("model")) or prepared.body["model"]
        metadata: dict[str, Any] = {
            "provider": self.name,
            "model": model,
            "stop_reason": stop_reason,
            "request_id": assembly.request_id,
            "message_id": text_or_none(assembly.message.get("id")),
            "stop_sequence": text_or_none(assembly.stop.get("stop_sequence")),
            "stop_details": clean_value(assembly.stop.get("stop_details")),
            "omitted_blocks": assembly.omitted,
        }
        # The assembled data needs no validation, nor the cost of building validators.
        return ChatResponse.model_construct(
            content=[_BLOCKS[block["type"]].model_construct(**block) for block in assembly.content],
            tool_calls=find_tool_calls(assembly.content) or None,
            usage=self._usage(assembly.usage, model),
            degradation=combine_degradations(prepared.degradations),
            finish_reason=_FINISH_REASONS.get(stop_reason or "", "stop"),
            metadata={key: value for key, value in metadata.items() if value not in (None, [])},
        )

    def _lost_usage(self, assembly: StreamAssembly, model: str) -> Usage | None:
        """The usage of a message that broke off: its start counts the input and hardly any output."""
        usage = self._usage(assembly.usage, model)
        written = output_tokens(assembly.written())
        if usage is None or assembly.stop or written <= usage.output_tokens:
            return usage
        more = self._usage({**assembly.usage, "output_tokens": written}, model)
        return more and as_estimate(more)

    def _usage(self, counts: dict[str, Any], model: str) -> Usage | None:
        """Convert the vendor's counts, whose input excludes cached tokens, to the kernel's.

        None if one of them is not valid: the usage is not known then.
        """
        tokens = _tokens(counts)
        if tokens is None:
            return None
        thinking = token_counts(counts.get("output_tokens_details"), "thinking_tokens")
        searches = token_counts(counts.get("server_tool_use"), "web_search_requests")
        cost = self._prices.cost(model, tokens)
        if cost is not None and searches and self._prices.uses_list:
            cost += searches[0] * _SEARCH_PRICE
        return Usage.model_construct(
            input_tokens=tokens.prompt,
            output_tokens=tokens.output,
            total_tokens=tokens.prompt + tokens.output,
            reasoning_tokens=thinking[0] if thinking and any(thinking) else None,
            cache_read_tokens=tokens.cache_read,
            cache_write_tokens=tokens.cache_write + tokens.cache_write_1h,
            cost_usd=cost,
        )

    def _model_info(self, entry: dict[str, Any]) -> ModelInfo:
        """One model of the API's list, completed from the catalogue."""
        known = find_model(entry["id"])
        info = known.info() if known else None
        return ModelInfo(
            id=entry["id"],
            display_name=text_or_none(entry.get("display_name"))
            or (info.display_name if info else entry["id"]),
            context_window=limit_in(entry, "max_input_tokens")
            or (info.context_window if info else UNKNOWN_CONTEXT_WINDOW),
            max_output_tokens=limit_in(entry, "max_tokens")
            or (info.max_output_tokens if info else UNKNOWN_MAX_OUTPUT),
            capabilities=info.capabilities if info else ["streaming", "tools", "vision"],
            pricing=self._prices.pricing(entry["id"]),
        )


def _tokens(counts: dict[str, Any]) -> Tokens | None:
    numbers = token_counts(counts, *_COUNTS)
    long = token_counts(counts.get("cache_creation") or {}, "ephemeral_1h_input_tokens")
    if numbers is None or long is None:
        return None
    fresh, output, read, written = numbers
    long_lived = long[0]
    return Tokens(
        input=fresh,
        output=output,
        cache_read=read,
        cache_write=max(0, written - long_lived),
        cache_write_1h=min(written, long_lived),
    )


def _config_fields() -> list[ConfigField]:
    return [
        ConfigField.model_construct(
            id="api_key",
            display_name="API key",
            prompt="Anthropic API key",
            field_type="secret",
            env_var=API_KEY,
        ),
        ConfigField.model_construct(
            id="base_url",
            display_name="Base URL",
            prompt="API address",
            env_var=BASE_URL_VARIABLE,
            required=False,
            default=BASE_URL,
        ),
        ConfigField.model_construct(
            id="model",
            display_name="Model",
            prompt="Model",
            field_type="choice",
            choices=[model.id for model in known_models()],
            required=False,
            default=next(known_models()).id,
        ),
    ]
