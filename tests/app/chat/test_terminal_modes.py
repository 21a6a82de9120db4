"""The mode of the terminal while the chat reads keys."""

import os
import signal
import sys
import termios
from collections.abc import Generator

import pytest

from amplifier_app.base import signals
from amplifier_app.base.signals import raise_on_signals
from amplifier_app.chat.terminal_modes import KeyMode


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Generator[int]:
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr(signals, "_raised", None)
    handlers = {
        one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    raise_on_signals()
    master, slave = os.openpty()
    yield slave
    os.close(slave)
    os.close(master)
    for signum, handler in handlers.items():
        signal.signal(signum, handler)


@pytest.mark.parametrize("moment", [("c_call", 1), ("c_return", 1), ("c_call", 2)])
def test_a_signal_leaves_the_mode_as_it_was(terminal: int, moment: tuple[str, int]) -> None:
    before, calls = termios.tcgetattr(terminal), 0

    def interrupt(frame: object, event: str, call: object) -> None:
        nonlocal calls
        if call is termios.tcsetattr:
            calls += event == "c_call"
            if (event, calls) == moment:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), KeyMode(terminal):
            pass
    finally:
        sys.setprofile(None)
    assert termios.tcgetattr(terminal) == before
