"""The application that reads the keyboard: the answer of the terminal to a question, and the editor of the user."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prompt_toolkit.application import Application
from prompt_toolkit.input import create_input
from prompt_toolkit.input.typeahead import get_typeahead
from prompt_toolkit.output import DummyOutput

from amplifier_app.base.errors import AppError
from amplifier_app.chat.application import BackgroundQuery, edit, project_history
from amplifier_app.render import ansi, theme

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")

ANSWER = "\x1b]11;rgb:ffff/ffff/ffff\x1b\\"


@contextmanager
def asked() -> Generator[tuple[BackgroundQuery, Application[None], int]]:
    ours, theirs = os.openpty()
    with os.fdopen(theirs) as terminal:
        import tty

        tty.setraw(terminal)
        app: Application[None] = Application(input=create_input(terminal), output=DummyOutput())
        query = BackgroundQuery(app)
        query.ask()
        yield query, app, ours
    os.close(ours)
    ansi.use_colours({})


def keys(app: Application[None]) -> str:
    return "".join(press.data for press in app.input.read_keys())


@pytest.mark.parametrize("cut", range(1, len(ANSWER)))
def test_an_answer_in_pieces_is_not_typed(cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with asked() as (_, app, terminal):
        os.write(terminal, f"a{ANSWER[:cut]}".encode())
        typed = keys(app)
        os.write(terminal, f"{ANSWER[cut:]}b".encode())
        assert typed + keys(app) == "ab"
        os.write(terminal, b"\x1b[A")
        assert keys(app) == "\x1b[A"
        assert "48;5;254" in ansi.paint("x", "message")


def test_the_next_reader_gets_the_keys_and_not_the_answer() -> None:
    with asked() as (query, app, terminal):
        os.write(terminal, f"a{ANSWER}b".encode())
        query.wait()
        assert "".join(press.data for press in get_typeahead(app.input)) == "ab"
        os.write(terminal, b"c")
        query.wait()
        assert keys(app) == "c"


@pytest.mark.parametrize(
    ("report", "is_light"),
    [
        *(("rgb:ffff/ffff/ffff", True), ("rgb:ff/ff/e0", True), ("rgb:fdf6/e3e3/d5d5", True)),
        *(("rgb:0/0/0", False), ("rgba:1e1e/1e1e/2e2e/ffff", False), ("rgb:0000/2b2b/3636", False)),
    ],
)
def test_a_background_is_light_or_dark(
    report: str, is_light: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    theme.use_background(report)
    assert ("48;5;254" in ansi.paint("x", "message")) is is_light
    theme.use_background("nonsense")
    assert ("48;5;254" in ansi.paint("x", "message")) is is_light
    ansi.use_colours({})


# The editor: whatever it is set to and does, the input line is kept


def test_text_is_edited_even_if_it_is_not_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", "sed -i s/a/b/")
    assert edit("a\udcff", 2) == "b?"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("vi 'x", r"\$VISUAL is not a command: \"vi 'x\""),
        ("false", "exit code 1; nothing was changed"),
        ("rm -f", "No such file or directory; nothing was changed"),
    ],
)
def test_an_editor_that_fails_is_an_error(
    command: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VISUAL", command)
    with pytest.raises(AppError, match=message):
        edit("text", 2)


def test_a_folder_that_cannot_be_written_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VISUAL", "true")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(AppError, match="No such file or directory"):
        edit("text", 2)


def test_each_directory_has_a_history_that_only_its_owner_can_read() -> None:
    history, problem = project_history("/one")
    history.append_string("remember me")
    assert problem is None
    assert list(project_history("/one")[0].load_history_strings()) == ["remember me"]
    assert list(project_history("/two")[0].load_history_strings()) == []
    files = list((Path(os.environ["AMPLIFIER_HOME"]) / "history").iterdir())
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600, 0o600]
