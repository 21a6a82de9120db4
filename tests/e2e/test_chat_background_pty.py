"""`!command &` in a chat: a command of the user that goes on in the background."""

import sys
from pathlib import Path

import pytest

from tests.support.plans import mock_plan
from tests.support.terminal import Chat, Terminal
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")


def test_it_runs_until_it_is_stopped_or_the_chat_ends(tmp_path: Path) -> None:
    with Terminal("run", "-P", "mock", cwd=tmp_path) as terminal:
        for line, shown in (
            ("!echo $$ > one; echo ready; exec sleep 100 &", "b1 is running in the background"),
            ("/bashes", r"b1  running for \d+ s"),
            ("!echo $$ > two; exec sleep 100 &", "b2 is running"),
            ("/bashes stop b1", "b1 killed"),
            ("!exit 4 &", "b3 ended: exit code 4"),
            ("hello", "You said: hello"),
        ):
            terminal.prompt()
            terminal.enter(line, shown)
        assert process(tmp_path / "two").exists()
        assert not process(tmp_path / "one").exists()
        terminal.prompt()
        terminal.quit()
    wait_until(lambda: not process(tmp_path / "two").exists())


def process(file: Path) -> Path:
    return Path("/proc", file.read_text().strip())


def test_without_tool_bash_it_is_an_error(tmp_path: Path) -> None:
    with Chat("-f", mock_plan(tmp_path, ["hi"]), cwd=tmp_path) as terminal:
        terminal.ask("!sleep 100 &", "no module of this session runs background commands")
        terminal.enter(r"!printf '%s|' a \& ; false && echo b &&true", r"a\|&\|")
