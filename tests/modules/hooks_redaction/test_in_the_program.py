"""No planted secret comes out of the running program, and everything in it still works."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import planted
from tests.support.cli import Finished, run_amplifier, succeed
from tests.support.plans import mock_plan

LEAKY = "Found:\n" + "\n".join(f"- {text}" for text in planted.PLANTED.values())
LOGGED = [{"module": "hooks-logging"}]
REDACTED = [*LOGGED, {"module": "hooks-redaction"}]


def planted_in(text: str) -> list[str]:
    """The secrets that are in a text, as they are or as JSON writes them."""
    return [
        name
        for name, secret in planted.SECRETS.items()
        if secret in text or json.dumps(secret)[1:-1] in text
    ]


def session_file(done: Finished, name: str) -> str:
    (found,) = done.home.rglob(name)
    return found.read_text("utf-8")


def leak(folder: Path, hooks: Any, *more: str, tools: bool = True) -> Finished:
    """A session in which the prompt, a tool's input and result, thinking and text hold them all."""
    (folder / "in.txt").write_text(LEAKY)
    write = {"name": "write_file", "input": {"path": "out.txt", "content": LEAKY}}
    read = {"name": "read_file", "input": {"path": "in.txt"}}
    unknown = {"name": "no_such_tool", "input": {"text": LEAKY}}
    replies = [
        {
            "thinking": LEAKY,
            "signature": "c2ln",
            "text": LEAKY,
            "tool_calls": [write, read, unknown],
        },
        LEAKY,
    ]
    # Pieces that split secrets, and not more of them than that takes.
    given: dict[str, Any] = {"mock": {"chunk_size": 48}}
    if tools:
        given["tools"] = [{"module": "tool-filesystem"}]
    plan = mock_plan(folder, replies if tools else [LEAKY], hooks=hooks, **given)
    done = succeed("run", "-f", plan, *more, LEAKY, cwd=folder)
    return done


@pytest.mark.parametrize("output", ["stream-json", "text"])
def test_nothing_planted_is_logged_or_shown(tmp_path: Path, output: str) -> None:
    done = leak(tmp_path, REDACTED, "--output", output)
    assert planted_in(done.stdout) == []
    assert planted_in(done.stderr) == []
    assert planted_in(session_file(done, "events.jsonl")) == []
    assert done.stdout.count("[REDACTED:") >= len(planted.SECRETS)
    # What ran and what a later turn needs is as it was.
    assert (tmp_path / "out.txt").read_text() == LEAKY
    assert len(planted_in(session_file(done, "transcript.jsonl"))) == len(planted.SECRETS)


def test_nor_when_the_text_is_shown_as_it_comes(tmp_path: Path) -> None:
    done = leak(tmp_path, REDACTED, tools=False)
    assert planted_in(done.stdout) == []
    assert done.stdout.count("[REDACTED:") == len(planted.SECRETS)


def test_the_log_alone_has_none_either(tmp_path: Path) -> None:
    done = leak(tmp_path, LOGGED)
    assert planted_in(session_file(done, "events.jsonl")) == []
    assert len(planted_in(done.stdout)) == len(planted.SECRETS)


def test_nor_is_one_in_the_title_of_the_session(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["ok"], hooks=REDACTED)
    done = run_amplifier("run", "-f", plan, f"my key: {planted.SECRETS['openai']}", cwd=tmp_path)
    listed = run_amplifier("session", "list", "--output", "json", home=done.home, cwd=tmp_path)
    assert "my key: [REDACTED:openai-key]" in listed.stdout
    assert planted_in(listed.stdout) == []
