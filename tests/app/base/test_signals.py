"""Signals during a turn."""

from __future__ import annotations

import asyncio
import signal

import pytest

from amplifier_app.base.signals import Interrupts


async def test_ctrl_c_after_sigterm_does_not_cancel_the_end() -> None:
    stops: list[bool] = []
    with Interrupts(stops.append) as interrupts:
        signal.raise_signal(signal.SIGTERM)
        # Whatever code runs at that moment may swallow the exception.
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(0)
    assert stops == [True]
    assert interrupts.terminated
