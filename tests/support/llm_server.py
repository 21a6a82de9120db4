"""The scripted LLM server, as tests import it."""

import contextlib
import socket
from collections.abc import Iterator

from tests.support.llm.http import Request
from tests.support.llm.script import (
    Answer,
    Cut,
    ErrorEvent,
    Garbage,
    Item,
    Malformed,
    Raw,
    RedactedThinking,
    Reply,
    Reset,
    ResetAfter,
    Stall,
    Status,
    Text,
    Thinking,
    ToolCall,
    Usage,
)
from tests.support.llm.server import ScriptedLLM

__all__ = [
    "Answer",
    "Cut",
    "ErrorEvent",
    "Garbage",
    "Item",
    "Malformed",
    "Raw",
    "RedactedThinking",
    "Reply",
    "Request",
    "Reset",
    "ResetAfter",
    "ScriptedLLM",
    "Stall",
    "Status",
    "Text",
    "Thinking",
    "ToolCall",
    "Usage",
    "closed_port",
]


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """A port on 127.0.0.1 that refuses connections and that no other process can take."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]
