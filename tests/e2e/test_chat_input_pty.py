"""Files, shell commands, the editor and vi keys in the chat's input line, on a real terminal."""

from pathlib import Path

import pytest

from amplifier_app.sessions.store import SessionStore
from tests.e2e.test_chat_keys_pty import ESC, line_is, shows
from tests.e2e.test_chat_pty import leave, prompts
from tests.support.plans import held_plan, mock_plan
from tests.support.terminal import (
    CTRL_C,
    CTRL_D,
    ENTER,
    OUTPUT_MARK,
    PASTE,
    TAB,
    UP,
    Chat,
    Terminal,
)

CTRL_X_CTRL_E = "\x18\x05"
DOWN = "\x1b[B"

plain = pytest.mark.parametrize("plain", [False, True], ids=["drawn", "plain"])


def chat_arguments(folder: Path, is_plain: bool) -> list[str]:
    plan = mock_plan(folder, ["ok"], mock={"on_end": "repeat"})
    return ["run", "-f", str(plan), *(["--plain"] if is_plain else [])]


@plain
def test_shell_output_is_kept_for_the_prompt_and_adds_no_files(tmp_path: Path, plain: bool) -> None:
    (tmp_path / "key.txt").write_text("hidden\n")
    (tmp_path / "log").write_text("fixed by @key.txt\n")
    with Terminal(*chat_arguments(tmp_path, plain), cwd=tmp_path) as terminal:
        terminal.prompt()
        for command, output in (
            ("!echo one", "one"),
            ("!cat log", "fixed by @key.txt"),
            ("/modules", "provider-mock"),
        ):
            terminal.ask(command, output)
        terminal.ask("explain @log", "added log: 1 line", "ok")
        (sent,) = prompts(leave(terminal))
    outputs = {"echo one": "one", "cat log": "fixed by @key.txt"}
    expected = "".join(f"$ {line}\n{out}\n[exit code 0]\n" for line, out in outputs.items())
    assert sent.startswith(f'{expected}explain @log\n\n<file path="log">')
    assert "hidden" not in sent


def test_edited_shell_output_adds_no_files(tmp_path: Path) -> None:
    (tmp_path / "key.txt").write_text("hidden\n")
    (tmp_path / "log").write_text("fixed by @key.txt\nother line\n")
    env = {"VISUAL": "sed -i -e /other/d -e '$a explain @log'"}
    with Terminal(*chat_arguments(tmp_path, False), cwd=tmp_path, env=env) as terminal:
        terminal.prompt()
        terminal.type("!cat log" + ENTER)
        terminal.until_lines(line_is("[output of `cat log`, 2 lines]"))
        terminal.type(CTRL_X_CTRL_E)
        terminal.until_lines(shows("explain @log"))
        terminal.type(ENTER)
        terminal.until("added log: 2 lines")
        terminal.until("ok")
        terminal.prompt()
        (sent,) = prompts(leave(terminal))
    assert sent.startswith("$ cat log\nfixed by @key.txt\n[exit code 0]\nexplain @log\n")
    assert "hidden" not in sent


def test_shell_output_after_a_folded_paste_begins_on_a_line_of_its_own(tmp_path: Path) -> None:
    pasted = "\n".join(map(str, range(12)))
    with Terminal(*chat_arguments(tmp_path, False), cwd=tmp_path) as terminal:
        terminal.prompt()
        terminal.type(PASTE.format(pasted))
        terminal.until("pasted 12 lines")
        terminal.enter("!echo out", "output of `echo out`")
        terminal.ask("why?", "ok")
        assert prompts(leave(terminal)) == [f"{pasted}\n$ echo out\nout\n[exit code 0]\nwhy?"]


def test_a_folded_text_comes_back_folded_and_is_sent_whole(tmp_path: Path) -> None:
    rows = "\n".join(f"row {number}" for number in range(200))
    text, shown = f"see {rows} please", "see [pasted 200 lines] please"
    plan = held_plan(tmp_path, ["never", "ok", "ok"], (0,))
    with Chat("-f", plan, cwd=tmp_path) as terminal:
        terminal.enter("go", OUTPUT_MARK)
        terminal.type(f"see {PASTE.format(rows)} please" + ENTER)
        terminal.until_lines(shows("queued for the next step: see"))
        terminal.type(CTRL_C)
        terminal.prompt()
        terminal.until_lines(line_is(shown))
        terminal.type(ENTER)
        terminal.until("ok")
        terminal.prompt()
        # Up, twice with an edit and its end.
        terminal.type(UP)
        terminal.until_lines(line_is(shown))
        terminal.type("!" + UP + DOWN + DOWN)
        terminal.until_lines(line_is(""))
        terminal.type(UP)
        terminal.until_lines(line_is(f"{shown}!"))
        terminal.type(ENTER)
        terminal.until("ok")
        terminal.prompt()
        assert prompts(leave(terminal)) == ["go", text, f"{text}!"]
    # What was pasted in an earlier chat is not known.
    with Terminal(*chat_arguments(tmp_path, False), cwd=tmp_path) as terminal:
        terminal.prompt()
        terminal.type(UP)
        terminal.until_lines(shows(r"› see row 0\n +\[199 more lines\]$"))
        terminal.ask("!", "ok")
        assert prompts(leave(terminal)) == [f"{text}!!"]


