"""Scores of a batch, and its results as one table, in the real program."""

import csv
import io
import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from amplifier_batch.functions import to_value
from amplifier_batch.statistics.pass_rates import compute_rates
from amplifier_batch.statistics.score_means import compute_mean, mean_in_words, student_quantile
from tests.support.batches import small_plan
from tests.support.cli import Finished, run_amplifier, start_amplifier, succeed
from tests.support.llm_server import ScriptedLLM
from tests.support.plans import mock_plan
from tests.support.waiting import wait_until

ROWS = [
    {"id": "a", "text": "one", "language": "de", "cost_usd": "mine"},
    {"id": "b", "text": "three", "language": "en"},
    {"id": "c", "text": "=five", "language": "de"},
]
LENGTH = "wc -c < $AMPLIFIER_ANSWER_FILE"
SCORERS = r"""
def length(answer, row, result):
    return len(answer)

def label(answer, row, result):
    return row["language"]

def fails_for_b(answer, row, result):
    if row["id"] == "b":
        raise ValueError("cannot score b")
    if row["id"] == "c":
        raise SystemExit(3)
    return result["steps"]

def shouts(answer, row, result):
    raise ValueError("\x1b]0;title\x07 no\n\x1b[31mscore")

def leaks(answer, row, result):
    raise ValueError(f"no access with ghp_{'aB3dE5gH7' * 4}")

def odd(answer, row, result):
    return {"a": float("nan"), "b": ["list"], "c": True}[row["id"]]
"""


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    return _write_rows(tmp_path)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A batch that has ended, for tests that do not change it."""
    folder = _write_rows(tmp_path_factory.mktemp("ended"))
    run(folder)
    return folder


def _write_rows(folder: Path) -> Path:
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    (folder / "scorers.py").write_text(SCORERS)
    return folder


def run(batch: Path, *words: str) -> Finished:
    (batch / "small.yaml").write_text(yaml.safe_dump(small_plan()))
    options = ("-o", "out", "--prompt", "{{text}}", "--workers", "1")
    done = amplifier(batch, "batch", "run", "small.yaml", "rows.jsonl", *options, *words)
    assert done.code == 0, done.stderr
    return done


def amplifier(batch: Path, *words: str) -> Finished:
    return run_amplifier(*words, home=batch / "home", cwd=batch)


def table(batch: Path, *words: str) -> list[dict[str, str]]:
    done = amplifier(batch, "batch", "results", "out", *words)
    assert done.code == 0, done.stderr
    return list(csv.DictReader(io.StringIO(done.stdout)))


def means(batch: Path, *words: str) -> dict[str, dict[str, Any]]:
    done = amplifier(batch, "batch", "score", "out", *words, "--output", "json")
    assert done.code == 0, done.stderr
    return {mean["name"]: mean for mean in json.loads(done.stdout)}


def lines(batch: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (batch / "out/scores.jsonl").read_text().splitlines()]


def test_the_table_has_the_input_the_answer_the_scores_and_the_cost(batch: Path) -> None:
    run(batch, "--score", f"length={LENGTH}", "--score", "label=python:scorers.py:label")
    first, second, third = table(batch)
    assert (first["row"], first["text"], first["outcome"]) == ("a", "one", "ok")
    assert first["response"] == "You said: one"
    assert (first["score_length"], first["score_label"]) == (f"{len('You said: one')}.0", "de")
    # A field with the name of a column keeps both.
    assert (first["input_cost_usd"], first["cost_usd"]) == ("mine", "0.0")
    assert third["text"] == "'=five"
    assert second["session_id"] == "b"
    assert [row["row"] for row in table(batch, "--where", "language=de and row!=a")] == ["c"]


def test_a_report_shows_means_with_intervals_and_by_a_field(batch: Path) -> None:
    run(batch, "--score", "length=python:scorers.py:length")
    report = amplifier(batch, "batch", "report", "out").stdout
    assert "| score | mean (95% interval) | rows | missing |" in report
    assert "| length | 14.3 (" in report
    for file, begin in (("r.xml", "<?xml"), ("r.html", "<!doctype html>"), ("r.md", "# ")):
        assert amplifier(batch, "batch", "report", "out", "--to", file).code == 0
        assert (batch / file).read_text().startswith(begin)
    by = amplifier(batch, "batch", "report", "out", "--by", "language").stdout.splitlines()
    assert by[0] == "| language | rows | passed | length |"
    assert by[2].startswith("| de | 2 | 100.0% ")
    assert by[3].startswith("| en | 1 | 100.0% ")
    assert by[3].endswith("| 15 |")


def test_a_scorer_that_fails_gives_no_score_and_never_zero(batch: Path) -> None:
    run(batch)
    found = means(
        batch,
        *("--score", "some=python:scorers.py:fails_for_b", "--score", "odd=python:scorers.py:odd"),
        *("--score", "code=exit 3", "--score", "text=echo nothing that is JSON"),
        *("--score", "leak=python:scorers.py:leaks"),
    )
    assert (found["some"]["rows"], found["some"]["missing"], found["some"]["value"]) == (1, 2, 1.0)
    assert (found["odd"]["rows"], found["odd"]["missing"], found["odd"]["value"]) == (1, 2, 1.0)
    for name in ("code", "text"):
        assert (found[name]["rows"], found[name]["missing"], found[name]["value"]) == (0, 3, None)
    reasons = {line["name"]: line["reason"] for line in lines(batch) if line["reason"]}
    some = [line["reason"] for line in lines(batch) if line["name"] == "some"]
    assert some == [None, "ValueError: cannot score b", "SystemExit: 3"]
    assert reasons["code"].startswith("exit code 3")
    assert "not JSON" in reasons["text"]
    assert reasons["leak"].startswith("ValueError: no access with [REDACTED")


def test_the_most_frequent_reason_of_missing_scores_is_shown(batch: Path) -> None:
    script = "case $(cat $AMPLIFIER_ANSWER_FILE) in *one) exit 3;; *) exit 4;; esac"
    done = run(batch, "--score", f"code={script}", "--quiet")
    assert done.stderr == "amplifier: warning: 3 scores missing, 2 of them: code: exit code 4\n"
    # Those that are not scored again have been reported.
    again = amplifier(batch, "batch", "score", "out", "--score", f"code={script}")
    assert "warning" not in again.stderr
    shouts = amplifier(batch, "batch", "score", "out", "--score", "f=python:scorers.py:shouts")
    assert "3 of them: f: ValueError: no score\n" in shouts.stderr


def test_rows_are_scored_once_until_the_scorer_or_the_row_changes(batch: Path) -> None:
    run(batch, "--score", "length=python:scorers.py:length")
    assert len(lines(batch)) == 3
    means(batch)
    assert len(lines(batch)) == 3
    means(batch, "--score", "length=python:scorers.py:label")
    assert len(lines(batch)) == 6
    means(batch, "--again")
    assert len(lines(batch)) == 9
    done = amplifier(batch, "batch", "retry", "out", "--where", "row=b")
    assert done.code == 0, done.stderr
    assert "1 row to run again" in done.stderr
    again = lines(batch)[9:]
    assert [(line["number"], line["attempts"]) for line in again] == [(2, 2)]
    (batch / "scorers.py").write_text(SCORERS.replace("len(answer)", "-len(answer)"))
    assert means(batch)["length"]["value"] < 0
    assert len(lines(batch)) == 13


def test_a_changed_input_is_refused_and_a_missing_one_named(batch: Path) -> None:
    run(batch)
    rows = [*ROWS[1:], ROWS[0]]
    (batch / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    done = amplifier(batch, "batch", "results", "out")
    assert done.code == 78
    assert "the input changed since the batch began: row 1 is now 'b', not 'a'" in done.stderr
    (batch / "rows.jsonl").unlink()
    done = amplifier(batch, "batch", "results", "out")
    assert done.code == 0
    assert "without the input's fields" in done.stderr
    assert "You said: three" in done.stdout


def test_conditions_compare_numbers_and_quoted_texts(ended: Path) -> None:
    for where, rows in (
        ("number=2.0", ["b"]),
        ("number!=2 and language=de", ["a", "c"]),
        ('response="You said: one"', ["a"]),
        ('text="black and white"', []),
        ("text!=", ["a", "b", "c"]),
    ):
        assert [row["row"] for row in table(ended, "--where", where)] == rows, where


def test_a_plan_that_is_edited_meanwhile_does_not_change_the_end_of_a_batch(batch: Path) -> None:
    call = {"name": "bash", "input": {"command": "echo '[' > plan.yaml"}}
    plan = mock_plan(batch, [{"tool_calls": [call]}, "done"], tools=[{"module": "tool-bash"}])
    words = ("batch", "run", plan, "rows.jsonl", "-o", "out", "--prompt", "{{text}}")
    succeed(
        *words, "--approve", "allow", "--set", "session.sandbox=off", home=batch / "home", cwd=batch
    )
    assert plan.read_text() == "[\n"


def test_a_killed_scoring_goes_on_where_it_was(batch: Path) -> None:
    run(batch)
    (batch / "slow.sh").write_text("sleep 0.3; echo 1\n")
    words = ("batch", "score", "out", "--score", "slow=sh slow.sh")
    process = start_amplifier(*words, home=batch / "home", cwd=batch)
    try:
        wait_until(lambda: (batch / "out/scores.jsonl").exists() and len(lines(batch)) == 1)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    file = batch / "out/scores.jsonl"
    begun = len(lines(batch))
    file.write_text(f'{file.read_text()}{{"number": 2, "rep')
    done = amplifier(batch, *words, "--score", "more=echo 1")
    assert done.code == 0, done.stderr
    assert f"{6 - begun} scores given" in done.stderr
    # Those that were there count as well.
    assert "4 of 6 scores" in done.stderr
    assert "2 of 6 scores" not in done.stderr
    assert means(batch, "--score", "slow=sh slow.sh")["slow"]["rows"] == 3


def test_processes_that_score_at_the_same_time_give_each_score_once(batch: Path) -> None:
    run(batch)
    words = ("batch", "score", "out", "--score", "slow=sleep 0.3; echo 1")
    started = [start_amplifier(*words, home=batch / "home", cwd=batch) for _ in range(2)]
    for process in started:
        process.communicate(timeout=60)
    assert [process.returncode for process in started] == [0, 0]
    assert len(lines(batch)) == len(ROWS)


@pytest.mark.parametrize("value", [1e101, -1e300, 10**400, float("inf"), " ", "", [1]])
def test_what_cannot_be_a_score_is_none(value: Any) -> None:
    score, reason = to_value(value)
    assert score is None
    assert reason


def test_runs_of_a_row_do_not_make_the_interval_narrower(batch: Path) -> None:
    run(batch, "--repeat", "4", "--score", "length=python:scorers.py:length")
    found = means(batch)["length"]
    values = [len(f"You said: {row['text']}") for row in ROWS]
    alone = compute_mean("length", list(enumerate(map(float, values))))
    assert (found["rows"], found["value"]) == (3, alone.value)
    assert found["high"] == pytest.approx(alone.high)


def test_runs_of_a_row_do_not_make_the_interval_of_a_group_narrower(batch: Path) -> None:
    check = ("--retries", "0", "--check", "grep -q one $AMPLIFIER_ANSWER_FILE")
    words = ("batch", "run", "mock", "rows.jsonl", "-o", "out", "--prompt", "{{text}}")
    assert amplifier(batch, *words, "--repeat", "4", *check).code == 9
    by = amplifier(batch, "batch", "report", "out", "--by", "language").stdout.splitlines()
    [share, _] = compute_rates({(4, 4): 1, (4, 0): 1}, 2)
    assert by[2] == f"| de | 8 | {share} |"
    assert share.high - share.low > 0.7


@pytest.mark.parametrize(("rows", "repeats"), [(5, 3), (40, 1)])
def test_intervals_contain_the_true_mean_in_95_of_100_samples(rows: int, repeats: int) -> None:
    draw = random.Random(rows * 10 + repeats)
    covered, samples = 0, 1_000
    for _ in range(samples):
        values: list[tuple[object, float]] = []
        for row in range(rows):
            centre = draw.gauss(0.5, 0.2)
            values += [(row, draw.gauss(centre, 0.1)) for _ in range(repeats)]
        mean = compute_mean("x", values)
        assert mean.low is not None
        assert mean.high is not None
        covered += mean.low <= 0.5 <= mean.high
    assert covered / samples > 0.93


def test_large_means_are_shown_with_all_their_digits() -> None:
    mean = compute_mean("x", [("a", 1000.0), ("b", 3000.0)])
    assert mean_in_words(mean) == "2,000 (-10,706 to 14,706)"


def test_quantiles_of_student() -> None:
    known = {1: 12.706, 2: 4.303, 3: 3.182, 5: 2.571, 10: 2.228, 30: 2.042, 1000: 1.962}
    for freedom, value in known.items():
        assert student_quantile(freedom) == pytest.approx(value, rel=0.005)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("score", "out"), 2, "there are no scores"),
        (("score", "out", "--score", "x"), 2, "expected NAME=COMMAND"),
        (("score", "out", "--score", "x=python:no.such:f"), 78, "No module named 'no'"),
        (("score", "out", "--score", "x=python:scorers.py:none"), 78, "has no attribute 'none'"),
        (("results", "out", "--where", "planet=1"), 2, "there is no column 'planet'"),
        (("results", "out", "--where", "row"), 2, "cannot read 'row'"),
        (("results", "out", "--to", "x.xls"), 2, "expected .csv, .jsonl or .parquet"),
        (("report", "out", "--by", "planet"), 2, "there is no column 'planet'"),
    ],
)
def test_what_cannot_be_done_is_an_error(
    ended: Path, words: tuple[str, ...], code: int, message: str
) -> None:
    done = amplifier(ended, "batch", *words)
    assert (done.code, done.stdout) == (code, ""), done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_json_lines_have_the_values_as_they_are(ended: Path) -> None:
    done = amplifier(ended, "batch", "results", "out", "--to", "x.jsonl")
    assert done.code == 0, done.stderr
    found = [json.loads(line) for line in (ended / "x.jsonl").read_text().splitlines()]
    assert [row["text"] for row in found] == ["one", "three", "=five"]
    assert found[0]["steps"] == 1


JUDGE = """
extends: minimal
instruction: Grade how polite the answer is, from 0 to 1.
providers: [{module: provider-anthropic, config: {priority: 1, prices: {input: 3, output: 15}}}]
"""


def graded(score: object) -> str:
    return json.dumps({"reason": "so", "score": score})


def judged(batch: Path, script: Any, *words: str) -> Finished:
    (batch / "judge.yaml").write_text(JUDGE)
    with ScriptedLLM.running(script) as server:
        return run_amplifier(
            *("batch", "score", "out", "--score", "polite=judge:judge.yaml", *words),
            home=batch / "home",
            cwd=batch,
            env=server.env,
        )


def test_a_judge_scores_answers_and_its_cost_is_apart(batch: Path) -> None:
    run(batch)
    script = [graded(0.5)] * 6
    done = judged(batch, script, "--output", "json")
    assert done.code == 0, done.stderr
    [mean] = json.loads(done.stdout)
    assert (mean["rows"], mean["value"], mean["agreement"]) == (3, 0.5, None)
    assert mean["cost"] == pytest.approx(3 * (10 * 3 + 5 * 15) / 1e6)
    assert all(row["cost_usd"] == "0.0" for row in table(batch))
    assert [row["score_polite"] for row in table(batch)] == ["0.5"] * 3
    # Scored again, nothing is asked.
    assert "0 scores given" in judged(batch, []).stderr


def test_the_agreement_of_a_repeated_judge_is_shown(batch: Path) -> None:
    (batch / "judge.yaml").write_text(JUDGE)
    (batch / "plan.yaml").write_text(
        "extends: mock\nscores:\n- {name: tone, run: 'judge:judge.yaml', repeat: 2}\n"
    )
    (batch / "rows.jsonl").write_text(f"{json.dumps(ROWS[0])}\n")
    with ScriptedLLM.running([graded("kind"), graded("cold")]) as server:
        done = run_amplifier(
            *("batch", "run", "plan.yaml", "rows.jsonl", "-o", "out", "--prompt", "{{text}}"),
            home=batch / "home",
            cwd=batch,
            env={"ANTHROPIC_API_KEY": "sk-test", "ANTHROPIC_BASE_URL": server.base_url},
        )
    assert done.code == 0, done.stderr
    assert "1 score given · judges: $" in done.stderr
    [line] = lines(batch)
    assert (line["value"], line["agreement"]) == ("kind", 0.5)
    report = amplifier(batch, "batch", "report", "out").stdout
    assert "| tone | kind 1 | 0 | 0 | 50% | $" in report
    shown = amplifier(batch, "batch", "score", "out").stdout.splitlines()
    assert shown[0].split() == ["SCORE", "MEAN", "ROWS", "MISSING", "AGREEMENT", "JUDGE"]
    assert "50%" in shown[1]


def test_in_a_locked_batch_a_judge_needs_a_lock_of_its_own(batch: Path) -> None:
    (batch / "judge.yaml").write_text(JUDGE)
    assert amplifier(batch, "plan", "lock", "-P", "mock").code == 0
    with ScriptedLLM.running([graded(1)] * 3) as server:
        command = ("batch", "run", "mock", "rows.jsonl", "-o", "out", "--prompt", "{{text}}")
        judge = ("--locked", "--score", "polite=judge:judge.yaml")
        done = run_amplifier(*command, *judge, home=batch / "home", cwd=batch, env=server.env)
        assert not server.completions
    assert done.code == 0, done.stderr
    scores = [json.loads(line) for line in (batch / "out/scores.jsonl").read_text().splitlines()]
    [reason] = {score["reason"] for score in scores}
    assert "judge.lock.json: the lock does not exist" in reason
