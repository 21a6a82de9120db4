"""The picture of the chat in the README: a real session on a real terminal, drawn as SVG.

    python -m tests.picture.chat        # write tests/picture/chat.svg again

The model is `provider-mock`, everything else is the program as it is. What differs from run to run
(durations, ids) is replaced by fixed text.
"""

import os
import re
import tempfile
import time
from collections.abc import Iterator
from html import escape, unescape
from itertools import groupby
from pathlib import Path
from typing import Any

import pexpect
import pyte

from tests.support.cli import amplifier_command, child_environment
from tests.support.plans import mock_plan

PICTURE = Path(__file__).with_name("chat.svg")
COLUMNS, ROWS = 80, 34

QUESTION = "In strict mode, an empty file should be an error."
ANSWER = """\
`parse` now raises `ValueError` for an empty file in strict mode, and returns `{}` otherwise.
Nothing tests this yet; **tests/test_parse.py:4** would be the place.
"""
FILES = {
    "src/parse.py": "def parse(text, strict=False):\n"
    "    if not text:\n"
    "        return None\n"
    "    return dict(line.split('=', 1) for line in text.splitlines())\n",
    "tests/test_parse.py": "from parse import parse\n\n\ndef test_parse():\n    assert parse('a=1') == {'a': '1'}\n",
}
SEARCH = {"name": "grep", "input": {"pattern": "parse\\(", "path": "tests"}}
EDIT = {
    "name": "edit_file",
    "input": {
        "path": "src/parse.py",
        "old_string": "        return None\n",
        "new_string": "        if strict:\n            raise ValueError('empty file')\n        return {}\n",
    },
}

_COLOURS = {
    "default": "#d4d4d4",
    "black": "#1e1e1e",
    "red": "#f48771",
    "green": "#89d185",
    "brown": "#dcdcaa",
    "blue": "#75beff",
    "magenta": "#c586c0",
    "cyan": "#4ec9b0",
    "white": "#e5e5e5",
    "brightblack": "#808080",
}
_BACKGROUND = "#1e1e1e"
_CELL_WIDTH, _LINE_HEIGHT, _MARGIN = 8.4, 18, 14


class _Screen(pyte.Screen):
    """A terminal that answers what programs ask it."""

    def __init__(self, process: Any) -> None:
        super().__init__(COLUMNS, ROWS)
        self._process = process

    def write_process_input(self, data: str) -> None:
        self._process.send(data)


def chat_screen() -> pyte.Screen:
    """The terminal after one prompt of a chat, with an edit that was asked about, and `/why`."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder, "shop")
        for name, text in FILES.items():
            file = project / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        replies = [{"tool_calls": [SEARCH]}, {"tool_calls": [EDIT]}, ANSWER]
        plan = mock_plan(
            Path(folder),
            replies,
            tools=["tool-search", "tool-filesystem"],
            hooks=["hooks-approval", "hooks-backup"],
        )
        home = Path(folder, "home")
        home.mkdir()
        (home / "settings.yaml").write_text("display: {theme: dark}\n")
        variables = {
            **{"TERM": "xterm-256color", "COLORTERM": "truecolor", "NO_COLOR": None},
            "HOME": folder,
        }
        options: dict[str, Any] = {
            "cwd": str(project),
            "env": child_environment(home, variables),
            "dimensions": (ROWS, COLUMNS),
        }
        program, *arguments = [*amplifier_command(), "run", "-f", str(plan)]
        process = pexpect.spawn(program, arguments, encoding="utf-8", **options)
        screen = _Screen(process)
        stream = pyte.Stream(screen)
        try:
            _show_until(process, stream, lambda: "›" in _text(screen))
            process.send(f"{QUESTION}\r")
            for keys, shown in (("y", r"yes .* more"), ("/why\r", "(?s)›.*the place.*›")):
                is_shown = re.compile(shown).search
                _show_until(process, stream, lambda shows=is_shown: bool(shows(_text(screen))))
                process.send(keys)
            is_explained = re.compile("(?s)this prompt.*›").search
            _show_until(process, stream, lambda: bool(is_explained(_text(screen))))
        finally:
            process.close(force=True)
        return screen


def _show_until(process: Any, stream: pyte.Stream, condition: Any) -> None:
    end = time.monotonic() + 60
    quiet = 0
    while quiet < 5:
        if time.monotonic() > end:
            raise TimeoutError("the chat did not show what was expected")
        try:
            # The emulator knows no synchronized updates.
            output = process.read_nonblocking(65_536, timeout=0.1)
            stream.feed(re.sub(r"\x1b\[\?2026[hl]", "", output))
            quiet = 0
        except pexpect.TIMEOUT:
            quiet += condition()


def _text(screen: pyte.Screen) -> str:
    return "\n".join(screen.display)


def drawn(screen: pyte.Screen) -> str:
    """The screen as SVG."""
    rows = [*_rows(screen)]
    width = round(COLUMNS * _CELL_WIDTH + 2 * _MARGIN)
    height = sum(row.startswith("<text") for row in rows) * _LINE_HEIGHT + 2 * _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="A chat with amplifier">',
        f'<rect width="{width}" height="{height}" rx="8" fill="{_BACKGROUND}"/>',
        '<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14">',
        *rows,
        "</g>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _rows(screen: pyte.Screen) -> Iterator[str]:
    last = max((n for n, line in enumerate(screen.display) if line.strip()), default=0)
    for number in range(last + 1):
        y = _MARGIN + (number + 1) * _LINE_HEIGHT - 4
        cells = [screen.buffer[number][column] for column in range(COLUMNS)]
        yield from _shades(cells, y)
        spans = _steady("".join(_spans(cells)))
        # Fonts differ in the width of a character.
        length = len(unescape(re.sub("<[^>]*>", "", spans))) * _CELL_WIDTH
        fitted = f' textLength="{length:.1f}"' if length else ""
        # Browsers would join spaces.
        shown = re.sub(r" (?![^<]*>)", "\u00a0", spans)
        yield f'<text x="{_MARGIN}" y="{y}"{fitted}>{shown}</text>'


def _shades(cells: list[Any], y: int) -> Iterator[str]:
    column = 0
    for colour, run in groupby(cells, lambda cell: cell.bg):
        length = len([*run])
        if len(colour) == 6:
            x, width = _MARGIN + column * _CELL_WIDTH, length * _CELL_WIDTH
            yield (
                f'<rect x="{x:.1f}" y="{y - 14}" width="{width:.1f}" height="{_LINE_HEIGHT}" '
                f'fill="#{colour}"/>'
            )
        column += length


def _spans(cells: list[Any]) -> Iterator[str]:
    for (colour, bold), run in groupby(cells, lambda cell: (cell.fg, cell.bold)):
        text = escape("".join(cell.data for cell in run), quote=False)
        fill = _COLOURS.get(colour, f"#{colour}" if len(colour) == 6 else _COLOURS["default"])
        weight = ' font-weight="bold"' if bold else ""
        yield f'<tspan fill="{fill}"{weight}>{text}</tspan>'


def _steady(text: str) -> str:
    """The text without what differs from run to run."""
    text = re.sub(r"\b\d+(\.\d+)? (ms|s)\b", "0.1 s", text)
    text = re.sub(r"\d{8}-\d{6}-[0-9a-f]{6}", "20260131-120000-a1b2c3", text)
    return re.sub(r" +</tspan>$", "</tspan>", text)


if __name__ == "__main__":
    os.environ.setdefault("LC_ALL", "C.UTF-8")
    PICTURE.write_text(drawn(chat_screen()), encoding="utf-8")
