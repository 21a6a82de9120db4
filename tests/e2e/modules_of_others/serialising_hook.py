"""A hook that keeps the data of events as JSON, without helping the encoder."""

import json
from pathlib import Path
from typing import Any

from amplifier_core import HookResult


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    file = Path((config or {})["file"])
    seen = file.read_text().splitlines() if file.exists() else []

    async def keep(event: str, data: dict[str, Any]) -> HookResult:
        seen.append(json.dumps({"event": event, **data}))
        file.write_text("\n".join(seen))
        return HookResult(action="continue")

    for event in ("tool:pre", "tool:post", "tool:error", "provider:response", "message.end"):
        coordinator.hooks.register(event, keep, priority=90, name="serialising-hook")
