"""The workers of a run of the whole suite, cloned from one interpreter that has collected its tests.

A worker that starts by itself imports the program, once more in the interpreter that the processes
under test are cloned from, and collects the tests. Clones find all of it done: `collected_session.py`
is what they run.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from execnet import gateway_io
from execnet.gateway_base import Popen2IO

from tests.support import collected_session
from tests.support.cli import child_environment
from tests.support.warm_interpreter import WarmCollector, WarmInterpreter, WarmWorker


class ClonedWorkers:
    """A plugin that has xdist clone its workers."""

    def __init__(self, config: pytest.Config) -> None:
        environment = child_environment(Path(os.devnull))
        address = f"amplifier-tests-{uuid.uuid4()}"
        interpreter = WarmInterpreter.start(environment, address)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = map(str, config.invocation_params.args)
        with theirs:
            command = [sys.executable, *sys.path, "--", *arguments]
            process = WarmCollector(
                interpreter, command, env=os.environ, stdin=theirs.fileno(), stdout=2
            )
        self._collector = WarmInterpreter(ours, environment, process)
        self._given = {collected_session.VARIABLE: json.dumps([environment, address])}
        config.add_cleanup(interpreter.close)
        config.add_cleanup(self._collector.close)
        gateway_io.Popen2IOMaster = self._worker_class()

    def _worker_class(self) -> type[Popen2IO]:
        collector, environment = self._collector, {**os.environ, **self._given}

        class ClonedWorker(Popen2IO):
            def __init__(self, args: list[str], execmodel: Any) -> None:
                pipe = subprocess.PIPE
                self.popen = WarmWorker(collector, args, env=environment, stdin=pipe, stdout=pipe)
                super().__init__(self.popen.stdin, self.popen.stdout, execmodel=execmodel)

            wait = gateway_io.Popen2IOMaster.wait
            kill = gateway_io.Popen2IOMaster.kill

        return ClonedWorker

    @pytest.hookimpl
    def pytest_xdist_getremotemodule(self) -> Any:
        return collected_session
