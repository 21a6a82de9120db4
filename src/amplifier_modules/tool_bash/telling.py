"""What a command writes while it runs, as events: for people to look at, not for the model."""

from __future__ import annotations

import asyncio
import codecs
from typing import Any

from amplifier_modules._shared.loop.spans import event_ids

TOOL_OUTPUT = "tool:output"

INTERVAL = 0.2
"""Seconds between two events of a command."""

MOST = 4000
"""Characters in one event; what was written before the last ones is left out."""


class OutputTeller:
    """Emits `tool:output` with what was written since the last one, some times a second.

    Args:
        hooks: The session's hook registry.
        tool_name: The tool that runs the command.
        about: Further data of the events.
    """

    def __init__(self, hooks: Any, tool_name: str, **about: Any) -> None:
        self._hooks = hooks
        self._data = {"tool_name": tool_name, **about, **event_ids()}
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._skipped = 0
        self._task: asyncio.Task[None] | None = None

    def feed(self, data: bytes) -> None:
        """The next piece of output."""
        # Of a flood only the end would be shown: the rest is not even decoded.
        self._skipped += max(0, len(data) - 4 * MOST)
        self._text += self._decoder.decode(data[-4 * MOST :])
        if len(self._text) > MOST:
            self._skipped += len(self._text) - MOST
            self._text = self._text[-MOST:]
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._tell_soon())

    async def close(self) -> None:
        """Tell the rest at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._tell()

    async def _tell_soon(self) -> None:
        await asyncio.sleep(INTERVAL)
        await self._tell()

    async def _tell(self) -> None:
        text, self._text = self._text, ""
        skipped, self._skipped = self._skipped, 0
        if text:
            await self._hooks.emit(TOOL_OUTPUT, {**self._data, "text": text, "skipped": skipped})
