"""What is shown when messages no longer fit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.support.cli import run_amplifier

WORDS = {"truncate": "without", "summarize": "a summary replaces"}


@pytest.mark.parametrize("strategy", WORDS)
def test_a_line_says_what_became_of_messages_and_how_to_see_them(
    tmp_path: Path, strategy: str
) -> None:
    config = {"strategy": strategy, "keep_recent_turns": 1, "summary_tokens": 200}
    mock = {"replies": ["x " * 4_000, "y " * 4_000, "z"], "context_window": 13_000}
    plan = {
        "session": {
            "orchestrator": "loop-basic",
            "context": {"module": "context-simple", "config": config},
        },
        "providers": [{"module": "provider-mock", "config": mock}],
    }
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    for number, prompt in enumerate(("a" * 9_000, "b" * 9_000, "c")):
        options = ["-f", "plan.yaml", "--session", "mine"] if not number else ["--resume", "mine"]
        done = run_amplifier("run", *options, prompt, cwd=tmp_path)
        assert done.code == 0, done.stderr
    assert re.search(rf"tokens, {WORDS[strategy]} [1-3] messages?;", done.stderr), done.stderr
    assert done.stderr.count("the session keeps all: amplifier session show mine") == 1
    shown = run_amplifier("session", "show", "mine", cwd=tmp_path)
    assert "a" * 80 in shown.stdout
