"""The usage of model calls that end without an answer: stopped, cut off or failed while streaming.

The service bills what it had read and written until then. A provider adds what the service has
reported of each such attempt, or else an estimate; the loop collects it around the call.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from amplifier_core.llm_errors import LLMError, LLMTimeoutError, StreamError
from amplifier_core.message_models import ChatRequest, Usage
from amplifier_modules._shared.providers.tokens import BYTES_PER_TOKEN, estimate_request

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
