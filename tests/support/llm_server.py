"""The scripted LLM server, as tests import it and as a process of its own.

    python -m tests.support.llm_server --script FILE [--port 0] [--record FILE]

prints its URL on the first line of stdout and serves until SIGINT or SIGTERM.
`--record` appends each request as one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

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
    load_script,
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
    "load_script",
]


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """A port on 127.0.0.1 that refuses connections and that no other process can take."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


def _recorder(path: Path):
    def record(request: Request) -> None:
        line = {
            "method": request.method,
            "path": request.path,
            "headers": request.headers,
            "body": request.body,
            "arrived": request.arrived,
        }
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    return record


async def _serve(options: argparse.Namespace) -> None:
    server = ScriptedLLM(
        load_script(options.script),
        strict=not options.lenient,
        repeat_last=options.repeat_last,
        on_request=_recorder(options.record) if options.record else None,
    )
    await server.start(port=options.port)
    print(server.base_url, flush=True)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, stopped.set)
    await stopped.wait()
    await server.stop()


def main(arguments: list[str] | None = None) -> None:
    """Runs the server until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(description="Play a script as an LLM server on loopback.")
    parser.add_argument("--script", required=True, help="JSON or YAML list of replies")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--record", type=Path, help="append each request as a JSON line")
    parser.add_argument("--repeat-last", action="store_true")
    parser.add_argument("--lenient", action="store_true", help="do not check requests")
    asyncio.run(_serve(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
