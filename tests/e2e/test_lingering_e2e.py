"""Nothing that a command starts outlives the program, no matter what starts the command and how the program ends."""

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from amplifier_support.sandbox import available
from tests.support.cli import start_amplifier
from tests.support.conditions import Conditions
from tests.support.lingering import HARDEST, WAYS, Lingering
from tests.support.thorough import Scale
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sandboxes of Linux")


def by_tool(command: str) -> dict[str, Any]:
    call = {"name": "bash", "input": {"command": command, "timeout": 100}}
    return {"replies": [{"tool_calls": [call]}, "done"], "tools": [{"module": "tool-bash"}]}


def in_the_background(command: str) -> dict[str, Any]:
    calls = [
        {"name": "bash", "input": {"command": command, "run_in_background": True}},
        {"name": "bash", "input": {"command": f"({command}) & sleep 300", "timeout": 100}},
    ]
    return {"replies": [{"tool_calls": calls[:1]}, {"tool_calls": calls[1:]}]} | {
        "tools": [{"module": "tool-bash"}]
    }


def by_hook(command: str) -> dict[str, Any]:
    spec = {"event": "prompt:submit", "command": command, "timeout": 100}
    return {"hooks": [{"module": "hooks-shell", "config": {"hooks": [spec]}}]}


def by_server(command: str) -> dict[str, Any]:
    server = {"command": "sh", "args": ["-c", command], "required": True, "start_timeout": 100}
    config = {"wait": 100, "servers": {"it": server}}
    return {"tools": [{"module": "tool-mcp", "config": config}]}


def by_check(command: str) -> dict[str, Any]:
    return {"checks": [{"run": command, "timeout": 100}]}


STARTERS: dict[str, Callable[[str], dict[str, Any]]] = {
    "tool": by_tool,
    "background": in_the_background,
    "hook": by_hook,
    "server": by_server,
    "check": by_check,
    "batch": by_tool,
}
SANDBOXES: dict[str, Any] = {
    "off": "off",
    "kernel": "workspace",
    "namespaces": {"level": "namespaces"},
}
# The first Ctrl-C stops after the step, the second at once.
SIGNALS = {
    "INT": ([signal.SIGINT, signal.SIGINT], 130),
    "TERM": ([signal.SIGTERM], 143),
    "HUP": ([signal.SIGHUP], 143),
    "KILL": ([signal.SIGKILL], -9),
}
ALWAYS = [
    ("tool", "namespaces", "INT"),
    ("tool", "off", "TERM"),
    ("tool", "kernel", "KILL"),
    ("server", "kernel", "KILL"),
    ("batch", "namespaces", "KILL"),
]
ALL_WAYS = ("tool", "kernel", "KILL")
"""The case with all ways also in a default run."""

CASES = [
    case if case in ALWAYS else pytest.param(*case, marks=pytest.mark.thorough)
    for starter in STARTERS for sandbox in SANDBOXES for name in SIGNALS
    if (case := (starter, sandbox, name))
]  # fmt: skip


def start(place: Path, starter: str, sandbox: str, command: str) -> Any:
    document: dict[str, Any] = {"replies": ["done"], **STARTERS[starter](command)}
    mock = {"module": "provider-mock", "config": {"replies": document.pop("replies")}}
    plan = place / "plan.yaml"
    session = {"orchestrator": "loop-basic", "context": "context-simple"}
    session |= {"sandbox": SANDBOXES[sandbox]}
    plan.write_text(yaml.safe_dump({"session": session, "providers": [mock], **document}))
    line: tuple[str | Path, ...] = ("run", "-f", plan, "--approve", "allow", "go")
    if starter == "batch":
        (place / "rows.jsonl").write_text(json.dumps({"id": "r1"}))
        line = ("batch", "run", plan, place / "rows.jsonl", "-o", place / "out", "--prompt", "go")
        line += ("--approve", "allow")
    conditions = Conditions(namespaces=sandbox != "kernel")
    return start_amplifier(*line, cwd=place / "work", conditions=conditions)


@pytest.mark.parametrize(("starter", "sandbox", "name"), CASES)
def test_nothing_outlives_the_program(
    tmp_path: Path, scale: Scale, starter: str, sandbox: str, name: str
) -> None:
    layer = available.namespace_layer() if sandbox == "namespaces" else available.kernel_layer()
    if sandbox != "off" and not layer.works:
        pytest.skip(layer.detail)
    (tmp_path / "work").mkdir()
    ways = WAYS if (starter, sandbox, name) == ALL_WAYS else HARDEST
    lingering = Lingering(tmp_path / "work", scale(tuple(ways), tuple(WAYS)))
    signals, code = SIGNALS[name]
    with start(tmp_path, starter, sandbox, lingering.command) as process:
        try:
            wait_until(
                lambda: not lingering.missing(), process=process, about=lambda: lingering.missing()
            )
            assert lingering.are_nearly_all_left()
            for number in signals:
                process.send_signal(number)
                time.sleep(0.1)
            _, stderr = process.communicate(timeout=30)
        finally:
            process.kill()
    wait_until(lambda: not lingering.left(), 2, about=lambda: (lingering.left(), stderr))
    assert process.returncode == code, stderr
