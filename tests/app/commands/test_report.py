"""`amplifier report` as its users meet it."""

import json
from pathlib import Path

from amplifier_app.sessions.store import SessionStore
from tests.support.cli import run_amplifier, succeed
from tests.support.plans import mock_plan
from tests.support.terminal import Terminal

KEY = "sk-ant-api03-" + "a1b2" * 12


def test_a_report_has_names_and_errors_but_no_texts(tmp_path: Path) -> None:
    call = {"name": "read_file", "input": {"path": "diary", "status": "lovesick"}}
    replies = [{"tool_calls": [call]}, "My dear diary."]
    hooks = [{"module": "hooks-logging"}]
    plan = mock_plan(tmp_path, replies, tools=[{"module": "tool-filesystem"}], hooks=hooks)
    home = tmp_path / "home"
    succeed("run", "-f", plan, f"a prompt {KEY}", home=home, cwd=tmp_path)

    refused = run_amplifier("report", home=home, cwd=tmp_path)
    assert refused.code == 2
    assert "Pass --yes." in refused.stderr
    with Terminal("report", "--to", "asked.md", home=home, cwd=tmp_path) as terminal:
        terminal.until(
            r"asked\.md will contain:.*Events +the last \d+ events.*Write the file\? \[y/N\]"
        )
        terminal.type("n\n")
        assert terminal.finish() == 0
    assert [*tmp_path.glob("*.md")] == []

    succeed("report", "--yes", "--to", "r.md", home=home, cwd=tmp_path)
    text = (tmp_path / "r.md").read_text()
    for part in ("amplifier 0", "python: 3", '"plan_digest": "sha256:', "tool:error", "read_file"):
        assert part in text, part
    for part in ("diary", "lovesick", "a prompt", KEY):
        assert part not in text, part
    assert (tmp_path / "r.md").stat().st_mode & 0o777 == 0o600
    again = run_amplifier("report", "--yes", "--to", "r.md", home=home, cwd=tmp_path)
    assert (again.code, "r.md already exists" in again.stderr) == (2, True)

    succeed("report", "--yes", "--texts", "-o", "all.md", home=home, cwd=tmp_path)
    text = (tmp_path / "all.md").read_text()
    assert "My dear diary." in text
    assert KEY not in text


def test_texts_of_an_event_are_cut_without_secrets_and_also_if_they_are_keys(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    store = SessionStore(home / "sessions")
    saved = store.create("s", project=str(tmp_path), plan_yaml="x: 1\n", title="T", prompts=1)
    message = f"{'x' * 980} {KEY}"
    event = {
        "event": "tool:error",
        "ts": "2026-01-01T00:00:00+00:00",
        "data": {"message": message, "result": {"a@example.com": 1, "name": {"in my diary": 2}}},
    }
    (store.root / "s" / "events.jsonl").write_text(json.dumps(event) + "\n")
    saved.close()
    succeed("report", "--yes", "--to", "r.md", home=home, cwd=tmp_path)
    text = (tmp_path / "r.md").read_text()
    for part in ("sk-ant", "a@example", "diary"):
        assert part not in text, part
    assert '"name": {"[11 characters]": 2}' in text


def test_a_report_needs_no_session(tmp_path: Path) -> None:
    succeed("report", "--yes", "--to", "r.md", cwd=tmp_path)
    assert "## Session" not in (tmp_path / "r.md").read_text()
    missing = run_amplifier("report", "--yes", "--session", "none", cwd=tmp_path)
    assert missing.code == 6
