"""Behaviour of sessions that hosts rely on, with real modules."""

import asyncio
import logging
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest

import amplifier_core
from amplifier_core.loader import ModuleLoader
from amplifier_core.models import SessionStatus
from amplifier_core.session import AmplifierSession
from tests.core.test_session import (
    Loader,
    Orchestrator,
    Provider,
    Tool,
    at,
    modules,
    plan,
    record,
    session,
)


def test_all_arguments_can_be_positional() -> None:
    loader, approval, display = ModuleLoader(), object(), object()
    made = AmplifierSession(plan(), loader, "s", "p", approval, display, True)
    assert (made.session_id, made.parent_id, made.is_resumed) == ("s", "p", True)
    assert made.loader is loader is made.coordinator.loader
    assert made.coordinator.approval_system is approval
    assert made.coordinator.display_system is display
    assert isinstance(made.status, SessionStatus)


def test_the_loader_can_be_assigned_on_the_session_and_on_its_coordinator() -> None:
    made, first, second = AmplifierSession(plan()), ModuleLoader(), ModuleLoader()
    made.loader = first
    assert made.coordinator.loader is first
    made.coordinator.loader = second
    assert made.loader is second


def test_a_session_section_that_is_not_a_mapping_is_an_error() -> None:
    with pytest.raises(TypeError, match="session in the mount plan must be a mapping, not 'x'"):
        AmplifierSession({"session": "x"})


def test_hosts_may_patch_the_parts_of_a_session() -> None:
    with patch("amplifier_core.AmplifierSession") as fake:
        assert amplifier_core.AmplifierSession is fake
    assert amplifier_core.AmplifierSession is AmplifierSession


async def test_hosts_may_patch_the_loader_and_the_initialization() -> None:
    with (
        patch("amplifier_core.session.ModuleLoader") as loader,
        patch("amplifier_core.session.initialize_session", AsyncMock()) as initialize,
    ):
        made = AmplifierSession(plan())
        await made.initialize()
    assert made.loader is loader.return_value
    loader.assert_called_once_with(coordinator=made.coordinator)
    initialize.assert_awaited_once_with(made.config, made.coordinator)
    assert made.initialized


async def test_default_fields_are_on_every_event_from_the_start() -> None:
    made = AmplifierSession(plan(), session_id="s", parent_id="p")
    seen: list[Any] = []
    made.coordinator.hooks.register("e", lambda e, d: seen.append(dict(d)))
    await made.coordinator.hooks.emit("e", {})
    assert (seen[0]["session_id"], seen[0]["parent_id"]) == ("s", "p")


# Initialization


async def test_concurrent_initializations_mount_the_plan_once() -> None:
    mounted: list[str] = []
    entered = asyncio.Event()

    async def slow(coordinator: Any, config: Any) -> None:
        mounted.append("p")
        entered.set()
        await asyncio.sleep(0)
        await coordinator.mount("providers", Provider())

    target = session(provider_p=slow)
    answers = await asyncio.gather(
        target.initialize(), target.execute("a"), target.execute("b"), target.initialize()
    )
    assert mounted == ["p"]
    assert answers == [None, "answer", "answer", None]


async def test_a_module_may_call_initialize_while_it_is_mounted() -> None:
    async def mount(coordinator: Any, config: Any) -> None:
        await coordinator.mount("providers", Provider())
        await coordinator.session.initialize()
        assert not coordinator.session.initialized

    target = session(provider_p=mount)
    async with asyncio.timeout(10):
        await target.initialize()
    assert target.initialized


async def test_a_failed_or_cancelled_initialization_can_be_repeated() -> None:
    trouble: list[BaseException] = [RuntimeError("not yet"), asyncio.CancelledError()]

    async def mount(coordinator: Any, config: Any) -> None:
        if trouble:
            raise trouble.pop(0)
        await coordinator.mount("context", AsyncMock())

    target = session(memory=mount)
    with pytest.raises(RuntimeError, match="Cannot initialize without context manager: not yet"):
        await target.initialize()
    with pytest.raises(asyncio.CancelledError):
        await target.initialize()
    await target.initialize()
    assert target.initialized


async def test_after_its_cleanup_a_session_may_be_initialized_again() -> None:
    target = session()
    await target.execute("a")
    await target.cleanup()
    assert await target.execute("b") == "answer"
    assert [name for name, _, _ in target.loader.loaded] == ["loop", "memory", "provider-p"] * 2


@pytest.mark.parametrize("kind", ["orchestrator", "context"])
async def test_an_entry_without_a_module_is_an_error(kind: str) -> None:
    config = plan()
    config["session"][kind] = {"source": "./x"}
    with pytest.raises(RuntimeError, match=f"session.{kind} of the mount plan has no 'module'"):
        await AmplifierSession(config, loader=Loader(**modules())).initialize()


async def test_an_entry_that_is_not_a_mapping_is_an_error() -> None:
    with pytest.raises(
        ValueError,
        match=r"tools\[1\] of the mount plan must be a mapping with 'module' \(got 'tool-t'\)",
    ):
        await session(plan(tools=[{"no": "module"}, "tool-t"])).initialize()


async def test_loaders_are_called_with_the_published_keywords() -> None:
    asked: list[Any] = []

    class Recording(Loader):
        async def load(self, *args: Any, **more: Any) -> Any:
            asked.append((args, more))
            return await super().load(*args, **more)

    config = plan(tools=[{"module": "tool-t", "source": "./t", "config": None}])
    target = AmplifierSession(config, loader=Recording(**modules(tool_t=at("tools", Tool()))))
    await target.initialize()
    assert asked[-1] == (
        ("tool-t", {}),
        {"source_hint": "./t", "coordinator": target.coordinator},
    )


# Providers


