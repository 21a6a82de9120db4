"""The hook in the running program: over HTTP, resumed, and in an untrusted directory."""

import json
from pathlib import Path
from typing import Any

import yaml

from tests.support.cli import run_amplifier, succeed
from tests.support.llm_server import Reply, ScriptedLLM, ToolCall

PLAN: dict[str, Any] = {
    "name": "test",
    "session": {"orchestrator": "loop-streaming", "context": "context-simple"},
    "providers": [{"module": "provider-anthropic"}],
    "tools": [{"module": "tool-filesystem"}],
    "hooks": [{"module": "hooks-context-files"}, {"module": "hooks-logging"}],
    "instruction": "Be brief.",
}


def environment(server: ScriptedLLM) -> dict[str, str | None]:
    return {"ANTHROPIC_API_KEY": "sk-test", "ANTHROPIC_BASE_URL": server.base_url}


def plan(folder: Path) -> Path:
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(PLAN))
    return path


def test_every_request_of_a_resumed_session_begins_alike(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    home.mkdir()
    (work / "AGENTS.md").write_text("Say please.\n@style.md\n")
    (work / "style.md").write_text("Use tabs.")
    file = plan(tmp_path)
    call = ToolCall("read_file", {"path": "style.md"})
    with ScriptedLLM.running([Reply(tool_calls=[call]), "one", "two"]) as server:
        env = environment(server)
        trusted = run_amplifier("trust", "--yes", cwd=work, home=home)
        first = run_amplifier("run", "-f", file, "a", cwd=work, home=home, env=env)
        second = run_amplifier("run", "--continue", "b", cwd=work, home=home, env=env)
        bodies = [request.body for request in server.completions]
    assert (trusted.code, first.code, second.code) == (0, 0, 0), first.stderr + second.stderr
    assert (first.stdout, second.stdout) == ("one\n", "two\n")
    systems = [[block["text"] for block in body["system"]] for body in bodies]
    assert systems[0] == systems[1] == systems[2]
    text = "\n".join(systems[0])
    assert text.index("Be brief.") < text.index("Say please.\nUse tabs.")
    assert "<context-files" not in json.dumps([body["messages"] for body in bodies])
    log = next(home.rglob("events.jsonl")).read_text()
    events = [json.loads(line) for line in log.splitlines()]
    loaded = [event["data"] for event in events if event["event"] == "context_files:loaded"]
    assert [event["reason"] for event in loaded] == ["start"]


def test_a_project_gives_text_only_once_it_is_trusted(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    (work / ".git").mkdir(parents=True)
    (work / "sub").mkdir()
    home.mkdir()
    (work / "AGENTS.md").write_text("Say please.\n")
    (work / "sub" / "CLAUDE.md").write_text("Say thanks.\n")

    def amplifier(*arguments: str, folder: str = "sub") -> str:
        with ScriptedLLM.running(["fine"]) as server:
            command = [
                *arguments,
                *(["-f", str(plan(tmp_path)), "a"] if "run" in arguments else []),
            ]
            env = environment(server)
            succeed(*command, cwd=work / folder, home=home, env=env)
            sent = json.dumps([request.body for request in server.completions])
        return " ".join(text for text in ("please", "thanks") if f"Say {text}" in sent)

    assert amplifier("run") == ""
    assert amplifier("run", "--trust") == "please thanks"
    assert amplifier("run", "--trust", "--no-context-files") == ""
    amplifier("trust", "--yes")
    assert amplifier("run") == "please thanks"
    assert amplifier("run", folder=".") == "please"
    assert amplifier("run", "--no-project") == ""
    (work / "AGENTS.md").write_text("Say please, please.\n")
    assert amplifier("run") == "please thanks"
    (work / "sub" / ".git").mkdir()
    assert amplifier("run") == ""
    (work / "sub" / ".git").rmdir()
    amplifier("trust", "--revoke")
    assert amplifier("run") == ""


def test_a_project_gives_text_and_nothing_else(tmp_path: Path) -> None:
    """Its `.amplifier` stays without a say; AGENTS.md is text, which starts and opens nothing."""
    home, work = tmp_path / "home", tmp_path / "work"
    (work / ".amplifier").mkdir(parents=True)
    home.mkdir()
    ran = tmp_path / "ran"
    settings = {"hooks": [{"module": "evil", "source": "./evil"}]}
    (work / ".amplifier" / "settings.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / "private.md").write_text("PRIVATE")
    (work / "AGENTS.md").write_text(
        f"${{ANTHROPIC_API_KEY}} $(touch {ran}) `touch {ran}`\n@../private.md\n@.env\n"
    )
    (work / ".env").write_text("KEY=PRIVATE")
    with ScriptedLLM.running(["fine"]) as server:
        setting = ("--set", "hooks.hooks-context-files.config.project=true")
        command = ("run", "-f", plan(tmp_path), *setting, "a")
        done = run_amplifier(*command, cwd=work, home=home, env=environment(server))
        (request,) = server.completions
    assert done.code == 0, done.stderr
    assert "leads out of its folder" in done.stderr
    sent = json.dumps(request.body)
    assert "${ANTHROPIC_API_KEY}" in sent
    assert "PRIVATE" not in sent
    assert not ran.exists()
