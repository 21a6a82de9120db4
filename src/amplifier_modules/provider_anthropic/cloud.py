"""Claude on Amazon Bedrock or Google Vertex AI, through the `anthropic` SDK's clients for them.

The request body and the stream assembly are those of the HTTP transport. Retries are ours; the
SDK's are off. Importing the SDK takes seconds, so only this file does, which is loaded if a cloud is
set.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from importlib import import_module
from typing import Any, cast

import anthropic
from anthropic.lib.bedrock import AsyncAnthropicBedrock
from anthropic.lib.vertex import AsyncAnthropicVertex

from amplifier_core.llm_errors import (
    ConfigurationError,
    LLMError,
    LLMTimeoutError,
    NetworkError,
    StreamError,
)
from amplifier_modules._shared.http.errors import error_for_body, error_for_response
from amplifier_modules.provider_anthropic.config import AnthropicConfig
from amplifier_modules.provider_anthropic.request import SAMPLING_VERSION, Prepared
from amplifier_modules.provider_anthropic.stream import StreamAssembly

# The clouds' own names for it; newer models have the same name everywhere.
_SAMPLING_VERSIONS = {"bedrock": "bedrock-2023-05-31", "vertex": "vertex-2023-10-16"}


class CloudTransport:
    """Claude on Amazon Bedrock or Google Vertex AI, through the SDK's client for it.

    Raises:
        ConfigurationError: A package that the SDK needs for the cloud, or a setting, is missing.
    """

    is_anthropic = False
    batches = None

    def __init__(self, config: AnthropicConfig, provider: str) -> None:
        self._provider = provider
        self._cloud = config.transport
        self._patience = config.idle_timeout
        try:
            self._client = _cloud_client(config)
        except ImportError as error:
            raise ConfigurationError(
                f"{provider}: transport {config.transport} needs the package "
                f"{error.name}, which is not installed; install it with: "
                f"pip install 'amplifier[{config.transport}]'",
                provider=provider,
            ) from error
        except ValueError as error:  # how the SDK reports a setting it misses
            raise ConfigurationError(f"{provider}: {error}", provider=provider) from error

    async def stream(
        self, prepared: Prepared, assembly: StreamAssembly, timeout: float | None
    ) -> AsyncGenerator[list[dict[str, Any]]]:
        body = dict(prepared.body)
        model = body.pop("model")
        if prepared.api_version == SAMPLING_VERSION:
            body["anthropic_version"] = _SAMPLING_VERSIONS[self._cloud]
        headers = {"anthropic-beta": ",".join(prepared.betas)} if prepared.betas else {}
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        begun = False
        try:
            async with asyncio.timeout_at(deadline):
                answer = await cast("Any", self._client.messages).create(
                    model=model,
                    max_tokens=body.pop("max_tokens"),
                    messages=body.pop("messages"),
                    stream=True,
                    extra_body=body,
                    extra_headers=headers,
                )
            begun = True
            async with answer:
                assembly.request_id = answer.response.headers.get("request-id")
                events = aiter(answer)
                stalled_at = self._stall_deadline()
                while assembly.error is None and not assembly.is_complete:
                    until = stalled_at if deadline is None else min(stalled_at, deadline)
                    async with asyncio.timeout_at(until):
                        event = await anext(events, None)
                    if event is None:
                        return
                    if chunks := assembly.take_event(event.to_dict()):
                        yield chunks
                        # Pings are not progress.
                        stalled_at = self._stall_deadline()
        except Exception as error:
            # A boundary: everything the SDK and the libraries under it may raise.
            raise self._as_kernel_error(error, model, begun=begun) from error

    def _stall_deadline(self) -> float:
        """When an answer counts as stalled that makes no progress from now on."""
        return asyncio.get_running_loop().time() + self._patience

    async def post(self, path: str, prepared: Prepared) -> dict[str, Any]:
        body = dict(prepared.body)
        try:
            answer = await cast("Any", self._client.messages).count_tokens(
                model=body.pop("model"), messages=body.pop("messages"), extra_body=body
            )
        except Exception as error:
            # A boundary: everything the SDK and the libraries under it may raise.
            raise self._as_kernel_error(error, prepared.model, begun=False) from error
        return answer.to_dict()

    async def get(self, path: str, params: dict[str, str | int]) -> dict[str, Any]:
        # The clouds list their models in separate APIs.
        raise NetworkError(
            f"{self._provider}: {self._cloud} does not list models", provider=self._provider
        )

    async def aclose(self) -> None:
        await self._client.close()

    def _as_kernel_error(self, error: Exception, model: str, *, begun: bool) -> LLMError:
        if isinstance(error, anthropic.APIStatusError) and error.status_code < 400:
            # An error event in a stream that had already started.
            return error_for_body(error.body, provider=self._provider, model=model)
        if isinstance(error, anthropic.APIStatusError):
            return error_for_response(
                error.status_code,
                error.response.headers,
                _text(error.body),
                provider=self._provider,
                model=model,
            )
        if isinstance(error, anthropic.APITimeoutError | TimeoutError):
            cls: type[LLMError] = LLMTimeoutError
        elif isinstance(error, anthropic.AnthropicError) and not begun:
            cls = NetworkError if isinstance(error, anthropic.APIConnectionError) else LLMError
        else:
            cls = StreamError if begun else ConfigurationError
        what = str(error) or type(error).__name__
        return cls(
            f"{self._provider} by {self._cloud}: {what}", provider=self._provider, model=model
        )


def _cloud_client(config: AnthropicConfig) -> AsyncAnthropicBedrock | AsyncAnthropicVertex:
    key = config.api_key.get_secret_value() if config.api_key else None
    token = config.auth_token.get_secret_value() if config.auth_token else None
    shared: dict[str, Any] = {"max_retries": 0, "timeout": config.idle_timeout}
    if config.base_url:
        shared["base_url"] = config.base_url
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


def _text(body: object) -> str:
    return body if isinstance(body, str) else json.dumps(body)
