"""A task needs no approval, because what its agent does is decided on."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cli import run_amplifier


def write(content: str) -> dict[str, Any]:
    return {"tool_calls": [{"name": "write_file", "input": {"path": "a", "content": content}}]}


@pytest.mark.parametrize(
    ("config", "agent", "denied"),
    [
        ({}, {}, "write_file"),
        ({"exclude_hooks": ["hooks-approval"]}, {}, "task"),
        ({"inherit_hooks": ["hooks-logging"]}, {}, "task"),
        ({}, {"exclude": ["hooks-approval"]}, "task"),
    ],
    ids=["agents-ask", "excluded-by-the-tool", "not-inherited", "excluded-by-the-agent"],
)
def test_nothing_is_written_without_approval(
    tmp_path: Path, config: dict[str, Any], agent: dict[str, Any], denied: str
) -> None:
    task = {"name": "task", "input": {"agent": "helper", "instruction": "write a"}}
    replies = [{"tool_calls": [task]}, "over"]
    plan = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": [{"module": "provider-mock", "config": {"replies": replies}}],
        "tools": ["tool-filesystem", {"module": "tool-task", "config": config}],
        "hooks": ["hooks-approval", "hooks-logging"],
        "agents": {
            "helper": {
                "description": "Helps",
                "providers": [
                    {"module": "provider-mock", "config": {"replies": [write("x"), "done"]}}
                ],
                **agent,
            }
        },
    }
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    done = run_amplifier("run", "-f", "plan.yaml", "go", "--output", "json", cwd=tmp_path)
    assert (done.code, (tmp_path / "a").exists()) == (8, False), done.stderr
    assert [call["name"] for call in yaml.safe_load(done.stdout)["denied"]] == [denied]
