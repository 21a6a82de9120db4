"""Models that run in this process: downloaded once, started with the first request.

`xllamacpp` runs the server on its own threads. It is bound to 127.0.0.1 on a free port, requires a
random key that only this process knows, and offers only the API: no web page, no cross-origin
access, no introspection. It writes nothing to stdout or stderr.

The tools are listed in the system message, a few example turns show their use, and a JSON schema
constrains the output to one of two shapes:

    {"tool": "<name>", "arguments": {...}}
    {"answer": "<text>"}

`constrain_output` writes such a request, `plain` writes one without tools for a model that has none, and
`Reading` turns what the model writes back into chunks of text and calls.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from amplifier_core import capabilities
from amplifier_core.llm_errors import ConfigurationError, InvalidRequestError
from amplifier_core.message_models import (
    ChatRequest,
    ChatResponse,
    Degradation,
    Message,
    ResponseFormatJsonSchema,
    ToolCall,
    ToolSpec,
    Usage,
)
from amplifier_core.models import ConfigField, ModelInfo, ProviderInfo
from amplifier_modules._shared.history import arguments_or_text, normalise
from amplifier_modules._shared.http.client import Endpoint
from amplifier_modules._shared.providers.base import Chunk, combine_degradations
from amplifier_modules._shared.providers.chat_completions import ChatCompletionsProvider, Taste
from amplifier_modules.provider_local.config import LocalConfig
from amplifier_modules.provider_local.store import (
    LocalModel,
    ToolCalling,
    catalogue,
    check_gguf,
    default_model,
    find_model,
)

# -- tools for models too small to call them with their chat template --------------------


_RULES = """\
You answer with one JSON object and nothing else, in one of two forms:
{"tool": "<name of a tool>", "arguments": {...}} to use a tool,
{"answer": "<text>"} to speak to the user.
You cannot see files, folders or the machine except through tools: for anything about them, use a \
tool first and never guess. What you know or can write yourself (facts, explanations, translations, \
poems, small talk) you answer directly. After a tool's result, either use the next tool or answer.

Tools:
"""
# Turns shown before the conversation. Their tools do not exist; only the way of speaking counts.
_SHOWN: tuple[tuple[str, dict[str, Any]], ...] = (
    ("What is the capital of France?", {"answer": "Paris."}),
    ("What time is it in Tokyo?", {"tool": "clock", "arguments": {"city": "Tokyo"}}),
    ("Result of clock:\n14:05", {"answer": "It is 14:05 in Tokyo."}),
    ("Say 'good night' in German", {"answer": "Gute Nacht."}),
    (
        "Send Bob a note that lunch is at noon",
        {"tool": "send_note", "arguments": {"to": "Bob", "text": "Lunch is at noon."}},
    ),
    ("Result of send_note:\nsent", {"answer": "I told Bob that lunch is at noon."}),
)
# Shown with the name of an offered tool that runs shell commands, of which small models make too
# little unless they see it used.
_SHOWN_OF_SHELL: tuple[tuple[str, str, str, str], ...] = (
    (
        "Which version of git is installed?",
        "git --version",
        "git version 2.43.0",
        "Git 2.43.0 is installed.",
    ),
    ("Move a.md into old/", "mv a.md old/", "(no output)", "a.md is now in old/."),
)
_SHELL_ARGUMENT = "command"
_TOOL_HEAD = re.compile(r'\s*\{\s*"tool"\s*:\s*"((?:[^"\\]|\\.)*)"\s*(?:,\s*"arguments"\s*:\s*)?')
_ANSWER_HEAD = re.compile(r'\s*\{\s*"answer"\s*:\s*"')
# Read by the grammar engine: one way to write white space saves tokens.
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_NO_EYES = "[an image, which this model cannot see]"


def constrain_output(request: ChatRequest, *, loose: bool = False) -> ChatRequest:
    """Build the request with its tools in the system message and constrained output.

    Args:
        request: Normalised, with tools.
        loose: Do not constrain arguments by the tools' schemas, which the grammar engine refused.
    """
    tools, may_answer = _allowed(request)
    messages = [_with_rules(request.messages, tools), *_examples(tools)]
    messages += _as_json(_conversation(request.messages))
    return request.model_copy(
        update={
            "messages": messages,
            "tools": None,
            "tool_choice": None,
            "response_format": ResponseFormatJsonSchema(
                json_schema={
                    "title": "reply",
                    "anyOf": [_call_schema(tool, loose=loose) for tool in tools]
                    + ([_object({"answer": {"type": "string"}})] if may_answer else []),
                    "x-guidance": _COMPACT,
                }
            ),
        }
    )


def plain(request: ChatRequest, default_system: str = "") -> ChatRequest:
    """Build the request without tools; calls and results of earlier turns become text.

    Args:
        request: Normalised.
        default_system: System message for a conversation without one.
    """
    messages: list[Message] = []
    if default_system and all(m.role not in ("system", "developer") for m in request.messages):
        messages.append(Message(role="system", content=default_system))
    for message in request.messages:
        if message.role in ("tool", "function"):
            messages.append(_result(message))
            continue
        calls = [f"(used {block.name})" for block in _blocks(message, "tool_call")]
        text = "\n".join([*filter(None, [_text(message)]), *calls])
        messages.append(Message(role=message.role, content=text))
    return request.model_copy(update={"messages": messages, "tools": None, "tool_choice": None})


def has_images(request: ChatRequest) -> bool:
    """Return True if an image is anywhere in the conversation."""
    return any(_blocks(message, "image") for message in request.messages)


class Reading:
    """Turn the model's output into the chunks of a stream.

    An answer's text is passed on as it grows. A call is passed on when it is complete.
    """

    def __init__(self) -> None:
        self._raw = ""
        self._text: _JSONString | None = None
        self._texts: list[str] = []

    def feed(self, piece: str) -> list[dict[str, Any]]:
        """The chunks for another piece of the model's output."""
        if self._text is None:
            self._raw += piece
            head = _ANSWER_HEAD.match(self._raw)
            if head is None:
                return []
            self._text = _JSONString()
            return [_chunk("start"), *self._say(self._text.feed(self._raw[head.end() :]))]
        return self._say(self._text.feed(piece))

    def finish(self, response: ChatResponse) -> tuple[list[dict[str, Any]], ChatResponse]:
        """The last chunks, and the response with what was said or called as its content."""
        if self._text is None and not self._raw.strip():
            return [], _changed(response, content=[], tool_calls=None)
        if self._text is None and (head := _TOOL_HEAD.match(self._raw)):
            return _call(head, self._raw, response)
        started: list[dict[str, Any]] = []
        if self._text is None:
            # Neither shape, so the answer was cut off: showing it is better than losing it.
            started = [_chunk("start"), *self._say(self._raw)]
        block = {"type": "text", "text": "".join(self._texts)}
        end = _chunk("end", block=block)
        return [*started, end], _changed(response, content=[block], tool_calls=None)

    def _say(self, text: str) -> list[dict[str, Any]]:
        if not text:
            return []
        self._texts.append(text)
        return [_chunk("delta", delta=text)]


