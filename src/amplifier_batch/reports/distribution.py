"""The distribution of a measure over the rows, and its histogram as SVG."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence

from amplifier_support.named_tuple import NamedTuple

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
    return next(power * one for one in (1, 2, 5, 10) if power * one >= least * (1 - 1e-9))


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
