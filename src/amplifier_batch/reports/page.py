"""The report of a batch as one self-contained HTML page.

Its Content-Security-Policy allows the style and the script of the page, by their hashes, and nothing else;
all text of rows and answers is escaped, and secrets are removed. The size of the page is limited, however many rows
there are: sums and plots cover all rows; the table has as many failures as fit, then some of
the rows that passed.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from html import escape
from importlib.resources import files
from typing import Any

from amplifier_app.base.outcome import Ending
from amplifier_app.base.sanitize import for_pipe, one_line
from amplifier_app.runtime import describe
from amplifier_app.runtime.export.parts import redactor
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.record.journal import Record
from amplifier_batch.record.progress import Counts
from amplifier_batch.record.results import read_dollars, read_reason, read_seconds
from amplifier_batch.reports.distribution import Distribution, histogram
from amplifier_batch.reports.session_pages import SessionPages
from amplifier_batch.statistics.pass_rates import CONFIDENCE, pass_rates

_OK = Ending.OK.value

_MAX_PASSED = 1_000
_MAX_TEXT = 8_000_000
"""Characters of all rows in the table."""

_MAX_ANSWERS = 2_000_000
"""Characters of rows after which the table leaves out answers."""

_MAX_REASON = 400
_MAX_ANSWER = 2_000
_ANSWER_LINE = 110
_MAX_REASONS = 8
_IDENTIFIER = re.compile(r"[\w-]*\d[\w-]{4,}|\w+_\d+")


def as_page(folder: BatchFolder, pages: SessionPages | None = None) -> Iterator[str]:
    """The page in pieces.

    Args:
        folder: The batch.
        pages: Writes the pages of the rows in the table, which link to them.

    Raises:
        SessionError: The results cannot be read.
        ConfigError: A page of a session cannot be written.
    """
    counts, is_running = folder.counts()
    found = _Found(folder, pages)
    for result in folder.results(by_number=True):
        found.add(result)
    title = f"Batch {_text(folder.path.absolute().name)}"
    style, script = _part("page.css"), _part("page.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n"
    )
    yield f"<header><h1>{title}</h1>\n<ul class=facts>"
    yield "".join(f"<li>{_text(fact)}</li>" for fact in _facts(folder, found, is_running))
    yield "</ul></header>\n"
    yield from _sums(folder, counts, found)
    yield _plots(found)
    yield from _reasons(found)
    yield from _table(counts, found)
    yield f"</main>\n<script>{script}</script>\n</body>\n</html>\n"


class _Found:
    """The results of one pass over the results file."""

    def __init__(self, folder: BatchFolder, pages: SessionPages | None) -> None:
        self.cost = Distribution("cost", "US dollars", _dollars)
        self.time = Distribution("time", "seconds", describe.duration)
        self.steps = Distribution("steps", "", lambda value: f"{value:,.0f}", whole=True)
        self.models: Counter[str] = Counter()
        self.reasons: Counter[tuple[str, str]] = Counter()
        self.rows: dict[bool, list[str]] = {True: [], False: []}
        self._read_name = folder.read_name
        self._pages = pages
        self._redact = redactor().text
        self._size = 0

    def add(self, result: Record) -> None:
        """Count a row, and keep its line of the table if that fits."""
        passed = result["outcome"] == _OK
        self.time.add(read_seconds(result), passed=passed)
        self.steps.add(result["steps"], passed=passed)
        if (cost := read_dollars(result)) is not None:
            self.cost.add(cost, passed=passed)
        if model := result.get("model"):
            self.models[model] += 1
        if not passed:
            self.reasons[result["outcome"], _classify(read_reason(result))] += 1
        rows = self.rows[passed]
        if self._size > _MAX_TEXT or (passed and len(rows) >= _MAX_PASSED):
            return
        line = self._line(result, passed=passed)
        self._size += len(line)
        rows.append(line)

    def _line(self, result: Record, *, passed: bool) -> str:
        outcome, cost, seconds = result["outcome"], read_dollars(result), read_seconds(result)
        number = result["number"]
        name = _text(self._read_name(result)[:200])
        link = self._pages.link(result) if self._pages else None
        if link:
            name = f'<a href="{escape(link)}">{name}</a>'
        what = "" if passed else f"<p class=why>{self._safe(read_reason(result), _MAX_REASON)}</p>"
        if self._size < _MAX_ANSWERS:
            what += self._answer(result["response"])
        return (
            f'<tr data-outcome="{_text(outcome)}"><td class="n number" data-value="{number}">{number}<td class=id>{name}'
            f'<td><span class="outcome {"pass" if passed else "fail"}">{_text(outcome)}</span>'
            f"<td class=what>{what}"
            f'<td class=n data-unit={"step" if result["steps"] == 1 else "steps"} data-value="{result["steps"]}">{result["steps"]}'
            f'<td class=n data-value="{seconds:g}">{describe.duration(seconds)}'
            f'<td class=n data-value="{"" if cost is None else f"{cost:g}"}">'
            f"{'' if cost is None else _dollars(cost)}</tr>\n"
        )

    def _answer(self, answer: str) -> str:
        line = one_line(answer, _ANSWER_LINE)
        if not line:
            return ""
        if line == answer.strip():
            return f"<p class=answer>{self._safe(line, _MAX_ANSWER)}</p>"
        return (
            f"<details><summary><span>{self._safe(line, _MAX_ANSWER)}</span></summary>"
            f"<pre>{self._safe(answer, _MAX_ANSWER)}</pre></details>"
        )

    def _safe(self, text: str, max_characters: int) -> str:
        # Cut after redaction: half a secret is not recognized.
        text = self._redact(text[: max_characters * 2])
        return _text(text if len(text) <= max_characters else f"{text[:max_characters]} …")


def _classify(reason: str) -> str:
    """A reason without what differs from row to row, such as the id of a request."""
    return _IDENTIFIER.sub("…", one_line(reason, 160))


def _facts(folder: BatchFolder, found: _Found, is_running: bool) -> Iterator[str]:
    facts: Mapping[str, Any] = folder.facts
    yield f"plan {facts.get('plan')}"
    if found.models:
        names = [name for name, _ in found.models.most_common(3)]
        more = len(found.models) - len(names)
        yield ", ".join(names) + (f" and {more} more" if more else "")
    if facts.get("input"):
        yield f"input {str(facts['input']).rpartition('/')[2]}"
    if facts.get("shard"):
        yield f"shard {facts['shard']}"
    if facts.get("economy"):
        yield "batch prices"
    yield f"started {str(facts.get('created', '')).replace('T', ' ').removesuffix('+00:00')} UTC"
    if is_running:
        yield "still running"


def _sums(folder: BatchFolder, counts: Counts, found: _Found) -> Iterator[str]:
    rows, passed = folder.runs, counts.outcomes[_OK]
    failed, waiting = counts.ended - passed, rows - counts.ended
    yield "<dl class=sums>"
    rates = pass_rates(folder, counts)
    if folder.repeat > 1:
        for rate in rates:
            interval = f"{rate.low:.1%} to {rate.high:.1%}"
            yield _sum(f"pass@{rate.k}", f"{rate.value:.1%}", interval)
    share = f"{rates[0]} of those that ended" if rates else ""
    yield _sum("Passed", f"{passed:,}", share if folder.repeat == 1 else "")
    yield _sum("Failed", f"{failed:,}", f"of {describe.count(rows, folder.unit)}")
    if waiting:
        yield _sum("Not ended", f"{waiting:,}", "continue with: batch resume")
    if counts.cost:
        each = describe.cost(counts.cost / counts.ended) if counts.ended else ""
        yield _sum("Cost", describe.cost(counts.cost), f"{each} per {folder.unit}" if each else "")
    if found.time.ordered:
        yield _sum("Time", describe.duration(found.time.total), "of all rows together")
    yield "</dl>\n"
    yield _shares(rows, passed, failed)
    names = [(_OK, "pass"), *((name, "fail") for name in counts.outcomes if name != _OK)]
    legend = [(name, kind, counts.outcomes[name]) for name, kind in names]
    legend = sorted(legend, key=lambda one: (one[1] != "pass", -one[2]))
    if waiting:
        legend.append(("not ended", "wait", waiting))
    yield "<ul class=legend>" + "".join(
        f"<li class={kind}>{_text(name)} <b>{number:,}</b></li>" for name, kind, number in legend
    )
    yield "</ul>\n"
    if rates:
        yield f"<p class=note>Intervals: {CONFIDENCE:.0%}.</p>\n"


def _sum(name: str, value: str, more: str) -> str:
    below = f"<small>{_text(more)}</small>" if more else ""
    return f"<div><dt>{name}</dt><dd>{_text(value)}{below}</dd></div>"


def _shares(rows: int, passed: int, failed: int) -> str:
    """Rows that passed, failed and have not ended, as one bar."""
    label = f"{passed:,} of {rows:,} rows passed, {failed:,} failed"
    at, parts = 0.0, ""
    for kind, number in (("pass", passed), ("fail", failed), ("wait", rows - passed - failed)):
        width = 1000 * number / rows
        parts += f'<rect class="{kind}" x="{at:.2f}" width="{width:.2f}" height="10"/>'
        at += width
    return (
        '<svg class=share viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" '
        f'aria-label="{label}">{parts}</svg>\n'
    )


def _plots(found: _Found) -> str:
    plots, same = "", list[str]()
    for of in (found.cost, found.time, found.steps):
        if not of.ordered or of.ordered[-1] == 0:
            continue
        if of.ordered[0] == of.ordered[-1]:
            same.append(f"{of.name} {of.shown(of.ordered[0])}")
            continue
        caption = f"highest {of.shown(of.ordered[-1])}"
        plots += f"<figure>{histogram(of)}<figcaption>{caption}</figcaption></figure>\n"
    note = f"<p class=note>Equal in every row: {', '.join(same)}.</p>\n" if same else ""
    return f"<h2>Per row</h2>\n<div class=plots>\n{plots}</div>\n{note}" if plots or same else ""


def _reasons(found: _Found) -> Iterator[str]:
    """The most frequent reasons, if rows share them."""
    if not found.reasons or max(found.reasons.values()) < 2:
        return
    yield "<h2>Why rows failed</h2>\n<table class=reasons><thead><tr><th class=n>Rows<th>Outcome<th>Reason</tr></thead>\n"
    for (outcome, reason), number in found.reasons.most_common(_MAX_REASONS):
        yield (
            f'<tr><td class=n>{number:,}<td><span class="outcome fail">{_text(outcome)}</span>'
            f"<td>{_text(redactor().text(reason))}</tr>\n"
        )
    yield "</table>\n"
    more = len(found.reasons) - _MAX_REASONS
    if more > 0:
        yield f"<p class=note>{describe.count(more, 'other reason')}.</p>\n"


def _table(counts: Counts, found: _Found) -> Iterator[str]:
    if not any(found.rows.values()):
        return
    yield "<h2>Rows</h2>\n"
    yield (
        "<form id=filter hidden><input name=text type=search aria-label=Filter placeholder="
        '"Filter by id, reason or answer"> <select name=outcome aria-label=Outcome><option value="">all outcomes'
    )
    names = [name for name in sorted(counts.outcomes) if name != _OK and counts.outcomes[name]]
    if names:
        yield '<option value="failed">failed'
    for name in ([_OK] if counts.outcomes[_OK] else []) + names:
        yield f'<option value="{_text(name)}">{_text(name)}'
    yield "</select> <output id=shown></output></form>\n"
    yield (
        "<table id=rows><thead><tr><th class=n>No.<th>Row<th>Outcome<th>Result<th class=n>Steps<th class=n>Time"
        "<th class=n>Cost</tr></thead><tbody>\n"
    )
    for passed in (False, True):
        yield from found.rows[passed]
    yield "</tbody></table>\n"
    left_out = [
        f"{number:,} that {name}"
        for passed, name in ((False, "failed"), (True, "passed"))
        if (number := _count_runs(counts, passed=passed) - len(found.rows[passed])) > 0
    ]
    if left_out:
        yield f"<p class=note>Not in this table: {' and '.join(left_out)}. All rows are in results.jsonl.</p>\n"


def _count_runs(counts: Counts, *, passed: bool) -> int:
    ok = counts.outcomes[_OK]
    return ok if passed else counts.ended - ok


def _dollars(value: float) -> str:
    return describe.cost(Decimal(str(value)))


def _text(text: str) -> str:
    """Text of a row or an answer, escaped."""
    return escape(for_pipe(text), quote=True)


def _part(name: str) -> str:
    return (files("amplifier_batch.reports") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The hash of a style or script, as a Content-Security-Policy has it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
