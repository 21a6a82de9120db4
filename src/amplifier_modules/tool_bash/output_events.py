"""Report a command's output as events while it runs: for people, not for the model."""

from __future__ import annotations

import asyncio
import codecs
import re
from typing import Any

from amplifier_modules._shared.module.spans import event_ids

TOOL_OUTPUT = "tool:output"

INTERVAL = 0.2
"""Seconds between two events of a command."""

MOST = 4000
"""Characters in one event; earlier ones are left out."""

_LINE_END = re.compile(r"\r\n|\n|\r")
_KEY_BEGINS, _KEY_ENDS = "-----BEGIN ", "-----END "


class OutputReporter:
    """Emit `tool:output` with the output since the last event, a few times a second.

    Only complete lines are reported before the end, and a gap ends at a line end: neither half of a
    secret cut in two could be recognised and redacted.

    Args:
        hooks: The session's hook registry.
        tool_name: The tool that runs the command.
        about: Further data for the events.
    """

    def __init__(self, hooks: Any, tool_name: str, **about: Any) -> None:
        self._hooks = hooks
        self._data = {"tool_name": tool_name, **about, **event_ids()}
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._skipped = 0
        self._is_amid = False  # the next text continues a line whose start was left out
        self._task: asyncio.Task[None] | None = None

    def feed(self, data: bytes) -> None:
        """Add the next piece of output."""
        # Only the end of a flood of output is shown; the rest is not even decoded.
        self._skipped += max(0, len(data) - 4 * MOST)
        self._is_amid = self._is_amid or len(data) > 4 * MOST
        self._text += self._decoder.decode(data[-4 * MOST :])
        if self._is_amid or len(self._text) > MOST:
            start = _next_line(self._text, max(0, len(self._text) - MOST))
            self._is_amid = start is None
            self._skipped += len(self._text) if start is None else start
            self._text = "" if start is None else self._text[start:]
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._report_soon())

    async def close(self) -> None:
        """Report the rest at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._report(len(self._text))

    async def _report_soon(self) -> None:
        await asyncio.sleep(INTERVAL)
        await self._report(_end_of_lines(self._text))

    async def _report(self, end: int) -> None:
        text, self._text = self._text[:end], self._text[end:]
        if text:
            skipped, self._skipped = self._skipped, 0
            await self._hooks.emit(TOOL_OUTPUT, {**self._data, "text": text, "skipped": skipped})


def _next_line(text: str, at: int) -> int | None:
    """Where the first line after `at` starts; None if there is none."""
    end = text.find(_KEY_ENDS, at)
    if end >= 0 and not at < text.find(_KEY_BEGINS, at) < end:
        at = end  # otherwise only the end of a private key would remain
    found = _LINE_END.search(text, at)
    return None if found is None else found.end()


def _end_of_lines(text: str) -> int:
    """End of the last complete line, or the start of a private key that has not ended yet."""
    end = max(text.rfind("\n"), text.rfind("\r")) + 1
    key = text.rfind(_KEY_BEGINS)
    if key >= 0 and text.find(_KEY_ENDS, key, end) < 0:
        return min(end, key)
    return end
