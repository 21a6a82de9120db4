"""Reports show how a batch went, whatever is in its rows and answers."""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from amplifier_app.base.errors import SessionError
from amplifier_app.sessions.store import SessionStore
from amplifier_batch.commands.tables import pieces as report
from amplifier_batch.record.folder import RESULTS, BatchFolder
from amplifier_batch.record.results import result_line
from amplifier_batch.record.writer import writing
from amplifier_batch.reports import page
from amplifier_batch.reports.page import Distribution, SessionPages, histogram, nice_step
from amplifier_batch.scores import store_score
from amplifier_batch.table import Table, Where
from tests.batch.record.test_folder import FACTS

HOSTILE = (
    "</td></script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b]0;t\x07\ud800\u202e"
)
SECRET = "sk-ant-api03-" + "a1B2" * 24


def result(
    number: int,
    outcome: str = "ok",
    *,
    row: str | None = None,
    response: str = "An answer.",
    why: str = "",
    cost: float | None = 0.01,
    steps: int = 2,
) -> dict[str, Any]:
    """A line of results.jsonl."""
    error = {"message": why, "hint": None, "retry_after_ms": None} if why else None
    return result_line(
        row or f"r{number}",
        number,
        1,
        {
            "outcome": outcome,
            "exit_code": 0,
            "error": error,
            "response": response,
            "session_id": f"r{number}",
            "model": "model-1",
            "steps": steps,
            "cost": None if cost is None else {"usd": cost},
            "usage": {},
            "tools": [],
            "sub_sessions": [],
            "duration_ms": 1500 * steps,
        },
    )


def make_batch(
    folder: Path, results: Sequence[dict[str, Any]], *, rows: int = 0, after: str = " "
) -> BatchFolder:
    """A batch with these results; that no record is synced makes thousands cheap. `after` separators is white space."""
    facts = {**FACTS, "rows": rows or len(results), "plan": "review", "input": "/in/rows.jsonl"}
    batch = BatchFolder.create(folder / "out", facts, "")
    separators = (f",{after}", f":{after}")
    lines = [json.dumps(one, separators=separators) + "\n" for one in results]
    outcomes: dict[str, int] = {}
    for one in results:
        outcomes[one["outcome"]] = outcomes.get(one["outcome"], 0) + 1
    cost = sum((one["cost"] or {"usd": 0})["usd"] for one in results)
    counts = {"outcomes": outcomes, "running": 0, "cost": str(cost), "replaced": None}
    size = sum(map(len, lines))
    (batch.path / RESULTS).write_text("".join(lines))
    status = {"journal_size": 0, "counts": {**counts, "size": size}}
    (batch.path / "journal.jsonl").touch()
    (batch.path / "status.json").write_text(json.dumps(status))
    return batch


EDITS: Sequence[dict[str, Any]] = (
    {"row": 1},
    {"model": 5},
    {"duration_ms": 10**400},
    {"cost": {"usd": "x"}},
    {"duration_ms": float("nan")},
    {"error": {"message": 1}},
    {"usage": {"total_tokens": []}},
)
"""What a program may have made of a line."""


