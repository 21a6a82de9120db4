"""Scores that decide the outcome of a row, judges with a rubric and a schema, and functions that misbehave."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.batches import small_plan
from tests.support.cli import Finished, run_amplifier, start_amplifier
from tests.support.llm_server import ScriptedLLM
from tests.support.module_repositories import write_files
from tests.support.processes import is_alive
from tests.support.waiting import wait_until

ROWS = [{"id": "a", "text": "one"}, {"id": "b", "text": "three"}]
SCORERS = """
import os, sys, time

def length(answer, row, result):
    print("noise", input() if sys.stdin.isatty() else "")
    return len(answer)

def label(answer, row, result):
    return "short" if len(answer) < 14 else "long"

def endless_for_b(answer, row, result):
    if row["id"] == "b":
        open("pid", "w").write(str(os.getpid()))
        while True:
            time.sleep(0.01)
    return 1

def dies_for_b(answer, row, result):
    if row["id"] == "b":
        os._exit(7)
    return result["steps"]
"""
PROVIDER = {"module": "provider-anthropic", "config": {"priority": 1}}
JUDGE = {"extends": "minimal", "instruction": "You are a judge.", "providers": [PROVIDER]}
SCHEMA = {
    "type": "object",
    "properties": {
        "score": {"type": "integer", "minimum": 1, "maximum": 5},
        "missing": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["score", "missing"],
}


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    (tmp_path / "scorers.py").write_text(SCORERS)
    (tmp_path / "judge.yaml").write_text(yaml.safe_dump(JUDGE))
    return tmp_path


def run(batch: Path, scores: Any, *words: str, env: dict[str, str] | None = None) -> Finished:
    plan = {**small_plan(), "prompt": "{{text}}", "scores": scores}
    (batch / "plan.yaml").write_text(yaml.safe_dump(plan))
    words = ("batch", "run", "plan.yaml", "rows.jsonl", "-o", "out", "--workers", "1", *words)
    return amplifier(batch, *words, env=env)


def amplifier(batch: Path, *words: str, env: dict[str, str] | None = None) -> Finished:
    return run_amplifier(*words, home=batch / "home", cwd=batch, env=env)


def results(batch: Path) -> dict[str, Any]:
    lines = (batch / "out/results.jsonl").read_text().splitlines()
    return {result["row"]: result for result in map(json.loads, lines)}


def scores(batch: Path) -> list[dict[str, Any]]:
    lines = (batch / "out/scores.jsonl").read_text().splitlines()
    return sorted(map(json.loads, lines), key=lambda score: score["number"])


def judged(batch: Path, replies: list[Any], **score: Any) -> tuple[Finished, list[Any]]:
    """Run with a judge; returns how it ended, and the prompts that the judge got."""
    replies = [one if isinstance(one, str) else json.dumps(one) for one in replies]
    with ScriptedLLM.running(replies) as server:
        entry = {"name": "quality", "run": "judge:judge.yaml", **score}
        done = run(batch, [entry], "--workers", "1", env=server.env)
        return done, [request.body["messages"][0]["content"] for request in server.requests]


def test_a_row_passes_if_its_scores_meet_their_thresholds(batch: Path) -> None:
    negative = "case $(cat $AMPLIFIER_ANSWER_FILE) in *th*) echo -2;; *) echo -1;; esac"
    entries = [
        {"name": "size", "run": "python:scorers.py:length", "max": 14},
        {"name": "label", "run": "python:scorers.py:label", "equals": "short"},
        {"name": "sign", "run": negative, "min": -1.5},
    ]
    done = run(batch, entries, "--retries", "0")
    assert done.code == 9, done.stderr
    found = results(batch)
    assert [found[row]["outcome"] for row in "ab"] == ["ok", "check_failed"]
    checks = found["b"]["checks"]
    assert {check["name"]: (check["passed"], check["output"]) for check in checks} == {
        "size": (False, "score 15, expected at most 14"),
        "label": (False, "score 'long', expected 'short'"),
        "sign": (False, "score -2, expected at least -1.5"),
    }
    assert "score 15, expected at most 14" in found["b"]["error"]["message"]
    # Each run is scored once, also by a later command.
    assert [line["attempts"] for line in scores(batch)] == [1] * 6
    assert "0 scores given" in amplifier(batch, "batch", "score", "out").stderr
    assert "noise" not in (batch / "out/results.jsonl").read_text()


def test_a_score_that_failed_is_feedback_for_a_retry(batch: Path) -> None:
    (batch / "rows.jsonl").write_text(json.dumps(ROWS[1]))
    entry = {"name": "size", "run": "python:scorers.py:length", "max": 12}
    replies = ["much too long an answer", "short now"]
    mock = {"module": "provider-mock", "config": {"replies": replies}}
    words = ("--retries", "1", "--set", f"providers={json.dumps([mock])}")
    done = run(batch, [entry], *words)
    assert done.code == 0, done.stderr
    found = results(batch)["b"]
    assert (found["response"], found["checks"][0]["runs"]) == ("short now", 2)
    [score] = scores(batch)
    assert score["value"] == len("short now")


def test_the_cost_of_a_judge_includes_retries_and_earlier_attempts(batch: Path) -> None:
    reply = {"text": '{"reason": "rude", "score": 1}', "usage": {"cost_usd": "0.01"}}
    mock = {"module": "provider-mock", "config": {"replies": [reply], "on_end": "repeat"}}
    (batch / "judge.yaml").write_text(yaml.safe_dump({"extends": "minimal", "providers": [mock]}))
    entry = {"name": "tone", "run": "judge:judge.yaml", "min": 3}
    done = run(batch, [entry], "--retries", "1")
    assert done.code == 9, done.stderr
    assert "judges: $0.0400" in done.stderr
    assert "judges: $0.0800" in amplifier(batch, "batch", "retry", "out").stderr
    assert "| $0.0800 |" in amplifier(batch, "batch", "report", "out").stdout
    shown = amplifier(batch, "batch", "score", "out", "--again", "--output", "json").stdout
    assert [mean["cost"] for mean in json.loads(shown)] == [pytest.approx(0.1)]


def test_another_threshold_is_another_batch_and_another_score_is_not(batch: Path) -> None:
    entry = {"name": "size", "run": "python:scorers.py:length", "max": 14}
    assert run(batch, [entry]).code == 9
    plan = yaml.safe_load((batch / "plan.yaml").read_text())
    plan["scores"].append({"name": "label", "run": "python:scorers.py:label"})
    (batch / "plan.yaml").write_text(yaml.safe_dump(plan))
    assert amplifier(batch, "batch", "score", "out").code == 0
    plan["scores"][0]["max"] = 15
    (batch / "plan.yaml").write_text(yaml.safe_dump(plan))
    done = amplifier(batch, "batch", "resume", "out")
    assert done.code == 78
    assert "the plan changed" in done.stderr


def test_a_judge_gets_the_rubric_and_replies_by_the_schema(batch: Path) -> None:
    reply = {"score": 4, "missing": ["sources"]}
    rubric = "Points for {braces} and sources."
    done, prompts = judged(batch, [reply, reply], rubric=rubric, schema=SCHEMA, min=3)
    assert done.code == 0, done.stderr
    assert [line["value"] for line in scores(batch)] == [4, 4]
    assert scores(batch)[0]["replies"] == [reply]
    assert rubric in str(prompts[0])
    assert '"missing"' in str(prompts[0])
    assert "You said: one" in str(prompts[0])


def test_a_reply_out_of_schema_is_a_missing_score_and_no_failed_check(batch: Path) -> None:
    good, bad = {"score": 5, "missing": []}, {"score": 9, "missing": []}
    done, _ = judged(batch, [good, bad, bad, bad], schema=SCHEMA, min=3)
    assert done.code == 1, done.stderr
    found = results(batch)
    assert [found[row]["outcome"] for row in "ab"] == ["ok", "error"]
    message = found["b"]["error"]["message"]
    assert message.startswith("the score 'quality' is missing: the judge failed: ")
    assert "9 is greater than the maximum of 5" in message
    assert [line["value"] for line in scores(batch)] == [5, None]
    shown = amplifier(batch, "batch", "report", "out").stdout
    assert "| quality | 5 | 1 | 1 |" in shown


def test_a_function_that_does_not_return_gives_no_score(batch: Path) -> None:
    (batch / "rows.jsonl").write_text(
        "".join(f"{json.dumps(row)}\n" for row in (*ROWS, {"id": "c", "text": "c"}))
    )
    entries = [
        {"name": name, "run": f"python:scorers.py:{name}_for_b", "timeout": 1.5}
        for name in ("endless", "dies")
    ]
    done = run(batch, entries)
    assert done.code == 0, done.stderr
    for name, reason in (
        ("endless", "time limit reached after 1.5 s"),
        ("dies", "its process ended (exit code 7)"),
    ):
        found = [line for line in scores(batch) if line["name"] == name]
        assert [line["value"] for line in found] == [1, None, 1]
        assert found[1]["reason"] == reason
    pid = int((batch / "pid").read_text())
    wait_until(lambda: not is_alive(pid))


def test_files_are_relative_to_the_plan_that_names_them(batch: Path) -> None:
    write_files(batch, {"evals/own.py": "def two(answer, row, result):\n    return 2\n"})
    plan = {"scores": [{"name": "two", "run": "python:own.py:two", "min": 2}]}
    (batch / "evals/base.yaml").write_text(yaml.safe_dump({"extends": "mock", **plan}))
    (batch / "plan.yaml").write_text("extends: ./evals/base.yaml\nprompt: hi\n")
    done = amplifier(batch, "batch", "run", "plan.yaml", "rows.jsonl", "-o", "out")
    assert done.code == 0, done.stderr
    assert [line["value"] for line in scores(batch)] == [2, 2]


def test_a_scorer_of_a_project_is_reviewed_and_imported_as_it_was_reviewed(batch: Path) -> None:
    project = {"extends": "mock", "prompt": "hi", "scores": ["python:../../scorers.py:length"]}
    write_files(batch, {".amplifier/profiles/eval.yaml": yaml.safe_dump(project)})
    words = ("batch", "run", "eval", "rows.jsonl", "-o")
    assert amplifier(batch, *words, "out").code == 78
    listed = amplifier(batch, "trust", "--show").stdout
    assert "scorers.py" in listed
    assert amplifier(batch, "trust", "--yes").code == 0
    done = amplifier(batch, *words, "out")
    assert done.code == 0, done.stderr
    assert [line["value"] for line in scores(batch)] == [12, 12]
    # Changed by what runs between the review and the import.
    (batch / "scorers.py").write_text(SCORERS.replace("len(answer)", "len(answer) + 1"))
    done = amplifier(batch, *words, "again")
    assert done.code == 78
    assert "has changed since it was trusted" in done.stderr


def test_a_function_that_changes_after_the_review_is_not_imported_again(batch: Path) -> None:
    code = """
