"""OpenAI's own service and compatible servers."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from decimal import Decimal
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast
from urllib.parse import urlsplit

from amplifier_core import capabilities
from amplifier_core.llm_errors import ConfigurationError, ProviderUnavailableError
from amplifier_core.message_models import ChatRequest, Degradation, Usage
from amplifier_core.models import ConfigField, ModelInfo, ProviderInfo
from amplifier_modules._shared.http.client import Endpoint
from amplifier_modules._shared.pacing import find_pacing
from amplifier_modules._shared.providers.base import (
    BATCH_WINDOW,
    EndpointBatches,
    text_in,
)
from amplifier_modules._shared.providers.catalogue import (
    Catalogue,
    Model,
    PriceSource,
    Tokens,
    entries_in,
    find_price_lists,
    limit_in,
)
from amplifier_modules._shared.providers.chat_completions import (
    API,
    ChatCompletionsProvider,
    Taste,
)
from amplifier_modules._shared.providers.settings import find_access
from amplifier_modules.provider_openai.config import OpenAIConfig
from amplifier_support.fields import to_mapping
from amplifier_support.provider_access import Access
from amplifier_support.provider_batches import (
    UNANSWERED,
    BatchState,
    DeferredAnswer,
    FoundBatch,
)

_KEY = "amplifier_batch"
_ENDED = frozenset({"completed", "expired", "cancelled", "failed"})
_FILES = ("output_file_id", "error_file_id")


class OpenAIBatches(EndpointBatches):
    """The batches of OpenAI's Batch API."""

    path = "/batches"
    max_requests = 50_000
    max_bytes = 200 * 1024 * 1024

    async def submit(self, key: str, group: str, bodies: Sequence[bytes]) -> str:
        """Upload the requests and send a batch of them, with the key in its metadata."""
        url: str = json.loads(group)["url"]
        lines = (
            b'{"custom_id":"%b-%d","method":"POST","url":"%b","body":%b}'
            % (key.encode(), number, url.encode(), body)
            for number, body in enumerate(bodies)
        )
        content, kind = _form(f"{key}.jsonl", b"\n".join(lines) + b"\n")
        headers = {"content-type": kind}
        file = await self._endpoint.post_content("/files", content, headers=headers)
        batch = await self._endpoint.post_json(
            self.path,
            {
                "input_file_id": text_in(file, "id", self._provider),
                "endpoint": url,
                "completion_window": "24h",
                "metadata": {_KEY: key},
            },
        )
        return text_in(batch, "id", self._provider)

    async def find(
        self, key: str, number: int, since: float, others: Collection[str]
    ) -> FoundBatch | None:
        """The batch that was sent with the key."""
        async with aclosing(self._list("after")) as pages:
            async for batch in (batch async for page in pages for batch in page):
                if to_mapping(batch.get("metadata")).get(_KEY) == key and batch["id"] not in others:
                    return FoundBatch(batch["id"])
                created = batch.get("created_at")
                if isinstance(created, int) and created < since - BATCH_WINDOW:
                    return None
        return None

    async def state(self, batch_id: str) -> BatchState:
        """Return the progress."""
        batch = await self._endpoint.get_json(f"{self.path}/{batch_id}")
        status = text_in(batch, "status", self._provider)
        refused = _faults(batch) if status == "failed" else None
        return BatchState(status in _ENDED, _done(batch), refused)

    async def answers(self, batch_id: str, key: str) -> AsyncGenerator[tuple[int, DeferredAnswer]]:
        """Yield the answers of a batch that has ended, from its output and from its error file."""
        batch = await self._endpoint.get_json(f"{self.path}/{batch_id}")
        files = [file for name in _FILES if isinstance(file := batch.get(name), str)]
        if not files and _done(batch):
            text = f"{self._provider} shows no files of answers for batch {batch_id}"
            raise ProviderUnavailableError(text, provider=self._provider)
        for file_id in files:
            async with aclosing(self._answers_in(f"/files/{file_id}/content", key)) as answers:
                async for numbered in answers:
                    yield numbered

    def _answer(self, item: Mapping[str, Any]) -> DeferredAnswer | None:
        response = to_mapping(item.get("response"))
        status, body = response.get("status_code"), response.get("body")
        if type(status) is int and isinstance(body, dict):
            return DeferredAnswer(status, cast("dict[str, Any]", body))
        code = to_mapping(item.get("error")).get("code")
        return None if code == "batch_cancelled" else UNANSWERED


