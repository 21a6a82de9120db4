"""One prompt from the command line to an answer, against a real HTTP server on loopback."""

import json
from pathlib import Path

from tests.support.cli import run_amplifier, succeed
from tests.support.llm_server import Reply, ScriptedLLM, Status, ToolCall


def provider_environment(server: ScriptedLLM, vendor: str) -> dict[str, str]:
    url = server.openai_base_url if vendor == "OPENAI" else server.base_url
    return {f"{vendor}_BASE_URL": url, f"{vendor}_API_KEY": "test-key"}


def test_the_default_profile_asks_and_without_a_terminal_denies(tmp_path: Path) -> None:
    calls = [
        ToolCall("read_file", {"path": "greet.py"}),
        ToolCall("bash", {"command": "ls | head -3"}),
        ToolCall("write_file", {"path": "made", "content": "x"}),
        ToolCall("bash", {"command": "touch made-too"}),
    ]
    (tmp_path / "greet.py").write_text("print('hello')\n")

    def run(*arguments: str) -> tuple[int, list[str]]:
        with ScriptedLLM.running([Reply(tool_calls=calls), "Done."]) as server:
            env = provider_environment(server, "ANTHROPIC")
            done = run_amplifier("run", "go", "--output", "json", *arguments, cwd=tmp_path, env=env)
        return done.code, [one["name"] for one in json.loads(done.stdout)["denied"]]

    assert run() == (8, ["write_file", "bash"])
    assert run("--mode", "edits") == (8, ["bash"])
    assert (tmp_path / "made").exists()
    assert run("--approve", "allow") == (0, [])
    assert run("--mode", "auto") == (0, [])


def test_the_model_can_be_chosen(tmp_path: Path) -> None:
    with ScriptedLLM.running(["hi"]) as server:
        env = provider_environment(server, "ANTHROPIC")
        succeed("run", "-P", "minimal", "-m", "claude-test", "hi", env=env, cwd=tmp_path)
        assert server.completions[-1].body["model"] == "claude-test"


def test_an_overloaded_provider_is_retried_with_a_notice(tmp_path: Path) -> None:
    slow_down = Status(529, headers={"retry-after": "0"})
    with ScriptedLLM.running([slow_down, slow_down, "at last"]) as server:
        env = provider_environment(server, "ANTHROPIC")
        done = run_amplifier("run", "hi", env=env, cwd=tmp_path)
    assert (done.code, done.stdout) == (0, "at last\n")
    assert done.stderr.count("retrying in") == 2
