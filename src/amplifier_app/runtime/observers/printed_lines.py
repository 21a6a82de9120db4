"""Output of modules while a screen is drawn, as whole lines of that screen.

A module may also draw on the terminal itself, such as a spinner in a thread of its own. It does not know
where the cursor is, and may go on when the prompt has been stopped.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

from amplifier_app.base.stdio import diverted_stderr
from amplifier_app.runtime.observers.observer import Renderer
from amplifier_core.events import CONTENT_BLOCK_START, TOOL_PRE


@asynccontextmanager
async def printed_lines(renderer: Renderer) -> AsyncGenerator[None]:
    """Show what is printed to stdout and stderr with `renderer`, if it takes that."""
    lines = _Lines(renderer, asyncio.get_running_loop())
    with diverted_stderr(lines.take):
        try:
            yield
        finally:
            lines.end()


class _Lines:
    def __init__(self, renderer: Renderer, loop: asyncio.AbstractEventLoop) -> None:
        self._renderer = renderer
        self._loop = loop
        self._thread = threading.get_ident()
        self._lock = threading.RLock()
        self._rest = ""  # the line that is not finished, from its last carriage return

    def take(self, text: str) -> bool:
        """Take a text, in any thread; False if it is to be written as it is."""
        renderer = self._renderer
        if not renderer.takes_prints:
            renderer.has_open_line = not text.endswith("\n")
            return False
        with self._lock:
            # Nothing continues a line that is drawn again and again.
            is_other = self._rest.startswith("\r") and not text.startswith(("\r", "\n", "\x1b"))
            *lines, rest = (text if is_other else self._rest + text).split("\n")
            self._rest = rest[max(rest.rfind("\r"), 0) :]
            for line in lines:
                self._show(line.removesuffix("\r").rpartition("\r")[2])
        return True

    def end(self) -> None:
        """Show a line without a line break, unless it was meant to be overwritten."""
        if self._rest and not self._rest.startswith("\r"):
            self._print(self._rest)

    def _show(self, line: str) -> None:
        if threading.get_ident() == self._thread:
            self._print(line)
        else:
            with suppress(RuntimeError):  # the loop has ended, and with it the session
                self._loop.call_soon_threadsafe(self._print, line)

    def _print(self, line: str) -> None:
        renderer = self._renderer
        if module := renderer.other_display:
            renderer.other_display = None
            hint = "see each once with --screen answer"
            renderer.notice(f"{module} also shows tool calls; {hint}", "info", "chat")
        renderer.printed(line)


def module_with_display(hooks: Any) -> str | None:
    """Return a module that receives what a display shows: parts of answers, and tool calls."""
    receivers = [
        {name.partition(".")[0] for name in hooks.list_handlers(event)[event] if "." in name}
        for event in (CONTENT_BLOCK_START, TOOL_PRE)
    ]
    return next(iter(set[str].intersection(*receivers)), None)
