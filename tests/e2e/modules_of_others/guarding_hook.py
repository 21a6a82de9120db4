"""A guard that knows files by the input `file_path` of the tools that read and write them."""

from typing import Any

from amplifier_core import HookResult


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    async def guard(event: str, data: dict[str, Any]) -> HookResult:
        path = str((data.get("tool_input") or {}).get("file_path", ""))
        if "secret" in path:
            return HookResult(action="deny", reason="secrets are out of bounds")
        return HookResult(action="continue")

    coordinator.hooks.register("tool:pre", guard, priority=5, name="guarding-hook")
