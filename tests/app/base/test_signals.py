"""Signals during a turn."""

import asyncio
import signal
import subprocess
import sys
import time

import pytest

from amplifier_app.base import signals
from amplifier_app.base.blocked_loop import LoopBlocked
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


async def test_what_blocks_the_loop_after_an_immediate_stop_gets_an_exception(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signals, "GRACE_SECONDS", 0.05)
    stops: list[bool] = []
    with Interrupts(stops.append):
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(LoopBlocked):
            time.sleep(30)  # noqa: ASYNC251 - it blocks the loop
        await asyncio.sleep(0)
    assert stops == [True]


def test_a_signal_in_a_callback_that_python_protects_is_noted_and_not_reported() -> None:
    program = """
import signal, weakref
from amplifier_app.base.signals import raise_noted_signal, raise_on_signals

class Something: pass

raise_on_signals()
thing = Something()
reference = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGTERM))
del thing
print("goes on", flush=True)
raise_noted_signal()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "goes on\n"
    assert "ignored" not in done.stderr
    assert done.stderr.endswith("Terminated: SIGTERM\n")


def test_a_signal_that_python_swallows_ends_a_loop_that_waits_for_nothing() -> None:
    swallowed = """
class Something:
    def __del__(self): signal.raise_signal(signal.SIGTERM)

async def main():
    asyncio.get_running_loop().call_soon(lambda thing: None, Something())
    await asyncio.Event().wait()
"""
    assert _status_of(swallowed) == "Terminated: SIGTERM"


def test_a_signal_that_another_thread_receives_ends_a_loop_that_waits_for_nothing() -> None:
    elsewhere = """
import threading, time

def receive():
    time.sleep(0.2)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

async def main():
    threading.Thread(target=receive, daemon=True).start()
    await asyncio.Event().wait()
"""
    assert _status_of(elsewhere) == "Terminated: SIGTERM"


def _status_of(program: str) -> str:
    """The last line of stderr of a program whose `main` runs until a signal."""
    start = "import asyncio, signal\n"
    end = """
from amplifier_app.base.signals import raise_on_signals
from amplifier_app.commands.event_loop import run_loop

raise_on_signals()
run_loop(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", start + program + end], capture_output=True, text=True, timeout=60
    )
    assert "ignored" not in done.stderr
    return done.stderr.splitlines()[-1].rpartition("errors.")[2]