def _done(batch: Mapping[str, Any]) -> int:
    """Return the number of requests with an answer or an error."""
    counts = to_mapping(batch.get("request_counts"))
    values = (counts.get(name) for name in ("completed", "failed"))
    return sum(count for count in values if type(count) is int)


def _faults(batch: Mapping[str, Any]) -> str:
    """Why a batch failed as a whole."""
    data = to_mapping(batch.get("errors")).get("data")
    faults = cast("list[Any]", data) if isinstance(data, list) else []
    texts = [str(to_mapping(fault).get("message") or fault) for fault in faults]
    return "; ".join(dict.fromkeys(texts[:3])) or "no reason given"


def _form(name: str, content: bytes) -> tuple[bytes, str]:
    """A form that uploads a file for a batch, and its content type."""
    boundary = f"amplifier-{name.partition('.')[0]}"
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        "Content-Type: application/jsonl\r\n\r\n"
    )
    form = b"%b%b\r\n--%b--\r\n" % (head.encode(), content, boundary.encode())
    return form, f"multipart/form-data; boundary={boundary}"


MODULE_ID = "provider-openai"
OPENAI_URL = "https://api.openai.com/v1"
DEFAULT_MODEL = "gpt-5.4"
# Assumed for chat models of a server that gives no details.
_ASSUMED = [
    *(capabilities.STREAMING, capabilities.TOOLS),
    capabilities.JSON_MODE,
    capabilities.VISION,
]
_SNAPSHOT = re.compile(r"-\d{4}-\d{2}-\d{2}$")
_CHAT_MODEL = re.compile(r"(gpt-|chatgpt-|o\d)")
_OTHER_KIND = re.compile(r"audio|deep-research|image|instruct|realtime|search|transcribe|tts")
_RESPONSES_MODEL = re.compile(r"codex|-pro\b")
"""Models available only with the Responses API."""
_TOOL_SEARCH_MODEL = re.compile(r"gpt-(5\.([4-9]|\d\d)|[6-9]|\d\d)")
"""Models that load tools during a conversation."""
_STANDARD_TIERS = {None, "auto", "default"}

logger = logging.getLogger(__name__)


async def mount(coordinator: Any, settings: OpenAIConfig) -> Callable[[], Awaitable[None]] | None:
    """Mount the provider as ``openai`` (Provider Contract, mount() Function).

    Returns:
        The cleanup function; None, with a logged warning, if there is neither a key nor the address
        of a server that needs none.

    Raises:
        ConfigurationError: The address or the key is invalid.
    """
    keys = {"api_key": settings.api_key}
    access = find_access(settings, keys, ("OPENAI_API_KEY",), "OPENAI_BASE_URL", OPENAI_URL)
    if not access.keys and is_openai(api_address(access.address or OPENAI_URL)):
        reason = access.ignored or (
            "no API key. Set OPENAI_API_KEY or api_key in its config, or set "
            "base_url to a server that needs no key"
        )
        logger.warning("%s skipped: %s", MODULE_ID, reason)
        return None
    provider = OpenAIProvider(settings, access, coordinator)
    await coordinator.mount("providers", provider, name=provider.name)
    return provider.aclose


