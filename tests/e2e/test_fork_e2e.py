"""Forks with real runs: the prefix costs no request, and files go back to the state of a step."""

import json
from pathlib import Path

import pytest

from amplifier_app.sessions.store import SessionStore
from tests.support.cli import Finished, run_amplifier, succeed
from tests.support.llm_server import Reply, ScriptedLLM, ToolCall

WRITE = Reply("Now write.", [ToolCall("write_file", {"path": "b.txt", "content": "one\n"})])
EDIT = Reply(
    tool_calls=[
        ToolCall("edit_file", {"path": "b.txt", "old_string": "one", "new_string": "two"}),
        ToolCall("write_file", {"path": "c.txt", "content": "new\n"}),
    ]
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def fork(project: Path, *arguments: str) -> Finished:
    return run_amplifier("session", "fork", "s1", *arguments, cwd=project)


def test_a_fork_goes_on_from_a_step(project: Path) -> None:
    with ScriptedLLM.running([WRITE, EDIT, "All done.", "Another way.", "Once more."]) as server:
        allowed = ("run", "--approve", "allow")
        first = succeed(*allowed, "--session", "s1", "write", cwd=project, env=server.env)
        store = SessionStore(first.home / "sessions")
        sent = [request.body["messages"] for request in server.completions]

        done = fork(project, "--at", "1")
        assert done.code == 0, done.stderr
        assert "after step 1" in done.stderr
        again = run_amplifier(
            "run", "--resume", done.stdout.strip(), "try", cwd=project, env=server.env
        )
        assert (again.code, again.stdout) == (0, "Another way.\n"), again.stderr
        assert len(server.completions) == 4, "the fork itself asked nothing"
        resent = server.completions[3].body["messages"]
        assert without_cache_marks(resent[:2]) == without_cache_marks(sent[1][:2])
        whole = (store.root / "s1" / "transcript.jsonl").read_bytes()
        taken = (store.root / done.stdout.strip() / "transcript.jsonl").read_bytes()
        assert whole[:800] == taken[:800]

        direct = run_amplifier(
            "run", "--fork", "s1", "more", "--output", "json", cwd=project, env=server.env
        )
        result = json.loads(direct.stdout)
        assert result["response"] == "Once more."
        assert store.read(result["session_id"])[0]["forked_from"]["step"] == 3
        assert (store.root / "s1" / "transcript.jsonl").read_bytes() == whole
        count = len(store.summaries())
        for refused in (("--dry-run",), ("--resume", "s1", "x"), ("",)):
            run_amplifier("run", "--fork", "s1", *refused, cwd=project, env=server.env)
        assert len(store.summaries()) == count, "a run that does not start leaves no fork"
        assert server.rejections == []


def without_cache_marks(messages: object) -> object:
    return json.loads(json.dumps(messages), object_hook=_unmarked)


def _unmarked(found: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in found.items() if key != "cache_control"}


def test_files_are_restored_or_listed_with_the_reason(project: Path) -> None:
    with ScriptedLLM.running([WRITE, EDIT, "All done."]) as server:
        started = ("run", "--approve", "allow", "--session", "s1", "write")
        succeed(*started, cwd=project, env=server.env)
    (project / "c.txt").write_text("mine\n")
    needs_step = fork(project, "--files")
    assert (needs_step.code, needs_step.stdout) == (2, "")
    asking = fork(project, "--at", "1", "--files")
    assert (asking.code, asking.stdout) == (2, "")
    assert (project / "b.txt").read_text() == "two\n"
    done = fork(project, "--at", "1", "--files", "--yes", "--output", "json")
    files = {Path(one["path"]).name: one for one in json.loads(done.stdout)["files"]}
    assert files["b.txt"]["action"] == "restore"
    assert files["c.txt"]["action"] == "skip"
    assert "changed since" in files["c.txt"]["reason"]
    assert (project / "b.txt").read_text() == "one\n"
    assert (project / "c.txt").read_text() == "mine\n"
    (project / "c.txt").write_text("new\n")
    assert fork(project, "--at", "1", "--files", "--yes").code == 0
    assert not (project / "c.txt").exists()


def test_files_behind_links_and_elsewhere_are_left_alone(project: Path, tmp_path: Path) -> None:
    store = SessionStore()
    saved = store.create("s1", project=str(project), plan_yaml="name: x\n")
    call = {"type": "tool_call", "id": "t1", "name": "write_file", "input": {}}
    saved.append({"role": "user", "content": "x"})
    saved.append({"role": "assistant", "content": "step 1"})
    saved.append({"role": "assistant", "content": [call]})
    saved.close()
    outside = tmp_path / "outside"
    outside.mkdir()
    (project / "link").symlink_to(outside)
    victims = [outside / "a.txt", project / "link" / "b.txt", Path("relative.txt")]
    for victim in (outside / "a.txt", outside / "b.txt"):
        victim.write_text("")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    entries = [
        {"path": str(path), "before": [None, 0, 0], "after": [empty, 420, 0]} for path in victims
    ]
    backups = store.root / "s1" / "backups"
    backups.mkdir()
    record = {"kind": "changes", "turn": "t", "call": "t1", "tool": "x", "files": entries}
    (backups / "index.jsonl").write_text(json.dumps(record) + "\n{damaged\n")
    done = fork(project, "--at", "1", "--files", "--yes", "--output", "json")
    assert done.code == 0, done.stderr
    assert {one["action"] for one in json.loads(done.stdout)["files"]} == {"skip"}
    assert (outside / "a.txt").exists()
    assert (outside / "b.txt").exists()