async def test_a_second_instance_does_not_change_the_order_of_providers() -> None:
    def make(coordinator: Any, config: dict[str, Any]) -> Any:
        return at("providers", Provider(config["n"]), "p")(coordinator, config)

    entries = [
        {"module": "provider-p", "config": {"n": "first"}},
        {"module": "provider-q"},
        {"module": "provider-p", "instance_id": "again", "config": {"n": "again"}},
        {"module": "provider-p", "instance_id": "p2", "config": {"n": "p2"}},
    ]
    target = session(
        plan(providers=entries), provider_p=make, provider_q=at("providers", Provider("q"), "q")
    )
    await target.initialize()
    providers = target.coordinator.get("providers")
    assert list(providers) == ["p", "q", "again", "p2"]
    assert providers["p"].name == "first"


async def test_a_provider_mounted_under_another_name_also_gets_its_instance_id() -> None:
    entries = [{"module": "provider-p", "instance_id": "mine"}]
    target = session(plan(providers=entries), provider_p=at("providers", Provider(), "other"))
    await target.initialize()
    assert list(target.coordinator.get("providers")) == ["mine"]


async def test_only_the_providers_own_warnings_become_its_reason() -> None:
    async def silent(coordinator: Any, config: Any) -> None:
        await asyncio.sleep(0)

    async def noisy() -> None:
        logging.getLogger("another.module").warning("unrelated")

    target = session(provider_p=silent)
    await asyncio.gather(target.initialize(), noisy())
    with pytest.raises(RuntimeError, match="provider-p: its mount function mounted nothing"):
        await target.execute("x")


async def test_a_failed_instance_is_reported_by_its_id() -> None:
    target = session(
        plan(providers=[{"module": "provider-p", "instance_id": "mine"}]),
        provider_p=lambda c, config: None,
    )
    failures: list[Any] = []
    target.coordinator.hooks.register("module:load_failed", lambda e, d: failures.append(dict(d)))
    await target.initialize()
    assert (failures[0]["module_id"], failures[0]["instance_id"]) == ("provider-p", "mine")


async def test_a_failure_callback_may_stop_the_initialization() -> None:
    def stop(coordinator: Any, entry: dict[str, Any], error: Exception) -> None:
        raise LookupError(f"{entry['module']}: {error}")

    target = session(provider_p=lambda c, config: None)
    target.coordinator.register_capability("provider.load_failure", stop)
    with pytest.raises(LookupError, match="provider-p: its mount function mounted nothing"):
        await target.initialize()


# Turns


@pytest.mark.parametrize(("repeated", "end"), [(False, "failed"), (True, "completed")])
async def test_the_status_is_that_of_the_last_turn(repeated: bool, end: str) -> None:
    loop = Orchestrator(RuntimeError("boom"))
    target = session(loop=at("orchestrator", loop))
    with pytest.raises(RuntimeError, match="boom"):
        await target.execute("a")
    assert target.status.status == "failed"
    if repeated:
        loop.answer = "fine"
        await target.execute("b")
    ends = record(target, "session:end")
    await target.cleanup()
    assert [data["status"] for _, data in ends] == [end]


async def test_a_compiled_orchestrator_without_signature_receives_all_arguments() -> None:
    class Hidden:
        __signature__ = "none"

        async def __call__(self, **given: Any) -> str:
            return ",".join(sorted(given))

    loop = Orchestrator()
    loop.execute = Hidden()  # type: ignore[method-assign]
    target = session(loop=at("orchestrator", loop))
    assert await target.execute("x") == "context,coordinator,hooks,prompt,providers,tools"


async def test_the_return_value_of_an_orchestrator_is_returned_unchanged() -> None:
    assert await session(loop=at("orchestrator", Orchestrator(5))).execute("x") == 5


async def test_a_session_is_an_async_context_manager() -> None:
    target = session()
    async with target as entered:
        assert entered is target
        assert target.initialized
    assert not target.initialized


async def test_a_failed_entry_into_a_session_cleans_up_what_was_mounted() -> None:
    ran: list[str] = []
    target = session(
        loop=at("orchestrator", Orchestrator(), then=lambda: ran.append("loop")),
        memory=lambda c, config: 1 / 0,
    )
    with pytest.raises(RuntimeError, match="division by zero"):
        async with target:
            pass
    assert ran == ["loop"]
    assert target.loader.cleaned == 1


async def test_cancelling_the_end_of_a_session_still_runs_every_cleanup() -> None:
    ran: list[str] = []
    entered = asyncio.Event()

    async def slow(event: str, data: dict[str, Any]) -> None:
        entered.set()
        await asyncio.sleep(60)

    target = session(provider_p=at("providers", Provider(), "p", then=lambda: ran.append("p")))
    target.coordinator.hooks.register("session:end", slow)
    await target.initialize()
    ending = asyncio.create_task(target.cleanup())
    await entered.wait()
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert ran == ["p"]
    assert target.loader.cleaned == 1


async def test_the_resolver_is_mounted_by_the_host_before_the_session_is_initialized(
    tmp_path: Path,
) -> None:
    asked: list[str] = []

    class Resolver:
        async def async_resolve(
            self, module_id: str, source_hint: Any = None, profile_hint: Any = None
        ) -> Any:
            asked.append(module_id)
            raise amplifier_core.loader.NotInstalledError(module_id)

        def resolve(self, module_id: str) -> Any: ...

    config = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": [{"module": "provider-mock"}],
    }
    target = AmplifierSession(config)
    await target.coordinator.mount("module-source-resolver", Resolver())
    async with target:
        assert asked == ["loop-basic", "context-simple", "provider-mock"]
        assert isinstance(target.loader, ModuleLoader)
        assert isinstance(await target.execute("hello"), str)
