"""`run --approve park` and `session approve`: a question waits, is answered later, and its answer is used once."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.batches import small_plan
from tests.support.cli import Finished, run_amplifier
from tests.support.llm_server import Reply, ScriptedLLM, ToolCall

ID = "20260101-000000-aaaaaa"
CALL = ToolCall("bash", {"command": "echo x >> made"})
OTHER = ToolCall("bash", {"command": "echo y >> made"})


def again() -> ToolCall:
    """The same call with an id of its own."""
    return ToolCall(CALL.name, CALL.input)


class Machine:
    """A home and a working directory, with the model's script."""

    def __init__(self, folder: Path, name: str = "home") -> None:
        self.folder = folder
        self.home = folder / name
        self.made = folder / "work/made"
        self.made.parent.mkdir(exist_ok=True)

    def amplifier(self, *words: str, env: dict[str, str] | None = None, **more: Any) -> Finished:
        return run_amplifier(*words, home=self.home, cwd=self.made.parent, env=env or {}, **more)

    def run(self, script: list[Any], *words: str) -> tuple[Finished, list[dict[str, Any]]]:
        plan = self.folder / "plan.yaml"
        asking = {"hooks": [{"module": "hooks-approval"}]}
        plan.write_text(yaml.safe_dump(small_plan({"module": "provider-anthropic"}) | asking))
        with ScriptedLLM.running(script) as server:
            done = self.amplifier("run", *words, env=server.env)
            return done, [request.body for request in server.completions]

    def park(self, *calls: ToolCall, more: tuple[str, ...] = ()) -> Finished:
        words = ("-f", str(self.folder / "plan.yaml"), "go", "--approve", "park", "--session", ID)
        return self.run([Reply(tool_calls=list(calls)), "not asked for"], *words, *more)[0]

    def resume(self, script: list[Any], *more: str) -> tuple[Finished, list[dict[str, Any]]]:
        return self.run(script, "--resume", ID, "--approve", "park", *more)

    @property
    def lines(self) -> list[str]:
        return self.made.read_text().split() if self.made.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_an_allowed_call_runs_once(machine: Machine) -> None:
    parked = machine.park(CALL)
    assert (parked.code, parked.stdout) == (10, ""), parked.stderr
    assert "waiting for approval: " in parked.stderr
    assert "amplifier session approve aaaaaa --allow" in parked.stderr
    assert machine.lines == []
    assert "echo x >> made" in machine.amplifier("session", "approve", "aaaaaa").stdout
    listed = machine.amplifier("session", "list", "--all", "--output", "json").stdout
    assert [entry["state"] for entry in json.loads(listed)] == ["waiting for approval"]
    early, _ = machine.resume([])
    assert early.code == 2
    assert "waits for approval first: amplifier session approve aaaaaa" in early.stderr

    allowed = machine.amplifier("session", "approve", "aaaaaa", "--allow")
    assert allowed.code == 0, allowed.stderr
    assert "amplifier run --resume aaaaaa" in allowed.stderr
    done, bodies = machine.resume(
        [Reply(tool_calls=[again()]), Reply(tool_calls=[again()]), "done"]
    )
    assert "- allowed: bash" in json.dumps(bodies[0]["messages"][-1])
    assert "which was denied; not run: it waits for" in json.dumps(bodies[0]["messages"])
    assert machine.lines == ["x"]
    # The second time, the same call waits again.
    assert done.code == 10
    assert machine.amplifier("session", "approve", ID, "--deny").code == 0
    done, _ = machine.resume([Reply(tool_calls=[CALL]), "then not"])
    assert (done.code, machine.lines) == (8, ["x"])


def test_a_call_with_another_input_is_asked_about_again(machine: Machine) -> None:
    machine.park(CALL)
    machine.amplifier("session", "approve", ID, "--allow")
    done, _ = machine.resume([Reply(tool_calls=[OTHER]), "never"])
    assert done.code == 10
    assert machine.lines == []
    [first, second] = json.loads(
        machine.amplifier("session", "approve", ID, "--output", "json").stdout
    )
    assert (first["state"], second["state"]) == ("answered", "waiting")
    assert second["input"] == {"command": "echo y >> made"}


def test_a_denied_call_is_denied_with_the_reason(machine: Machine) -> None:
    machine.park(CALL)
    machine.amplifier("session", "approve", ID, "--deny", "--answer", "use y instead")
    done, bodies = machine.resume([Reply(tool_calls=[CALL]), "I see"])
    assert done.code == 8
    assert "use y instead" in json.dumps(bodies[0]["messages"][-1])
    assert "use y instead" in json.dumps(bodies[1]["messages"][-1])
    assert machine.lines == []


def test_an_answer_of_another_machine_counts_after_it_was_confirmed(
    machine: Machine, tmp_path: Path
) -> None:
    machine.park(CALL)
    there = Machine(tmp_path, "there")
    first, second = str(tmp_path / "one.tar.gz"), str(tmp_path / "two.tar.gz")
    assert machine.amplifier("session", "export", ID, "--bundle", "-o", first).code == 0
    assert there.amplifier("session", "import", first).code == 0
    assert there.amplifier("session", "approve", ID, "--allow").code == 0
    assert there.amplifier("session", "export", ID, "--bundle", "-o", second).code == 0
    shutil.rmtree(machine.home / "sessions")
    assert machine.amplifier("session", "import", second).code == 0

    assert "which does not count here" in machine.amplifier("session", "approve", ID).stdout
    plan = ("-f", str(tmp_path / "plan.yaml"))
    done, _ = machine.resume([Reply(tool_calls=[CALL]), "never"], "again", *plan)
    assert (done.code, machine.lines) == (10, []), done.stderr
    assert machine.amplifier("session", "approve", ID, "1", "--allow").code == 0
    done, _ = machine.resume([Reply(tool_calls=[CALL]), "done"], *plan)
    assert (done.code, done.stdout, machine.lines) == (0, "done\n", ["x"]), done.stderr


