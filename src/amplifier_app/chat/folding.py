"""Long texts in the input line, shown as `[pasted 200 lines]` and sent whole."""

from __future__ import annotations

MAX_LINES = 10
"""A text with more lines is folded when it is pasted, or comes from the history."""


class Folds:
    """The folded parts of one input line.

    Args:
        labels: Every text folded so far in the chat, with its label.
    """

    def __init__(self, labels: dict[str, str] | None = None) -> None:
        self._texts: dict[str, str] = {}
        self._labels: dict[str, str] = {} if labels is None else labels

    def for_next_line(self) -> Folds:
        """Return the folds of another, empty line of the chat."""
        return Folds(self._labels)

    def fold(self, text: str, label: str, before: str = "") -> str:
        """Return the marker shown instead of `text`, which begins a line if a line is `before` it."""
        before = self.unfold(before)
        text = f"\n{text}" if before and not before.endswith("\n") else text
        marker, number = f"[{label}]", 1
        while marker in self._texts:
            number += 1
            marker = f"[{label}, {number}]"
        self._texts[marker] = text
        self._labels[text] = label
        return marker

    def fold_if_long(self, text: str) -> str:
        """Return pasted text, as a marker if it is long."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.removesuffix("\n").count("\n") + 1
        return self.fold(text, f"pasted {lines} lines") if lines > MAX_LINES else text

    def fold_again(self, line: str) -> str:
        """Return the input line with each text that was folded before replaced by a marker."""
        for text in sorted(self._labels, key=len, reverse=True):
            while text in line:
                line = line.replace(text, self.fold(text, self._labels[text]), 1)
        return line

    def fold_entry(self, entry: str) -> str:
        """Return an entry of the history; a long one of an earlier chat keeps its first line."""
        entry = self.fold_again(entry)
        first, end, rest = entry.partition("\n")
        more = rest.count("\n") + 1
        return (
            f"{first}{end}{self.fold(rest, f'{more} more lines')}" if more >= MAX_LINES else entry
        )

    def unfold(self, line: str) -> str:
        """Return the input line with each marker replaced by its text."""
        for marker, text in self._texts.items():
            line = line.replace(marker, text, 1)
        return line

    def text_after(self, line: str) -> str:
        """Return what follows the markers at the beginning of the input line."""
        while marker := next((one for one in self._texts if line.startswith(one)), None):
            line = line.removeprefix(marker)
        return line

    def forget(self, marker: str) -> None:
        """Drop a text whose marker was deleted."""
        del self._texts[marker]

    def marker_before(self, line: str) -> str | None:
        """Return the marker at the end of `line`, which is deleted as a whole."""
        return next((marker for marker in self._texts if line.endswith(marker)), None)
