"""The token's states, its children and its callbacks."""

import asyncio

import pytest

from amplifier_core.cancellation import CancellationState, CancellationToken, task_cancel_count


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
