"""Secrets that a run meets are in its transcript only: not in logs, titles, the index, reports, exports or errors.

The answer on stdout is what the model says; without `hooks-redaction` it is not changed.
"""

import contextlib
import gzip
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from amplifier_app.base import paths
from amplifier_app.chat.application import project_history
from tests.support import planted
from tests.support.cli import Finished, run_amplifier
from tests.support.llm_server import Reply, ScriptedLLM, Status, ToolCall

VALUES = {
    "provider-key": ("ANTHROPIC_API_KEY", "provider-key-without-a-shape"),
    "variable": ("ACME_TOKEN", "onlylettersofatoken"),
}
"""Known by the names of their variables."""
IN_PLAN = "written-in-the-plan-itself"
"""Known while the plan runs."""
SECRETS = {**planted.SECRETS, **{name: value for name, (_, value) in VALUES.items()}}
LEAKY = "\n".join([*planted.PLANTED.values(), *(value for _, value in VALUES.values()), IN_PLAN])
ENVIRONMENT = {**dict(VALUES.values()), "LEAKY": LEAKY}
HOLD_SECRETS = {
    "transcript.jsonl": "what the model has seen, which resuming needs",
    "context.jsonl": "the same, kept by context-persistent",
    "tool-output": "the rest of long tool results, which the model may read",
    "objects": "copies of the user's files by hooks-backup, which undo restores",
}
"""All files and folders below AMPLIFIER_HOME that keep secrets, and why."""


def found_in(text: str) -> list[str]:
    """The secrets of which at least a half is in a text, as it is or as JSON writes it."""
    found: list[str] = []
    for name, secret in {**SECRETS, "plan": IN_PLAN}.items():
        middle = len(secret) // 2
        forms = {part for part in (secret[:middle], secret[middle:]) if len(part) >= 5}
        forms |= {json.dumps(form)[1:-1] for form in forms}
        if any(form in text for form in forms if not form.startswith("-----")):
            found.append(name)
    return found


def leaks_in(home: Path) -> dict[str, list[str]]:
    """The secrets in files that may hold none, names included."""
    found: dict[str, list[str]] = {}
    for path in home.rglob("*"):
        if not any(name in path.parts for name in HOLD_SECRETS):
            text = "\n".join([path.name, *(texts_of(path) if path.is_file() else ())])
            if leaks := found_in(text):
                found[path.name] = leaks
    return found


def texts_of(path: Path) -> Iterator[str]:
    """The content of a file: as it is, uncompressed, and as the rows of a database."""
    data = path.read_bytes()
    yield data.decode("utf-8", "replace")
    if data.startswith(b"\x1f\x8b"):
        yield gzip.decompress(data).decode("utf-8", "replace")
    if data.startswith(b"SQLite format 3"):
        with contextlib.closing(sqlite3.connect(path)) as database:
            tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            for (table,) in tables.fetchall():
                for row in database.execute(f'SELECT * FROM "{table}"'):
                    yield "\n".join(
                        cell.decode("utf-8", "replace") if isinstance(cell, bytes) else str(cell)
                        for cell in row
                    )


def plan_for(folder: Path, server: ScriptedLLM, **more: Any) -> Path:
    config = {"base_url": server.base_url, "model": "claude-sonnet-4-5", "auth_token": IN_PLAN}
    path = folder / "plan.yaml"
    plan = {
        "session": {"orchestrator": "loop-streaming", "context": "context-simple"},
        "providers": [{"module": "provider-anthropic", "config": {**config, "max_retries": 0}}],
        "tools": [
            {"module": "tool-filesystem"},
            {"module": "tool-bash", "config": {"max_output": 12_000}},
            {"module": "tool-search"},
        ],
        "hooks": [{"module": "hooks-logging"}],
        **more,
    }
    path.write_text(yaml.safe_dump(plan), encoding="utf-8")
    return path


def run(*arguments: str | Path, cwd: Path, home: Path | None = None) -> Finished:
    return run_amplifier(*arguments, cwd=cwd, home=home, env=ENVIRONMENT)