class Page(HTMLParser):
    """The elements of a page and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: dict[str, int] = {}
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: dict[str, list[str]] = {}
        self.rows: list[str] = []
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open = tag
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag == "tr":
            self.rows.append("")

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self._open, []).append(data)
        if self.rows:
            self.rows[-1] += data


def html(batch: BatchFolder, pages: SessionPages | None = None) -> str:
    return "".join(report(batch, "html", pages))


def test_a_page_has_the_forecast_and_the_means_of_the_scores(tmp_path: Path) -> None:
    batch = BatchFolder.create(tmp_path / "out", {**FACTS, "rows": 820, "workers": 4}, "")
    with writing(batch) as writer:
        for number in range(1, 21):
            line = result(number, cost=0.5, steps=2)
            writer.claim(line["row"], 1, line["row"])
            writer.end(line)
            score = {"name": "<f1>", "by": "x", "reason": None}
            value = None if number > 18 else number % 2
            store_score(batch.path, line, {**score, "value": value})
            store_score(batch.path, line, {**score, "name": "label", "value": SECRET})
    assert SECRET not in "".join(report(batch, "md"))
    text = Page(html(batch)).texts
    assert {"$410.00", "$410.00 to $410.00, for all rows", "about 10 min"} <= {
        *text["dd"],
        *text["small"],
    }
    assert text["td"][:4] == ["<f1>", "0.5 (0.244 to 0.756)", "18", "2"]


def test_a_page_runs_only_its_own_script_and_loads_nothing(tmp_path: Path) -> None:
    rows = [
        result(1, row=HOSTILE, response=HOSTILE),
        result(2, "provider", response=HOSTILE, why=HOSTILE),
    ]
    text = html(make_batch(tmp_path, rows))
    found = Page(text)
    assert "alert(1)" in text
    assert (found.tags["script"], found.tags["style"], "img" in found.tags) == (1, 1, False)
    attributes = {name for _, name, _ in found.attributes}
    assert not {name for name in attributes if name.startswith("on") or name == "src"}
    assert {value for _, name, value in found.attributes if name == "href"} == set()
    (policy,) = (v for _, name, v in found.attributes if name == "content" and "default-src" in v)
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        digest = hashlib.sha256("".join(found.texts[tag]).encode()).digest()
        assert f"{tag}-src 'sha256-{base64.b64encode(digest).decode()}'" in policy
    assert not re.search("[\x00-\x08\x0e-\x1f\ud800-\udfff]", text)


@pytest.mark.parametrize("kind", ["md", "junit", "html"])
def test_no_report_has_secrets(tmp_path: Path, kind: str) -> None:
    rows = [result(1, "provider", response=f"The key is {SECRET}.", why=f"bad key {SECRET}")]
    text = "".join(report(make_batch(tmp_path, rows), kind))
    assert SECRET not in text
    assert "REDACTED" in text


def test_a_page_has_all_failures_first_and_some_of_the_others(tmp_path: Path) -> None:
    failed = {7, 1500, 2990}
    rows = [
        result(n, "provider" if n in failed else "ok", why=f"request req_{n}12345 failed")
        for n in range(1, 3001)
    ]
    text = html(make_batch(tmp_path, rows, rows=3004))
    found = Page(text)
    shown = [row for row in found.rows if re.match(r"\d+r\d", row)]
    assert [row.split("provider")[0] for row in shown[:3]] == ["7r7", "1500r1500", "2990r2990"]
    assert len(shown) == 3 + 1000
    assert "Not in this table: 1,997 that passed." in text
    assert "3request … failed" in "".join(found.rows).replace("provider", "").replace("\n", "")
    assert "not ended <b>4</b>" in text
    assert "99.9% (99.7% to 100.0%) of those that ended" in text
    assert "Equal in every row: cost $0.0100, time 3.0 s, steps 2." in text


def test_a_page_stays_small_if_every_row_fails_with_long_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "_MAX_TEXT", 80_000)
    monkeypatch.setattr(page, "_MAX_ANSWERS", 20_000)
    rows = [result(n, "error", why="w" * 5000, response="é" * 5000) for n in range(1, 201)]
    text = html(make_batch(tmp_path, rows))
    assert 80_000 < len(text.encode()) < 120_000
    left = re.search(r"Not in this table: ([\d,]+) that failed", text)
    assert left
    assert int(left[1].replace(",", "")) + text.count("<tr data-outcome") == 200


def test_a_page_has_the_pass_rates_of_rows_that_run_several_times(tmp_path: Path) -> None:
    batch = BatchFolder.create(tmp_path / "out", {**FACTS, "rows": 2, "repeat": 2}, "")
    with writing(batch) as writer:
        for n, outcomes in ((1, ("ok", "error")), (2, ("error", "error"))):
            for repeat, outcome in enumerate(outcomes, 1):
                writer.claim(f"r{n}:{repeat}", 1, f"r{n}.r{repeat}")
                writer.end(result(n, outcome) | {"repeat": repeat})
    text = html(batch)
    assert re.findall(r"<dt>(pass@\d)</dt><dd>([\d.]+%)", text) == [
        ("pass@1", "25.0%"),
        ("pass@2", "50.0%"),
    ]


def test_rows_link_to_the_pages_of_their_sessions(tmp_path: Path) -> None:
    batch = make_batch(tmp_path, [result(1), result(2)])
    store = SessionStore(batch.sessions)
    session = store.create("r1", project="/")
    session.close()
    pages = SessionPages(batch.sessions, tmp_path / "report.html")
    found = Page(html(batch, pages))
    assert [v for _, name, v in found.attributes if name == "href"] == ["report-sessions/r1.html"]
    assert "<title>r1</title>" in (tmp_path / "report-sessions" / "r1.html").read_text()
    assert pages.written == 1


def test_no_session_is_looked_for_outside_of_the_batch(tmp_path: Path) -> None:
    outside = SessionStore(tmp_path / "other").create("s", project="/")
    outside.close()
    batch = make_batch(tmp_path, [result(1) | {"session_id": "../../other/s"}, result(2)])
    batch.sessions.mkdir()
    (batch.sessions / "r2").symlink_to(tmp_path / "other" / "s")
    pages = SessionPages(batch.sessions, tmp_path / "report.html")
    assert "href" not in html(batch, pages)
    assert not pages.folder.exists()


def test_a_batch_without_results_has_a_page(tmp_path: Path) -> None:
    text = html(make_batch(tmp_path, [], rows=3))
    assert "not ended <b>3</b>" in text
    assert "<svg class=share" in text


def test_a_distribution_counts_every_row_once() -> None:
    for values in (
        [5.0],
        [0.0, 0.0],
        [1.0, 2.0, 3.0] * 50,
        [0.1 * n for n in range(200)] + [600.0],
        [1e-7 * n for n in range(1, 90)],
        [3600.0 + n for n in range(10)],
    ):
        of = Distribution("time", "seconds", str)
        for n, value in enumerate(values):
            of.add(value, passed=n % 3 > 0)
        bins = of.bins()
        assert sum(bins.passed) + sum(bins.failed) == len(values)
        assert sum(bins.failed) == len(range(0, len(values), 3))
        assert len(bins.passed) <= 28
        assert bins.start <= min(values)
        assert (max(values) < bins.start + bins.step * len(bins.passed)) or bins.has_tail
        ElementTree.fromstring(histogram(of))


def test_a_few_very_slow_rows_do_not_hide_the_others() -> None:
    of = Distribution("time", "seconds", str)
    for n in range(300):
        of.add(1 + n / 100, passed=True)
    of.add(900, passed=False)
    bins = of.bins()
    assert bins.has_tail
    assert bins.step < 1
    assert (bins.passed[-1], bins.failed[-1]) == (3, 1) or bins.failed[-1] == 1
    assert "≥" in histogram(of)


def test_quantiles_are_values_of_rows() -> None:
    of = Distribution("steps", "", str, whole=True)
    for value in range(1, 11):
        of.add(value, passed=True)
    assert (of.quantile(0.5), of.quantile(0.9), of.total) == (5, 9, 55)
    assert of.bins().step == 1


@pytest.mark.parametrize(
    ("least", "step"), [(0.03, 0.05), (0.05, 0.05), (7, 10), (1.0, 1), (120, 200)]
)
def test_steps_of_an_axis_are_round(least: float, step: float) -> None:
    assert nice_step(least) == pytest.approx(step)
    assert nice_step(0.2, whole=True) == 1


def test_junit_counts_what_it_has(tmp_path: Path) -> None:
    rows = [
        result(1, response="a < b & ]]>"),
        result(2, "check_failed", why='"x" < 1', response=HOSTILE),
        result(3, "provider", why="down\x00"),
    ]
    suite = ElementTree.fromstring("".join(report(make_batch(tmp_path, rows), "junit")))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")
    cases = suite.findall("testcase")
    assert [case[0].tag for case in cases] == ["system-out", "failure", "error"]
    assert cases[0][0].text == "a < b & ]]>"
    assert [case.get("time") for case in cases] == ["3.000"] * 3
    assert cases[1][0].get("message") == '"x" < 1'


def test_a_row_answered_by_several_models_has_all_of_them(tmp_path: Path) -> None:
    fallback = {**result(2), "answered_models": {"model-1": 1, "model-2": 1}}
    batch = make_batch(tmp_path, [{**result(1), "answered_models": {"model-1": 2}}, fallback])
    table = Table(batch)
    others = table.rows(Where("answered_model!=model-1", table.columns))
    assert [cells["answered_model"] for cells in others] == ["model-1, model-2"]


def test_conditions_compare_numbers_exactly(tmp_path: Path) -> None:
    values = [9007199254740992, 9007199254740993, 10**400, 0.1, True]
    (tmp_path / "rows.jsonl").write_text(
        "".join(f"{json.dumps({'id': f'r{i}', 'n': value})}\n" for i, value in enumerate(values, 1))
    )
    batch = make_batch(tmp_path, [result(number) for number in range(1, 6)])
    batch.facts["input"] = str(tmp_path / "rows.jsonl")
    table = Table(batch)

    def numbers(text: str) -> list[int]:
        return [cells["number"] for cells in table.rows(Where(text, table.columns))]

    assert numbers("n=9007199254740993") == [2]
    assert numbers(f"n={10**400}") == [3]
    assert numbers("n=0.10") == numbers("n=1e-1") == [4]
    assert numbers("n=true") == [5]
    assert numbers("n!=x") == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("after", ["", " "])
def test_fields_of_answers_are_columns_whatever_texts_contain(tmp_path: Path, after: str) -> None:
    texts = result(
        2, "error", row='"data":{"a":1}', response=',"data":{"b":1},', why=',"data":null,'
    )
    data: list[Any] = [{"yes": "\ud800", "data": {"c": 1}}, {"no": [1]}, None, "text"]
    rows = [{**texts, "number": n, "data": value} for n, value in enumerate(data, 1)]
    # Written by another program.
    rows[2] = {"waiting": [{"input": {"a": "b", "data": {"other": 2}}}], **rows[2]}
    table = Table(make_batch(tmp_path, rows[::-1], after=after))
    cells = list(table.rows())
    names = [name for name in table.columns if name.startswith("data_")]
    assert sorted(names) == ["data_data", "data_no", "data_yes"]
    assert [row["data_yes"] for row in cells] == ["\ud800", None, None, None]
    assert [row["data_data"] for row in cells] == [{"c": 1}, None, None, None]
    assert cells[1]["data_no"] == [1]


@pytest.mark.parametrize("kind", ["md", "junit", "html"])
def test_rows_are_in_the_order_of_the_input(tmp_path: Path, kind: str) -> None:
    ended = [12, 3, 30, 1, 2]
    rows = [result(n, "error", row=f"id-{n}-", why="no") for n in ended]
    text = "".join(report(make_batch(tmp_path, rows), kind))
    found = [text.index(f"id-{n}-") for n in sorted(ended)]
    assert found == sorted(found)


def test_markdown_of_a_row_is_plain_text(tmp_path: Path) -> None:
    rows = [result(1, "error", row="a|b", why="<img src=x> [a](http://b) `c`\n# d")]
    text = "".join(report(make_batch(tmp_path, rows), "md"))
    assert "| 1 | a\\|b | error | \\<img src=x\\> \\[a\\](http://b) \\`c\\` # d |" in text


@pytest.mark.parametrize("kind", ["md", "junit", "html"])
@pytest.mark.parametrize(
    "line",
    ["{}", "[]", "{", "null", *(json.dumps(result(2) | change) for change in EDITS)],
)
def test_a_line_that_was_edited_is_named(tmp_path: Path, kind: str, line: str) -> None:
    batch = make_batch(tmp_path, [result(1), result(2), result(3)])
    file = batch.path / RESULTS
    lines = file.read_text().splitlines()
    short = line if len(line) <= len(lines[1]) else line.replace("An answer.", "")
    lines[1] = short.ljust(len(lines[1]))
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(SessionError, match=r"results\.jsonl is damaged at line 2"):
        list(report(batch, kind))