import os
def once(answer, row, result):
    with open(__file__, "a") as file:
        file.write("\\n")
    if row["id"] == "b":
        os._exit(3)
    return 1
"""
    (batch / "scorers.py").write_text(code)
    rows = (*ROWS, {"id": "c", "text": "c"})
    (batch / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    project = {"extends": "mock", "prompt": "hi", "scores": ["python:../../scorers.py:once"]}
    write_files(batch, {".amplifier/profiles/eval.yaml": yaml.safe_dump(project)})
    assert amplifier(batch, "trust", "--yes").code == 0
    done = amplifier(batch, "batch", "run", "eval", "rows.jsonl", "-o", "out")
    assert done.code == 0, done.stderr
    assert [line["value"] for line in scores(batch)] == [1, None, None]
    assert "changed since it was trusted" in scores(batch)[2]["reason"]


def test_a_killed_command_leaves_no_function_running(batch: Path) -> None:
    entry = {"name": "x", "run": "python:scorers.py:endless_for_b"}
    (batch / "plan.yaml").write_text(
        yaml.safe_dump({"extends": "mock", "prompt": "hi", "scores": [entry]})
    )
    words = ("batch", "run", "plan.yaml", "rows.jsonl", "-o", "out")
    process = start_amplifier(*words, home=batch / "home", cwd=batch)
    try:
        wait_until(lambda: (batch / "pid").exists() and (batch / "pid").read_text())
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    pid = int((batch / "pid").read_text())
    wait_until(lambda: not is_alive(pid))


def test_a_judge_of_a_project_is_reviewed_with_what_it_selects(batch: Path) -> None:
    (batch / "judge.yaml").write_text("extends: mock\ntools: [{module: tool-own, source: ./own}]\n")
    project = {"extends": "mock", "prompt": "hi", "scores": ["judge:../../judge.yaml"]}
    files = {".amplifier/profiles/eval.yaml": yaml.safe_dump(project), "own/tool_own.py": ""}
    write_files(batch, files)
    listed = amplifier(batch, "trust", "--show").stdout
    assert "judge.yaml" in listed
    assert "own/tool_own.py" in listed


@pytest.mark.parametrize(
    ("score", "message"),
    [
        ({"run": "judge:judge.yaml", "schema": {"type": "number"}}, "has no property 'score'"),
        (
            {"run": "judge:judge.yaml", "schema": {"type": 3, "properties": {"score": {}}}},
            "is not a valid JSON Schema",
        ),
        ({"run": "echo 1", "equals": [1]}, "must be a number or a text"),
        ({"run": "echo 1", "min": "much"}, "a number"),
        ({"run": "python:scorers.py"}, "expected MODULE:FUNCTION"),
        ({"run": "python:none.py:f"}, "does not exist"),
        ({"run": "python:scorers.py:time"}, "is not a function"),
    ],
)
def test_invalid_scores_are_errors_before_the_first_row(
    batch: Path, score: dict[str, Any], message: str
) -> None:
    done = run(batch, [score])
    assert done.code in (2, 78)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (batch / "out/results.jsonl").exists()


def test_scores_are_compared_where_both_batches_have_them(batch: Path) -> None:
    rows = [{"id": f"r{n}", "text": "word " * n, "fail": n == 3} for n in range(1, 10)]
    (batch / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (batch / "scorers.py").write_text(
        "def size(answer, row, result):\n    return None if row['fail'] else len(answer)\n"
    )
    entry = {"name": "size", "run": "python:scorers.py:size"}
    assert run(batch, [entry]).code == 0
    words = ("batch", "run", "plan.yaml", "rows.jsonl", "-o", "longer", "--prompt", "more {{text}}")
    assert amplifier(batch, *words).code == 0
    done = amplifier(batch, "compare", "out", "longer", "--output", "json")
    measures = {one["name"]: one for one in json.loads(done.stdout)["measures"]}
    assert [*measures][:2] == ["passed", "score size"]
    score = measures["score size"]
    assert (score["rows"], score["is_clear"]) == (8, True)
    assert score["b"] - score["a"] == pytest.approx(len("more "))
    assert score["p"] < 0.01
    shown = amplifier(batch, "compare", "out", "longer").stdout
    assert "score size" in shown
    assert "higher" in shown


def test_rows_whose_score_is_missing_are_not_compared(batch: Path) -> None:
    (batch / "scorers.py").write_text(
        "def odd(answer, row, result):\n    return None if row['id'] == 'b' else 1\n"
    )
    done = run(batch, [{"name": "odd", "run": "python:scorers.py:odd", "min": 1}])
    assert done.code == 1, done.stderr
    assert results(batch)["b"]["checks"][0]["exit_code"] is None
    done = amplifier(batch, "compare", "out", "out", "--output", "json")
    found = json.loads(done.stdout)
    assert (found["unpaired"], found["measures"][0]["rows"]) == (1, 1)
    assert "not compared: 1 row" in amplifier(batch, "compare", "out", "out").stdout
    words = ("plan.yaml", "plan.yaml", "rows.jsonl", "-o", "both", "--until", "decided")
    done = amplifier(batch, "compare", "run", *words)
    assert done.code == 0, done.stderr
    assert "no clear difference in the rows that pass (1 row," in done.stdout


def test_the_rows_for_a_difference_are_planned_before_they_are_paid_for(batch: Path) -> None:
    shown = amplifier(batch, "compare", "--power", "5%").stdout.splitlines()
    assert shown[0].startswith("To find a difference of 5 points in 80% of comparisons")
    assert [line.split() for line in shown[2:4]] == [
        ["OUTCOMES", "THAT", "DIFFER", "ROWS", "COST", "OF", "BOTH"],
        ["10.0%", "439"],
    ]
    run(batch, [{"name": "size", "run": "python:scorers.py:length", "max": 14}], "--retries", "0")
    done = amplifier(batch, "compare", "out", "--power", "20", "--output", "json")
    planned = json.loads(done.stdout)
    assert (planned["effect"], planned["input_rows"], planned["effect_of_input"]) == (0.2, 2, None)
    assert planned["samples"][0]["rows"] > 100
    assert "too few" in amplifier(batch, "compare", "out", "out", "--power", "20").stdout
    for words in (("--power", "none"), ("--power", "0"), ("out",)):
        assert amplifier(batch, "compare", *words).code == 2
