"""Long texts in the input line, shown as `[pasted 200 lines]` and sent whole."""

from __future__ import annotations

MAX_LINES = 10
"""A pasted text with more lines is folded."""


class Folds:
    """The folded parts of one input line."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def fold(self, text: str, label: str, before: str = "") -> str:
        """Return the marker shown instead of `text`, which begins a line if a line is `before` it."""
        before = self.unfold(before)
        text = f"\n{text}" if before and not before.endswith("\n") else text
        marker, number = f"[{label}]", 1
        while marker in self._texts:
            number += 1
            marker = f"[{label}, {number}]"
        self._texts[marker] = text
        return marker

    def fold_if_long(self, text: str) -> str:
        """Return pasted text, as a marker if it is long."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.removesuffix("\n").count("\n") + 1
        return self.fold(text, f"pasted {lines} lines") if lines > MAX_LINES else text

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
