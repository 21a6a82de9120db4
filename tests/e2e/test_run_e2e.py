"""One prompt from the command line to an answer, against a real HTTP server on loopback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import run_amplifier
from tests.support.llm_server import Cut, Reply, ScriptedLLM, Status, ToolCall


def provider_environment(server: ScriptedLLM, vendor: str) -> dict[str, str]:
    url = server.openai_base_url if vendor == "OPENAI" else server.base_url
    return {f"{vendor}_BASE_URL": url, f"{vendor}_API_KEY": "test-key"}


THREE_CALLS = [
    Reply(
        text="I look at both files first.",
        tool_calls=[
            ToolCall("read_file", {"path": "greet.py"}),
            ToolCall("read_file", {"path": "names.txt"}),
        ],
    ),
    Reply(
        text="Now the change.",
        tool_calls=[
            ToolCall(
                "edit_file",
                {"path": "greet.py", "old_string": "'hello'", "new_string": "'good morning'"},
            )
        ],
    ),
    Reply(text="Done: greet.py says good morning."),
]


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


@pytest.mark.parametrize("vendor", ["ANTHROPIC", "OPENAI"])
def test_three_tool_calls_edit_a_file_and_the_session_resumes_elsewhere(
    tmp_path: Path, vendor: str
) -> None:
    work, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    work.mkdir()
    elsewhere.mkdir()
    (work / "greet.py").write_text("print('hello')\n")
    (work / "names.txt").write_text("Ada\n")
    with ScriptedLLM.running([*THREE_CALLS, "You asked for a greeting."]) as server:
        env = provider_environment(server, vendor)
        done = run_amplifier("run", "--approve", "allow", "make it polite", cwd=work, env=env)
        assert (done.code, done.stdout) == (0, "Done: greet.py says good morning.\n"), done.stderr
        assert (work / "greet.py").read_text() == "print('good morning')\n"
        again = run_amplifier("session", "list", "--all", "--output", "json")
        (listed,) = json.loads(again.stdout)
        resumed = run_amplifier(
            "run", "--resume", listed["id"], "what did I ask?", cwd=elsewhere, env=env
        )
        assert (resumed.code, resumed.stdout) == (0, "You asked for a greeting.\n"), resumed.stderr
        assert server.rejections == []
        assert [request.answered for request in server.completions] == [True] * 4
        last = server.completions[-1].body
        assert roles_of(last)[-1] == "user"
        # The status of hooks-status may be a message of its own.
        assert "what did I ask?" in "".join(map(read_text, last["messages"][-2:]))
        assert "make it polite" in json.dumps(last["messages"])


def roles_of(body: dict[str, Any]) -> list[str]:
    return [message["role"] for message in body["messages"]]


def read_text(message: dict[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(block.get("text", "") for block in content)


def test_without_tools_the_answer_is_streamed(tmp_path: Path) -> None:
    answer = "word " * 200
    with ScriptedLLM.running([answer]) as server:
        env = provider_environment(server, "ANTHROPIC")
        done = run_amplifier("run", "-P", "minimal", "talk", env=env, cwd=tmp_path)
    assert (done.code, done.stdout) == (0, answer + "\n")


def test_the_model_can_be_chosen(tmp_path: Path) -> None:
    with ScriptedLLM.running(["hi"]) as server:
        env = provider_environment(server, "ANTHROPIC")
        done = run_amplifier("run", "-m", "claude-test", "hi", env=env, cwd=tmp_path)
        assert done.code == 0, done.stderr
        assert server.completions[-1].body["model"] == "claude-test"


def test_a_wrong_key_is_an_authentication_failure(tmp_path: Path) -> None:
    with ScriptedLLM.running(["hi"], api_key="another") as server:
        env = provider_environment(server, "ANTHROPIC")
        done = run_amplifier("run", "hi", "--output", "json", env=env, cwd=tmp_path)
    assert done.code == 4
    assert json.loads(done.stdout)["outcome"] == "authentication"
    assert "test-key" not in done.stdout + done.stderr


def test_an_overloaded_provider_is_retried_with_a_notice(tmp_path: Path) -> None:
    slow_down = Status(529, headers={"retry-after": "0"})
    with ScriptedLLM.running([slow_down, slow_down, "at last"]) as server:
        env = provider_environment(server, "ANTHROPIC")
        done = run_amplifier("run", "hi", env=env, cwd=tmp_path)
    assert (done.code, done.stdout) == (0, "at last\n")
    assert done.stderr.count("retrying in") == 2


def test_a_provider_that_stays_overloaded_is_a_temporary_failure(tmp_path: Path) -> None:
    slow_down = Status(429, headers={"retry-after": "0"})
    with ScriptedLLM.running([slow_down], repeat_last=True) as server:
        env = provider_environment(server, "ANTHROPIC")
        done = run_amplifier("run", "hi", "--output", "json", env=env, cwd=tmp_path)
    result = json.loads(done.stdout)
    assert (done.code, result["outcome"]) == (75, "unavailable")


def test_a_cut_answer_is_never_a_success(tmp_path: Path) -> None:
    cut = Reply(text="half of it " * 50, fault=Cut(after=8))
    with ScriptedLLM.running([cut], repeat_last=True) as server:
        env = provider_environment(server, "ANTHROPIC")
        done = run_amplifier("run", "-P", "minimal", "hi", env=env, cwd=tmp_path)
        sent = len(server.completions)
    assert done.code == 75
    assert sent == 1
    assert "half of it " * 50 not in done.stdout
