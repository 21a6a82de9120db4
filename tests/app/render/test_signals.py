"""Window title, links to files, and a bell or notification after long turns."""

import os
from pathlib import Path

import pytest

from amplifier_app.base.stdio import Output
from amplifier_app.render.ansi import plain
from amplifier_app.render.screen import AnsiScreen
from amplifier_app.render.terminal import Signals
from tests.support.cli import run_amplifier
from tests.support.plans import mock_plan
from tests.support.terminal import Terminal

XTERM = {"TERM": "xterm-256color"}
TMUX = {**XTERM, "TMUX": "/tmp/tmux-0/default,1,0"}


class Rig:
    def __init__(self, environment: dict[str, str]) -> None:
        self._reading, writing = os.pipe()
        self.signals = Signals(AnsiScreen(Output(writing), environment), environment)
        self._writing = writing

    def sent(self) -> str:
        os.close(self._writing)
        with os.fdopen(self._reading) as file:
            return file.read()


def test_the_title_is_set_and_restored() -> None:
    rig = Rig(XTERM)
    for title in ("● amplifier · p", "● amplifier · p", "amplifier · \x1b]0;evil\x07"):
        rig.signals.set_title(title)
    rig.signals.close()
    assert rig.sent() == (
        "\x1b[22;2t\x1b]2;● amplifier · p\x1b\\\x1b]2;amplifier · \\x1b]0;evil\\x07\x1b\\\x1b[23;2t"
    )


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (XTERM, "\x07"),
        (TMUX, "\x07"),
        ({**XTERM, "TERM_PROGRAM": "WezTerm"}, "\x1b]9;p: finished\x1b\\"),
        ({**TMUX, "KITTY_WINDOW_ID": "1"}, "\x07"),
        ({**XTERM, "KITTY_WINDOW_ID": "1"}, "\x1b]9;p: finished\x1b\\"),
    ],
)
def test_a_long_turn_ends_with_a_bell_or_a_notification(
    environment: dict[str, str], expected: str
) -> None:
    rig = Rig(environment)
    rig.signals.turn_ended(9.9, "p: finished")
    rig.signals.turn_ended(10.1, "p: finished")
    assert rig.sent() == expected


@pytest.mark.parametrize("environment", [TMUX, {"TERM": "linux"}, {"TERM": "screen-256color"}])
def test_terminals_without_links_get_text(environment: dict[str, str]) -> None:
    assert Rig(environment).signals.link("a b", "/x/a b") == "a b"


def test_a_link_names_the_file() -> None:
    link = Rig(XTERM).signals.link("a b", "/x/a b")
    assert link == "\x1b]8;;file:///x/a%20b\x1b\\a b\x1b]8;;\x1b\\"
    assert plain(link) == "a b"


def test_a_run_on_a_terminal_sends_them_unless_turned_off(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    replies = [{"tool_calls": [{"name": "read_file", "input": {"path": "a.txt"}}]}, "done"]
    plan = mock_plan(tmp_path, replies, tools=[{"module": "tool-filesystem"}])
    link = f"\x1b]8;;{(tmp_path / 'a.txt').as_uri()}\x1b\\a.txt\x1b]8;;\x1b\\"
    title = f"\x1b]2;● amplifier · {tmp_path.name}\x1b\\"
    with Terminal("run", "-f", plan, "go", cwd=tmp_path) as terminal:
        assert terminal.finish() == 0
    assert link in terminal.raw
    assert title in terminal.raw
    assert terminal.raw.count("\x1b[22;2t") == terminal.raw.count("\x1b[23;2t") == 1
    piped = run_amplifier("run", "-f", plan, "go", cwd=tmp_path)
    assert "\x1b" not in piped.stdout + piped.stderr
    settings = Path(os.environ["AMPLIFIER_HOME"]) / "settings.yaml"
    settings.parent.mkdir(exist_ok=True)
    settings.write_text("display: {signals: none}\n")
    with Terminal("run", "-f", plan, "go", cwd=tmp_path) as terminal:
        assert terminal.finish() == 0
    assert "\x1b]" not in terminal.raw
