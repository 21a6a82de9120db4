"""Contribution channels: who offers what to whoever asks, by name of the channel."""

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any

from amplifier_core._foreign import log_failure
from amplifier_core.cancellation import task_cancel_count

logger = logging.getLogger(__name__)


class ContributionChannels:
    """Contributors by channel, in order of registration.

    Attributes:
        channels: For each channel its contributors, as ``{"name", "callback"}``.
    """

    def __init__(self) -> None:
        self.channels: dict[str, list[dict[str, Any]]] = {}

    def register(self, channel: str, name: str, callback: Callable[[], Any]) -> None:
        """Offer to `channel` what `callback` (sync or async) returns when it is collected."""
        self.channels.setdefault(channel, []).append({"name": name, "callback": callback})

    async def collect(self, channel: str) -> list[Any]:
        """What the contributors of `channel` return, in order, without None.

        A contributor that raises `CancelledError` ends the collection with what there is.
        """
        collected: list[Any] = []
        cancels = task_cancel_count()
        for entry in list(self.channels.get(channel, ())):
            try:
                value = entry["callback"]()
                if inspect.isawaitable(value):
                    value = await value
            except asyncio.CancelledError:
                if task_cancel_count() > cancels:
                    raise
                break
            # Contributors are foreign code: one that fails must not hide the others.
            except Exception as error:
                what, callback = f"Contributor '{entry['name']}' to {channel}", entry["callback"]
                log_failure(logger, what, callback, None, error, "it was skipped")
                continue
            if value is not None:
                collected.append(value)
        return collected