def test_files_shell_output_and_the_editor_become_part_of_a_prompt(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (project / "src/parse.py").write_text("one\ntwo\nthree\n")
    (project / "editor").write_text("#!/bin/sh\ntouch ../ran\n")
    (project / "editor").chmod(0o755)
    editor = tmp_path / "bin/edit"
    editor.parent.mkdir()
    editor.write_text('#!/bin/sh\nprintf "%s, edited" "$(cat "$2")" > "$2"\n')
    editor.chmod(0o755)
    plan = mock_plan(tmp_path, [{"text": "ok", "delay": 2}, "ok", "ok"])
    env = {"EDITOR": f"{editor} --wait"}
    with Chat("-f", plan, cwd=project, env=env) as terminal:
        terminal.type("what is @prs")
        terminal.until_lines(shows(r"src/parse\.py +14 B"))
        terminal.enter(TAB + ":2-3 ?", r"added src/parse\.py: 2 lines, about \d+ tokens")
        # The same works for a message to the running turn.
        terminal.type("and @src/par")
        terminal.until_lines(shows(r"src/parse\.py +14 B"))
        terminal.enter(TAB, r"added src/parse\.py: 3 lines")
        terminal.type("!echo meanwhile" + ENTER)
        terminal.until_lines(line_is("[output of `echo meanwhile`, 1 line]"))
        terminal.type("\x7f")
        terminal.prompt()
        terminal.ask("!echo out; exit 3", "out", "exit code 3")
        terminal.until_lines(line_is("[output of `echo out; exit 3`, 1 line]"))
        terminal.type("why?" + CTRL_X_CTRL_E)
        terminal.until_lines(shows("why\\?, edited"))
        terminal.type(ENTER)
        terminal.prompt()
        session_id = leave(terminal)
    first, steered, shell = prompts(session_id)
    assert first == (
        'what is @src/parse.py:2-3 ?\n\n<file path="src/parse.py" lines="2-3">\ntwo\nthree\n</file>'
    )
    assert steered.endswith("one\ntwo\nthree\n</file>")
    assert shell == "$ echo out; exit 3\nout\n[exit code 3]\nwhy?, edited"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("plain", [False, True])
def test_a_prompt_with_a_missing_file_comes_back_to_the_input_line(
    tmp_path: Path, plain: bool
) -> None:
    (tmp_path / "notes.md").write_text("the notes\n")
    plan = mock_plan(tmp_path, ["ok"], mock={"on_end": "repeat"})
    with Chat(*(["--plain"] if plain else []), "-f", plan, cwd=tmp_path) as terminal:
        terminal.type("sum up @note.md" + ENTER)
        terminal.until(r"note\.md was not added: it does not exist")
        terminal.until(r"not sent.*sum up @note\.md")
        if plain:
            terminal.type(CTRL_C)
            terminal.prompt()
            terminal.type("sum up @notes.md" + ENTER)
        else:
            terminal.type("\x7f" * 3 + "s.md" + ENTER)
        terminal.until("added notes.md: 1 line")
        terminal.until("ok")
        terminal.prompt()
        terminal.enter("what is @other.md?", r"not sent.*what is @other\.md\?")
        terminal.type(ENTER)
        terminal.until("ok")
        terminal.prompt()
        session_id = leave(terminal)
    corrected = 'sum up @notes.md\n\n<file path="notes.md">\nthe notes\n</file>'
    assert prompts(session_id) == [corrected, "what is @other.md?"]
    with Terminal("run", "-f", plan, "sum up @notes.md", cwd=tmp_path) as terminal:
        terminal.until("the prompt is sent as it is: only the chat adds files")
        terminal.until("ok")
        assert terminal.finish() == 0


def test_the_editor_of_the_project_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "its-editor").write_text("#!/bin/sh\ntouch ran\n")
    (tmp_path / "its-editor").chmod(0o755)
    plan = mock_plan(tmp_path, ["ok"])
    with Chat("-f", plan, cwd=tmp_path, env={"EDITOR": "its-editor", "VISUAL": None}) as term:
        term.type("text" + CTRL_X_CTRL_E)
        term.until_lines(shows(r"\$EDITOR is set to 'its-editor', which is not on PATH"))
        term.type(CTRL_C + CTRL_D)
        assert term.finish() == 0
    assert not (tmp_path / "ran").exists()


def test_vi_keys_are_a_setting(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["ok"])
    home = tmp_path / "home"
    home.mkdir()
    (home / "settings.yaml").write_text("display:\n  keys: vi\n")
    with Chat("-f", plan, cwd=tmp_path, home=home) as terminal:
        terminal.type("one two three")
        terminal.until_lines(line_is("one two three"))
        terminal.type(ESC)
        terminal.type("bdwbcw2")
        terminal.until_lines(line_is("one 2"))
        terminal.type(ENTER)
        terminal.until("ok")
        terminal.prompt()
        session_id = leave(terminal)
    (message, *_) = SessionStore(home / "sessions").read(session_id)[1]
    assert message["content"].split() == ["one", "2"]
