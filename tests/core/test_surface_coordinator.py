"""Behaviour of the coordinator, hook results and cancellation that modules rely on."""

import asyncio
import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from amplifier_core.cancellation import CancellationToken
from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.models import ContextInjection, HookResult
from tests.core.test_hook_results import Context, make


@pytest.fixture
def coordinator() -> ModuleCoordinator:
    return ModuleCoordinator()


# The coordinator itself


def test_coordinator_attributes_are_stable_and_read_only(
    coordinator: ModuleCoordinator,
) -> None:
    assert coordinator.hooks is coordinator.hooks is coordinator.get("hooks")
    assert coordinator.mount_points["hooks"] is coordinator.hooks
    assert coordinator.cancellation is coordinator.cancellation
    for name in ("hooks", "cancellation", "config", "session_id", "parent_id", "session"):
        with pytest.raises(AttributeError):
            setattr(coordinator, name, None)
    coordinator.config["added"] = 1
    assert coordinator.config == {"added": 1}


def test_modules_and_hosts_may_set_attributes_on_a_coordinator(
    coordinator: ModuleCoordinator,
) -> None:
    class Own(ModuleCoordinator):
        pass

    for made in (coordinator, Own()):
        made.todo_state = [1]  # type: ignore[attr-defined]
        made._tool_dispatch_contexts = {}  # type: ignore[attr-defined]
        made.session_state = {"shared": True}
        made.session_state["more"] = 1
        made.loader = "loader"
        made.approval_system = made.display_system = None
        assert made.todo_state == [1]  # type: ignore[attr-defined]
        assert made.session_state == {"shared": True, "more": 1}


async def test_mounting_can_be_awaited_gathered_or_neither(coordinator: ModuleCoordinator) -> None:
    tool = SimpleNamespace(name="t")
    coordinator.mount("tools", tool)
    assert not await coordinator.mount("tools", tool, "u")
    await asyncio.gather(coordinator.mount("tools", tool, name="v"), asyncio.sleep(0))
    assert list(coordinator.get("tools")) == ["t", "u", "v"]
    assert inspect.isawaitable(coordinator.unmount("tools", "t"))
    assert list(coordinator.get("tools")) == ["u", "v"]


async def test_a_cleanup_may_register_another_and_runs_on_every_call(
    coordinator: ModuleCoordinator,
) -> None:
    ran: list[str] = []

    async def first() -> None:
        ran.append("first")
        coordinator.register_cleanup(lambda: ran.append("late"))

    for cleanup in (None, "text", first):
        coordinator.register_cleanup(cleanup)
    await coordinator.cleanup()
    await coordinator.cleanup()
    assert ran == ["first", "late", "first"]


def test_limits_follow_changes_of_the_plan(coordinator: ModuleCoordinator) -> None:
    assert coordinator.injection_budget_per_turn is coordinator.injection_size_limit is None
    coordinator.config["session"] = {"injection_budget_per_turn": 5, "injection_size_limit": 9}
    assert (coordinator.injection_budget_per_turn, coordinator.injection_size_limit) == (5, 9)
    coordinator.config["session"] = None
    assert coordinator.injection_size_limit is None


# Hook results


async def test_a_plain_dict_is_not_a_result(coordinator: ModuleCoordinator) -> None:
    with pytest.raises(AttributeError):
        await coordinator.process_hook_result({"action": "continue"}, "e")  # type: ignore[arg-type]


@pytest.mark.parametrize("action", ["continue", "deny", "modify"])
async def test_a_result_that_needs_no_processing_is_returned_unchanged(
    coordinator: ModuleCoordinator, action: Any
) -> None:
    result = HookResult(action=action, data={"a": 1})
    assert await coordinator.process_hook_result(result, "e", "hook") is result


async def test_sizes_are_counted_per_item_after_removing_control_characters() -> None:
    context = Context()
    coordinator = make(injection_size_limit=3)
    await coordinator.mount("context", context)
    result = HookResult(
        action="inject_context",
        context_injections=[
            ContextInjection(content="\x00\x1babc"),
            ContextInjection(content="def"),
        ],
    )
    assert (await coordinator.process_hook_result(result, "e")).action == "continue"
    assert [message["content"] for message in context.messages] == ["abc", "def"]


async def test_exceptions_of_a_context_propagate() -> None:
    class Broken:
        async def add_message(self, message: Any) -> None:
            raise LookupError("no room")

    coordinator = make()
    await coordinator.mount("context", Broken())
    with pytest.raises(LookupError):
        await coordinator.process_hook_result(
            HookResult(action="inject_context", context_injection="x"), "e"
        )


# Cancellation


def test_cyclic_child_tokens_do_not_loop() -> None:
    first, second = CancellationToken(), CancellationToken()
    first.register_child(second)
    second.register_child(first)
    first.request_immediate()
    assert second.is_immediate
    second.unregister_child(CancellationToken())


async def test_a_callback_that_awaits_what_it_cancelled_does_not_stop_the_others() -> None:
    token, ran = CancellationToken(), []
    work = asyncio.create_task(asyncio.sleep(60))
    await asyncio.sleep(0)

    async def stop_work() -> None:
        work.cancel()
        await work

    token.on_cancel(stop_work)
    token.on_cancel(lambda: ran.append("other"))
    await token.trigger_callbacks()
    await token.trigger_callbacks()
    assert ran == ["other", "other"]


async def test_a_coordinator_with_another_get_is_used_through_it() -> None:
    context = Context()

    class Other(ModuleCoordinator):
        def get(self, mount_point: str, name: str | None = None) -> Any:
            return context if mount_point == "context" else super().get(mount_point, name)

    other = Other()
    assert other.get_mounted("context") is context
    result = HookResult(action="inject_context", context_injection="note")
    await other.process_hook_result(result, "tool:post", "hook")
    assert len(context.messages) == 1
