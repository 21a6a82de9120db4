"""`amplifier compare run`: two plans side by side over the same rows, until one is clearly better."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.batches import small_plan
from tests.support.cli import Finished, run_amplifier, start_amplifier
from tests.support.llm_server import Reply, Request, ScriptedLLM, Usage
from tests.support.waiting import wait_until

ROWS = 40


def write_plan(folder: Path, name: str, **more: Any) -> None:
    plan = {**({} if "extends" in more else small_plan()), "prompt": "{{id}}", **more}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(plan))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with rows, of which one in 20 passes with the plan `weak` and 9 in 10 with `strong`."""
    rows = [{"id": f"r{n}", "weak": n % 20 == 0, "strong": n % 10 > 0} for n in range(ROWS)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for name in ("weak", "strong"):
        write_plan(tmp_path, name, checks=[f"grep -q '\"{name}\": true' $AMPLIFIER_ROW_FILE"])
    return tmp_path


def keep_rows(folder: Path, number: int) -> None:
    """Keep the first rows of the input."""
    rows = (folder / "rows.jsonl").read_text().splitlines(keepends=True)
    (folder / "rows.jsonl").write_text("".join(rows[:number]))


def arguments(a: str, b: str, *words: str) -> tuple[str, ...]:
    plans = (f"{a}.yaml", f"{b}.yaml")
    options = ("-o", "out", "--retries", "0", "--sandbox", "off", "--workers", "1")
    return ("compare", "run", *plans, "rows.jsonl", *options, *words)


def amplifier(folder: Path, *words: str, env: dict[str, str] | None = None) -> Finished:
    return run_amplifier(*words, home=folder / "home", cwd=folder, env=env)


def results(folder: Path, side: str) -> list[dict[str, Any]]:
    file = folder / "out" / side / "results.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_comparison_stops_as_soon_as_it_is_decided(folder: Path) -> None:
    words = arguments("strong", "weak", "--until", "decided", "--workers", "4")
    done = amplifier(folder, *words)
    assert done.code == 9, done.stderr
    counts = [len(results(folder, side)) for side in "ab"]
    assert max(counts) < ROWS
    assert abs(counts[0] - counts[1]) <= 4
    assert "decided after " in done.stderr
    assert "fewer rows pass in B (" in done.stdout
    assert "95% interval that holds at any time" in done.stdout
    # Rows do not run in the order of the input, and the interval is of those up to the decision.
    assert [row["number"] for row in results(folder, "a")] != list(range(1, counts[0] + 1))
    shown = amplifier(folder, "compare", "out/b", "out/a", "--output", "json")
    assert shown.code == 0, shown.stderr
    found = json.loads(shown.stdout)
    passed = found["measures"][0]
    assert (found["verdict"], found["confidence_of_passed"]) == ("better", 0.95)
    assert passed["low"] > 0
    assert passed["p"] <= 0.05
    assert passed["rows"] <= min(counts)
    # The same command has nothing to do.
    again = amplifier(folder, *words)
    assert again.code == 9, again.stderr
    assert again.stdout == done.stdout
    assert [len(results(folder, side)) for side in "ab"] == counts


def test_equal_plans_run_all_rows_and_stay_undecided(folder: Path) -> None:
    write_plan(folder, "same")
    keep_rows(folder, 5)
    done = amplifier(folder, *arguments("same", "same", "--until", "decided"))
    assert done.code == 0, done.stderr
    assert [len(results(folder, side)) for side in "ab"] == [5, 5]
    assert "no clear difference in the rows that pass (5 rows" in done.stdout


@pytest.mark.thorough
def test_all_rows_run_unless_asked_otherwise(folder: Path) -> None:
    write_plan(folder, "never", checks=["false"])
    keep_rows(folder, 12)
    done = amplifier(folder, *arguments("never", "strong"))
    assert done.code == 0, done.stderr
    assert [len(results(folder, side)) for side in "ab"] == [12, 12]
    assert "more rows pass in B (12 rows, 98% intervals)" in done.stdout


def test_both_plans_share_the_limit_of_the_costs(folder: Path) -> None:
    provider = {
        "module": "provider-anthropic",
        "config": {"priority": 1, "prices": {"input": 10_000, "output": 0}},
    }
    for name in ("a", "b"):
        write_plan(folder, name, extends="minimal", providers=[provider])

    def answer(request: Request) -> Reply:
        return Reply("done", usage=Usage(input_tokens=10, output_tokens=1))

    with ScriptedLLM.running([answer], repeat_last=True) as server:
        # Each row costs 10 cents.
        words = arguments("a", "b", "--max-cost", "1", "--workers", "2", "--until", "decided")
        done = amplifier(folder, *words, env=server.env)
        assert done.code == 7, done.stderr
        assert "(--max-cost)" in done.stderr
        assert "Continue with the same command" in done.stderr
        assert 10 <= len(server.requests) <= 12
        assert "no clear difference" in done.stdout
        more = arguments("a", "b", "--max-cost", "2", "--workers", "2", "--until", "decided")
        assert amplifier(folder, *more, env=server.env).code == 7
        assert 20 <= len(server.requests) <= 23


def test_a_limit_of_the_costs_is_refused_if_a_price_is_unknown(folder: Path) -> None:
    provider = {"module": "provider-anthropic", "config": {"priority": 1}}
    write_plan(folder, "a")
    write_plan(folder, "b", extends="minimal", providers=[provider])
    with ScriptedLLM.running(["done"], repeat_last=True) as server:
        done = amplifier(folder, *arguments("a", "b", "--max-cost", "1"), env=server.env)
        assert (done.code, server.requests) == (7, []), done.stderr
    assert "cannot enforce --max-cost: no price known for this model" in done.stderr
    # Only the answers of a script show that they have none.
    script = {
        "module": "provider-mock",
        "config": {"replies": ["x"], "on_end": "repeat", "prices": None},
    }
    write_plan(folder, "c", providers=[script])
    done = amplifier(folder, *arguments("a", "c", "--max-cost", "1", "-o", "other"))
    assert done.code == 7, done.stderr
    assert "no price known for this model" in done.stderr


@pytest.mark.thorough
def test_an_interrupted_comparison_goes_on_with_the_same_command(folder: Path) -> None:
    write_plan(folder, "slow", checks=["sleep 0.3"])
    keep_rows(folder, 12)
    words = arguments("slow", "slow", "--workers", "4")
    process = start_amplifier(*words, home=folder / "home", cwd=folder)
    file = folder / "out/b/results.jsonl"
    wait_until(lambda: file.exists() and len(file.read_text().splitlines()) > 2)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert 0 < len(results(folder, "a")) < 12
    done = amplifier(folder, *words)
    assert done.code == 0, done.stderr
    for side in "ab":
        ended = [result["row"] for result in results(folder, side)]
        assert sorted(ended) == sorted({*ended})
        assert len(ended) == 12


def test_what_cannot_be_compared_is_an_error(folder: Path) -> None:
    (folder / "rows.jsonl").write_text('{"id": "r1", "weak": true, "strong": true}')
    assert amplifier(folder, *arguments("weak", "strong")).code == 0
    for words, code, message in (
        (("weak.yaml", "none.yaml", "rows.jsonl"), 2, "there is no plan file none.yaml"),
        (("weak.yaml", "strong.yaml", "-"), 2, "cannot be stdin"),
        (("strong.yaml", "weak.yaml", "rows.jsonl"), 78, "began with a different plan"),
    ):
        done = amplifier(folder, "compare", "run", *words, "-o", "out")
        assert (done.code, message in done.stderr) == (code, True), done.stderr


def test_a_broken_plan_stops_both(folder: Path) -> None:
    write_plan(folder, "broken", tools=[{"module": "tool-x", "source": "./missing"}])
    done = amplifier(folder, *arguments("weak", "broken"))
    assert done.code == 3, done.stderr
    assert done.stdout == ""
    assert len(results(folder, "a")) < ROWS
