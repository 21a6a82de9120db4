"""A batch that is refused says why and leaves no folder."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from amplifier_support.installation import install_command
from tests.support.cli import run_amplifier

MOCK: dict[str, Any] = {
    "session": {"orchestrator": "loop-basic", "context": "context-simple"},
    "providers": [{"module": "provider-mock"}],
}

REFUSED: dict[str, tuple[int, str, tuple[str, ...], str | None]] = {
    # case: exit code, what the message has, arguments, stdin
    "profile": (2, "unknown profile 'none'", ("none", "rows.txt"), None),
    "input": (2, "cannot read the input none.txt", ("mock.yaml", "none.txt"), None),
    "option": (2, "--stop-after: expected", ("mock.yaml", "rows.txt", "--stop-after", "x"), None),
    "field": (78, "no field 'x'", ("mock.yaml", "rows.txt", "--prompt", "{{x}}"), None),
    "key": (78, "set ANTHROPIC_API_KEY", ("default", "rows.txt"), None),
    "key at batch prices": (
        78,
        "set ANTHROPIC_API_KEY",
        ("default", "rows.txt", "--economy"),
        None,
    ),
    "module": (3, "unknown module 'tool-none'", ("module.yaml", "rows.txt"), None),
    # Its worker writes a log.
    "config of a module": (78, "unknown key 'timeot'", ("config.yaml", "rows.txt"), None),
    "tool": (2, "the plan has no tool 'none'", ("mock.yaml", "rows.txt", "--tools", "none"), None),
    "mode": (78, "no module of this session", ("mock.yaml", "rows.txt", "--mode", "auto"), None),
    "empty stdin": (78, "stdin has no rows", ("mock.yaml", "-"), ""),
    "line of stdin": (78, "stdin:2: invalid JSON", ("mock.yaml", "-"), '{"prompt": "a"}\n{"x"\n'),
    "folder of a row": (
        78,
        "stdin:1: the folder of row",
        ("mock.yaml", "-", "--workdir", "same:made-not/{{name}}"),
        '{"prompt": "a", "name": "../.."}',
    ),
    "clone": (
        78,
        "is not a git repository: /",
        ("mock.yaml", "rows.txt", "--workdir", "clone"),
        None,
    ),
    "shard": (
        78,
        "shard 9/9 of rows.txt has no",
        ("mock.yaml", "rows.txt", "--shard", "9/9"),
        None,
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rows.txt").write_text("a\nb\n")
    (tmp_path / "mock.yaml").write_text(json.dumps(MOCK))
    (tmp_path / "module.yaml").write_text(json.dumps({**MOCK, "tools": [{"module": "tool-none"}]}))
    mistaken = {"module": "tool-bash", "config": {"timeot": 3}}
    (tmp_path / "config.yaml").write_text(json.dumps({**MOCK, "tools": [mistaken]}))
    return tmp_path


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_batch_leaves_no_folder(folder: Path, case: str) -> None:
    code, message, arguments, stdin = REFUSED[case]
    done = run_amplifier("batch", "run", *arguments, "-o", "made/out", cwd=folder, stdin=stdin)
    assert done.code == code, done.stderr
    assert message in done.stderr
    assert "resume" not in done.stderr
    assert not (folder / "made").exists()


def test_a_line_that_does_not_end_is_refused(folder: Path) -> None:
    what = ("batch", "run", "mock.yaml", "-", "-o", "out")
    done = run_amplifier(*what, cwd=folder, stdin=f"\na\n{'x' * (1 << 26)}y")
    assert done.code == 78, done.stderr
    assert "stdin:2: the line has more than 67,108,864 characters" in done.stderr
    assert not (folder / "out").exists()


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="ray is installed")
def test_without_ray_its_engine_is_refused(folder: Path) -> None:
    what = ("mock.yaml", "rows.txt", "-o", "out", "--engine", "ray")
    done = run_amplifier("batch", "run", *what, cwd=folder)
    assert done.code == 78, done.stderr
    assert install_command("ray") in done.stderr
    assert not (folder / "out").exists()


def test_a_folder_of_the_user_is_kept(folder: Path) -> None:
    (folder / "out").mkdir()
    done = run_amplifier("batch", "run", "module.yaml", "rows.txt", "-o", "out", cwd=folder)
    assert done.code == 3, done.stderr
    assert not [*(folder / "out").iterdir()]
    (folder / "out" / "mine.txt").write_text("mine")
    done = run_amplifier("batch", "run", "mock.yaml", "rows.txt", "-o", "out", cwd=folder)
    assert "out is not empty" in done.stderr
    assert (folder / "out" / "mine.txt").read_text() == "mine"


def test_failed_rows_are_reported_with_the_commands_for_their_folder(folder: Path) -> None:
    what = ("mock.yaml", "rows.txt", "-o", "my out", "--check", "false")
    done = run_amplifier("batch", "run", *what, cwd=folder)
    assert done.code == 9, done.stderr
    assert "See why: amplifier batch report 'my out'" in done.stderr
    assert "amplifier batch retry 'my out' --only check_failed" in done.stderr
    missing = run_amplifier("batch", "status", "none", cwd=folder)
    assert "there is no batch in none\n" in missing.stderr
