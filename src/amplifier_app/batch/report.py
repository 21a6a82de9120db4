"""Reports of a batch: Markdown, JUnit XML, CSV, or one HTML page."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from amplifier_app.base.outcome import Ending
from amplifier_app.base.sanitize import one_line, xml_text
from amplifier_app.batch.folder import BatchFolder
from amplifier_app.batch.journal import Record
from amplifier_app.batch.results import dollars_of, seconds_of

_COLUMNS = (
    "number",
    "row",
    "outcome",
    "exit_code",
    "cost_usd",
    "steps",
    "seconds",
    "session",
    "response",
)
_LONGEST_CELL = 100
_LONGEST_ANSWER = 2000
_BARS = 20
_OK = Ending.OK.value


def report(folder: BatchFolder, kind: str) -> Iterable[str]:
    """The text of a report in pieces.

    Args:
        folder: The batch.
        kind: One of `KINDS`.

    Raises:
        SessionError: The results cannot be read.
    """
    return KINDS[kind](folder)


def _markdown(folder: BatchFolder) -> Iterator[str]:
    counts, _ = folder.counts()
    passed = counts.outcomes[_OK]
    yield f"# Batch {folder.path.name}: {passed} of {folder.facts['rows']} rows passed\n\n"
    yield "| outcome | rows |\n|---|---:|\n"
    for name, number in counts.outcomes.most_common():
        yield f"| {name} | {number} |\n"
    if counts.cost:
        yield f"\nCost: ${counts.cost:f}\n"
    failed = (result for result in folder.results() if result["outcome"] != _OK)
    head = "\n| number | row | outcome | why |\n|---:|---|---|---|\n"
    for result in failed:
        cells = (str(result["number"]), result["row"], result["outcome"], _why(result))
        yield head + "| " + " | ".join(_cell(cell) for cell in cells) + " |\n"
        head = ""


def _cell(text: str) -> str:
    return (
        one_line(text, _LONGEST_CELL).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    )


def _junit(folder: BatchFolder) -> Iterator[str]:
    counts, _ = folder.counts()
    failed = counts.outcomes[Ending.CHECK_FAILED.value]
    errors = counts.ended - counts.outcomes[_OK] - failed
    numbers = f'tests="{counts.ended}" failures="{failed}" errors="{errors}"'
    yield '<?xml version="1.0" encoding="UTF-8"?>\n'
    yield f"<testsuite name={quoteattr(xml_text(folder.path.name))} {numbers}>\n"
    for result in folder.results():
        head = f'name={quoteattr(xml_text(result["row"]))} time="{seconds_of(result):.3f}"'
        yield f'  <testcase classname="amplifier.batch" {head}>\n    {_junit_body(result)}\n  </testcase>\n'
    yield "</testsuite>\n"


def _junit_body(result: Record) -> str:
    answer = escape(xml_text(result["response"]))
    if result["outcome"] == _OK:
        return f"<system-out>{answer}</system-out>"
    kind = "failure" if result["outcome"] == Ending.CHECK_FAILED.value else "error"
    return f"<{kind} message={quoteattr(xml_text(_why(result)))}>{answer}</{kind}>"


def _csv(folder: BatchFolder) -> Iterator[str]:
    yield _csv_line(_COLUMNS)
    for result in folder.results():
        yield _csv_line(
            (
                result["number"],
                result["row"],
                result["outcome"],
                result["exit_code"],
                dollars_of(result),
                result["steps"],
                f"{seconds_of(result):.3f}",
                result["session_id"],
                result["response"],
            )
        )


def _csv_line(values: Sequence[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(values)
    return line.getvalue().encode("utf-8", "replace").decode()


# -- HTML --------------------------------------------------------------------------------

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
table{border-collapse:collapse;width:100%}td,th{padding:.3rem .6rem;border-bottom:1px solid #ddd;text-align:left;vertical-align:top}
td.n,th.n{text-align:right}pre{white-space:pre-wrap;margin:0;max-height:20rem;overflow:auto}.bad{color:#a00}
figure{display:inline-block;margin:0 2rem 1rem 0}svg{background:#f6f6f6}rect{fill:#47a}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}td,th{border-color:#444}svg{background:#252525}.bad{color:#f88}}
"""


def _html(folder: BatchFolder) -> Iterator[str]:
    counts, _ = folder.counts()
    name, rows = html.escape(folder.path.name), folder.facts["rows"]
    yield f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>Batch {name}</title>\n'
    # Nothing in an answer can load or run anything.
    yield "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
    yield f"<style>{_STYLE}</style>\n<h1>Batch {name}</h1>\n"
    cost = f" Cost: ${counts.cost:f}." if counts.cost else ""
    yield f"<p>{counts.outcomes[_OK]} of {rows} rows passed.{cost}</p>\n"
    yield from _plots(folder)
    yield '<table><tr><th class="n">number<th>row<th>outcome<th class="n">steps<th class="n">seconds<th class="n">cost<th>answer\n'
    for result in folder.results():
        yield _html_row(result)
    yield "</table>\n</html>\n"


def _html_row(result: Record) -> str:
    outcome = html.escape(result["outcome"])
    if result["outcome"] != _OK:
        outcome = f'<span class="bad">{outcome}</span><br>{html.escape(_why(result))}'
    cost = dollars_of(result)
    session = html.escape(f"sessions/{result['session_id']}/transcript.jsonl", quote=True)
    return (
        f'<tr><td class="n">{result["number"]}<td><a href="{session}">{html.escape(_shown(result["row"]))}</a><td>{outcome}'
        f'<td class="n">{result["steps"]}<td class="n">{seconds_of(result):.1f}'
        f'<td class="n">{"" if cost is None else f"${cost:.4f}"}'
        f"<td><pre>{html.escape(_shown(result['response'][:_LONGEST_ANSWER]))}</pre>\n"
    )


def _shown(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _plots(folder: BatchFolder) -> Iterator[str]:
    values: dict[str, list[float]] = {"seconds": [], "steps": [], "cost in dollars": []}
    for result in folder.results():
        values["seconds"].append(seconds_of(result))
        values["steps"].append(result["steps"])
        if (cost := dollars_of(result)) is not None:
            values["cost in dollars"].append(cost)
    for name, found in values.items():
        if found and max(found) > 0:
            yield _plot(name, found)


def _plot(name: str, values: Sequence[float]) -> str:
    """How often which value occurs, as bars."""
    most = max(values)
    bars = [0] * _BARS
    for value in values:
        bars[min(int(value / most * _BARS), _BARS - 1)] += 1
    tallest = max(bars)
    drawn = "".join(
        f'<rect x="{10 * i}" y="{80 - 80 * n / tallest:.1f}" width="9" height="{80 * n / tallest:.1f}">'
        f"<title>{n} rows from {most * i / _BARS:.3g} to {most * (i + 1) / _BARS:.3g}</title></rect>"
        for i, n in enumerate(bars)
    )
    middle = sorted(values)[len(values) // 2]
    caption = f"{name}: median {middle:.3g}, most {most:.3g}"
    return f'<figure><svg width="200" height="80">{drawn}</svg><figcaption>{caption}</figcaption></figure>\n'


def _why(result: Record) -> str:
    return (result.get("error") or {}).get("message") or ""


KINDS: Mapping[str, Callable[[BatchFolder], Iterable[str]]] = {
    "md": _markdown,
    "junit": _junit,
    "csv": _csv,
    "html": _html,
}
"""Kind of a report → function that makes its text."""
