"""What is shown when messages no longer fit."""

import re
from pathlib import Path

import yaml

from amplifier_app.runtime.observers.notices import compaction_text
from tests.support.cli import run_amplifier, succeed


def test_a_line_says_what_became_of_messages_and_how_to_see_them(tmp_path: Path) -> None:
    config = {"strategy": "summarize", "keep_recent_turns": 1, "summary_tokens": 200}
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
        done = succeed("run", *options, prompt, cwd=tmp_path)
    assert re.search(r"tokens, a summary replaces [1-3] messages?;", done.stderr), done.stderr
    assert done.stderr.count("the session keeps all: amplifier session show mine") == 1
    shown = run_amplifier("session", "show", "mine", cwd=tmp_path)
    assert "a" * 80 in shown.stdout


def test_dropped_messages_are_counted() -> None:
    sizes = {"before_tokens": 900, "after_tokens": 300, "strategy": "truncate"}
    text = "context compacted: 900 → 300 tokens"
    assert compaction_text({**sizes, "removed_messages": 2}, 100) == f"{text}, without 2 messages"
    assert compaction_text({**sizes, "removed_messages": 0}, 100) == text
    assert compaction_text({**sizes, "after_tokens": 900}, 100) == ""
