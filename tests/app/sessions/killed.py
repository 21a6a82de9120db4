"""Kills a process at random moments of what it does to the store."""

import os
import random
import signal
import time
import traceback
from collections.abc import Callable


class Killer:
    """Does work in forked processes. The first one comes to its end, and the time it takes is the
    span within which the others are killed."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._chance = random.Random(1)

    def __call__(self, work: Callable[[], None]) -> None:
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            try:
                work()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        if self._seconds:
            time.sleep(self._chance.uniform(0, self._seconds))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
        self._seconds = self._seconds or time.monotonic() - began
