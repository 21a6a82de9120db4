"""The workers of a run of the whole suite, cloned from one interpreter that has imported the program.

A worker that starts by itself imports the program for its tests, and once more in the interpreter
that the processes under test are cloned from. Clones have both; they import the test files only.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from execnet import gateway_io
from execnet.gateway_base import Popen2IO

from tests.support.cli import child_environment
from tests.support.warm_interpreter import WarmInterpreter, WarmWorker, is_available


def clone_workers(config: pytest.Config) -> None:
    """Have xdist clone its workers, where that is possible."""
    if not is_available():
        return
    interpreter = WarmInterpreter.start(child_environment(Path(os.devnull)))
    config.add_cleanup(interpreter.close)

    class ClonedWorker(Popen2IO):
        def __init__(self, args: list[str], execmodel: Any) -> None:
            pipe = subprocess.PIPE
            self.popen = WarmWorker(interpreter, args, env=os.environ, stdin=pipe, stdout=pipe)
            super().__init__(self.popen.stdin, self.popen.stdout, execmodel=execmodel)

        wait = gateway_io.Popen2IOMaster.wait
        kill = gateway_io.Popen2IOMaster.kill

    gateway_io.Popen2IOMaster = ClonedWorker