class _JSONString:
    """Decodes a JSON string from pieces cut anywhere, up to its closing quote."""

    def __init__(self) -> None:
        self._rest = ""
        self._closed = False

    def feed(self, piece: str) -> str:
        """The text the piece completes."""
        if self._closed:
            return ""
        raw = self._rest + piece
        at = 0
        while at < len(raw) and raw[at] != '"':
            length = _token_length(raw, at)
            if at + length > len(raw):
                break
            at += length
        self._closed = at < len(raw) and raw[at] == '"'
        self._rest = "" if self._closed else raw[at:]
        text: str = json.loads(f'"{raw[:at]}"', strict=False)
        return text.encode("utf-8", "replace").decode("utf-8")


def _token_length(raw: str, at: int) -> int:
    """Length of the character or escape at `at`; beyond the end if it is not whole yet."""
    if raw[at] != "\\":
        return 1
    if raw[at : at + 2] != "\\u":
        return 2
    high = raw[at + 2 : at + 6]
    is_half = len(high) == 4 and high[0] in "dD" and high[1] in "89abAB"
    return 12 if is_half else 6


# --- the request --------------------------------------------------------------------------------


def _allowed(request: ChatRequest) -> tuple[list[ToolSpec], bool]:
    """The tools that may be used, and whether the model may answer instead."""
    tools = list(request.tools or ())
    choice = request.tool_choice
    if isinstance(choice, Mapping):
        function: Any = choice.get("function")
        named: Any = function.get("name") if isinstance(function, Mapping) else choice.get("name")
        choice = named if isinstance(named, str) else str(choice.get("type", "auto"))
    if choice in ("required", "any"):
        return tools, False
    only = [tool for tool in tools if tool.name == choice]
    return (only, False) if only else (tools, True)


def _with_rules(messages: Sequence[Message], tools: Iterable[ToolSpec]) -> Message:
    instructions = [
        _text(message) for message in messages if message.role in ("system", "developer")
    ]
    listed = "\n".join(_signature(tool) for tool in tools)
    return Message(role="system", content="\n\n".join([*instructions, _RULES + listed]))


