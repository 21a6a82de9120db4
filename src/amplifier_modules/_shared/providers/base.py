"""The base of providers of HTTP model services: retries, events, tool calls.

A provider writes one attempt, as a generator of chunks whose last one is the `ChatResponse`, and
gets `complete` and `stream_complete` from here:

    class MyProvider(HTTPProvider):
        async def _attempt(self, request):
            async with self._endpoint.stream_sse(path, body, model=request.model) as stream:
                ...
                yield chunk
            yield response

Retries have this one owner. A stream is retried only until its first chunk is returned;
`complete` hands out nothing before the end and may retry until then.

An image that a service has refused stays in the conversation, but is not sent to it again; the model reads
a note in its place. Otherwise a model that cannot see, or a damaged image, would end every later request.

A call that is stopped, cut off or fails while streaming is billed for what it had read and written until
then. A provider adds the usage that the service has reported of each such attempt, or else an estimate; the
loop collects it around the call.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import aclosing, asynccontextmanager, contextmanager
from contextvars import ContextVar
from decimal import Decimal
from typing import Any, ClassVar, TypeVar, cast

from amplifier_core.llm_errors import (
    InvalidRequestError,
    LLMError,
    LLMTimeoutError,
    StreamError,
)
from amplifier_core.message_models import (
    ChatRequest,
    ChatResponse,
    Degradation,
    Message,
    TextBlock,
    ToolCall,
    Usage,
)
from amplifier_core.utils.retry import RetryConfig, retry_with_backoff
from amplifier_modules._shared.history.request import normalise
from amplifier_modules._shared.history.values import plain_usage
from amplifier_modules._shared.http.client import Endpoint, encode_body
from amplifier_modules._shared.http.errors import error_for_body, unexpected_answer
from amplifier_modules._shared.module.spans import event_ids
from amplifier_modules._shared.providers.catalogue import read_pages
from amplifier_modules._shared.providers.settings import HTTPProviderConfig
from amplifier_modules._shared.providers.tokens import BYTES_PER_TOKEN, estimate_request
from amplifier_support.provider_batches import DeferredAnswer, DeferredRequest, ProviderBatches
from amplifier_support.session_capabilities import DEFERRAL
from amplifier_support.text import lazy_pattern

PRICE_SHARE = Decimal("0.5")
"""Price of an answer in a batch, as a share of the usual price, at every vendor supported here."""

BATCH_WINDOW = 900.0
"""Seconds by which the clocks of this machine and a service may differ, including the time to send a batch."""

_PAGE = 100
_NUMBER = lazy_pattern(r"[0-9]{1,9}")
_OF_STREAMS = ("stream", "stream_options")


def deferred_request(
    provider: str,
    service: str,
    group: Mapping[str, str],
    request: ChatRequest,
    body: Mapping[str, Any],
) -> DeferredRequest:
    """A request to be answered in a batch, without its session.

    Raises:
        InvalidRequestError: The body cannot be written as JSON.
    """
    whole = {name: value for name, value in body.items() if name not in _OF_STREAMS}
    text = encode_body(whole, provider, request.model).decode()
    return DeferredRequest(service, json.dumps(group, sort_keys=True), text, "", read_step(request))


def read_step(request: ChatRequest) -> str:
    """A digest of the state of a conversation: the model's messages and its tools.

    Texts of the user are left out: they may contain the time, or a request to continue.
    """
    answers = [
        _content_and_calls(message) for message in request.messages if message.role == "assistant"
    ]
    text = json.dumps([request.model, [tool.name for tool in request.tools or ()], answers])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _content_and_calls(message: Message) -> list[Any]:
    if isinstance(message.content, str):
        return [message.content]
    texts = [block.text for block in message.content if block.type == "text"]
    return [*texts, *(block.id for block in message.content if block.type == "tool_call")]


def at_batch_price(response: ChatResponse, answer: DeferredAnswer) -> ChatResponse:
    """The response that an answer contains, with the price of a batch."""
    usage = response.usage
    if isinstance(usage, Usage) and usage.cost_usd is not None:
        usage.cost_usd *= 0 if answer.is_counted else PRICE_SHARE
    response.metadata = {**(response.metadata or {}), "service_tier": "batch"}
    return response


class EndpointBatches(ABC):
    """The batches of one account; see `amplifier_support.provider_batches.ProviderBatches`.

    Args:
        endpoint: The service.
    """

    path: ClassVar[str]

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._provider = endpoint.provider
        self.service = endpoint.account

    async def cancel(self, batch_id: str) -> None:
        """Ask for the end of a batch."""
        await self._endpoint.post_json(f"{self.path}/{batch_id}/cancel", {})

    def _list(self, cursor: str) -> AsyncGenerator[list[dict[str, Any]]]:
        """The pages of the account's batches, the newest first; see `read_pages`."""
        return read_pages(
            lambda params: self._endpoint.get_json(self.path, params=params),
            _PAGE,
            self._provider,
            cursor,
        )

    @abstractmethod
    def _answer(self, item: Mapping[str, Any]) -> DeferredAnswer | None:
        """The answer in a line of a file of answers; None if the request was cancelled."""

    async def _answers_in(self, path: str, key: str) -> AsyncGenerator[tuple[int, DeferredAnswer]]:
        """The answers in a file, with the number of the request."""
        async with aclosing(self._items(path)) as items:
            async for item in items:
                number, answer = number_in(item.get("custom_id"), key), self._answer(item)
                if number is not None and answer is not None:
                    yield number, answer

    async def _items(self, path: str) -> AsyncGenerator[dict[str, Any]]:
        async with aclosing(self._endpoint.get_lines(path)) as lines:
            async for line in lines:
                if line.strip():
                    yield _object_in(line, self._provider)


