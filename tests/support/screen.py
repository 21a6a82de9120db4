"""What a terminal shows, by an emulator."""

import re

import pyte


class Emulator:
    """A terminal with unlimited scrollback, which cuts lines when it becomes narrower."""

    def __init__(self, columns: int = 60, rows: int = 24) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=1_000_000, ratio=0.5)
        self._stream = pyte.Stream(self.screen)

    def feed(self, written: str) -> None:
        # The emulator knows no synchronized updates.
        self._stream.feed(re.sub(r"\x1b\[\?2026[hl]", "", written))

    def resize(self, columns: int, rows: int) -> None:
        self.screen.resize(rows, columns)

    def narrow(self, columns: int) -> None:
        """Become narrower like a terminal that wraps its lines again; they have to fit."""
        x, y = self.screen.cursor.x, self.screen.cursor.y
        lines = [
            [line[at : at + columns] for at in range(0, len(line), columns)] or [""]
            for line in self.visible()
        ]
        self.screen.erase_in_display(2)
        self.resize(columns, self.screen.lines)
        rows = [row for wrapped in lines for row in wrapped][: self.screen.lines]
        top = sum(map(len, lines[:y])) + x // columns
        self.feed("\x1b[H" + "\r\n".join(rows) + f"\x1b[{top + 1};{x % columns + 1}H")

    def visible(self) -> list[str]:
        """Return the lines on the screen, without trailing spaces."""
        return [line.rstrip() for line in self.screen.display]

    def lines(self) -> list[str]:
        """Return the scrollback and the screen, without trailing spaces and empty lines."""
        columns = self.screen.columns
        top = [
            "".join(row[column].data for column in range(columns)).rstrip()
            for row in self.screen.history.top
        ]
        lines = [*top, *self.visible()]
        while lines and not lines[-1]:
            lines.pop()
        return lines


def screen(written: str, columns: int = 60, rows: int = 24) -> list[str]:
    """Return the lines of scrollback and screen after `written`, without trailing spaces."""
    terminal = Emulator(columns, rows)
    terminal.feed(written.replace("\r\n", "\n").replace("\n", "\r\n"))
    return terminal.lines()
