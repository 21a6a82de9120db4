"""What the sandbox kept a command from, as the model, events and the result report it."""

import json
import sys
from pathlib import Path

import pytest

from amplifier_support.sandbox import available
from tests.support.cli import succeed
from tests.support.plans import mock_plan

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not available.kernel_layer().works,
    reason="there is no sandbox here",
)


def test_denials_are_reported_to_the_model_in_events_and_in_the_result(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    commands = [
        "touch /etc/x",
        "echo 'Could not resolve host: example.com'; exit 6",
        "echo 'Permission denied in a text'",
        "echo Operation not permitted; exit 1",
        "exit 3",
        "echo 'sudo: The \"no new privileges\" flag is set, which prevents sudo'; exit 1",
    ]
    calls = [
        {"name": "bash", "input": {"command": command}, "id": f"c{n}"}
        for n, command in enumerate(commands)
    ]
    plan = mock_plan(tmp_path, [{"tool_calls": calls}, "done"], tools=[{"module": "tool-bash"}])
    done = succeed("run", "-f", plan, "go", "--output", "stream-json", cwd=work, home=home)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    outputs = {one["id"]: one["output"] for one in events if one["type"] == "tool_end"}
    only = f"[the sandbox may be the reason: commands can change only {work} and $TMPDIR"
    assert only in outputs["c0"]
    assert "[the sandbox may be the reason: commands have no network" in outputs["c1"]
    assert "commands can change only" in outputs["c3"]
    assert "commands have no network" in outputs["c3"]
    assert "[the sandbox keeps programs from getting more rights than yours" in outputs["c5"]
    assert not [id for id in ("c2", "c4") if "sandbox" in outputs[id]]
    denied = events[-1]["denied"]
    assert [(one["id"], one["by_sandbox"]) for one in denied] == [
        ("c0", True),
        ("c1", True),
        ("c3", True),
        ("c5", True),
    ]
    assert only[1:] in denied[0]["reason"]


def test_without_a_sandbox_commands_get_no_notes(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    call = {"name": "bash", "input": {"command": "echo Permission denied; exit 1"}}
    plan = mock_plan(tmp_path, [{"tool_calls": [call]}, "x"], tools=[{"module": "tool-bash"}])
    done = succeed(
        *("run", "-f", plan, "go", "--output", "stream-json", "--sandbox", "off"),
        cwd=work,
        home=home,
    )
    assert "the sandbox may be" not in done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["denied"] == []