def test_what_a_run_writes_has_no_planted_secret(tmp_path: Path) -> None:
    assert len(SECRETS) > 80
    token = planted.SECRETS["github-classic"]
    (tmp_path / "in.txt").write_text(LEAKY)
    (tmp_path / f"key {token}.txt").write_text("x")
    calls = [
        ToolCall("read_file", {"path": "in.txt"}),
        ToolCall("bash", {"command": 'ls; cat in.txt; echo "$LEAKY" >&2; exit 3'}),
        ToolCall("bash", {"command": "yes $(cat in.txt) | tr -d '\\n' | head -c 30000"}),
        ToolCall("write_file", {"path": "out.txt", "content": LEAKY}),
        ToolCall("grep", {"pattern": "ghp_"}),
        ToolCall("no_such_tool", {"text": LEAKY}),
    ]
    with ScriptedLLM.running([Reply(LEAKY, tool_calls=calls), LEAKY]) as server:
        plan = plan_for(tmp_path, server)
        prompt = f"use {token} and\n{LEAKY}"
        options = ("--approve", "allow", "-v", "--report", "md=report.md")
        done = run("run", "-f", plan, *options, prompt, cwd=tmp_path)
        assert done.code == 0, done.stderr
        assert server.rejections == []
    # The model's own words: what a person asked for.
    assert len(found_in(done.stdout)) == len(SECRETS) + 1
    assert found_in(done.stderr) == []
    assert found_in((tmp_path / "report.md").read_text()) == []
    (events,) = done.home.rglob("events.jsonl")
    assert events.stat().st_size > 10_000
    assert leaks_in(done.home) == {}

    listed = run("session", "list", cwd=tmp_path, home=done.home)
    assert "use [REDACTED:github-pat] and" in listed.stdout
    found = run("session", "search", "key", cwd=tmp_path, home=done.home)
    assert "[REDACTED:" in found.stdout
    exports = [
        run("session", "export", events.parent.name, kind, cwd=tmp_path, home=done.home)
        for kind in ("--md", "--json", "--html", "--atif")
    ]
    for shown in (listed, found, *exports):
        assert (shown.code, {*found_in(shown.stdout + shown.stderr)} - {"plan"}) == (0, set())
    assert {name for names in leaks_in(done.home).values() for name in names} <= {"plan"}


@pytest.mark.parametrize("approve", ["allow", "deny"])
def test_no_file_but_the_listed_ones_has_a_planted_secret(tmp_path: Path, approve: str) -> None:
    (tmp_path / "in.txt").write_text(LEAKY)
    calls = [
        ToolCall("bash", {"command": f"echo '{LEAKY[:3000]}'"}),
        ToolCall("bash", {"command": LEAKY}),
        ToolCall("write_file", {"path": "in.txt", "content": f"{LEAKY}!"}),
        ToolCall(
            "todo", {"action": "create", "todos": [{"content": LEAKY[:1990], "status": "pending"}]}
        ),
        ToolCall(planted.SECRETS["openai"], {"token": LEAKY}),
        ToolCall("task", {"agent": "helper", "instruction": LEAKY}),
    ]
    hooks = ["hooks-logging", "hooks-approval", "hooks-backup"]
    more = {
        "instruction": LEAKY,
        "approvals": [{"action": "ask", "tool": "todo", "reason": LEAKY}],
        "agents": {"helper": {"description": LEAKY, "instruction": f"Help. {LEAKY}"}},
        "session": {"orchestrator": "loop-streaming", "context": "context-persistent"},
        "tools": ["tool-bash", "tool-filesystem", "tool-todo", "tool-task"],
        "hooks": [{"module": name} for name in hooks],
    }
    with ScriptedLLM.running([Reply(LEAKY, tool_calls=calls), LEAKY, LEAKY]) as server:
        plan = plan_for(tmp_path, server, **more)
        options = ("--approve", approve, "--session", "s", "-v")
        done = run("run", "-f", plan, *options, LEAKY, cwd=tmp_path)
        assert done.code == (0 if approve == "allow" else 8), done.stderr
    assert found_in(done.stderr) == []
    audit = (done.home / "sessions/s/approvals.jsonl").read_text()
    asked = [json.loads(line)["tool"] for line in audit.splitlines()]
    assert asked == ["bash", "bash", "write_file", "todo", "task"]
    assert "Help. " in (done.home / "sessions/s/plan.yaml").read_text()
    assert run("session", "search", "key", cwd=tmp_path, home=done.home).code == 0
    kept = {path.name for path in done.home.rglob("*")} & {
        "approvals.jsonl",
        "todo.json",
        "objects",
    }
    assert kept == (
        {"approvals.jsonl", "todo.json", "objects"} if approve == "allow" else {"approvals.jsonl"}
    )
    # The plan's own secret is not saved with it, so that the later search did not know it.
    assert leaks_in(done.home) == {".index.sqlite3": ["plan"]}
    if approve == "deny":
        return
    replayed = [
        run("policy", *words, "s", cwd=tmp_path, home=done.home)
        for words in (("replay", "--asks"), ("replay", "--asks", "--output", "json"), ("suggest",))
    ]
    for shown in replayed:
        assert (shown.code, {*found_in(shown.stdout + shown.stderr)} - {"plan"}) == (0, set())
    assert "[REDACTED:" in replayed[0].stdout


