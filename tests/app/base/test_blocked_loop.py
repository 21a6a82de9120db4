"""Limits for code that blocks the event loop."""

import asyncio
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
            with pytest.raises(LoopBlocked):
                block()
    assert signal.getsignal(signal.SIGALRM) is before


async def test_a_loop_that_answers_is_left_alone() -> None:
    with block_limit(0.05, 0.0):
        for _ in range(150):
            await asyncio.sleep(0.01)


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
    timer = signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with block_limit(60):
            pass
        await eventually(lambda: bool(rang))
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def test_there_is_none_in_other_threads() -> None:
    async def wait() -> None:
        with block_limit(0.0, 0.0):
            await asyncio.sleep(0.1)

    thread = threading.Thread(target=asyncio.run, args=(wait(),))
    thread.start()
    thread.join()
    assert not BlockLimit._all