class OpenAIProvider(ChatCompletionsProvider):
    """A server with the Chat Completions API.

    Args:
        config: Its settings.
        access: Its address and key; no key for a server that needs none.
        coordinator: Its hooks are notified of calls and retries; None for no events.

    Raises:
        ConfigurationError: The address or the key is invalid.
    """

    def __init__(self, config: OpenAIConfig, access: Access, coordinator: Any = None) -> None:
        url = api_address(access.address or OPENAI_URL)
        self._is_openai = is_openai(url)
        super().__init__(
            "openai",
            config,
            coordinator,
            extra_body=config.extra_body,
            reasoning_effort=config.reasoning_effort,
            developer_role=self._is_openai,
        )
        if not self.model and self._is_openai:
            self.model = DEFAULT_MODEL
        self._config = config
        self._prices = PriceSource(
            config.prices,
            config.list_prices,
            at_vendor=self._is_openai,
            lists=find_price_lists(coordinator, self.name, models().price_list),
            names=listed_names,
        )
        self._endpoint = Endpoint(
            url,
            _headers(config, next(iter(access.keys.values()), None)),
            provider=self.name,
            enter=find_pacing(coordinator),
            connect_timeout=config.connect_timeout,
            idle_timeout=config.idle_timeout,
            address_from=access.address_from,
            without_key="" if access.keys else access.ignored,
        )
        self.batches = OpenAIBatches(self._endpoint)
        self.model_pricing = self._prices.pricing
        self.price_file = self._prices.price_file

    @property
    def supports_schema_with_tools(self) -> bool:
        """True if a model may call tools although its answer must match a schema.

        Servers that constrain all output to the schema never call one.
        """
        return self._is_openai

    async def aclose(self) -> None:
        """Close the connections."""
        await self._endpoint.aclose()

    def get_info(self) -> ProviderInfo:
        """Describe the provider and its requirements; `defaults` describe the configured model."""
        known = self._known(self.model)
        limits = {
            "context_window": self._config.context_window or (known and known.context_window),
            "max_output_tokens": self._config.max_output_tokens
            or self._config.max_tokens
            or (known and known.max_output_tokens),
        }
        defaults = {"model": self.model, **limits}
        return ProviderInfo(
            id="openai",
            display_name="OpenAI" if self._is_openai else "OpenAI-compatible server",
            credential_env_vars=["OPENAI_API_KEY"],
            capabilities=self._capabilities(known) if known else list(_ASSUMED),
            defaults={key: value for key, value in defaults.items() if value},
            config_fields=list(_FIELDS),
        )

    async def list_models(self) -> list[ModelInfo]:
        """The chat models the server offers; unknown limits are 0.

        Raises:
            LLMError: The request failed.
        """
        listed = await self._list_models()
        return [self._model_info(entry) for entry in listed if self._is_chat_model(entry["id"])]

    # -- the two APIs --------------------------------------------------------------------------

    def _api(self, model: str) -> API:
        return _responses().RESPONSES if self._speaks_responses(model) else super()._api(model)

    def _body(self, request: ChatRequest, model: str, taste: Taste) -> dict[str, Any]:
        if self._speaks_responses(model):
            return _responses().build_body(request, model, taste, self._config)
        return super()._body(request, model, taste)

    def _degradations(self, request: ChatRequest, body: Mapping[str, Any]) -> list[Degradation]:
        if "messages" not in body:
            return _responses().departures(request, self.name)
        return super()._degradations(request, body)

    def _speaks_responses(self, model: str) -> bool:
        """Return True if a model uses the Responses API."""
        if self._config.api != "auto":
            return self._config.api == "responses"
        if not self._is_openai:
            return False
        # With Chat Completions these do not reason when tools are offered, or are unavailable.
        known = self._known(model)
        if known is None:
            return bool(_RESPONSES_MODEL.search(model))
        features = known.features
        return features.get("api") == "responses" or features.get("effort_with_tools") == "none"

    def _capabilities(self, known: Model) -> list[str]:
        by_chat = known.features.get("api") == "responses" and not self._speaks_responses(known.id)
        lost = {capabilities.TOOLS} if by_chat else set[str]()
        return [able for able in known.capabilities if able not in lost]

    # -- what the Chat Completions client asks -------------------------------------------------

    async def _open_endpoint(self, request: ChatRequest) -> Endpoint:
        return self._endpoint

    async def _choose_model(self, request: ChatRequest) -> str:
        if model := request.model or self.model:
            return model
        listed = await self._list_models()
        if not listed:
            raise ConfigurationError(
                f"{self.name} at {self._endpoint.base_url} lists no models; set 'model' in the "
                f"config of {MODULE_ID}",
                provider=self.name,
            )
        self.model = str(listed[0]["id"])
        return self.model

    def _taste(self, model: str) -> Taste:
        known = self._known(model)
        if self._speaks_responses(model):
            reasons = known is None or capabilities.THINKING in known.capabilities
            refers = self._config.tool_references
            if refers is None:
                names = listed_names(model) if self._is_openai else ()
                refers = any(map(_TOOL_SEARCH_MODEL.match, names))
            return Taste(encrypted_reasoning=reasons, tool_references=refers)
        if not self._is_openai:
            return Taste()
        effort = known.features.get("effort_with_tools") if known else None
        return Taste(max_tokens="max_completion_tokens", effort_with_tools=effort)

    def _cost(self, model: str, usage: Usage, service_tier: str | None) -> Decimal | None:
        read, written = usage.cache_read_tokens or 0, usage.cache_write_tokens or 0
        fresh = max(0, usage.input_tokens - read - written)
        tokens = Tokens(fresh, usage.output_tokens, read, written)
        return self._prices.cost(model, tokens, listed_tier=service_tier in _STANDARD_TIERS)

    # -- models --------------------------------------------------------------------------------

    def _known(self, model: str) -> Model | None:
        return find_model(model) if self._is_openai else None

    async def _list_models(self) -> list[dict[str, Any]]:
        return entries_in(await self._endpoint.get_json("/models"), self.name)

    def _is_chat_model(self, model: str) -> bool:
        if not self._is_openai or self._known(model):
            return True
        if not _CHAT_MODEL.match(model) or _OTHER_KIND.search(model):
            return False
        return self._speaks_responses(model) or not _RESPONSES_MODEL.search(model)

    def _model_info(self, entry: Mapping[str, Any]) -> ModelInfo:
        model = str(entry["id"])
        if known := self._known(model):
            pricing = self._prices.pricing(model)
            able = self._capabilities(known)
            facts = {"id": model, "pricing": pricing, "capabilities": able}
            return known.info().model_copy(update=facts)
        # vLLM and llama-server report the window, each in a different place.
        meta = to_mapping(entry.get("meta"))
        window = limit_in(entry, "max_model_len") or limit_in(meta, "n_ctx_train")
        return ModelInfo(
            id=model,
            display_name=model,
            context_window=self._config.context_window or window,
            max_output_tokens=self._config.max_output_tokens or self._config.max_tokens or 0,
            capabilities=list(_ASSUMED),
            pricing=self._prices.pricing(model),
        )


