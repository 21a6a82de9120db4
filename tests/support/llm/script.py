"""What the scripted server says: replies, faults, and the file form of both.

A script is a list of items, consumed one per accepted completion request:

    str                     a reply of that text
    Reply                   content blocks, usage, timing, and at most one fault on the way
    Status                  an HTTP error (or any status) instead of an answer
    Reset                   the connection is reset before a byte is sent
    Raw                     any bytes instead of an HTTP answer
    callable                request -> any of the above; may be async

Counting of stream events starts at 0; `Cut(after=3)` sends events 0, 1 and 2.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.llm.http import Request


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Thinking:
    """Signed by the server unless a signature is given."""

    thinking: str
    signature: str | None = None


@dataclass(frozen=True)
class RedactedThinking:
    """Without data of its own, the server's constant, which every instance recognises."""

    data: str | None = None


@dataclass(frozen=True)
class ToolCall:
    """A call the model makes. `raw_input` replaces the JSON of `input`, to send something that is not JSON."""

    name: str
    input: Mapping[str, Any] = field(default_factory=dict[str, Any])
    id: str = field(default_factory=lambda: f"toolu_{secrets.token_hex(9)}")
    raw_input: str | None = None

    @property
    def input_json(self) -> str:
        if self.raw_input is not None:
            return self.raw_input
        return json.dumps(self.input, separators=(",", ":"))


Block = Text | Thinking | RedactedThinking | ToolCall


@dataclass(frozen=True)
class Usage:
    """Tokens as Anthropic counts them: `input_tokens` without the cached ones.

    The OpenAI dialect reports `prompt_tokens` as the sum of the three input counts.
    """

    input_tokens: int = 10
    output_tokens: int = 5
    cache_read: int = 0
    cache_creation: int = 0


@dataclass(frozen=True)
class Cut:
    """The connection closes after so many events; `clean` ends the HTTP body properly first."""

    after: int
    clean: bool = False


@dataclass(frozen=True)
class ResetAfter:
    """The connection is reset (RST) after so many events."""

    after: int


@dataclass(frozen=True)
class Stall:
    """Nothing more comes after so many events: for `seconds`, or until the client leaves.

    With `beat`, these bytes come again and again instead of nothing: a ping, a comment, an empty delta.
    """

    after: int
    seconds: float | None = None
    beat: bytes = b""
    beat_seconds: float = 0.02


@dataclass(frozen=True)
class ErrorEvent:
    """An error event inside a 200 stream, after so many events; then the stream ends."""

    after: int
    type: str = "overloaded_error"
    message: str = "Overloaded"


@dataclass(frozen=True)
class Malformed:
    """Event `at` carries JSON that breaks off in the middle."""

    at: int


@dataclass(frozen=True)
class Garbage:
    """Bytes that are no event stream are written before event `at`."""

    at: int
    data: bytes = b"\xff\xfe\x00garbage\n\n"


Fault = Cut | ResetAfter | Stall | ErrorEvent | Malformed | Garbage


@dataclass(frozen=True)
class Reply:
    """One answer of the model.

    Attributes:
        text: Shorthand for a last-but-tools text block.
        tool_calls: Tool calls after the text.
        thinking: Shorthand for a first thinking block.
        blocks: The content in order, instead of the three shorthands.
        stop_reason: The vendor's own word, or Anthropic's, which the OpenAI dialect translates;
            by default what fits the content.
        usage: Token counts to report.
        chars_per_delta: Size of each streamed piece of a block.
        deltas: Number of pieces each text block is cut into, instead of their size.
        delay: Seconds before the status line.
        event_delay: Seconds before each event.
        split_bytes: Sends the stream in HTTP chunks of this many bytes, whatever the events.
        pings: Number of ping events after the first content event.
        unknown_events: Adds events of types no client knows.
        headers: Extra response headers.
        fault: What goes wrong on the way. Without streaming, `Cut`, `ResetAfter` and `Stall`
            strike half way through the body, `Malformed` and `Garbage` replace it.
        edit: Changes the events of a stream before they are sent; see `tests.support.llm.hostile`.
    """

    text: str | None = None
    tool_calls: Sequence[ToolCall] = ()
    thinking: str | Thinking | None = None
    blocks: Sequence[Block] = ()
    stop_reason: str | None = None
    usage: Usage = Usage()
    chars_per_delta: int = 16
    deltas: int | None = None
    delay: float = 0.0
    event_delay: float = 0.0
    split_bytes: int | None = None
    pings: int = 1
    unknown_events: bool = False
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    fault: Fault | None = None
    edit: Callable[[list[bytes]], list[bytes]] | None = None

    @property
    def content(self) -> list[Block]:
        if self.blocks:
            return list(self.blocks)
        content: list[Block] = []
        if self.thinking is not None:
            thinking = self.thinking
            content.append(Thinking(thinking) if isinstance(thinking, str) else thinking)
        if self.text is not None:
            content.append(Text(self.text))
        return [*content, *self.tool_calls]

    def pieces(self, text: str, *, counted: bool = False) -> list[str]:
        """`text` cut into deltas; `counted` blocks are cut into exactly `deltas` pieces.

        Raises:
            ValueError: There are fewer characters than deltas asked for.
        """
        if self.deltas is None or not counted:
            size = self.chars_per_delta
            return [text[at : at + size] for at in range(0, len(text), size)]
        if len(text) < self.deltas:
            raise ValueError(f"{len(text)} characters cannot make {self.deltas} deltas")
        size, longer = divmod(len(text), self.deltas)
        split = longer * (size + 1)
        head = [text[at : at + size + 1] for at in range(0, split, size + 1)]
        return head + [text[at : at + size] for at in range(split, len(text), size)]


@dataclass(frozen=True)
class Status:
    """An HTTP status instead of an answer.

    Attributes:
        body: JSON value or text to send; by default the dialect's error object.
        error_type: Type in the default error object; by default the vendor's for the status.
    """

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    message: str = "scripted failure"
    error_type: str | None = None
    delay: float = 0.0


@dataclass(frozen=True)
class Reset:
    """The connection is reset before a byte of the answer."""

    delay: float = 0.0


@dataclass(frozen=True)
class Raw:
    """Any bytes instead of an HTTP answer; then the connection closes.

    Attributes:
        parts: Returns the bytes piece by piece. Each is sent when the client has taken most of the
            one before, so that a piece may be large or the number endless.
    """

    parts: Callable[[], Iterable[bytes]]


Answer = str | Reply | Status | Reset | Raw
Item = Answer | Callable[["Request"], Answer | Awaitable[Answer]]
