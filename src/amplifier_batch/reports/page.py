"""The report of a batch as one self-contained HTML page.

Its Content-Security-Policy allows the style and the script of the page, by their hashes, and nothing else;
all text of rows and answers is escaped, and secrets are removed. The size of the page is limited, however many rows
there are: sums and plots cover all rows; the table has as many failures as fit, then some of
the rows that passed.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import math
import re
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from amplifier_app.base.errors import SessionError
from amplifier_app.base.file_writing import write_whole
from amplifier_app.base.outcome import Ending
from amplifier_app.base.sanitize import for_pipe, one_line
from amplifier_app.runtime import describe
from amplifier_app.runtime.export.page import as_page as session_page
from amplifier_app.runtime.export.parts import export_session, redactor
from amplifier_app.sessions.store import SessionStore
from amplifier_batch.input import parse_key
from amplifier_batch.record.folder import SCORES, BatchFolder
from amplifier_batch.record.journal import Record
from amplifier_batch.record.progress import WAITING, Counts
from amplifier_batch.record.remote import find_folder, is_url
from amplifier_batch.record.results import read_dollars, read_reason, read_seconds
from amplifier_batch.statistics.pass_rates import CONFIDENCE, pass_rates
from amplifier_batch.statistics.score_means import batch_means, mean_in_words
from amplifier_batch.statistics.summary import describe_time_left, forecast_batch
from amplifier_support.named_tuple import NamedTuple


class SessionPages:
    """Writes the page of a row's session into a folder next to the report.

    Args:
        sessions: The sessions of the batch.
        report: The file of the report.

    Attributes:
        folder: The folder, named after the report.
        written: How many pages were written.
    """

    def __init__(self, sessions: Path, report: Path) -> None:
        self.folder = report.with_name(f"{report.stem}-sessions")
        self.written = 0
        self._store = SessionStore(sessions)
        self._redact = redactor().value

    def link(self, result: Record) -> str | None:
        """Write the page of a row and return its address relative to the report; None if the row has no session.

        Raises:
            ConfigError: The page cannot be written.
        """
        session = self._store.get(result["session_id"])
        if session is None:
            return None
        below = (
            self._store.get(sub_session["session_id"]) for sub_session in result["sub_sessions"]
        )
        try:
            page = session_page(export_session(session, filter(None, below), self._redact))
            text = "".join(page)
        except SessionError:  # The session is damaged; the report is still useful.
            return None
        write_whole(self.folder / f"{session.id}.html", text)
        self.written += 1
        return quote(f"{self.folder.name}/{session.id}.html")


# -- the distribution of a measure over the rows, and its histogram as SVG ---------------


_BARS, _WHOLE_BARS = 24, 40
"""About how many bars a histogram has at most; counts may have fewer."""

_TAIL = 0.99
"""The share of the rows up to which the axis extends, if the others would stretch it."""

_STRETCH = 2.0
"""Maximum factor by which the axis may be longer to include them."""

_WIDTH, _HEIGHT = 380, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 38, 12, 30, 36


class Distribution:
    """The values of a measure over the rows.

    Args:
        name: What is measured.
        unit: Its unit on the axis; empty if it has none.
        shown: A value as text, with its unit.
        whole: Whether the values are counts.
    """

    def __init__(
        self, name: str, unit: str, shown: Callable[[float], str], *, whole: bool = False
    ) -> None:
        self.name = name
        self.unit = unit
        self.shown = shown
        self.is_whole = whole
        self._passed = array("d")
        self._failed = array("d")
        self._ordered: Sequence[float] | None = None

    def add(self, value: float, *, passed: bool) -> None:
        """Count the value of a row."""
        (self._passed if passed else self._failed).append(value)
        self._ordered = None

    @property
    def ordered(self) -> Sequence[float]:
        """The values, lowest first."""
        if self._ordered is None:
            self._ordered = sorted([*self._passed, *self._failed])
        return self._ordered

    @property
    def total(self) -> float:
        """The sum of the values."""
        return math.fsum(self.ordered)

    def quantile(self, share: float) -> float:
        """The lowest value that at least this share of the rows does not exceed; there must be one."""
        return self.ordered[max(0, math.ceil(share * len(self.ordered)) - 1)]

    def bins(self) -> Bins:
        """The values in intervals of one width; there must be one."""
        low, high = self.ordered[0], self.ordered[-1]
        start = 0.0 if low <= high / 3 else low
        end = self.quantile(_TAIL)
        if high - start <= (end - start) * _STRETCH or end == start:
            end = high
        step = nice_step(
            (end - start) / (_WHOLE_BARS if self.is_whole else _BARS), whole=self.is_whole
        )
        start = math.floor(start / step) * step
        number = max(1, math.floor((end - start) / step + 1e-9) + 1)
        has_tail = high >= start + number * step * (1 + 1e-9)
        counts = [[0] * (number + has_tail) for _ in range(2)]
        for values, of in ((self._passed, counts[0]), (self._failed, counts[1])):
            for value in values:
                of[min(int((value - start) / step + 1e-9), number - 1 + has_tail)] += 1
        return Bins(start, step, counts[0], counts[1], has_tail)


class Bins(NamedTuple):
    """Rows by intervals of a value.

    Attributes:
        start: Where the first begins.
        step: The width of each.
        passed: Rows that passed, by interval.
        failed: Those that failed.
        has_tail: Whether the last one has all values above the one before it.
    """

    start: float
    step: float
    passed: Sequence[int]
    failed: Sequence[int]
    has_tail: bool


def nice_step(least: float, *, whole: bool = False) -> float:
    """The lowest of 1, 2 or 5 times a power of ten that is not lower; whole numbers begin at 1."""
    if whole and least <= 1:
        return 1.0
    if least <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))


def histogram(of: Distribution) -> str:
    """The histogram with its axes, the median and the 90th percentile, as SVG."""
    bins = of.bins()
    number = len(bins.passed)
    tallest = max(map(sum, zip(bins.passed, bins.failed, strict=True)))
    ceiling = math.ceil(tallest / (up := nice_step(tallest / 3, whole=True))) * up
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(index: float) -> float:
        return _LEFT + wide * index / number

    def y(rows: float) -> float:
        return _TOP + high * (1 - rows / ceiling)

    parts: list[str] = []
    for line in range(int(ceiling / up) + 1):
        at = y(line * up)
        parts.append(
            f'<path class="grid" d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}"/>'
            f'<text class="end" x="{_LEFT - 5}" y="{at + 4:.1f}">{_rows(line * up)}</text>'
        )
    for index, (passed, failed) in enumerate(zip(bins.passed, bins.failed, strict=True)):
        parts.append(_bar(of, bins, index, x(index), x(index + 1), (y, passed, failed)))
    parts += _ticks(of, bins, x)
    for share, name, height in ((0.5, "median", 12), (0.9, "p90", 25)):
        place = (of.quantile(share) - bins.start) / bins.step + (0.5 if of.is_whole else 0)
        parts.append(_mark(name, of.shown(of.quantile(share)), x(min(place, number)), height))
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    label = f"{of.name} per row" + (f" ({of.unit})" if of.unit else "")
    parts.append(f'<text class="mid dim" x="{middle:.0f}" y="{_HEIGHT - 4}">{label}</text>')
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}: histogram">'
        f"{''.join(parts)}</svg>"
    )


def _bar(
    of: Distribution,
    bins: Bins,
    index: int,
    left: float,
    right: float,
    rows: tuple[Callable[[float], float], int, int],
) -> str:
    y, passed, failed = rows
    if not passed + failed:
        return ""
    width = max(right - left - 1, 0.5)
    drawn = ""
    for kind, low, top in (("pass", 0, passed), ("fail", passed, passed + failed)):
        if top > low:
            height = max(y(low) - y(top), 0.8)
            drawn += (
                f'<rect class="{kind}" x="{left + 0.5:.1f}" y="{y(low) - height:.1f}"'
                f' width="{width:.1f}" height="{height:.1f}"/>'
            )
    text = f"{passed + failed:,} rows" + (f", {failed:,} failed" if failed else "")
    return f"<g><title>{_interval(of, bins, index)}: {text}</title>{drawn}</g>"


def _interval(of: Distribution, bins: Bins, index: int) -> str:
    low = bins.start + index * bins.step
    if bins.has_tail and index == len(bins.passed) - 1:
        return f"{of.shown(low)} and above"
    if of.is_whole and bins.step == 1:
        return of.shown(low)
    return f"{of.shown(low)} to {of.shown(low + bins.step)}"


def _ticks(of: Distribution, bins: Bins, x: Callable[[float], float]) -> list[str]:
    """Labels of the axis; a last bar that has all higher values is labelled as such."""
    whole = len(bins.passed) - bins.has_tail
    each = max(1, math.ceil(whole / 6))
    shift = 0.5 if of.is_whole and bins.step == 1 else 0.0
    places = list(range(0, whole + (shift == 0), each))
    if bins.has_tail:
        # The label of the last bar needs room.
        places = [place for place in places if whole - place > max(1, whole // 8)] + [whole]
    base = _HEIGHT - _BOTTOM
    parts = [f'<path class="axis" d="M{_LEFT} {base}H{_WIDTH - _RIGHT}"/>']
    for place in places:
        is_tail = bins.has_tail and place == whole
        value = _number(bins.start + place * bins.step, bins.step * each)
        at = x(place + shift)
        side, room = ("end", _WIDTH - _RIGHT) if is_tail else ("mid", at)
        parts.append(
            f'<path class="axis" d="M{at:.1f} {base}v4"/>'
            f'<text class="{side}" x="{room:.1f}" y="{base + 15}">{"≥ " if is_tail else ""}{value}</text>'
        )
    return parts


def _mark(name: str, value: str, at: float, height: int) -> str:
    """A line at a value, with its name on the side that has room."""
    is_right = at > _WIDTH * 0.7
    side, shift = ("end", -4) if is_right else ("start", 4)
    return (
        f'<path class="{name}" d="M{at:.1f} {height - 8}V{_HEIGHT - _BOTTOM}"/>'
        f'<text class="{side} label" x="{at + shift:.1f}" y="{height}">{name} {value}</text>'
    )


def _number(value: float, step: float) -> str:
    """A value of the axis, with the digits that multiples of a step need."""
    digits = max(0, 1 - math.floor(math.log10(step) + 1e-9))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _rows(number: float) -> str:
    """`250`, `1.5k`."""
    return f"{number:g}" if number < 1000 else f"{number / 1000:g}k"


# -- the report of a batch as one self-contained HTML page -------------------------------


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
_MAX_RUNNING = 100
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
    summary = _Found(folder, pages)
    for result in folder.results(by_number=True):
        summary.add(result)
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
    yield "".join(f"<li>{_text(fact)}</li>" for fact in _facts(folder, summary, is_running))
    yield "</ul></header>\n"
    yield from _sums(folder, counts, summary)
    if is_running:
        yield from _running(folder, counts)
    yield from _scores(folder)
    yield _plots(summary)
    yield from _reasons(summary)
    yield from _table(counts, summary)
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
        if not passed and result["outcome"] != WAITING:
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
            f'<td><span class="outcome {_kind(outcome)}">{_text(outcome)}</span>'
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


def _facts(folder: BatchFolder, summary: _Found, is_running: bool) -> Iterator[str]:
    facts: Mapping[str, Any] = folder.facts
    yield f"plan {facts.get('plan')}"
    if summary.models:
        names = [name for name, _ in summary.models.most_common(3)]
        more = len(summary.models) - len(names)
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


def _sums(folder: BatchFolder, counts: Counts, summary: _Found) -> Iterator[str]:
    rows, passed = folder.runs, counts.outcomes[_OK]
    failed, waiting = counts.decided - passed, rows - counts.ended
    yield "<dl class=sums>"
    rates = pass_rates(folder, counts)
    if folder.repeat > 1:
        for rate in rates:
            interval = f"{rate.low:.1%} to {rate.high:.1%}"
            yield _sum(f"pass@{rate.k}", f"{rate.value:.1%}", interval)
    share = f"{rates[0]} of those that ended" if rates else ""
    yield _sum("Passed", f"{passed:,}", share if folder.repeat == 1 else "")
    yield _sum("Failed", f"{failed:,}", f"of {describe.count(rows, folder.unit)}")
    if counts.outcomes[WAITING]:
        yield _sum("Waiting", f"{counts.outcomes[WAITING]:,}", "for an answer: batch approve")
    if waiting:
        yield _sum("Not ended", f"{waiting:,}", "continue with: batch resume")
    if counts.cost or counts.cached:
        each = describe.cost(counts.cost / max(1, counts.ended))
        notes = [f"{each} per {folder.unit}"] if counts.ended else []
        if counts.cached:
            notes.append(f"{describe.count(counts.cached, 'answer')} cached")
        yield _sum("Cost", describe.cost(counts.cost), ", ".join(notes))
    if forecast := forecast_batch(folder, counts):
        if forecast.cost is not None:
            _, low, high = (_dollars(amount or 0) for amount in forecast[:3])
            interval = f"{low} to {high}, for all {folder.unit}s"
            yield _sum("Forecast", _dollars(forecast.cost), interval)
        if forecast.seconds_left is not None:
            left = describe_time_left(forecast.seconds_left)
            yield _sum("Time left", f"about {left}", f"for {waiting:,} more {folder.unit}s")
    if summary.time.ordered:
        yield _sum("Time", describe.duration(summary.time.total), "of all rows together")
    yield "</dl>\n"
    yield _shares(rows, passed, failed)
    legend = [(name, _kind(name), counts.outcomes[name]) for name in {_OK: 0, **counts.outcomes}]
    legend = sorted(legend, key=lambda entry: (entry[1] != "pass", -entry[2]))
    if waiting:
        legend.append(("not ended", "wait", waiting))
    yield "<ul class=legend>" + "".join(
        f"<li class={kind}>{_text(name)} <b>{number:,}</b></li>" for name, kind, number in legend
    )
    yield "</ul>\n"
    if rates:
        yield f"<p class=note>Intervals: {CONFIDENCE:.0%}.</p>\n"


def _running(folder: BatchFolder, counts: Counts) -> Iterator[str]:
    """The rows that run now, and how many end in a minute at that pace."""
    attempts: dict[str, int] = {}

    def follow(record: Record) -> None:
        if record.get("event") == "claimed":
            attempts[record["id"]] = record["attempt"]
        elif record.get("event") in ("released", "ended"):
            attempts.pop(record["id"], None)

    folder.scan_journal(follow)
    if not attempts:
        return
    pace = 60 * len(attempts) * counts.timed / counts.seconds if counts.seconds else 0
    about = f" · {pace:.3g} {folder.unit}s per minute" if pace else ""
    yield f"<h2>Running</h2>\n<p class=note>{describe.count(len(attempts), folder.unit)}{about}</p>\n<ul class=running>"
    for id, attempt in itertools.islice(attempts.items(), _MAX_RUNNING):
        again = f" (attempt {attempt})" if attempt > 1 else ""
        row, run = parse_key(id, folder.repeat)
        name = folder.read_name({"row": row, "repeat": run})
        yield f"<li>{_text(name[:200])}{again}</li>"
    yield "</ul>\n"


def _scores(folder: BatchFolder) -> Iterator[str]:
    means = batch_means(folder) if (folder.path / SCORES).exists() else []
    if not means:
        return
    yield f"<h2>Scores</h2>\n<table class=reasons><thead><tr><th>Score<th>Mean ({CONFIDENCE:.0%} interval)"
    yield "<th class=n>Rows<th class=n>Missing</tr></thead>\n"
    for mean in means:
        yield f"<tr><td>{_text(mean.name)}<td>{_text(mean_in_words(mean))}"
        yield f"<td class=n>{mean.rows:,}<td class=n>{mean.missing:,}</tr>\n"
    yield "</table>\n"


def _kind(outcome: str) -> str:
    return {_OK: "pass", WAITING: "wait"}.get(outcome, "fail")


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


def _plots(summary: _Found) -> str:
    plots, same = "", list[str]()
    for of in (summary.cost, summary.time, summary.steps):
        if not of.ordered or of.ordered[-1] == 0:
            continue
        if of.ordered[0] == of.ordered[-1]:
            same.append(f"{of.name} {of.shown(of.ordered[0])}")
            continue
        caption = f"highest {of.shown(of.ordered[-1])}"
        plots += f"<figure>{histogram(of)}<figcaption>{caption}</figcaption></figure>\n"
    note = f"<p class=note>Equal in every row: {', '.join(same)}.</p>\n" if same else ""
    return f"<h2>Per row</h2>\n<div class=plots>\n{plots}</div>\n{note}" if plots or same else ""


def _reasons(summary: _Found) -> Iterator[str]:
    """The most frequent reasons, if rows share them."""
    if not summary.reasons or max(summary.reasons.values()) < 2:
        return
    yield "<h2>Why rows failed</h2>\n<table class=reasons><thead><tr><th class=n>Rows<th>Outcome<th>Reason</tr></thead>\n"
    for (outcome, reason), number in summary.reasons.most_common(_MAX_REASONS):
        yield (
            f'<tr><td class=n>{number:,}<td><span class="outcome fail">{_text(outcome)}</span>'
            f"<td>{_text(redactor().text(reason))}</tr>\n"
        )
    yield "</table>\n"
    more = len(summary.reasons) - _MAX_REASONS
    if more > 0:
        yield f"<p class=note>{describe.count(more, 'other reason')}.</p>\n"


def _table(counts: Counts, summary: _Found) -> Iterator[str]:
    if not any(summary.rows.values()):
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
        yield from summary.rows[passed]
    yield "</tbody></table>\n"
    ok = counts.outcomes[_OK]
    left_out = [
        f"{number:,} that {name}"
        for passed, name in ((False, "failed"), (True, "passed"))
        if (number := (ok if passed else counts.ended - ok) - len(summary.rows[passed])) > 0
    ]
    if left_out:
        yield f"<p class=note>Not in this table: {' and '.join(left_out)}. All rows are in results.jsonl.</p>\n"


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


# -- the same page in `amplifier view` ----------------------------------------------------


_UPDATE_SECONDS = 5.0
_VERSIONS = 200
"""Maximum number of updates of the page while a batch runs, each of which reads all results."""


class BatchPage:
    """The page of a batch for `amplifier view`; `find_page` is its entry point of the group `amplifier.pages`."""

    def __init__(self, path: Path) -> None:
        self._folder = BatchFolder(path)
        self._updated = time.monotonic()
        self.title = f"Batch {self._folder.path.name}"

    def version(self) -> str:
        """A text that changes with the page."""
        if is_url(self._folder.shown) and time.monotonic() > self._updated + _UPDATE_SECONDS:
            find_folder(self._folder.shown)
            self._updated = time.monotonic()
        counts, is_running = self._folder.counts()
        scores = self._folder.path / SCORES
        size = scores.stat().st_size if scores.exists() and not is_running else 0
        step = max(1, self._folder.runs // _VERSIONS) if is_running else 1
        return f"{counts.ended // step} {counts.running} {size} {is_running}"

    def page(self) -> Iterator[str]:
        """The page in pieces."""
        self._folder.refresh()
        return as_page(self._folder)


def find_page(place: Path | str) -> BatchPage | None:
    """Return the page of a folder or a URL; None if it has no batch."""
    path = find_folder(place) if isinstance(place, str) else place
    return BatchPage(path) if (path / "batch.json").is_file() else None