def _object_in(line: bytes, provider: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        what = "sent a line of answers that is not a JSON object"
        raise unexpected_answer(what, provider=provider)
    return cast("dict[str, Any]", value)


def text_in(answer: Mapping[str, Any], name: str, provider: str) -> str:
    """A required text in the service's description of a batch.

    Raises:
        ProviderUnavailableError: It is something else; base_url is probably wrong.
    """
    value = answer.get(name)
    if not isinstance(value, str) or not value:
        what = f"sent an object without '{name}' for a batch"
        raise unexpected_answer(what, provider=provider)
    return value


def number_in(custom_id: Any, key: str) -> int | None:
    """The number of a request in a batch; None if it is not of the batch with this key."""
    name, _, number = str(custom_id).rpartition("-")
    return int(number) if name == key and _NUMBER.fullmatch(number) else None


logger = logging.getLogger(__name__)


NOTE = "[an image, which this model or service does not take]"

_ABOUT_IMAGES = ("image", "multimodal", "multi-modal")
# Some servers answer with a status that says it is their own fault.
_CANNOT_SEE = ("image input is not supported", "does not support image")


class RefusedImages:
    """Images that one provider has learnt not to send."""

    def __init__(self) -> None:
        self._refused: set[int] = set()

    def sendable(self, request: ChatRequest) -> ChatRequest:
        """The request with a note in place of each refused image; the same where there is none."""
        if not self._refused or self._refused.isdisjoint(map(_digest, _images(request))):
            return request
        messages = [
            message
            if isinstance(message.content, str)
            else message.model_copy(update={"content": list(map(self._note_or, message.content))})
            for message in request.messages
        ]
        return request.model_copy(update={"messages": messages})

    def learn(self, request: ChatRequest, error: LLMError) -> bool:
        """Return True if `error` refuses images of `request`; they count as refused from now on."""
        text = str(error).lower()
        marks = _ABOUT_IMAGES if isinstance(error, InvalidRequestError) else _CANNOT_SEE
        if not any(mark in text for mark in marks):
            return False
        images = set(map(_digest, _images(request)))
        self._refused |= images
        return bool(images)

    def degradation(self, request: ChatRequest) -> Degradation | None:
        """Return the degradation of `request` if images of it are not sent."""
        if self.sendable(request) is request:
            return None
        return Degradation(
            requested="images", actual="a note in their place", reason="the service refused them"
        )

    def _note_or(self, block: Any) -> Any:
        refused = block.type == "image" and _digest(block) in self._refused
        return TextBlock(text=NOTE) if refused else block


def _images(request: ChatRequest) -> Iterator[Any]:
    for message in request.messages:
        if not isinstance(message.content, str):
            yield from (block for block in message.content if block.type == "image")


def _digest(block: Any) -> int:
    source = block.source
    return hash(source.get("data") or source.get("url") or source.get("file_id"))


Chunk = dict[str, Any] | ChatResponse
"""A piece of a streamed answer; the last one is the complete answer."""

MAX_RETRY_AFTER = 120.0
"""Seconds. Who asks for a longer pause is not waited for: the error goes up with its `retry_after`."""

FIRST_DELAY = 0.5
MAX_DELAY = 30.0
"""Seconds before the first retry, doubling up to the longest; spread at random."""

# Where a service names its delay, that delay counts, not the backoff's.
_NO_BACKOFF = 1e-9

_REPLACEABLE = frozenset(
    {
        "max_output_tokens",
        "metadata",
        "model",
        "reasoning_effort",
        "stop",
        "temperature",
        "timeout",
        "tool_choice",
        "top_p",
    }
)

T = TypeVar("T")


class HTTPProvider(ABC):
    """A provider of one HTTP service (Provider Contract, Protocol Definition).

    Args:
        name: The name it is mounted as.
        config: Its settings.
        coordinator: Its hooks get events of calls and retries; None for no events.
    """

    def __init__(self, name: str, config: HTTPProviderConfig, coordinator: Any = None) -> None:
        self._name = name
        self.model = config.model
        self.priority = config.priority
        self._max_retries = config.max_retries
        self._timeout = config.timeout
        self._coordinator = coordinator
        self._images = RefusedImages()
        if config.debug:
            logger.setLevel(logging.DEBUG)

    @property
    def name(self) -> str:
        """The name the provider is mounted as."""
        return self._name

    batches: ProviderBatches | None = None
    """The batches of the service; None if it has none."""

    @abstractmethod
    def _attempt(self, request: ChatRequest) -> AsyncGenerator[Chunk]:
        """Asks once. `request` is normalised and its `model` and `timeout` are filled in.

        Raises:
            LLMError: Anything that went wrong.
        """

    async def complete(
        self, request: ChatRequest | Mapping[str, Any], **kwargs: Any
    ) -> ChatResponse:
        """The model's whole answer.

        Args:
            request: A `ChatRequest`, or its fields as a mapping.
            **kwargs: `model`, `temperature`, `top_p`, `max_output_tokens`, `stop`, `tool_choice`,
                `reasoning_effort`, `timeout` and `metadata` replace those of `request`; others are
                ignored.

        Raises:
            LLMError: The last attempt's error.
        """
        asked = self._prepare_request(request, kwargs)
        async with self._report_events(asked) as report:
            report.response = await self._retrying(lambda: self._read_to_end(asked), asked)
            return report.response

    async def stream_complete(
        self, request: ChatRequest | Mapping[str, Any], **kwargs: Any
    ) -> AsyncGenerator[Chunk]:
        """The same answer as it comes; its last chunk is the `ChatResponse`.

        Raises:
            StreamError: The answer was cut off after its first chunk.
            LLMError: It failed before, on the last attempt.
        """
        asked = self._prepare_request(request, kwargs)
        async with self._report_events(asked) as report:
            chunk, rest = await self._retrying(lambda: self._begin_stream(asked), asked)
            async with aclosing(rest):
                try:
                    # Checked for a dict first, as `isinstance` of a pydantic class is slow.
                    while type(chunk) is dict or not isinstance(chunk, ChatResponse):
                        yield chunk
                        chunk = await anext(rest)
                except StopAsyncIteration:
                    raise self._unfinished(asked) from None
                except LLMError as error:
                    if not error.retryable or isinstance(error, StreamError):
                        raise
                    raise self._broken(error) from error
            report.response = self._with_degradations(asked, chunk)
        yield chunk

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        """The tools the model wants to have called, in order; empty if none."""
        return list(response.tool_calls or [])

    # -- attempts ----------------------------------------------------------------------------

    def _prepare_request(
        self, request: ChatRequest | Mapping[str, Any], kwargs: Mapping[str, Any]
    ) -> ChatRequest:
        asked = normalise(request)
        fields = {k: v for k, v in kwargs.items() if k in _REPLACEABLE}
        if not (fields.get("model") or asked.model):
            fields["model"] = self.model
        if self._timeout is not None and fields.get("timeout", asked.timeout) is None:
            fields["timeout"] = self._timeout
        return asked.model_copy(update=fields) if fields else asked

    async def _read_to_end(self, request: ChatRequest) -> ChatResponse:
        chunk, rest = await self._begin_stream(request)
        async with aclosing(rest):
            while not isinstance(chunk, ChatResponse):
                chunk = await anext(rest, None)
                if chunk is None:
                    raise self._unfinished(request)
        return self._with_degradations(request, chunk)

    async def _begin_stream(self, request: ChatRequest) -> tuple[Chunk, AsyncGenerator[Chunk]]:
        sent = self._images.sendable(request)
        chunks = self._attempt(sent)
        try:
            return await anext(chunks), chunks
        except StopAsyncIteration:
            raise self._unfinished(request) from None
        except LLMError as error:
            # Asking without the images is not a retry: that would be the same request again.
            if not self._images.learn(sent, error):
                raise
        return await self._begin_stream(request)

    def _with_degradations(self, request: ChatRequest, response: ChatResponse) -> ChatResponse:
        """The response, with a degradation if images were not sent."""
        if (missing := self._images.degradation(request)) is not None:
            known = [response.degradation] if response.degradation else []
            response.degradation = combine_degradations([*known, missing])
        return response

    def _unfinished(self, request: ChatRequest) -> StreamError:
        return StreamError(
            f"{self._name} ended its answer without finishing it",
            provider=self._name,
            model=request.model,
        )

    def _broken(self, error: LLMError) -> StreamError:
        return StreamError(
            f"the answer was cut off: {error}",
            provider=error.provider,
            model=error.model,
            status_code=error.status_code,
            retry_after=error.retry_after,
        )

    async def _retrying(self, operation: Callable[[], Awaitable[T]], request: ChatRequest) -> T:
        async def attempt() -> T:
            try:
                return await operation()
            except LLMError as error:
                if error.retryable and error.retry_after is not None:
                    if error.retry_after > MAX_RETRY_AFTER:
                        raise _NotWaitedFor from error
                    error.delay_multiplier = _NO_BACKOFF
                raise

        async def on_retry(number: int, delay: float, error: LLMError) -> None:
            if self._is_cancelled():
                raise error
            await self._emit(
                "provider:retry",
                request,
                attempt=number,
                max_retries=self._max_retries,
                delay=delay,
                error_type=type(error).__name__,
                error_message=str(error),
                status_code=error.status_code,
            )

        config = RetryConfig(self._max_retries, FIRST_DELAY, MAX_DELAY)
        try:
            return await retry_with_backoff(attempt, config, on_retry=on_retry)
        except _NotWaitedFor as stop:
            raise cast("LLMError", stop.__cause__) from None

    def _is_cancelled(self) -> bool:
        token = getattr(self._coordinator, "cancellation", None)
        return token is not None and token.is_cancelled

    async def _batch_answer(
        self, request: ChatRequest, body: Mapping[str, Any], group: Mapping[str, str]
    ) -> DeferredAnswer | None:
        """The answer of a batch to the body of a request; None to ask for it now.

        Args:
            request: The request.
            body: Its body, with or without streaming.
            group: What all requests of a batch must have in common.

        Raises:
            LLMError: The service refused the request, or did not answer it.
        """
        deferral = None if self._coordinator is None else DEFERRAL.of(self._coordinator)
        if deferral is None or (batches := self.batches) is None:
            return None
        deferred = deferred_request(self._name, batches.service, group, request, body)
        session = getattr(self._coordinator, "session_id", None) or ""
        answer = await deferral.answer(deferred._replace(session=session))
        if answer is not None and answer.status != 200:
            fault = answer.body
            raise error_for_body(fault, answer.status, provider=self._name, model=request.model)
        return answer

    # -- events ------------------------------------------------------------------------------

    @asynccontextmanager
    async def _report_events(self, request: ChatRequest) -> AsyncGenerator[_Report]:
        """Emit `llm:request` and `llm:response` around a call with all its attempts."""
        report = _Report()
        begun = time.monotonic()
        tools = [tool.name for tool in request.tools or ()]
        if repairs := getattr(request, "repairs", ()):
            await self._emit("provider:tool_sequence_repaired", request, repairs=list(repairs))
        await self._emit("llm:request", request, message_count=len(request.messages), tools=tools)
        try:
            yield report
        except BaseException as error:
            await self._emit(
                "llm:response",
                request,
                status="error" if isinstance(error, Exception) else "aborted",
                duration_ms=_milliseconds_since(begun),
                error={"type": type(error).__name__, "message": str(error)},
            )
            raise
        response = report.response
        await self._emit(
            "llm:response",
            request,
            status="ok",
            duration_ms=_milliseconds_since(begun),
            usage=plain_usage(response.usage) if response and response.usage else None,
            finish_reason=response.finish_reason if response else None,
        )

    async def _emit(self, event: str, request: ChatRequest, **data: Any) -> None:
        hooks = getattr(self._coordinator, "hooks", None)
        if hooks is not None:
            about = {"provider": self._name, "model": request.model}
            logger.debug("%s: %s %s", self._name, event, data)
            await hooks.emit(event, {**event_ids(), **about, **data})


class _Report:
    response: ChatResponse | None = None


class _NotWaitedFor(Exception):
    """Takes an error past the retry loop; its cause is the error."""


def _milliseconds_since(begun: float) -> int:
    return round((time.monotonic() - begun) * 1000)


def combine_degradations(degradations: Iterable[Degradation]) -> Degradation | None:
    """Several departures from the request as the one a `ChatResponse` has room for."""
    items = list(degradations)
    if len(items) < 2:
        return items[0] if items else None
    return Degradation(
        requested="; ".join(item.requested for item in items),
        actual="; ".join(item.actual for item in items),
        reason="; ".join(dict.fromkeys(item.reason for item in items)),
    )


_collected: ContextVar[list[Usage] | None] = ContextVar("amplifier_lost_usage", default=None)


@contextmanager
def collecting() -> Generator[list[Usage]]:
    """Collect the usage of the attempts made in this block that end without an answer."""
    usages: list[Usage] = []
    token = _collected.set(usages)
    try:
        yield usages
    finally:
        _collected.reset(token)


def add_lost(*known: Usage | None) -> None:
    """Add the usage of such an attempt: the first that has tokens, or nothing."""
    usages = _collected.get()
    if usages is not None:
        usages += [usage for usage in known if usage is not None and usage.total_tokens][:1]


def estimate_lost(request: ChatRequest, written: int, error: BaseException) -> Usage | None:
    """The usage of an attempt that the service had accepted but not reported on; without a price.

    `estimated_calls` in it says how many calls of a sum are estimated.

    Args:
        request: What was sent.
        written: Bytes of the answer that had arrived.
        error: What ended the attempt.

    Returns:
        None if the service itself reported a failure, which is not billed.
    """
    if isinstance(error, LLMError) and not isinstance(error, (StreamError, LLMTimeoutError)):
        return None
    prompt, output = estimate_request(request), output_tokens(written)
    usage = Usage(input_tokens=prompt, output_tokens=output, total_tokens=prompt + output)
    return as_estimate(usage)


def output_tokens(written: int) -> int:
    """Estimated tokens of an answer, from its bytes."""
    return -(-written // BYTES_PER_TOKEN)


def as_estimate(usage: Usage) -> Usage:
    """The same usage, marked as that of an estimated call."""
    return usage.model_copy(update={"estimated_calls": 1})