def _responses() -> ModuleType:
    """The Responses API, which few sessions need."""
    from amplifier_modules.provider_openai import responses

    return responses


@cache
def models() -> Catalogue:
    """Facts on OpenAI's chat models: limits, features, prices."""
    return Catalogue(Path(__file__).with_name("models.json"))


def find_model(model_id: str) -> Model | None:
    """The model with this id, ignoring a snapshot date or a gateway's prefix; None if unknown."""
    return models().find(listed_names(model_id))


def listed_names(model_id: str) -> list[str]:
    """The ids that lists of models may have for this one: without a gateway's prefix, and a date."""
    name = model_id.removeprefix("openai/")
    return [name, _SNAPSHOT.sub("", name)]


def api_address(base_url: str) -> str:
    """The API's address from the user's; ``/v1`` is added if there is no path."""
    url = base_url.rstrip("/").removesuffix("/chat/completions").removesuffix("/responses")
    return f"{url}/v1" if not urlsplit(url).path else url


def is_openai(url: str) -> bool:
    """Return True if the address is OpenAI's own, with its models, prices and parameters."""
    host = urlsplit(url).hostname or ""
    return host == "openai.com" or host.endswith(".openai.com")


def _headers(config: OpenAIConfig, key: str | None) -> dict[str, str]:
    headers = {
        "authorization": f"Bearer {key}" if key else None,
        "openai-organization": config.organization,
        "openai-project": config.project,
    }
    return {name: value for name, value in headers.items() if value}


_FIELDS = (
    ConfigField(
        id="api_key",
        display_name="API key",
        prompt="OpenAI API key",
        field_type="secret",
        env_var="OPENAI_API_KEY",
        required=False,
    ),
    ConfigField(
        id="base_url",
        display_name="Address",
        prompt="API address",
        env_var="OPENAI_BASE_URL",
        required=False,
        default=OPENAI_URL,
    ),
    ConfigField(
        id="model",
        display_name="Model",
        prompt="Model to use",
        required=False,
        default=DEFAULT_MODEL,
    ),
)