def test_expired_forged_and_used_answers_do_not_count(machine: Machine) -> None:
    machine.park(CALL)
    [file] = machine.home.rglob("waiting.jsonl")

    def ask_again() -> str:
        done, _ = machine.resume([Reply(tool_calls=[again()]), "never"], "again")
        assert (done.code, machine.lines) == (10, []), done.stderr
        return questions(machine)[-1]["id"]

    assert machine.amplifier("session", "approve", ID, "--allow", "--expires", "0.01s").code == 0
    assert "has expired" in machine.amplifier("session", "approve", ID).stdout
    forged = {"record": "answered", "id": ask_again(), "decision": "allow", "by": "you"}
    forged |= {"expires": 9e9, "seal": "ab" * 32}
    file.write_text(f"{file.read_text()}{json.dumps(forged)}\n")
    last = ask_again()
    assert machine.amplifier("session", "approve", ID, last, "--allow").code == 0
    # The run dies between its note that the answer is used and the call: half a line is left of the next record.
    file.write_text(f'{file.read_text()}{{"record": "used", "id": "{last}"}}\n{{"record": "us')
    ask_again()
    assert [question["state"] for question in questions(machine)[-2:]] == ["used", "waiting"]


def test_a_copy_of_a_used_answer_does_not_count(machine: Machine, tmp_path: Path) -> None:
    machine.park(CALL)
    machine.amplifier("session", "approve", ID, "--allow")
    bundle = str(tmp_path / "saved.tar.gz")
    assert machine.amplifier("session", "export", ID, "--bundle", "-o", bundle).code == 0
    [file] = machine.home.rglob("waiting.jsonl")
    answered = file.read_text()
    done, _ = machine.resume([Reply(tool_calls=[again()]), "done"])
    assert (done.code, machine.lines) == (0, ["x"]), done.stderr
    # The file as it was, its lines once more, and the session as it was exported.
    plan = ("-f", str(tmp_path / "plan.yaml"))
    for text in (answered, file.read_text() + answered, None):
        if text is None:
            shutil.rmtree(machine.home / "sessions")
            assert machine.amplifier("session", "import", bundle).code == 0
        else:
            file.write_text(text)
        done, _ = machine.resume([Reply(tool_calls=[again()]), "never"], "again", *plan)
        assert (done.code, machine.lines) == (10, ["x"]), done.stderr


def test_odd_answers_are_none(machine: Machine) -> None:
    machine.park(CALL)
    machine.amplifier("session", "approve", ID, "--allow")
    [file] = machine.home.rglob("waiting.jsonl")
    first, answer = file.read_text().splitlines()
    for change in ({"expires": "abc"}, {"decision": "maybe"}, {"seal": "é"}, {"seal": 1}):
        file.write_text(f"{first}\n{json.dumps({**json.loads(answer), **change})}\n")
        assert [question["state"] for question in questions(machine)] == ["waiting"], change
        assert machine.amplifier("session", "approve", ID).code == 0, change


def questions(machine: Machine) -> list[dict[str, Any]]:
    return json.loads(machine.amplifier("session", "approve", ID, "--output", "json").stdout)


def test_several_questions_are_answered_one_by_one(machine: Machine) -> None:
    assert machine.park(CALL, OTHER).code == 10
    assert [question["id"] for question in questions(machine)] == ["1", "2"]
    unclear = machine.amplifier("session", "approve", ID, "--allow")
    assert unclear.code == 2
    assert "several questions wait" in unclear.stderr
    assert "1 more waits" in machine.amplifier("session", "approve", ID, "2", "--allow").stderr
    assert machine.amplifier("session", "approve", ID, "--deny").code == 0
    done, _ = machine.resume([Reply(tool_calls=[CALL, OTHER]), "done"])
    assert (done.code, machine.lines) == (8, ["y"])


def test_the_result_lists_what_waits_and_other_questions_are_errors(machine: Machine) -> None:
    parked = machine.park(CALL, more=("--output", "json"))
    result = json.loads(parked.stdout)
    assert (parked.code, result["outcome"], result["exit_code"]) == (10, "waiting", 10)
    [question] = result["waiting"]
    assert (question["id"], question["tool"]) == ("1", "bash")
    assert question["input"] == {"command": "echo x >> made"}
    for words, code, message in (
        (("--allow", "--deny"), 2, "--allow cannot be used with"),
        (("7", "--allow"), 2, "no question '7'"),
    ):
        done = machine.amplifier("session", "approve", ID, *words)
        assert (done.code, message in done.stderr) == (code, True), done.stderr
    assert machine.amplifier("session", "approve", "nothing", "--allow").code == 6
    done = machine.amplifier("run", "hi", "-P", "mock", "--approve", "park", "--no-save")
    assert done.code == 2


def test_a_secret_in_a_waiting_call_is_not_stored(machine: Machine) -> None:
    key = "sk-ant-api03-" + "a1B2" * 20
    machine.park(ToolCall("bash", {"command": f"echo {key} >> made"}))
    [file] = machine.home.rglob("waiting.jsonl")
    assert key not in file.read_text()
    machine.amplifier("session", "approve", ID, "--allow")
    call = ToolCall("bash", {"command": f"echo {key} >> made"})
    done, _ = machine.resume([Reply(tool_calls=[call]), "done"])
    assert (done.code, machine.lines) == (0, [key]), done.stderr