def _signature(tool: ToolSpec) -> str:
    """One line: ``- name(path: string, limit?: integer): What it does.``"""
    properties: dict[str, Any] = tool.parameters.get("properties") or {}
    required = tool.parameters.get("required") or ()
    arguments = ", ".join(
        f"{name}{'' if name in required else '?'}: {_type_name(schema)}"
        for name, schema in properties.items()
    )
    described = f": {_first_paragraph(tool.description)}" if tool.description else ""
    return f"- {tool.name}({arguments}){described}"


def _type_name(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    facts = cast("Mapping[str, Any]", schema)
    if isinstance(facts.get("enum"), list):
        return " or ".join(json.dumps(value) for value in facts["enum"])
    kind = facts.get("type", "any")
    return kind if isinstance(kind, str) else "any"


def _first_paragraph(text: str) -> str:
    return " ".join(text.strip().split("\n\n")[0].split())


def _examples(tools: Iterable[ToolSpec]) -> list[Message]:
    shown = list(_SHOWN)
    shell = next((tool.name for tool in tools if _runs_commands(tool)), None)
    if shell is not None:
        for asked, command, output, answer in _SHOWN_OF_SHELL:
            shown += [
                (asked, {"tool": shell, "arguments": {_SHELL_ARGUMENT: command}}),
                (f"Result of {shell}:\n{output}", {"answer": answer}),
            ]
    turns: list[Message] = []
    for question, replied in shown:
        turns += [Message(role="user", content=question), _reply(replied)]
    return turns


def _runs_commands(tool: ToolSpec) -> bool:
    return list(tool.parameters.get("required") or ()) == [_SHELL_ARGUMENT]


def _conversation(messages: Iterable[Message]) -> list[Message]:
    return [message for message in messages if message.role not in ("system", "developer")]


def _as_json(messages: Sequence[Message]) -> list[Message]:
    """Earlier turns in the shapes: each call directly before its own result."""
    results = {m.tool_call_id: m for m in messages if m.role in ("tool", "function")}
    turns: list[Message] = []
    for message in messages:
        if message.role in ("tool", "function"):
            continue
        calls = _blocks(message, "tool_call")
        for call in calls:
            turns.append(_reply({"tool": call.name, "arguments": call.input}))
            if call.id in results:
                turns.append(_result(results[call.id]))
        if calls:
            continue  # The two shapes have no place for text next to a call.
        if message.role == "assistant":
            turns.append(_reply({"answer": _text(message)}))
        else:
            turns.append(Message(role="user", content=_text(message)))
    return turns


def _reply(value: Mapping[str, Any]) -> Message:
    return Message(role="assistant", content=json.dumps(value, ensure_ascii=False))


def _result(message: Message) -> Message:
    return Message(role="user", content=f"Result of {message.name or 'tool'}:\n{_text(message)}")


def _text(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    texts = [
        block.text if block.type == "text" else _NO_EYES
        for block in message.content
        if block.type in ("text", "image")
    ]
    return "\n".join(texts)


def _blocks(message: Message, kind: str) -> list[Any]:
    if isinstance(message.content, str):
        return []
    return [block for block in message.content if block.type == kind]


def _call_schema(tool: ToolSpec, *, loose: bool) -> dict[str, Any]:
    arguments = dict(tool.parameters)
    # References would point into the schema this one becomes a part of.
    if loose or "$ref" in json.dumps(arguments):
        arguments = {}
    arguments.pop("$schema", None)
    arguments["type"] = "object"
    if arguments.get("properties"):
        arguments.setdefault("additionalProperties", False)
    return _object({"tool": {"const": tool.name}, "arguments": arguments})


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


# --- the answer ---------------------------------------------------------------------------------


def _chunk(step: str, **more: Any) -> dict[str, Any]:
    return {"type": f"content_block_{step}", "index": 0, "block_type": "text", **more}


def _changed(response: ChatResponse, **fields: Any) -> ChatResponse:
    return ChatResponse.model_validate({**response.model_dump(), **fields})


def _call(
    head: re.Match[str], raw: str, response: ChatResponse
) -> tuple[list[dict[str, Any]], ChatResponse]:
    name = str(json.loads(f'"{head[1]}"'))
    call_id = f"call_{secrets.token_hex(12)}"
    call, invalid = arguments_or_text(raw)
    arguments = call.get("arguments")
    extra: dict[str, Any] = {}
    if invalid is None and isinstance(arguments, dict):
        written = json.dumps(arguments, ensure_ascii=False)
    else:
        written = raw[head.end() :].strip()
        arguments, extra = {}, {"invalid_arguments": written}
    block = {"type": "tool_call", "id": call_id, "name": name, "input": arguments, **extra}
    about: dict[str, Any] = {"index": 0, "block_type": "tool_call"}
    chunks = [
        {"type": "content_block_start", **about, "id": call_id, "name": name},
        {"type": "content_block_delta", **about, "delta": written},
        {"type": "content_block_end", **about, "block": block},
    ]
    return chunks, _changed(
        response,
        content=[block],
        tool_calls=[ToolCall(id=call_id, name=name, arguments=arguments, **extra)],
        finish_reason="length" if response.finish_reason == "length" else "tool_calls",
    )


# -- llama.cpp inside this process: a model served on loopback ---------------------------


_SILENT = -1
_LOOPBACK = "127.0.0.1"
_HTTP_THREADS = 4
# Comments on a quiet stream, so that reading a long prompt on a slow machine is not silence; they
# also limit how long a stop waits for a client that has left.
_PING_SECONDS = 5
# Earlier prompts kept for alternating conversations, such as a sub-agent's and its parent's.
_PROMPT_CACHE_MIB = 512


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
                cpu.n_threads = threads or default_threads()
            if gpu_layers is not None:
                params.n_gpu_layers = gpu_layers
            params.fit_params = fit_memory
            _start_at_once(params)
            _close_doors(params, self.api_key)
            self._server: Any = library.Server(params)
        except AttributeError as error:
            raise ConfigurationError(
                f"provider-local: the installed xllamacpp is too old ({error}); "
                "update it with: pip install -U 'amplifier[local]'",
                provider="local",
            ) from error
        except RuntimeError as error:
            raise ConfigurationError(
                f"provider-local: llama.cpp cannot run {model}: {error}. The file may be damaged, "
                "of a kind this version does not know, or too large for the free memory",
                provider="local",
                model=str(model),
            ) from error
        self.base_url = f"{self._server.listening_address}/v1"

    def stop(self) -> None:
        """Stop it and free its memory. Clients must close their connections first."""
        self._server = None


def default_threads() -> int:
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
        raise ConfigurationError(
            "provider-local: cannot import the package xllamacpp, which runs local models "
            f"({error}); install it with: pip install 'amplifier[local]'",
            provider="local",
        ) from error
    return xllamacpp


def _start_at_once(params: Any) -> None:
    # Map weights from the file instead of repacking them into memory; no trial run.
    params.no_extra_bufts = True
    params.warmup = False
    params.cache_ram_mib = _PROMPT_CACHE_MIB


def _close_doors(params: Any, key: str) -> None:
    params.verbosity = _SILENT
    params.hostnames = [_LOOPBACK]
    params.port = 0
    params.api_keys = [key]
    params.ui = False
    params.cors_origins = ""
    params.cors_methods = ""
    params.cors_headers = ""
    params.cors_credentials = False
    params.endpoint_slots = False
    params.n_threads_http = _HTTP_THREADS
    params.sse_ping_interval = _PING_SECONDS


# -- models that run in this process -----------------------------------------------------


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
        self._model = find_model(config.model or default_model())
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
        for one in running.values():
            # Close the connections first: a server waits for its clients before it stops.
            await one.endpoint.aclose()
            one.engine.stop()

    # -- one attempt ---------------------------------------------------------------------------

    async def _attempt(self, request: ChatRequest) -> AsyncGenerator[Chunk]:
        model = find_model(request.model or self.model)
        calling = self._tool_calling(model)
        departures = _departures(request, calling, model)
        if request.tools and calling == "json" and request.tool_choice != "none":
            chunks = self._ask_constrained(request, model)
        elif request.tools and calling == "native":
            chunks = super()._attempt(request)
        else:
            chunks = super()._attempt(plain(request, model.default_system))
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
            asked = constrain_output(request, loose=loose)
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
        reading = Reading()
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
        return (await self._run(find_model(request.model or self.model))).endpoint

    def _body(self, request: ChatRequest, model: str, taste: Taste) -> dict[str, Any]:
        known = find_model(model)
        defaults = {**known.sampling, taste.max_tokens: known.max_output_tokens}
        return defaults | super()._body(request, model, taste)

    def _cost(self, model: str, usage: Usage, service_tier: str | None) -> Decimal | None:
        return Decimal(0)

    # -- the running models --------------------------------------------------------------------

    async def _ready(
        self, request: ChatRequest | Mapping[str, Any], kwargs: Mapping[str, Any]
    ) -> _Running:
        return await self._run(
            find_model(kwargs.get("model") or request.get("model") or self.model)
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
        from amplifier_modules.provider_local.store import obtain_weights

        return await obtain_weights(model.weights, self._config, self._coordinator)

    # -- model descriptions --------------------------------------------------------------------

    def _tool_calling(self, model: LocalModel) -> ToolCalling:
        wanted = self._config.tool_calling
        return model.tool_calling if wanted == "auto" else wanted

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
    if has_images(request):
        degradations.append(
            Degradation(requested="images", actual="none", reason=f"{model.id} cannot see")
        )
    return degradations
