"""A hook that asks for approval through the provider that the app hands to it, and denies without."""

from typing import Any

from amplifier_core import ApprovalRequest, HookResult


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    providers: list[Any] = []
    coordinator.register_capability("approval.register_provider", providers.append)

    async def ask(event: str, data: dict[str, Any]) -> HookResult:
        if data["tool_name"] != "bash":
            return HookResult(action="continue")
        if not providers:
            return HookResult(action="deny", reason="no approval provider is registered")
        request = ApprovalRequest(
            tool_name="bash", action=data["tool_input"]["command"], risk_level="high"
        )
        answer = await providers[0].request_approval(request)
        if answer.approved:
            return HookResult(action="continue")
        return HookResult(action="deny", reason=answer.reason or "not approved")

    coordinator.hooks.register("tool:pre", ask, priority=10, name="asking-hook")
