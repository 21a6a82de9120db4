"""The token's states, its children and its callbacks."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from amplifier_core.cancellation import (
    CancellationState,
    CancellationToken,
    leave_late,
    task_cancel_count,
)


def test_states_only_advance() -> None:
    token = CancellationToken()
    assert (token.state, token.is_cancelled) == ("none", False)
    assert token.request_graceful() is True
    assert token.request_graceful() is False
    assert (token.state, token.is_graceful, token.is_immediate) == ("graceful", True, False)
    assert token.request_immediate() is True
    assert token.request_immediate() is False
    assert token.request_graceful() is False
    assert (token.state, token.is_graceful, token.is_immediate) == ("immediate", False, True)
    assert token.state != CancellationState.IMMEDIATE


def test_request_cancellation_is_graceful() -> None:
    token = CancellationToken()
    assert token.request_cancellation() is None
    assert token.is_graceful
    assert [state.value for state in CancellationState] == ["none", "graceful", "immediate"]


def test_running_tools_are_known_by_id_and_name() -> None:
    token = CancellationToken()
    token.register_tool_start("1", "bash")
    token.register_tool_start("2", "bash")
    token.register_tool_complete("unknown")
    token.running_tools.clear()
    token.running_tool_names.clear()
    assert token.running_tools == {"1", "2"}
    assert token.running_tool_names == ["bash", "bash"]
    token.register_tool_complete("1")
    assert token.running_tools == {"2"}


def test_requests_reach_children_registered_before_and_after() -> None:
    parent, early, late, former = (CancellationToken() for _ in range(4))
    parent.register_child(early)
    parent.register_child(former)
    parent.unregister_child(former)
    parent.unregister_child(former)
    parent.request_graceful()
    assert early.is_graceful
    assert not former.is_cancelled
    parent.request_immediate()
    parent.register_child(late)
    assert early.is_immediate
    assert late.is_immediate


def test_a_reset_clears_only_state_and_tools() -> None:
    parent, child = CancellationToken(), CancellationToken()
    parent.register_child(child)
    parent.register_tool_start("1", "t")
    parent.request_graceful()
    parent.reset()
    assert (parent.state, parent.running_tools) == ("none", set())
    assert child.is_graceful
    parent.request_immediate()
    assert child.is_immediate


async def test_callbacks_run_in_order_even_if_one_fails(caplog: pytest.LogCaptureFixture) -> None:
    token, ran = CancellationToken(), []

    async def later() -> None:
        ran.append("async")

    def broken() -> None:
        raise RuntimeError("boom")

    for callback in (lambda: ran.append("sync"), broken, later):
        token.on_cancel(callback)
    token.request_immediate()
    assert ran == []
    await token.trigger_callbacks()
    assert ran == ["sync", "async"]
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(
        "Cancellation callback 'tests.core.test_cancellation.broken' of tests.core.test_cancellation "
        "failed: RuntimeError: boom (tests/core/test_cancellation.py, line "
    )
    assert message.endswith("; the others still run")


async def test_all_callbacks_run_when_their_task_is_cancelled() -> None:
    token, ran, entered = CancellationToken(), [], asyncio.Event()

    async def waits() -> None:
        entered.set()
        await asyncio.Event().wait()

    async def slow() -> None:
        await asyncio.sleep(1.2)
        ran.append("slow")

    token.on_cancel(waits)
    token.on_cancel(slow)
    token.on_cancel(lambda: ran.append("last"))
    task = asyncio.create_task(token.trigger_callbacks())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ran == ["slow", "last"]


def test_outside_a_task_nothing_was_cancelled() -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        task_cancel_count()


async def test_outside_a_task_but_in_a_loop_nothing_was_cancelled() -> None:
    counted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(lambda: counted.set_result(task_cancel_count()))
    assert await counted == 0


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


async def ignore_cancellation() -> None:
    while True:
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            continue


async def test_work_that_ignores_its_cancellation_is_left() -> None:
    async def wait_for_a_task() -> None:
        await asyncio.create_task(ignore_cancellation(), name="ignoring")

    for work in (ignore_cancellation(), wait_for_a_task()):
        leaving = asyncio.create_task(leave_late(work, 0.05))
        await asyncio.sleep(0.02)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        work.close()
    for task in asyncio.all_tasks():
        if task.get_name() == "ignoring":
            task.get_coro().close()  # type: ignore[union-attr]


async def test_work_runs_in_the_task_that_waits_and_ends_as_it_would_by_itself() -> None:
    variable = ContextVar("variable", default="unset")

    async def work() -> str:
        assert asyncio.current_task() is waiting
        variable.set("set")
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            await asyncio.sleep(0.1)  # Longer than a cancellation would leave it.
        ready = asyncio.get_running_loop().create_future()
        ready.add_done_callback(lambda _: waiting.cancel())
        asyncio.get_running_loop().call_soon(ready.set_result, None)
        try:
            await ready
        finally:
            await asyncio.sleep(0.01)
            ended.append("cleaned up")
        return "unreachable"

    async def wait() -> str:
        try:
            return await leave_late(work(), 0.05)
        finally:
            ended.append(variable.get())

    ended: list[str] = []
    waiting = asyncio.create_task(wait())
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended == ["cleaned up", "set"]


@pytest.mark.parametrize("turns", range(1, 9))
@pytest.mark.parametrize("seconds", [0, 5])
async def test_a_cancellation_reaches_the_work_with_its_message(turns: int, seconds: int) -> None:
    """A scope of anyio lets a cancellation without its message through."""
    messages: list[object] = []

    async def work() -> None:
        try:
            for _ in range(20):
                await asyncio.sleep(seconds)
        except asyncio.CancelledError as error:
            messages.extend(error.args)
            raise

    task = asyncio.create_task(leave_late(work()))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel("the scope")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert messages == ["the scope"]


async def test_time_limits_within_work_leave_it_the_whole_time_to_end() -> None:
    ended: list[str] = []

    async def work() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.3)
            ended.append("work")

    task = asyncio.create_task(leave_late(work(), 0.5))
    await asyncio.sleep(0.25)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["work"]


async def test_work_fails_as_in_a_task_where_it_awaits_something_impossible() -> None:
    other = asyncio.new_event_loop()

    class Yields:
        def __init__(self, value: object) -> None:
            self.value = value

        def __await__(self) -> Iterator[Any]:
            yield self.value

    async def work(awaited: Any) -> str:
        with pytest.raises(RuntimeError, match="cannot await in this task"):
            await (awaited or asyncio.current_task())
        await asyncio.sleep(0)
        return "goes on"

    for awaited in (None, other.create_future(), Yields(0), Yields("a string")):
        assert await leave_late(work(awaited)) == "goes on"
    other.close()


async def test_the_timer_of_work_begins_when_it_waits() -> None:
    entered: list[str] = []

    @contextlib.asynccontextmanager
    async def timer() -> AsyncGenerator[None]:
        entered.append("timer")
        yield

    async def work(waits: bool) -> str:
        if waits:
            await asyncio.sleep(0)
        return "done"

    assert await leave_late(work(False), timer=timer()) == "done"  # type: ignore[arg-type]
    assert entered == []
    assert await leave_late(work(True), timer=timer()) == "done"  # type: ignore[arg-type]
    assert entered == ["timer"]
    limit = asyncio.timeout(0.01)
    with pytest.raises(TimeoutError):
        await leave_late(asyncio.Event().wait(), timer=limit)
    assert limit.expired()
