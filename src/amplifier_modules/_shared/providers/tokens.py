"""Estimates of tokens, and their correction by what a vendor reports.

An estimate is a quarter of a text's UTF-8 bytes, which is near enough for English and code and
does not undercount scripts with several bytes per character. What it misses is learnt from the
usage in answers: see `Calibration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel

from amplifier_core.message_models import ChatRequest
from amplifier_support.fields import read_field

BYTES_PER_TOKEN = 4
PER_MESSAGE = 4
"""Tokens of a message's frame: its role and separators."""

PER_IMAGE = 1_600
"""Tokens of one image; what vendors charge for one of about 1,500 pixels, larger ones are scaled."""

_MAX_DEPTH = 100
"""Nesting beyond which a value is not measured: it would exhaust the stack."""

_CALL_TYPES = ("tool_call", "tool_use")


def estimate_text(text: str) -> int:
    """Estimated tokens of `text`."""
    return measure(text) // BYTES_PER_TOKEN


def measure(text: str) -> int:
    """Bytes of `text` in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def estimate_message(message: Mapping[str, Any] | BaseModel) -> int:
    """Estimated tokens of one message in either form: text, thinking, calls, results, images.

    A tool call that is present as a block and in `tool_calls` counts once.
    """
    content = read_field(message, "content")
    size = measure(content) if type(content) is str else _content(content)
    calls = read_field(message, "tool_calls")
    if calls and not _has_call_block(content):
        size += _value(calls)
    return PER_MESSAGE + size // BYTES_PER_TOKEN


def estimate_request(request: ChatRequest) -> int:
    """Estimated tokens of a request: its messages and the definitions of its tools."""
    tools = _value(request.tools or ()) // BYTES_PER_TOKEN
    return tools + sum(map(estimate_message, request.messages))


class Calibration:
    """Turns estimates into tokens as the vendor counts them.

    Tokens of a request are taken to be `overhead + slope * estimate`: what a request carries
    besides its messages (tools, a provider's own instructions) costs the same each time, the error
    of the estimate grows with it. The difference between two reports gives the slope, kept between
    `MIN_SLOPE` and `MAX_SLOPE`; the overhead is what then is left. After a report the tokens of
    the reported request come out exactly, unless that would take a negative overhead.
    """

    MIN_SLOPE = 0.5
    MAX_SLOPE = 3.0
    _MIN_STEP = 256
    """Estimated tokens two requests must differ by to tell anything about the slope."""

    def __init__(self) -> None:
        self.slope = 1.0
        self.overhead = 0
        self._last: tuple[int, int] | None = None

    def observe(self, estimate: int, tokens: int) -> None:
        """Learn that a request estimated at `estimate` took `tokens` of input.

        Reports that are not positive are ignored: some servers send zeros.
        """
        if estimate <= 0 or tokens <= 0:
            return
        if self._last is None:
            self._last = (estimate, tokens)
        step = estimate - self._last[0]
        if abs(step) >= self._MIN_STEP:
            self.slope = self._bounded((tokens - self._last[1]) / step)
            self._last = (estimate, tokens)
        if self.slope * estimate > tokens:
            self.slope = self._bounded(tokens / estimate)
        self.overhead = max(0, round(tokens - self.slope * estimate))

    def tokens(self, estimate: int) -> int:
        """Tokens a request with messages of `estimate` is expected to take."""
        return self.overhead + round(self.slope * estimate)

    def estimate(self, tokens: int) -> int:
        """Estimated tokens of messages for which a request of `tokens` has room; may be negative."""
        return int((tokens - self.overhead) / self.slope)

    def _bounded(self, slope: float) -> float:
        return min(self.MAX_SLOPE, max(self.MIN_SLOPE, slope))


def reported_input(usage: object) -> int:
    """Input tokens of a usage report (mapping or model), cached ones included; 0 where unknown.

    Some providers leave what came from a cache out of `input_tokens`; that shows where the cached
    part is the larger one, and is added then.
    """
    tokens = _count(usage, "input_tokens")
    cached = _count(usage, "cache_read_tokens") + _count(usage, "cache_write_tokens")
    return tokens + cached if 0 < tokens < cached else tokens


def _count(usage: object, key: str) -> int:
    value: object = read_field(usage, key)
    return value if isinstance(value, int) and value > 0 else 0


def _content(content: object) -> int:
    if isinstance(content, str):
        return measure(content)
    if isinstance(content, (list, tuple)):
        return sum(_block(block) for block in cast("list[object]", content))
    return _value(content)


def _block(block: object) -> int:
    kind = read_field(block, "type")
    if kind == "text":
        text = read_field(block, "text")
        return measure(text) if type(text) is str else _value(text)
    if kind == "thinking":
        return _value(read_field(block, "thinking"))  # its signature is not charged for
    if kind in ("image", "image_url", "input_image"):
        return PER_IMAGE * BYTES_PER_TOKEN
    if kind == "tool_result":
        output = read_field(block, "output")
        return _content(read_field(block, "content") if output is None else output)
    return _value(block)


def _has_call_block(content: object) -> bool:
    if not isinstance(content, (list, tuple)):
        return False
    return any(read_field(block, "type") in _CALL_TYPES for block in cast("list[object]", content))


def _value(value: object, depth: int = 0) -> int:
    """Bytes of a value as JSON, roughly: a key or item counts a few for quotes and comma."""
    if isinstance(value, str):
        return measure(value)
    if value is None or depth > _MAX_DEPTH:
        return 0
    if isinstance(value, (dict, Mapping)):
        items = cast("Mapping[object, object]", value).items()
        return sum(len(str(key)) + _value(item, depth + 1) + 4 for key, item in items)
    if isinstance(value, (list, tuple)):
        return sum(_value(item, depth + 1) + 2 for item in cast("list[object]", value))
    if isinstance(value, BaseModel):
        return _value(value.__dict__, depth + 1)
    return len(str(value))
