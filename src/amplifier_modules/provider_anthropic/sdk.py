"""Claude through the clients of the `anthropic` SDK: the API itself, Amazon Bedrock, Google Vertex AI.

The request body and the stream assembly are those of the HTTP transport. Retries are ours; the
SDK's are off. Importing the SDK takes over a second, so only this file does, which is loaded if
`client: sdk` or a cloud is set.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import suppress
from importlib import import_module
from typing import Any, cast

import anthropic
from anthropic import AsyncAnthropic
from anthropic.lib.bedrock import AsyncAnthropicBedrock
from anthropic.lib.vertex import AsyncAnthropicVertex

from amplifier_core.llm_errors import ConfigurationError, LLMError, NetworkError, StreamError
from amplifier_modules._shared.http import connections
from amplifier_modules._shared.http.client import Endpoint, encode_body, enter_at_once
from amplifier_modules._shared.http.errors import (
    TransportFaults,
    error_for_body,
    error_for_response,
)
from amplifier_modules.provider_anthropic.config import AnthropicConfig
from amplifier_modules.provider_anthropic.request import NEWEST_VERSION, SAMPLING_VERSION, Prepared
from amplifier_modules.provider_anthropic.stream import StreamAssembly
from amplifier_modules.provider_anthropic.transport import (
    BASE_URL,
    BASE_URL_VARIABLE,
    HTTPTransport,
)
from amplifier_support.installation import install_command
from amplifier_support.provider_access import is_same_address
from amplifier_support.text import without_login

# The clouds' own names for it; newer models have the same name everywhere.
_SAMPLING_VERSIONS = {"bedrock": "bedrock-2023-05-31", "vertex": "vertex-2023-10-16"}
_END_SECONDS = 0.25
"""Time for the end of a complete answer, after which its connection can be reused."""


class _SDKRequests:
    """Requests through a client of the SDK.

    Args:
        client: The client, without retries of its own.
        provider: For error messages.
        config: Its settings.
    """

    def __init__(self, client: Any, provider: str, config: AnthropicConfig) -> None:
        self._client = client
        self._provider = provider
        self._config = config

    async def _stream(
        self,
        prepared: Prepared,
        assembly: StreamAssembly,
        timeout: float | None,
        endpoint: Endpoint | None = None,
    ) -> AsyncGenerator[list[dict[str, Any]]]:
        model = prepared.model
        content = encode_body(prepared.body, self._provider, model)
        enter = endpoint.enter if endpoint is not None else enter_at_once
        account = endpoint.account if endpoint is not None else ""
        turn = await enter(f"{account} {model}", len(content))
        # Decoded again, as characters that cannot be sent are replaced.
        body = json.loads(content)
        clock = asyncio.get_running_loop().time
        deadline = None if timeout is None else clock() + timeout
        begun = False
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    answer = await self._client.messages.create(
                        model=body.pop("model"),
                        max_tokens=body.pop("max_tokens"),
                        messages=body.pop("messages"),
                        stream=True,
                        extra_body=body,
                        extra_headers=self._headers(prepared),
                    )
            except anthropic.APIStatusError as error:
                await turn.record_answer(error.status_code, error.response.headers)
                raise
            except BaseException:
                await turn.record_failure()
                raise
            begun = True
            async with answer:
                await turn.record_answer(answer.response.status_code, answer.response.headers)
                if endpoint is not None:
                    await endpoint.check(answer.response, model)
                    endpoint.check_event_stream(answer.response, model)
                assembly.request_id = answer.response.headers.get("request-id")
                events = aiter(answer)
                progress = clock()
                while not assembly.has_ended:
                    stalled_at = progress + self._config.idle_timeout
                    until = stalled_at if deadline is None else min(stalled_at, deadline)
                    try:
                        async with asyncio.timeout_at(until):
                            event = await anext(events, None)
                    except TimeoutError:
                        if until != deadline:
                            raise self._faults(model).without_progress() from None
                        raise
                    if event is None:
                        return
                    chunks, failure = assembly.take([event.to_dict(warnings=False)])
                    if failure is not None:
                        raise failure
                    if chunks:
                        yield chunks
                        # Pings are not progress.
                        progress = clock()
                if assembly.has_ended:
                    with suppress(Exception):
                        async with asyncio.timeout(_END_SECONDS):
                            await anext(events, None)
        except LLMError:
            raise
        except Exception as error:
            # A boundary: everything the SDK and the libraries under it may raise.
            raise self._as_kernel_error(error, model, begun=begun) from error

    async def post(self, path: str, prepared: Prepared) -> dict[str, Any]:
        body = json.loads(encode_body(prepared.body, self._provider, prepared.model))
        try:
            answer = await self._client.messages.count_tokens(
                model=body.pop("model"),
                messages=body.pop("messages"),
                extra_body=body,
                extra_headers=self._headers(prepared),
            )
            return answer.to_dict()
        except Exception as error:
            # A boundary: everything the SDK and the libraries under it may raise.
            raise self._as_kernel_error(error, prepared.model, begun=False) from error

    def _headers(self, prepared: Prepared) -> dict[str, str]:
        """The headers that belong to the body; the clouds have the version in the body."""
        return {"anthropic-beta": ",".join(prepared.betas)} if prepared.betas else {}

    def _faults(self, model: str | None) -> TransportFaults:
        return TransportFaults(
            provider=self._provider,
            model=model,
            url=without_login(str(self._client.base_url).rstrip("/")),
            connect_timeout=self._config.connect_timeout,
            idle_timeout=self._config.idle_timeout,
        )

    def _as_kernel_error(self, error: Exception, model: str | None, *, begun: bool) -> LLMError:
        about: dict[str, Any] = {"provider": self._provider, "model": model}
        if isinstance(error, anthropic.APIStatusError) and error.status_code < 300:
            # An error event in a stream that had already started.
            return error_for_body(error.body, **about)
        if isinstance(error, anthropic.APIStatusError):
            text = error.body if isinstance(error.body, str) else json.dumps(error.body)
            headers = error.response.headers
            return error_for_response(error.status_code, headers, text, **about)
        if isinstance(error, json.JSONDecodeError) and begun:
            text = f"{self._provider} sent an event that is not JSON: {error.doc[:200]!r}"
            return StreamError(text, **about)
        faults = self._faults(model)._replace(streaming=begun)
        fault = error.__cause__ if isinstance(error, anthropic.APIConnectionError) else error
        named = faults.as_kernel_error(fault if isinstance(fault, Exception) else error)
        if isinstance(named, LLMError):
            return named
        if begun:
            cls: type[LLMError] = StreamError
        elif isinstance(error, anthropic.APIConnectionError):
            cls = NetworkError
        else:
            cls = LLMError if isinstance(error, anthropic.AnthropicError) else ConfigurationError
        return cls(f"{self._provider}: {error or type(error).__name__}", **about)


class SDKTransport(_SDKRequests, HTTPTransport):
    """The API itself, or a compatible service, through the SDK.

    Batches and the limits on requests are those of the endpoint.

    Raises:
        ConfigurationError: The proxy of the environment cannot be used.
    """

    def __init__(
        self, endpoint: Endpoint, config: AnthropicConfig, key: str | None, token: str | None
    ) -> None:
        HTTPTransport.__init__(self, endpoint)
        try:
            http_client = _http_client(endpoint, config)
        except ImportError as error:
            provider = endpoint.provider
            raise ConfigurationError(f"{provider}: {error}", provider=provider) from error
        client = AsyncAnthropic(
            api_key=key,
            auth_token=None if key else token,
            base_url=endpoint.base_url,
            max_retries=0,
            timeout=http_client.timeout,
            default_headers={
                **_left_out_headers(endpoint.base_url),
                "anthropic-version": config.api_version or NEWEST_VERSION,
                "accept-encoding": "identity",
            },
            http_client=http_client,
        )
        _SDKRequests.__init__(self, client, endpoint.provider, config)

    def stream(
        self, prepared: Prepared, assembly: StreamAssembly, timeout: float | None
    ) -> AsyncGenerator[list[dict[str, Any]]]:
        return self._stream(prepared, assembly, timeout, self._endpoint)

    def _headers(self, prepared: Prepared) -> dict[str, str]:
        return prepared.headers

    async def get(self, path: str, params: dict[str, str | int]) -> dict[str, Any]:
        try:
            answer = await self._client.get(path, cast_to=object, options={"params": params})
        except Exception as error:
            # A boundary: everything the SDK and the libraries under it may raise.
            raise self._as_kernel_error(error, None, begun=False) from error
        if not isinstance(answer, dict):
            raise self._endpoint.no_object(path)
        return cast("dict[str, Any]", answer)

    async def aclose(self) -> None:
        await self._client.close()
        await self._endpoint.aclose()


class CloudTransport(_SDKRequests):
    """Claude on Amazon Bedrock or Google Vertex AI, through the SDK's client for it.

    Raises:
        ConfigurationError: A package that the SDK needs for the cloud, or a setting, is missing.
    """

    is_anthropic = False
    batches = None

    def __init__(self, config: AnthropicConfig, provider: str) -> None:
        try:
            client = _cloud_client(config)
        except ImportError as error:
            raise ConfigurationError(
                f"{provider}: transport {config.transport} needs the package "
                f"{error.name}, which is not installed; install it with: "
                f"{install_command(config.transport)}",
                provider=provider,
            ) from error
        except ValueError as error:  # how the SDK reports a setting it misses
            raise ConfigurationError(f"{provider}: {error}", provider=provider) from error
        super().__init__(client, provider, config)

    def stream(
        self, prepared: Prepared, assembly: StreamAssembly, timeout: float | None
    ) -> AsyncGenerator[list[dict[str, Any]]]:
        body = dict(prepared.body)
        if prepared.api_version == SAMPLING_VERSION:
            body["anthropic_version"] = _SAMPLING_VERSIONS[self._config.transport]
        return self._stream(prepared._replace(body=body), assembly, timeout)

    async def get(self, path: str, params: dict[str, str | int]) -> dict[str, Any]:
        # The clouds list their models in separate APIs.
        raise NetworkError(
            f"{self._provider}: {self._config.transport} does not list models",
            provider=self._provider,
        )

    async def aclose(self) -> None:
        await self._client.close()


def _http_client(endpoint: Endpoint, config: AnthropicConfig) -> Any:
    """A client for one address with our proxies and certificates; it does not follow redirects."""
    return anthropic.DefaultAsyncHttpxClient(
        timeout=anthropic.Timeout(config.idle_timeout, connect=config.connect_timeout),
        verify=connections.trusted_context(),
        proxy=connections.usable_proxy(endpoint.base_url, endpoint.provider),
        transport=None,  # otherwise the SDK adds every proxy of the environment
        follow_redirects=False,
        trust_env=False,
    )


def _left_out_headers(address: str) -> dict[str, Any]:
    """The headers of the environment that are not sent to an address, as they are for another one."""
    intended = os.environ.get(BASE_URL_VARIABLE, "").strip() or BASE_URL
    return {} if is_same_address(address, intended) else _omitted_headers()


def _omitted_headers() -> dict[str, Any]:
    """Values that keep the SDK from adding the headers of the environment."""
    lines = os.environ.get("ANTHROPIC_CUSTOM_HEADERS", "").split("\n")
    return {line.partition(":")[0].strip(): anthropic.Omit() for line in lines if ":" in line}


def _cloud_client(config: AnthropicConfig) -> AsyncAnthropicBedrock | AsyncAnthropicVertex:
    key = config.api_key.get_secret_value() if config.api_key else None
    token = config.auth_token.get_secret_value() if config.auth_token else None
    shared: dict[str, Any] = {"max_retries": 0, "timeout": config.idle_timeout}
    if config.base_url:
        shared |= {"base_url": config.base_url, "default_headers": _omitted_headers()}
    if config.transport == "bedrock":
        import_module("botocore.eventstream")  # The SDK needs it to read answers.
        return AsyncAnthropicBedrock(api_key=key or token, aws_region=config.region, **shared)
    if config.region:
        shared["region"] = config.region
    if config.project_id:
        shared["project_id"] = config.project_id
    if token is None:
        import_module("google.auth")  # The SDK needs it to find credentials.
    return AsyncAnthropicVertex(access_token=token, **shared)
