"""Report the progress of a download to the user."""

from __future__ import annotations

import sys
from typing import Any

from amplifier_core.events import PROVIDER_RESOLVE
from amplifier_modules.provider_local.store import Progress

_SOURCE = "provider-local"
_STEP_PERCENT = 25


class FetchNotices:
    """Report the progress of a download: always to hooks, and to the user if possible.

    Hooks get `provider:resolve`. The user sees a few messages from the session's display system or,
    if the session has none, a line on stderr if that is a terminal.
    """

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator
        self._stage = ""
        self._next_percent = _STEP_PERCENT

    async def __call__(self, progress: Progress) -> None:
        """Report one step."""
        hooks = getattr(self._coordinator, "hooks", None)
        if hooks is not None:
            await hooks.emit(PROVIDER_RESOLVE, _data(progress))
        display = getattr(self._coordinator, "display_system", None)
        if display is not None:
            if message := self._message(progress):
                display.show_message(message, "info", _SOURCE)
        elif sys.stderr is not None and sys.stderr.isatty():
            end = "\n" if progress.stage == "ready" else ""
            line = f"\r\x1b[K{progress.weights.id}: {progress.stage} {progress.percent} %{end}"
            print(line, end="", file=sys.stderr, flush=True)
        self._stage = progress.stage

    def _message(self, progress: Progress) -> str | None:
        weights = progress.weights
        if progress.stage != self._stage:
            return {
                "waiting": f"Waiting for another process that is downloading {weights.id}",
                "fetching": f"Downloading {weights.id} ({weights.size / 1e6:.0f} MB, "
                f"{weights.licence}; {weights.attribution}), once",
                "verifying": None,
                "ready": f"{weights.id} is ready",
            }[progress.stage]
        if progress.stage == "fetching" and progress.percent >= self._next_percent:
            self._next_percent = progress.percent + _STEP_PERCENT
            return f"Downloading {weights.id}: {progress.percent} %"
        return None


def _data(progress: Progress) -> dict[str, Any]:
    weights = progress.weights
    return {
        "provider": "local",
        "model": weights.id,
        "status": progress.stage,
        "bytes": progress.done,
        "total_bytes": progress.total,
        "licence": weights.licence,
        "attribution": weights.attribution,
    }
