"""A hook that shortens what tools give back, where that is a dictionary with an output."""

from typing import Any

from amplifier_core import HookResult


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    async def shorten(event: str, data: dict[str, Any]) -> HookResult:
        result = data.get("result")
        if not isinstance(result, dict) or "LONG" not in str(result.get("output")):
            return HookResult(action="continue")
        # As an object, too.
        assert data["result"].success
        return HookResult(action="modify", data={**data, "result": {**result, "output": "SHORT"}})

    coordinator.hooks.register("tool:post", shorten, priority=50, name="shortening-hook")
