"""Models that run in this process: downloaded once, started with the first request.

`xllamacpp` runs llama.cpp's server on its own threads. It is bound to 127.0.0.1 on a free port, requires a
random key that only this process knows, and offers only the API: no web page, no cross-origin
access, no introspection. It writes nothing to stdout or stderr.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from amplifier_core import capabilities
from amplifier_core.llm_errors import InvalidRequestError
from amplifier_core.message_models import ChatRequest, ChatResponse, Degradation, Usage
from amplifier_core.models import ConfigField, ModelInfo, ProviderInfo
from amplifier_modules._shared.history.request import normalise
from amplifier_modules._shared.http.client import Endpoint
from amplifier_modules._shared.providers.base import Chunk, combine_degradations
from amplifier_modules._shared.providers.chat_completions import ChatCompletionsProvider, Taste
from amplifier_modules.provider_local import tool_protocol
from amplifier_modules.provider_local.config import LocalConfig
from amplifier_modules.provider_local.store import (
    LocalModel,
    ToolCalling,
    catalogue,
    check_gguf,
    configuration_error,
    default_model,
    find_model,
    obtain_weights,
)
from amplifier_support.installation import install_command
from amplifier_support.session_capabilities import WORKING_DIR

_SETTINGS: dict[str, Any] = {
    # Map weights from the file instead of repacking them into memory; no trial run.
    "no_extra_bufts": True,
    "warmup": False,
    # Earlier prompts kept for alternating conversations, such as a sub-agent's and its parent's.
    "cache_ram_mib": 512,
    "verbosity": -1,
    "hostnames": ["127.0.0.1"],
    "port": 0,
    "ui": False,
    "cors_origins": "",
    "cors_methods": "",
    "cors_headers": "",
    "cors_credentials": False,
    "endpoint_slots": False,
    "n_threads_http": 4,
    # Comments on a quiet stream, so that reading a long prompt on a slow machine is not silence;
    # they also limit how long a stop waits for a client that has left.
    "sse_ping_interval": 5,
}
"""The parameters of the server: it starts at once, is silent, and offers only what is needed."""


class Engine:
    """A running model.

    Attributes:
        base_url: Address of its API.
        api_key: The key for its API.
    """

    def __init__(
        self,
        name: str,
        model: Path,
        *,
        context_window: int,
        threads: int | None = None,
        gpu_layers: int | None = None,
        fit_memory: bool = False,
    ) -> None:
        """Start it; takes a fraction of a second, mostly for memory setup.

        Args:
            name: The model's name in responses.
            model: A GGUF file.
            context_window: Tokens of prompt and answer together.
            threads: CPU threads; None for half the cores.
            gpu_layers: Layers to put on a GPU; None lets llama.cpp decide.
            fit_memory: Check the free memory first and use less if necessary.

        Raises:
            ConfigurationError: xllamacpp is not installed, or the file is unusable.
        """
        check_gguf(model)
        library = require_library()
        self.api_key = secrets.token_urlsafe(32)
        try:
            params = library.CommonParams()
            params.model.path = str(model)
            params.model_alias = {name}
            params.n_ctx = context_window
            for cpu in (params.cpuparams, params.cpuparams_batch):
                cpu.n_threads = threads or _default_threads()
            if gpu_layers is not None:
                params.n_gpu_layers = gpu_layers
            params.fit_params = fit_memory
            for setting, value in {**_SETTINGS, "api_keys": [self.api_key]}.items():
                setattr(params, setting, value)
            self._server: Any = library.Server(params)
        except AttributeError as error:
            raise configuration_error(
                f"the installed xllamacpp is too old ({error}); "
                f"install it with: {install_command('local')}"
            ) from error
        except RuntimeError as error:
            raise configuration_error(
                f"llama.cpp cannot run {model}: {error}. The file may be damaged, "
                "of a kind this version does not know, or too large for the free memory",
                str(model),
            ) from error
        self.base_url = f"{self._server.listening_address}/v1"

    def stop(self) -> None:
        """Stop it and free its memory. Clients must close their connections first."""
        self._server = None


def _default_threads() -> int:
    """Half the cores this process may use, at least one."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every platform
        cores = os.cpu_count() or 1
    return max(1, cores // 2)


def require_library() -> Any:
    """The package that runs models. Raises `ConfigurationError` if it is not installed."""
    try:
        import xllamacpp  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise configuration_error(
            f"cannot import the package xllamacpp, which runs local models ({error}); "
            f"install it with: {install_command('local')}"
        ) from error
    return xllamacpp


async def mount(coordinator: Any, settings: LocalConfig) -> Callable[[], Awaitable[None]]:
    """Mount the provider as ``local`` (Provider Contract, mount() Function).

    Cheap: weights are downloaded and the model is started with the first request.

    Returns:
        The cleanup function, which stops the model.

    Raises:
        ConfigurationError: The configured model is unknown.
    """
    provider = LocalProvider(settings, coordinator)
    await coordinator.mount("providers", provider, name=provider.name)
    return provider.aclose


@dataclass(frozen=True, slots=True)
class _Running:
    engine: Engine
    endpoint: Endpoint


class LocalProvider(ChatCompletionsProvider):
    """A provider of models on this machine (Provider Contract, Protocol Definition).

    Args:
        config: Its settings.
        coordinator: For hooks, display and capabilities; None for none.

    Raises:
        ConfigurationError: The config's model is neither in the catalogue nor the path of a file.
    """

    def __init__(self, config: LocalConfig, coordinator: Any = None) -> None:
        self._folder = None if coordinator is None else WORKING_DIR.of(coordinator)
        self._model = self._find(config.model or default_model())
        super().__init__("local", config.for_client(self._model.id), coordinator)
        self._config = config
        self._running: dict[str, _Running] = {}
        self._starting = asyncio.Lock()
        self._loose: set[str] = set()

    @property
    def supports_tools(self) -> bool:
        """True if the configured model can call tools; otherwise a loop need not offer any."""
        return self._tool_calling(self._model) != "off"

    def get_info(self) -> ProviderInfo:
        """Describe the provider; `defaults` describe its configured model."""
        return ProviderInfo(
            id="local",
            display_name="Embedded model",
            capabilities=self._capabilities(self._model),
            defaults={
                "model": self._model.id,
                "context_window": self._window(self._model),
                "max_output_tokens": self._config.max_tokens or self._model.max_output_tokens,
            },
            config_fields=[
                ConfigField(
                    id="model",
                    display_name="Model",
                    prompt="Model to run: a catalogue name or the path of a GGUF file",
                    required=False,
                    default=default_model(),
                )
            ],
        )

    async def list_models(self) -> list[ModelInfo]:
        """The catalogue, and the configured model if it is a file; nothing is downloaded."""
        models = {model.id: model for model in (*catalogue().values(), self._model)}
        return [self._model_info(model) for model in models.values()]

    async def complete(
        self, request: ChatRequest | Mapping[str, Any], **kwargs: Any
    ) -> ChatResponse:
        """The model's whole response; downloads and starts the model first if necessary."""
        await self._ready(request, kwargs)
        return await super().complete(request, **kwargs)

    async def stream_complete(
        self, request: ChatRequest | Mapping[str, Any], **kwargs: Any
    ) -> AsyncGenerator[Chunk]:
        """The same answer as it comes; its last chunk is the `ChatResponse`."""
        await self._ready(request, kwargs)
        async with aclosing(super().stream_complete(request, **kwargs)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def count_tokens(self, request: ChatRequest | Mapping[str, Any]) -> int:
        """Count the input tokens of a request; downloads and starts the model first if necessary.

        Raises:
            LLMError: The model cannot be run, or the request does not fit.
        """
        # The server reports them with an answer, of which one token is enough.
        asked = normalise(request).model_copy(update={"max_output_tokens": 1})
        response = await self.complete(asked)
        return response.usage.input_tokens if response.usage is not None else 0

    async def aclose(self) -> None:
        """Stop what is running and free its memory."""
        running, self._running = self._running, {}
        for server in running.values():
            # Close the connections first: a server waits for its clients before it stops.
            await server.endpoint.aclose()
            server.engine.stop()

    # -- one attempt ---------------------------------------------------------------------------

    async def _attempt(self, request: ChatRequest) -> AsyncGenerator[Chunk]:
        model = self._find(request.model or self.model)
        calling = self._tool_calling(model)
        departures = _departures(request, calling, model)
        if request.tools and calling == "json" and request.tool_choice != "none":
            chunks = self._ask_constrained(request, model)
        elif request.tools and calling == "native":
            chunks = super()._attempt(request)
        else:
            chunks = super()._attempt(tool_protocol.plain(request, model.default_system))
        async with aclosing(chunks):
            async for chunk in chunks:
                if isinstance(chunk, ChatResponse) and departures:
                    chunk.degradation = combine_degradations(departures)
                yield chunk

    async def _ask_constrained(
        self, request: ChatRequest, model: LocalModel
    ) -> AsyncGenerator[Chunk]:
        """A request with tools for a model that calls them by constrained output."""
        while True:
            loose = model.id in self._loose
            asked = tool_protocol.constrain_output(request, loose=loose)
            try:
                async with aclosing(self._read(asked)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                return
            except InvalidRequestError as error:
                # Only the grammar engine knows which schemas it can enforce.
                if loose or "schema" not in str(error).lower():
                    raise
                self._loose.add(model.id)

    async def _read(self, asked: ChatRequest) -> AsyncGenerator[Chunk]:
        reading = tool_protocol.Reading()
        async with aclosing(super()._attempt(asked)) as chunks:
            async for chunk in chunks:
                if isinstance(chunk, ChatResponse):
                    last, response = reading.finish(chunk)
                    for piece in last:
                        yield piece
                    yield response
                elif chunk["type"] == "content_block_delta" and chunk["block_type"] == "text":
                    for piece in reading.feed(chunk["delta"]):
                        yield piece

    async def _open_endpoint(self, request: ChatRequest) -> Endpoint:
        return (await self._run(self._find(request.model or self.model))).endpoint

    def _body(self, request: ChatRequest, model: str, taste: Taste) -> dict[str, Any]:
        known = self._find(model)
        defaults = {**known.sampling, taste.max_tokens: known.max_output_tokens}
        return defaults | super()._body(request, model, taste)

    def _cost(self, model: str, usage: Usage, service_tier: str | None) -> Decimal | None:
        return Decimal(0)

    def _find(self, name: str) -> LocalModel:
        return find_model(name, self._folder)

    # -- the running models --------------------------------------------------------------------

    async def _ready(
        self, request: ChatRequest | Mapping[str, Any], kwargs: Mapping[str, Any]
    ) -> _Running:
        return await self._run(
            self._find(kwargs.get("model") or request.get("model") or self.model)
        )

    async def _run(self, model: LocalModel) -> _Running:
        async with self._starting:
            if model.id not in self._running:
                require_library()
                path = await self._require_file(model)
                engine = Engine(
                    model.id,
                    path,
                    context_window=self._window(model),
                    threads=self._config.threads,
                    gpu_layers=self._config.gpu_layers,
                    # The user's own file may be of any size.
                    fit_memory=model.weights is None,
                )
                endpoint = Endpoint(
                    engine.base_url,
                    {"authorization": f"Bearer {engine.api_key}"},
                    provider=self.name,
                    idle_timeout=self._config.idle_timeout,
                )
                self._running[model.id] = _Running(engine, endpoint)
            return self._running[model.id]

    async def _require_file(self, model: LocalModel) -> Path:
        if model.weights is None:
            assert model.path is not None
            return model.path
        return await obtain_weights(model.weights, self._config, self._coordinator)

    # -- model descriptions --------------------------------------------------------------------

    def _tool_calling(self, model: LocalModel) -> ToolCalling:
        setting = self._config.tool_calling
        return model.tool_calling if setting == "auto" else setting

    def _window(self, model: LocalModel) -> int:
        return self._config.context_window or model.context_window

    def _capabilities(self, model: LocalModel) -> list[str]:
        able = [capabilities.LOCAL, capabilities.STREAMING, capabilities.JSON_MODE]
        return able if self._tool_calling(model) == "off" else [*able, capabilities.TOOLS]

    def _model_info(self, model: LocalModel) -> ModelInfo:
        facts: dict[str, Any] = {"note": model.note} if model.note else {}
        if model.weights is not None:
            facts |= {
                "size_bytes": model.weights.size,
                "licence": model.weights.licence,
                "attribution": model.weights.attribution,
            }
        return ModelInfo(
            id=model.id,
            display_name=model.name,
            context_window=self._window(model),
            max_output_tokens=model.max_output_tokens,
            capabilities=self._capabilities(model),
            defaults=facts,
        )


def _departures(request: ChatRequest, calling: ToolCalling, model: LocalModel) -> list[Degradation]:
    degradations: list[Degradation] = []
    if request.tools and calling == "off":
        degradations.append(
            Degradation(requested="tools", actual="none", reason=f"{model.id} is chat only")
        )
    if request.tools and calling == "json" and request.response_format is not None:
        degradations.append(
            Degradation(
                requested="response_format",
                actual="free text",
                reason=f"{model.id} does not support a format and tools at once",
            )
        )
    if tool_protocol.has_images(request):
        degradations.append(
            Degradation(requested="images", actual="none", reason=f"{model.id} cannot see")
        )
    return degradations
