"""`denied` of the result: the refused calls of every kind of tool, also those of sub-agents."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cli import run_amplifier
from tests.support.plans import mock_plan, module_folder
from tests.support.schemas import RESULT

SERVER = Path(__file__).parents[3] / "extras" / "tool_mcp" / "raw_server.py"
ASK = [
    ("bash", {"command": "touch made"}),
    ("write_file", {"file_path": "made", "content": "x"}),
    ("web_fetch", {"url": "http://pages.example/"}),
    ("mcp_things_echo", {"text": "hello"}),
    ("task", {"agent": "worker", "instruction": "Work."}),
]
LIMITS = [
    ("bash", {"command": "shred disk"}),
    ("write_file", {"file_path": "../made", "content": "x"}),
    ("read_file", {"file_path": "/etc/hostname"}),
    ("write_file", {"file_path": ".git/config", "content": "x"}),
    ("web_fetch", {"url": "http://127.0.0.1:9/"}),
]

GUARD = """
from amplifier_core.models import HookResult

async def mount(coordinator, config=None):
    async def deny(event, data):
        return HookResult(action="deny", reason="no touching")

    coordinator.hooks.register("tool:pre", deny, name="guard")
"""


def calls(prefix: str, wanted: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    return {
        "tool_calls": [
            {"name": name, "input": given, "id": f"{prefix}{number}"}
            for number, (name, given) in enumerate(wanted)
        ]
    }


def plan(folder: Path, wanted: list[tuple[str, dict[str, Any]]]) -> Path:
    work = {"module": "provider-mock", "config": {"replies": [calls("w", ASK[:1]), "no"]}}
    servers = {"things": {"command": sys.executable, "args": [str(SERVER)]}}
    return mock_plan(
        folder,
        [calls("c", wanted), "as far as it goes"],
        tools=[
            {"module": "tool-bash", "config": {"denied_commands": ["shred"]}},
            {"module": "tool-filesystem"},
            {"module": "tool-web"},
            {"module": "tool-task"},
            *([{"module": "tool-mcp", "config": {"servers": servers}}] if wanted is ASK else []),
        ],
        hooks=[
            {
                "module": "hooks-approval",
                "config": {"rules": [{"action": "allow", "tool": "task"}]},
            }
        ],
        agents={"worker": {"providers": [work]}},
    )


def denied(folder: Path, plan: Path, *flags: str) -> tuple[int, list[dict[str, Any]]]:
    work = folder / "work"
    work.mkdir()
    done = run_amplifier("run", "-f", plan, "go", "--output", "json", *flags, cwd=work)
    result = json.loads(done.stdout)
    RESULT.validate(result)
    assert result["response"] == "as far as it goes", done.stderr
    assert not list(folder.rglob("made"))
    return done.code, result["denied"]


def test_calls_that_need_approval_are_denied_without_a_terminal(tmp_path: Path) -> None:
    code, found = denied(tmp_path, plan(tmp_path, ASK))
    assert code == 8
    assert [(call["name"], call["agent"]) for call in found] == [
        *((name, None) for name, _ in ASK[:4]),
        ("bash", "worker"),
    ]
    assert all("denied" in call["reason"] for call in found)
    own, workers = {call["session_id"] for call in found[:4]}, found[4]["session_id"]
    assert len(own) == 1
    assert workers.startswith(own.pop())
    assert workers.endswith("_worker")


@pytest.mark.parametrize("loop", ["loop-streaming", "loop-events"])
def test_calls_that_tools_refuse_are_listed(tmp_path: Path, loop: str) -> None:
    file = plan(tmp_path, LIMITS)
    flags = ("--approve", "allow", "--set", f"session.orchestrator.module={loop}")
    code, found = denied(tmp_path, file, *flags)
    assert code == 0
    assert [call["id"] for call in found] == [f"c{number}" for number in range(len(LIMITS))]
    assert "denied_commands" in found[0]["reason"]


def test_a_denied_call_ends_with_8_whatever_denied_it(tmp_path: Path) -> None:
    guard = module_folder(tmp_path, GUARD, "amplifier_module_hooks_guard")
    rules = {"module": "hooks-approval", "config": {"rules": [{"action": "deny", "tool": "*"}]}}
    hook = {"module": "hooks-guard", "source": str(guard)}
    delegated = [("task", {"agent": "worker", "instruction": "Work."})]
    for number, (wanted, hooks, flags, message) in enumerate(
        (
            (ASK[:2], None, ["--mode", "read-only"], "mode read-only: the session is read-only"),
            (ASK[:2], [rules], ["--approve", "allow"], "rule 1"),
            (ASK[:2], [hook], ["--approve", "allow"], "no touching"),
            (delegated, None, ["--mode", "read-only"], "of the sub-agent 'worker' was denied"),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        file = plan(folder, wanted)
        if hooks is not None:
            data = yaml.safe_load(file.read_text())
            file.write_text(yaml.safe_dump({**data, "hooks": hooks}))
        (folder / "work").mkdir()
        loop = ("loop-streaming", "loop-events")[number % 2]
        done = run_amplifier(
            *("run", "-f", file, "go", "--output", "json", *flags),
            *("--set", f"session.orchestrator.module={loop}"),
            cwd=folder / "work",
        )
        result = json.loads(done.stdout)
        assert (done.code, result["outcome"]) == (8, "denied"), (number, done)
        assert message in result["error"]["message"], number
        assert len(result["denied"]) == len(wanted)