def test_errors_have_no_planted_secret(tmp_path: Path) -> None:
    with ScriptedLLM.running([Status(400, message=LEAKY)] * 2) as server:
        plan = plan_for(tmp_path, server)
        failed = run("run", "-f", plan, "-v", "go", cwd=tmp_path)
        as_json = run("run", "-f", plan, "--output", "json", "go", cwd=tmp_path, home=failed.home)
        token = planted.SECRETS["github-classic"]
        source = f"git+https://x-access-token:{token}@127.0.0.1:9/o/r.git"
        tools = [{"module": "tool-mine", "source": source}]
        plan = plan_for(tmp_path, server, tools=tools)
        fetched = run("run", "-f", plan, "-v", "go", cwd=tmp_path, home=failed.home)
        wrong = run("run", "-f", plan, f"--{token}", cwd=tmp_path, home=failed.home)
    for done, code in ((failed, 5), (as_json, 5), (fetched, 3), (wrong, 2)):
        assert done.code == code, done.stderr
        assert found_in(done.stdout + done.stderr) == []
    assert "[REDACTED:" in failed.stderr
    assert "[REDACTED:" in json.loads(as_json.stdout)["error"]["message"]
    assert leaks_in(failed.home) == {}


def test_the_log_and_results_of_a_batch_have_no_planted_secret(tmp_path: Path) -> None:
    module = tmp_path / "noisy" / "noisy"
    module.mkdir(parents=True)
    code = "import os, sys\nprint(os.environ['LEAKY'], file=sys.stderr)\n"
    mount = "async def mount(coordinator, config=None):\n    print(os.environ['LEAKY'])\n"
    (module / "__init__.py").write_text(f"{code}__amplifier_module_type__ = 'hook'\n{mount}")
    (tmp_path / "rows.txt").write_text("one\n")
    with ScriptedLLM.running([Status(400, message=LEAKY)] * 2) as server:
        noisy = {"module": "noisy", "source": str(module)}
        plan = plan_for(tmp_path, server, hooks=[noisy], tools=[])
        done = run("batch", "run", plan, "rows.txt", "-o", "out", cwd=tmp_path)
    log = (tmp_path / "out" / "log.txt").read_text()
    assert "[REDACTED:github-pat]" in log, done.stderr
    assert found_in(log) == []
    assert found_in((tmp_path / "out" / "results.jsonl").read_text()) == []
    assert found_in(done.stdout + done.stderr) == []


def test_prompts_are_remembered_without_secrets(tmp_path: Path) -> None:
    token = planted.SECRETS["github-classic"]
    for _ in range(2):
        history, problem = project_history(str(tmp_path))
        assert problem is None
        history.append_string(f"use {token}")
        assert history.get_strings()[-1] == f"use {token}"
    (file,) = (paths.state_dir() / "history").iterdir()
    assert file.read_text().count("+use [REDACTED:github-pat]\n") == 2
