"""A Rich console for a given terminal."""

from __future__ import annotations

import os

from rich.console import Console, ConsoleDimensions

from amplifier_app.base.stdio import Output


class _TerminalFile:
    """A file for Rich that writes to the terminal, as synchronized updates if enabled."""

    # Terminals with synchronized updates draw nothing in between; others ignore the sequences.
    _BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"

    encoding = "utf-8"

    def __init__(self, output: Output) -> None:
        self._output = output
        self.synchronized = False

    def write(self, text: str) -> int:
        if text:
            update = f"{self._BEGIN}{text}{self._END}" if self.synchronized else text
            self._output.write(update)
        return len(text)

    def flush(self) -> None:
        """Do nothing: output is not buffered."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._output.fd


class TerminalConsole(Console):
    """Measures the terminal it writes to, regardless of stdin and stderr."""

    def __init__(self, output: Output) -> None:
        self.terminal_file = _TerminalFile(output)
        super().__init__(
            file=self.terminal_file,  # type: ignore[arg-type]
            force_terminal=True,
            markup=False,
            emoji=False,
            highlight=False,
        )
        self._fd = output.fd

    @property
    def size(self) -> ConsoleDimensions:
        try:
            columns, lines = os.get_terminal_size(self._fd)
        except OSError:
            columns, lines = 0, 0
        return ConsoleDimensions(columns or 80, lines or 24)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        raise AttributeError("the size is set by the terminal")
