"""Mount points, capabilities, contributions and cleanup."""

import asyncio
import inspect
import logging
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from amplifier_core._foreign import belonging_to
from amplifier_core.cancellation import leave_late
from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.hooks import HookRegistry


class Named:
    def __init__(self, name: Any) -> None:
        self.name = name


class Session:
    session_id = "s"
    parent_id = "p"

    def __init__(self, **session: Any) -> None:
        self.config = {"session": session}


@pytest.fixture
def coordinator() -> ModuleCoordinator:
    return ModuleCoordinator()


def test_it_has_exactly_the_mount_points_of_the_contract(coordinator: ModuleCoordinator) -> None:
    assert set(coordinator.mount_points) == {
        "orchestrator",
        "providers",
        "tools",
        "context",
        "hooks",
        "module-source-resolver",
    }
    assert isinstance(coordinator.hooks, HookRegistry)
    assert coordinator.get("hooks") is coordinator.hooks
    assert coordinator.get("orchestrator") is None


async def test_modules_mount_under_a_given_name_or_their_own(
    coordinator: ModuleCoordinator,
) -> None:
    named, other = Named("own"), Named("other")
    await coordinator.mount("tools", named)
    await coordinator.mount("tools", other, name="given")
    assert coordinator.get("tools") == {"own": named, "given": other}
    assert coordinator.get("tools", "given") is other
    assert coordinator.get("tools", "missing") is None
    assert coordinator.get("tools") is coordinator.mount_points["tools"]
    assert coordinator.get_mounted("tools") is coordinator.get("tools")


async def test_mounting_a_name_again_replaces_the_module_and_keeps_its_position(
    coordinator: ModuleCoordinator,
) -> None:
    for name in ("a", "b", "a"):
        await coordinator.mount("providers", Named(name), name=name)
    assert list(coordinator.get("providers")) == ["a", "b"]


async def test_single_points_hold_the_last_one(coordinator: ModuleCoordinator) -> None:
    await coordinator.mount("context", "first", name="ignored")
    await coordinator.mount("context", "second")
    assert coordinator.get("context", "ignored") == "second"
    await coordinator.unmount("context", "ignored")
    assert coordinator.get("context") is None


async def test_the_session_mount_point_maps_to_orchestrator_and_context(
    coordinator: ModuleCoordinator,
) -> None:
    await coordinator.mount("session", "loop", name="orchestrator")
    await coordinator.mount("session", "memory", name="context")
    assert coordinator.get("orchestrator") == coordinator.get("session", "orchestrator") == "loop"
    await coordinator.unmount("session", "context")
    assert coordinator.get("context") is None
    with pytest.raises(ValueError, match="holds 'orchestrator' and 'context'; got name='tools'"):
        coordinator.mount("session", "x", name="tools")


