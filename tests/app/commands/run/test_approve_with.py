"""`--approve-with`: a program answers in the user's place."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from amplifier_app import api
from amplifier_app.base.errors import UsageError
from amplifier_app.runtime.approval_program import check_program, read_answer
from tests.support.cli import Finished, run_amplifier

PROGRAM = """\
import json, sys
asked = json.load(sys.stdin)
with open("asked.jsonl", "a") as file:
    file.write(json.dumps(asked) + "\\n")
{body}
"""


def bash(command: str) -> dict[str, Any]:
    return {"name": "bash", "input": {"command": command}}


def plan(folder: Path, *calls: dict[str, Any], **more: Any) -> Path:
    replies = [{"tool_calls": [call]} for call in calls]
    data = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": [{"module": "provider-mock", "config": {"replies": [*replies, "over"]}}],
        "tools": ["tool-bash", "tool-filesystem"],
        "hooks": ["hooks-approval"],
        **more,
    }
    (folder / "plan.yaml").write_text(yaml.safe_dump(data))
    return folder / "plan.yaml"


def run(folder: Path, body: str, *options: str) -> Finished:
    (folder / "approve.py").write_text(PROGRAM.format(body=body))
    return run_amplifier(
        *("run", "-f", "plan.yaml", "--approve-with", "python3 approve.py", *options, "go"),
        cwd=folder,
    )


def asked(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "asked.jsonl").read_text().splitlines()]


def test_it_allows_denies_with_a_reason_and_is_asked_only_where_a_person_would_be(
    tmp_path: Path,
) -> None:
    plan(
        tmp_path,
        *(bash("ls"), bash("echo a > made"), bash("echo b > other"), bash("git push x")),
        approvals=[{"action": "deny", "command": "git push *"}],
    )
    body = (
        'allowed = "made" in asked["input"]["command"]\n'
        'print(json.dumps({"decision": "allow" if allowed else "deny", "reason": "only made"}))'
    )
    done = run(tmp_path, body, "--output", "json")
    result = json.loads(done.stdout)
    assert (done.code, (tmp_path / "made").read_text()) == (8, "a\n"), done.stderr
    assert not (tmp_path / "other").exists()
    first, second = asked(tmp_path)
    assert first == {
        **{"schema_version": 1, "kind": "tool", "tool": "bash", "agent": ""},
        "input": {"command": "echo a > made"},
        "question": first["question"],
        "reason": "it redirects input or output (>)",
        "working_dir": str(tmp_path.resolve()),
        "session_id": result["session_id"],
    }
    assert second["input"] == {"command": "echo b > other"}
    assert "Allow it with" not in done.stderr
    transcript = next(done.home.glob("**/transcript.jsonl")).read_text()
    assert "the program that decides says: only made" in transcript


def test_it_may_change_the_input_within_the_rules(tmp_path: Path) -> None:
    plan(
        tmp_path,
        bash("echo a > made"),
        bash("echo b > secret"),
        approvals=[{"action": "deny", "command": "rm *"}],
    )
    body = (
        'command = "rm made" if "secret" in asked["input"]["command"] else "echo changed > made"\n'
        'print(json.dumps({"decision": "allow", "input": {"command": command}}))'
    )
    done = run(tmp_path, body)
    assert done.code == 8, done.stderr
    assert (tmp_path / "made").read_text() == "changed\n"
    assert not (tmp_path / "secret").exists()


INVALID: list[tuple[Any, str]] = [
    ([], "its decision is [], not allow, deny or ask"),
    ({}, "its decision is None, not allow, deny or ask"),
    ({"decision": "Allow"}, "its decision is 'Allow'"),
    ({"decision": "allow", "x": 1}, "unknown keys: x"),
    ({"decision": "deny", "reason": 1}, "its reason is not text"),
    ({"decision": "allow", "input": []}, "'input' must be an object"),
    ({"decision": "deny", "input": {}}, "is only for 'allow'"),
]


def test_an_invalid_answer_denies() -> None:
    for answer, problem in INVALID:
        read = read_answer(answer)
        assert (read.decision, problem in str(read.problem)) == ("deny", True), answer


def test_it_may_answer_with_a_word_and_any_other_text_denies(tmp_path: Path) -> None:
    texts = ("allow", '"allow"', "ask", "", '{"decision": "allow"}' * 2)
    plan(tmp_path, *(bash(f"echo {number} > made{number}") for number in range(len(texts))))
    done = run(tmp_path, f"print({texts!r}[int(asked['input']['command'].split()[1])])")
    assert done.code == 8, done.stderr
    assert sorted(path.name for path in tmp_path.glob("made*")) == ["made0", "made1"]
    assert done.stderr.count("program that approves failed") == 2
    assert done.stderr.count("not allow, deny or ask") == 2


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("sys.exit('broken')", "exited with code 1 (broken)"),
        ("import time; time.sleep(60)", "did not finish within 1 s"),
    ],
)
def test_a_program_that_fails_denies(tmp_path: Path, body: str, problem: str) -> None:
    config = {"module": "hooks-approval", "config": {"timeout": 1 if "sleep" in body else 30}}
    plan(tmp_path, bash("echo a > made"), hooks=[config])
    done = run(tmp_path, body)
    assert done.code == 8
    assert problem in done.stderr
    assert not (tmp_path / "made").exists()


def test_a_missing_program_is_a_usage_error_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(tmp_path, bash("echo a > made"))
    command = ("run", "-f", "plan.yaml", "--approve-with", "./nope.sh --fast", "go")
    done = run_amplifier(*command, cwd=tmp_path)
    assert (done.code, done.stdout) == (2, "")
    assert "--approve-with: the program './nope.sh' is missing" in done.stderr
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"'\./plan\.yaml' is not executable"):
        check_program("./plan.yaml")
    for command_line in ("exec python3 approve.py", "ALL=1 python3 approve.py"):
        check_program(command_line)


@pytest.mark.parametrize(("options", "code"), [((), 8), (("--approve", "allow"), 0)])
def test_it_may_leave_the_answer_to_what_would_answer_otherwise(
    tmp_path: Path, options: tuple[str, ...], code: int
) -> None:
    plan(tmp_path, bash("echo a > made"))
    done = run(tmp_path, 'print(\'{"decision": "ask"}\')', *options)
    assert (done.code, (tmp_path / "made").exists()) == (code, code == 0), done.stderr
    assert ("Allow it with --approve allow" in done.stderr) == (code == 8)


def test_calls_of_agents_name_them(tmp_path: Path) -> None:
    config = {"replies": [{"tool_calls": [bash("echo a > made")]}, "done"]}
    helper = {"providers": [{"module": "provider-mock", "config": config}]}
    task = {"name": "task", "input": {"agent": "helper", "instruction": "make it"}}
    plan(
        tmp_path,
        task,
        tools=["tool-bash", "tool-task"],
        agents={"helper": {"description": "Helps", **helper}},
    )
    done = run(tmp_path, 'print(\'{"decision": "allow"}\')')
    assert (done.code, (tmp_path / "made").exists()) == (0, True), done.stderr
    assert [question["agent"] for question in asked(tmp_path)] == ["helper"]


async def test_a_function_decides_in_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    file = plan(tmp_path, bash("echo a > made"), bash("echo b > other"), bash("echo c > third"))
    questions: list[str] = []

    async def approve(question: api.Approval) -> Any:
        questions.append(question["input"]["command"])
        if "third" in questions[-1]:
            raise RuntimeError("oops")
        return "allow" if "made" in questions[-1] else {"decision": "deny", "reason": "no other"}

    answer = await api.run(api.load_plan(file), "go", approve=approve)
    assert (answer.outcome, len(questions)) == ("denied", 3)
    assert [(tmp_path / name).exists() for name in ("made", "other", "third")] == [
        True,
        False,
        False,
    ]
    assert "it raised RuntimeError: oops" in caplog.text
    with pytest.raises(api.UsageError, match="approve: unknown value 'maybe'"):
        await api.run(api.load_plan(file), "go", approve="maybe")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("error", [SystemExit(0), pytest.fail.Exception("unexpected question")])
async def test_a_function_that_raises_no_exception_denies_too(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
) -> None:
    monkeypatch.chdir(tmp_path)
    file = plan(tmp_path, bash("echo a > made"))

    def approve(question: api.Approval) -> Any:
        raise error

    answer = await api.run(api.load_plan(file), "go", approve=approve)
    assert (answer.outcome, (tmp_path / "made").exists()) == ("denied", False)
    assert f"it raised {type(error).__name__}" in caplog.text
