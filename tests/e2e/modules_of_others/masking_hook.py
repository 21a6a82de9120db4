"""A hook that masks a secret in the data of events for logs, and one after it that writes them down."""

import json
from pathlib import Path
from typing import Any

from amplifier_core import HookResult

EVENTS = ("prompt:submit", "provider:request", "provider:response", "prompt:complete")


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    settings = config or {}
    secret, file = settings["secret"], Path(settings["file"])

    def masked(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace(secret, "[REDACTED:SECRET]")
        if isinstance(value, list):
            return [masked(item) for item in value]
        if isinstance(value, dict):
            return {key: masked(item) for key, item in value.items()}
        return value

    async def mask(event: str, data: dict[str, Any]) -> HookResult:
        copy = masked(data) | {"redaction": {"applied": True, "rules": ["secrets"]}}
        return HookResult(action="modify", data=copy)

    async def offer_one_tool(event: str, data: dict[str, Any]) -> HookResult:
        return HookResult(action="modify", data=data | {"tools": ["read_file"]})

    def write(line: str) -> None:
        with file.open("a") as lines:
            lines.write(line + "\n")

    async def log(event: str, data: dict[str, Any]) -> HookResult:
        write(json.dumps({"event": event, **data}, default=str))
        return HookResult(action="continue")

    coordinator.hooks.register("provider:request", offer_one_tool, priority=5, name="one-tool")
    for event in EVENTS:
        coordinator.hooks.register(event, mask, priority=10, name="masking-hook")
        coordinator.hooks.register(event, log, priority=100, name="masked-log")