@pytest.mark.parametrize(
    ("point", "module", "error", "text"),
    [
        ("nowhere", Named("x"), ValueError, "Unknown mount point"),
        ("hooks", Named("x"), ValueError, "hooks"),
        ("tools", object(), ValueError, "Name required for"),
        ("tools", Named(3), TypeError, "must be a string"),
    ],
)
def test_invalid_mounts_are_rejected(
    coordinator: ModuleCoordinator, point: str, module: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        coordinator.mount(point, module)


async def test_unmounting(coordinator: ModuleCoordinator) -> None:
    await coordinator.mount("tools", Named("a"))
    await coordinator.unmount("tools", "a")
    await coordinator.unmount("tools", "a")
    await coordinator.unmount("hooks")
    assert coordinator.get("hooks") is coordinator.hooks
    assert coordinator.get("tools") == {}
    with pytest.raises(ValueError, match="Name required"):
        coordinator.unmount("tools")
    for call in (coordinator.unmount, coordinator.get):
        with pytest.raises(ValueError, match="Unknown mount point: nowhere"):
            call("nowhere")


def test_facts_of_the_session_are_reachable() -> None:
    session = Session(injection_budget_per_turn=5, injection_size_limit=7)
    coordinator = ModuleCoordinator(session, approval_system="a", display_system="d")
    assert (coordinator.session_id, coordinator.parent_id) == ("s", "p")
    assert coordinator.config is session.config
    assert coordinator.session is session
    assert (coordinator.injection_budget_per_turn, coordinator.injection_size_limit) == (5, 7)
    assert (coordinator.approval_system, coordinator.display_system) == ("a", "d")
    with pytest.raises(AttributeError):
        ModuleCoordinator(SimpleNamespace(session_id="s"))


def test_without_a_session_it_is_empty(coordinator: ModuleCoordinator) -> None:
    assert (coordinator.session_id, coordinator.parent_id, coordinator.config) == ("", None, {})
    assert coordinator.session.session_id == ""
    assert coordinator.injection_size_limit is None


def test_capabilities(coordinator: ModuleCoordinator) -> None:
    assert coordinator.get_capability("x") is None
    coordinator.register_capability("x", 1)
    coordinator.register_capability("x", 2)
    assert coordinator.get_capability("x") == 2
    with pytest.raises(TypeError):
        coordinator.get_capability("x", "default")  # type: ignore[call-arg]


async def test_contributions_are_in_order_without_none_and_without_failures(
    coordinator: ModuleCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    async def later() -> list[str]:
        return ["b"]

    def broken() -> None:
        raise RuntimeError("boom")

    for name, callback in [
        ("a", lambda: ["a"]),
        ("none", lambda: None),
        ("empty", list),
        ("broken", broken),
        ("b", later),
        ("a", lambda: ["a"]),
    ]:
        coordinator.register_contributor("c", name, callback)
    assert await coordinator.collect_contributions("c") == [["a"], [], ["b"], ["a"]]
    assert await coordinator.collect_contributions("unknown") == []
    assert "'broken'" in caplog.text
    assert [entry["name"] for entry in coordinator.channels["c"]][:2] == ["a", "none"]
    assert {tuple(entry) for entry in coordinator.channels["c"]} == {("name", "callback")}


async def test_a_contributor_that_raises_cancelled_error_ends_the_collection(
    coordinator: ModuleCoordinator,
) -> None:
    def gives_up() -> None:
        raise asyncio.CancelledError

    coordinator.register_contributor("c", "a", lambda: 1)
    coordinator.register_contributor("c", "b", gives_up)
    coordinator.register_contributor("c", "c", lambda: 2)
    assert await coordinator.collect_contributions("c") == [1]


async def test_cancelling_a_collection_is_not_swallowed(coordinator: ModuleCoordinator) -> None:
    entered = asyncio.Event()

    async def slow() -> None:
        entered.set()
        await asyncio.sleep(60)

    coordinator.register_contributor("c", "slow", slow)
    task = asyncio.create_task(coordinator.collect_contributions("c"))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_all_cleanups_run_in_reverse_order(
    coordinator: ModuleCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []

    async def later() -> None:
        ran.append("async")

    def broken() -> None:
        ran.append("broken")
        raise RuntimeError("boom")

    for function in (lambda: ran.append("first"), later, broken, None, "not callable"):
        coordinator.register_cleanup(function)
    with caplog.at_level(logging.ERROR):
        await coordinator.cleanup()
    assert ran == ["broken", "async", "first"]
    assert "boom" in caplog.text
    await coordinator.cleanup()
    assert len(ran) == 6


async def test_an_interrupt_in_a_cleanup_is_raised_after_the_others_ran(
    coordinator: ModuleCoordinator,
) -> None:
    ran: list[str] = []

    def interrupt(error: BaseException) -> Any:
        def cleanup() -> None:
            raise error

        return cleanup

    coordinator.register_cleanup(lambda: ran.append("last"))
    coordinator.register_cleanup(interrupt(KeyboardInterrupt("second")))
    coordinator.register_cleanup(interrupt(KeyboardInterrupt("first")))
    with pytest.raises(KeyboardInterrupt, match="first"):
        await coordinator.cleanup()
    assert ran == ["last"]


async def test_cleanups_that_hang_after_a_cancellation_are_stopped_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("amplifier_core.coordinator._LATE_SECONDS", 0.01)
    coordinator, ran = ModuleCoordinator(), list[str]()
    started = asyncio.Event()

    async def hang() -> None:
        started.set()
        await asyncio.Event().wait()

    coordinator.register_cleanup(lambda: ran.append("last"))
    for module_id in ("tool-a", "tool-b", "tool-c"):
        with belonging_to("tool", module_id):
            coordinator.register_cleanup(hang)
    cleaning = asyncio.create_task(coordinator.cleanup())
    await started.wait()
    cleaning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cleaning
    assert ran == ["last"]
    stopped, *failed = [record.getMessage() for record in caplog.records]
    assert stopped == "Cleanup 'tool-c.hang' of tool 'tool-c' was stopped before it ended"
    # Before Python 3.11.4 the limit ends as a cancellation in a task that was cancelled.
    end = "TimeoutError" if sys.version_info >= (3, 11, 4) else "CancelledError"
    assert [end in message for message in failed] == [True, True]


async def test_a_cleanup_that_ignores_its_cancellation_is_left_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leave_late, "__defaults__", (0.05,))
    coordinator, ran = ModuleCoordinator(), list[str]()
    stubborn: list[Any] = []

    def ignore() -> Any:
        async def go_on() -> None:
            while True:
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    ran.append("ignored")

        stubborn.append(go_on())
        return stubborn[0]

    coordinator.register_cleanup(lambda: ran.append("last"))
    with belonging_to("tool", "tool-a"):
        coordinator.register_cleanup(ignore)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await coordinator.cleanup()
    assert ran == ["ignored", "last"]
    assert [record.getMessage() for record in caplog.records] == [
        "Cleanup 'tool-a.ignore' of tool 'tool-a' was stopped before it ended"
    ]
    stubborn[0].close()


async def test_the_time_of_a_cleanup_after_an_interrupt_begins_when_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("amplifier_core.coordinator._LATE_SECONDS", 0.5)
    coordinator, ran = ModuleCoordinator(), list[str]()

    async def end() -> None:
        await asyncio.sleep(0.01)
        ran.append("ended")

    def begin() -> Any:
        time.sleep(0.6)
        return end()

    def interrupt() -> None:
        raise KeyboardInterrupt

    coordinator.register_cleanup(begin)
    coordinator.register_cleanup(interrupt)
    with pytest.raises(KeyboardInterrupt):
        await coordinator.cleanup()
    assert ran == ["ended"]


@pytest.mark.parametrize("failure", [SystemExit(0), asyncio.CancelledError(), RuntimeError()])
async def test_no_failure_of_a_cleanup_ends_the_program(
    coordinator: ModuleCoordinator, failure: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def cleanup() -> None:
        raise failure

    coordinator.register_cleanup(cleanup)
    await coordinator.cleanup()
    assert type(failure).__name__ in caplog.text


async def test_request_cancel_only_changes_the_token(coordinator: ModuleCoordinator) -> None:
    seen: list[str] = []
    coordinator.cancellation.on_cancel(lambda: seen.append("callback"))
    coordinator.hooks.register("cancel:requested", lambda e, d: seen.append(e))
    await coordinator.request_cancel()
    assert coordinator.cancellation.is_graceful
    await coordinator.request_cancel(immediate=True)
    assert coordinator.cancellation.is_immediate
    assert seen == []


def test_coordinator_attributes_are_stable_and_read_only(coordinator: ModuleCoordinator) -> None:
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
