"""Limits for code that blocks the event loop."""

import asyncio
import re
import signal
import threading
import time

import pytest

from amplifier_app.base.blocked_loop import BlockLimit, LoopBlocked, block_limit
from tests.support.waiting import eventually


def block() -> None:
    time.sleep(30)


async def test_what_blocks_gets_an_exception_until_it_stops() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with block_limit(0.05, 0.0):
        for _ in range(2):
            with pytest.raises(LoopBlocked, match=rf"{re.escape(__file__)}, line \d+"):
                block()
    assert signal.getsignal(signal.SIGALRM) is before


async def test_a_loop_that_answers_is_left_alone() -> None:
    with block_limit(0.05, 0.0):
        for _ in range(150):
            await asyncio.sleep(0.01)


async def test_limits_that_begin_and_end_leave_the_loop_its_time() -> None:
    with block_limit(0.05, 0.0):
        await asyncio.sleep(0.1)
        for _ in range(10):
            with block_limit(60):
                time.sleep(0.01)  # noqa: ASYNC251 - it blocks the loop


async def test_code_that_handles_the_exception_has_the_time_again() -> None:
    with block_limit(0.05, 2.0):
        with pytest.raises(LoopBlocked):
            block()
        time.sleep(0.8)  # noqa: ASYNC251 - it blocks the loop


async def test_code_with_limits_of_its_own_is_spared() -> None:
    """A row of a batch does not fail because another one ends late."""

    async def end_late() -> None:
        with block_limit(0.05, 0.0):
            await asyncio.sleep(1.5)

    late = asyncio.create_task(end_late())
    await asyncio.sleep(0.1)
    with block_limit(60):
        time.sleep(1.2)  # noqa: ASYNC251 - it blocks the loop
        limit = BlockLimit(0.05, 0.0)
        with pytest.raises(LoopBlocked):
            block()
        limit.remove()
    await late


async def test_a_limit_concerns_tasks_that_begin_within_it() -> None:
    async def begin() -> None:
        with pytest.raises(LoopBlocked), block_limit(60):
            block()

    with block_limit(0.05, 0.0):
        await asyncio.create_task(begin())


def test_a_limit_that_is_left_in_a_task_ends_with_its_loop() -> None:
    left: list[asyncio.Task[None]] = []

    async def wait() -> None:
        with block_limit(0.05, 0.0):
            await asyncio.sleep(0.2)

    async def leave() -> None:
        left.append(asyncio.create_task(wait()))
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    time.sleep(1.2)
    loop.run_until_complete(left[0])
    loop.close()
    assert not BlockLimit._all


async def test_limits_of_tasks_at_the_same_time_are_independent() -> None:
    """The first one to begin is the first one to end, as with rows of a batch."""
    before = signal.getsignal(signal.SIGALRM)
    first, second = BlockLimit(0.3, 0.0), BlockLimit(60)
    first.remove()
    await asyncio.sleep(0.4)
    third = BlockLimit(0.05, 0.0)
    second.remove()
    with pytest.raises(LoopBlocked):
        block()
    third.remove()
    third.remove()
    assert signal.getsignal(signal.SIGALRM) is before
    await asyncio.sleep(0.6)


async def test_a_timer_that_was_set_before_goes_on() -> None:
    rang: list[int] = []
    handler = signal.signal(signal.SIGALRM, lambda number, _: rang.append(number))
    timer = signal.setitimer(signal.ITIMER_REAL, 0.2, 0.1)
    try:
        with block_limit(60):
            pass
        await eventually(lambda: len(rang) > 1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


async def test_a_limit_does_not_need_the_handler_that_a_module_has_replaced() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with block_limit(60):
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        with pytest.raises(LoopBlocked), block_limit(0.05, 0.0):
            time.sleep(3)  # noqa: ASYNC251 - it blocks the loop
    assert signal.getsignal(signal.SIGALRM) is before


def test_there_is_none_in_other_threads() -> None:
    async def wait() -> None:
        with block_limit(0.0, 0.0):
            await asyncio.sleep(0.1)

    thread = threading.Thread(target=asyncio.run, args=(wait(),))
    thread.start()
    thread.join()
    assert not BlockLimit._all


async def test_a_timer_that_a_module_has_stopped_is_set_again() -> None:
    with block_limit(0.5):
        signal.setitimer(signal.ITIMER_REAL, 0)
        with pytest.raises(LoopBlocked), block_limit(0.5, 0.0):
            block()


async def test_the_timer_is_set_once_for_limits_of_the_same_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_to: list[float] = []
    original = signal.setitimer

    def setitimer(which: int, *times: float) -> tuple[float, float]:
        set_to.append(times[0])
        return original(which, *times)

    monkeypatch.setattr(signal, "setitimer", setitimer)
    with block_limit(1000):
        for _ in range(10):
            with block_limit(60):
                pass
    assert len(set_to) == 4  # for each length, and twice at the end


async def test_a_timer_of_a_limit_that_has_ended_rings_for_the_next_one() -> None:
    with block_limit(60), block_limit(1.0, 0.0):
        with block_limit(0.3):
            pass
        await asyncio.sleep(0.5)
        began = time.monotonic()
        with pytest.raises(LoopBlocked):
            block()
    assert time.monotonic() - began < 10
