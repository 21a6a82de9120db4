"""The cost of the kernel, each figure next to its floor: an awaited function that does nothing.

Run with ``pytest tests/bench --benchmark-enable -n 0``; compare the groups' medians as ratios.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.hooks import HookRegistry
from amplifier_core.loader import ModuleLoader
from amplifier_core.models import HookResult
from amplifier_core.session import AmplifierSession

ROUND = 200
"""Calls in one measured round, so that entering the event loop is not what is measured."""

MESSAGES = [{"role": "user", "content": "x" * 100} for _ in range(10_000)]
DATA = {"messages": MESSAGES, "turn_id": "t", "span_id": "s", "iteration": 1}


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


Call = Callable[[], Coroutine[Any, Any, Any]]


def measure(benchmark: Any, loop: asyncio.AbstractEventLoop, call: Call) -> None:
    async def many() -> None:
        for _ in range(ROUND):
            await call()

    benchmark(lambda: loop.run_until_complete(many()))
    benchmark.extra_info["calls_per_round"] = ROUND


async def nothing() -> None:
    """The floor."""


@pytest.mark.benchmark(group="emit")
def test_floor_of_emit(benchmark: Any, loop: asyncio.AbstractEventLoop) -> None:
    measure(benchmark, loop, nothing)


@pytest.mark.benchmark(group="emit")
@pytest.mark.parametrize("listeners", [0, 1, 10])
def test_emit(benchmark: Any, loop: asyncio.AbstractEventLoop, listeners: int) -> None:
    hooks = HookRegistry()
    hooks.set_default_fields(session_id="s", parent_id=None)

    async def handler(event: str, data: dict[str, Any]) -> HookResult:
        return HookResult(action="continue")

    for _ in range(listeners):
        hooks.register("provider:request", handler)
    measure(benchmark, loop, lambda: hooks.emit("provider:request", DATA))


@pytest.mark.benchmark(group="mount")
def test_floor_of_mount(benchmark: Any, loop: asyncio.AbstractEventLoop) -> None:
    measure(benchmark, loop, nothing)


@pytest.mark.benchmark(group="mount")
def test_mount(benchmark: Any, loop: asyncio.AbstractEventLoop) -> None:
    coordinator, module = ModuleCoordinator(), object()

    async def mount() -> None:
        await coordinator.mount("tools", module, name="t")

    measure(benchmark, loop, mount)


@pytest.mark.benchmark(group="initialize")
def test_initialize_with_ten_modules(benchmark: Any, loop: asyncio.AbstractEventLoop) -> None:
    class Loader(ModuleLoader):
        async def load(self, module_id: str, *args: Any, **kwargs: Any) -> Any:
            async def mount(coordinator: Any) -> None:
                point, _, name = module_id.partition("-")
                await coordinator.mount(point, object(), name=name)

            return mount

    plan = {
        "session": {"orchestrator": "orchestrator-loop", "context": "context-memory"},
        "providers": [{"module": "providers-one"}],
        "tools": [{"module": f"tools-{index}"} for index in range(7)],
    }

    async def initialize() -> None:
        session = AmplifierSession(plan, loader=Loader(), session_id="s")
        await session.initialize()

    benchmark(lambda: loop.run_until_complete(initialize()))
