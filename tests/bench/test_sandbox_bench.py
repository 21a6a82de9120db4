"""What a command costs in the kernel layer of the sandbox, next to the same command without one.

`extra_info` has the CPU milliseconds of a command: of this process, and of all that was started for it.
"""

import asyncio
import os
import resource
import sys
from pathlib import Path
from typing import Any

import pytest

from amplifier_support.process.commands import Command, ProcessRunner
from amplifier_support.sandbox import available
from amplifier_support.sandbox.available import Layer
from amplifier_support.sandbox.policy import parse_policy
from amplifier_support.sandbox.sandbox import Sandbox

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        not (sys.platform.startswith("linux") and available.kernel_layer().works),
        reason="the kernel layer does not work here",
    ),
]


def cpu(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


async def run_commands(folder: Path, policy: str, number: int) -> tuple[float, float]:
    """CPU seconds of this process and of its children, for each of so many commands."""
    own, children = cpu(resource.RUSAGE_SELF), cpu(resource.RUSAGE_CHILDREN)
    sandbox = Sandbox(parse_policy(policy), folder=str(folder))
    runner = ProcessRunner(sandbox)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        for _ in range(number):
            command = Command(["/bin/true"], {"PATH": "/usr/bin:/bin"}, descriptor)
            ended = await runner.run(command, timeout=60, output=lambda data: None)
            assert ended.exit_code == 0
    finally:
        os.close(descriptor)
        await runner.close()
        sandbox.close()
    used = cpu(resource.RUSAGE_SELF) - own, cpu(resource.RUSAGE_CHILDREN) - children
    return used[0] / number, used[1] / number


def test_a_command_in_the_kernel_layer(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(available, "namespace_layer", lambda: Layer(False, "left out"))
    number = 1 if benchmark.disabled else 200
    costs: dict[str, list[tuple[float, float]]] = {"off": [], "workspace": []}

    def pair() -> None:
        for policy, measured in costs.items():
            measured.append(asyncio.run(run_commands(tmp_path, policy, number)))

    benchmark.pedantic(pair, rounds=1 if benchmark.disabled else 5)
    for policy, measured in costs.items():
        for at, part in enumerate(("own", "children")):
            least = min(one[at] for one in measured)
            benchmark.extra_info[f"{policy}_{part}_ms"] = round(least * 1e3, 2)
