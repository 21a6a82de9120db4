"""The colours of a chat: the theme of the settings, or the one for the background of the terminal."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.support.cli import succeed
from tests.support.plans import mock_plan
from tests.support.screen import Emulator
from tests.support.terminal import CTRL_C, ENTER, Chat, Terminal

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")

QUERY = "\x1b]11;?\x1b\\"
WHITE, BLACK = "\x1b]11;rgb:ffff/ffff/ffff\x1b\\", "\x1b]11;rgb:0000/0000/0000\x07"
ON_LIGHT, ON_DARK = "48;5;254", "48;5;237"
SHADE = re.compile(r"\x1b\[[\d;]*48;")
COLOURS: dict[str, str | None] = {"NO_COLOR": None, "COLORTERM": None}


def settings(text: str) -> None:
    Path(os.environ["AMPLIFIER_HOME"], "settings.yaml").write_text(text)


def ask_after(terminal: Terminal, keys: str) -> str:
    """Send a prompt behind other keys; return what was shown as its message, with colours."""
    while QUERY not in terminal.raw:
        assert terminal.read() is None
    terminal.prompt()
    start = len(terminal.raw)
    terminal.enter(keys + "hello", "You said: hello, hello")
    return terminal.raw[start:]


@pytest.mark.parametrize(("answer", "shade"), [(WHITE, ON_LIGHT), (BLACK, ON_DARK)])
def test_the_background_decides_and_its_answer_is_not_typed(
    tmp_path: Path, answer: str, shade: str
) -> None:
    with Terminal("run", "-P", "mock", cwd=tmp_path, env=COLOURS) as terminal:
        assert shade in ask_after(terminal, f"he{answer}llo, ")
        terminal.prompt()
        terminal.quit()
    assert "]11;rgb" not in terminal.raw


@pytest.mark.parametrize(("background", "shade"), [("0;15", ON_LIGHT), ("15;default;0", ON_DARK)])
def test_colorfgbg_counts_until_the_terminal_answers(
    tmp_path: Path, background: str, shade: str
) -> None:
    env = {**COLOURS, "COLORFGBG": background}
    with Terminal("run", "-P", "mock", cwd=tmp_path, env=env) as terminal:
        assert shade in ask_after(terminal, "hello, ")
    answer, other = (BLACK, ON_DARK) if shade == ON_LIGHT else (WHITE, ON_LIGHT)
    with Terminal("run", "-P", "mock", cwd=tmp_path, env=env) as terminal:
        assert other in ask_after(terminal, f"hello, {answer}")


def test_every_colour_is_one_of_the_theme(tmp_path: Path) -> None:
    """Bright black, for one, is the background of Solarized dark."""
    settings("display: {theme: light}\n")
    call = {"name": "write_file", "input": {"path": "a.txt", "content": "a"}}
    plan = mock_plan(
        tmp_path,
        [{"tool_calls": [call]}, "done"],
        tools=["tool-filesystem"],
        hooks=["hooks-approval", "hooks-backup"],
    )
    colours: set[str] = set()
    emulator = Emulator(100, 30)
    fed = 0

    def look() -> None:
        nonlocal fed
        emulator.feed(terminal.raw[fed:])
        fed = len(terminal.raw)
        rows = emulator.screen.buffer.values()
        cells = [cell for row in rows for cell in row.values()]
        colours.update(colour for cell in cells for colour in (cell.fg, cell.bg))

    with Chat("-f", plan, cwd=tmp_path, env=COLOURS) as terminal:
        for keys, pattern in (
            ("/sta", "Session, profile"),
            (CTRL_C + "write" + ENTER, "y yes"),
            ("nonsense", "ignored 'nonsense'"),
            ("y", "2 steps.*›"),
            ("\x12" + "rit", "search history: .*\n.*write"),
        ):
            terminal.type(keys)
            terminal.until(pattern)
            look()
    (tmp_path / "a.txt").write_text("b")
    with Terminal("run", "--continue", cwd=tmp_path, env=COLOURS) as terminal:
        fed = 0
        terminal.until("changed since.*›")
        look()
    assert not {colour for colour in colours if "bright" in colour}
    assert not colours & {"red", "green", "brown", "blue", "magenta", "cyan"}


def test_the_terminal_is_not_asked_without_colours(tmp_path: Path) -> None:
    cases: list[tuple[list[str], dict[str, str | None]]] = [
        (["--plain"], COLOURS),
        ([], {"NO_COLOR": "1"}),
        ([], {**COLOURS, "TERM": "dumb"}),
    ]
    for arguments, env in cases:
        with Chat("-P", "mock", *arguments, cwd=tmp_path, env=env) as terminal:
            terminal.ask("hello", "You said: hello")
            terminal.quit()
        assert QUERY not in terminal.raw
        assert not SHADE.search(terminal.raw)


@pytest.mark.parametrize(
    ("theme", "shade"),
    [("light", ON_LIGHT), ("dark", ON_DARK), ("plain", None), ("mine.yaml", "48;5;99")],
)
def test_a_theme_of_the_settings_asks_nothing(
    theme: str, shade: str | None, tmp_path: Path
) -> None:
    settings(f"display: {{theme: {theme}}}\n")
    home = Path(os.environ["AMPLIFIER_HOME"])
    (home / "mine.yaml").write_text("base: light\nmessage: 7 on 99\n")
    with Chat("-P", "mock", cwd=tmp_path, env=COLOURS) as terminal:
        terminal.enter("hello", "You said: hello")
    assert QUERY not in terminal.raw
    assert bool(SHADE.search(terminal.raw)) is (shade is not None)
    assert shade is None or shade in terminal.raw


def test_a_theme_that_cannot_be_used_is_reported(tmp_path: Path) -> None:
    settings("display: {theme: ./mine.yaml}\n")
    for text, problem in (
        (None, "cannot read the theme '.*mine.yaml': No such file"),
        ("acent: 3", r"mine.yaml:1:\d+: unknown colour 'acent'; did you mean 'accent'"),
        ("accent: blue", r"'accent' is not a colour; write a colour"),
        ("base: bright", r"'base' must be dark or light"),
        ("- accent", "is not a mapping of names to colours"),
    ):
        if text is not None:
            Path(os.environ["AMPLIFIER_HOME"], "mine.yaml").write_text(text)
        with Terminal("run", "-P", "mock", cwd=tmp_path, size=(200, 30)) as terminal:
            terminal.until(problem)
            assert terminal.finish() == 78
    succeed("run", "-P", "mock", "hello", cwd=tmp_path)
