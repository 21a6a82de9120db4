"""`/init`, `/memory`, `/review`, and commands in Markdown files of one's own, in a chat."""

import os
import sys
from pathlib import Path

import pytest

from amplifier_app.chat.slash.contributed import CommandFile
from tests.support.cli import run_amplifier
from tests.support.terminal import Chat

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    (folder / "sub").mkdir()
    return folder


def chat(project: Path, *lines: tuple[str, str], editor: str = "false", sub: str = "") -> str:
    env = {"VISUAL": editor}
    with Chat("-P", "mock", cwd=project / sub, size=(120, 40), env=env) as terminal:
        for line, shown in lines:
            terminal.ask(line, shown)
        terminal.quit()
    return terminal.shown


def test_the_model_gets_prompts_to_write_instructions_and_to_review(project: Path) -> None:
    shown = chat(
        project,
        ("/init", "You said: Write the file AGENTS.md"),
        ("/review", "You said: Review the uncommitted changes"),
        ("/review main..HEAD", "You said: Review main..HEAD"),
    )
    assert "compare each statement" not in shown
    (project / "AGENTS.md").write_text("old\n")
    chat(project, ("/init", "You said: The repository has an AGENTS.md"))


def test_memory_lists_what_is_in_force_and_edits_it(project: Path) -> None:
    (project / "AGENTS.md").write_text("Use tabs.\n")
    (project / "sub" / "CLAUDE.md").write_text("Use spaces here.\n")
    untrusted = "not read: see 'amplifier trust'"
    chat(project, ("/memory", rf"1 .*AGENTS.md +user: not there yet.*project: {untrusted}"))
    run_amplifier("trust", "--yes", cwd=project)
    editor = "sed -i 1s/^/Always.\\ /"
    chat(
        project,
        ("/memory", r"2 \S*project/AGENTS.md +project: in force, 10 B"),
        ("/memory 4", "expects a number from 1 to 3"),
        ("/memory 3", r"sub/CLAUDE.md is saved; it counts from the next prompt"),
        editor=editor,
        sub="sub",
    )
    assert (project / "sub" / "CLAUDE.md").read_text() == "Always. Use spaces here.\n"
    chat(project, ("/memory 2", "the editor ended with exit code 1; nothing was changed"))
    home = Path(os.environ["AMPLIFIER_HOME"])
    chat(project, ("/memory 1", r"AGENTS.md is saved"), editor="sh -c 'echo Mine. > $0'")
    assert (home / "AGENTS.md").read_text() == "Mine.\n"


def test_commands_come_from_the_user_and_from_a_trusted_project(project: Path) -> None:
    own = Path(os.environ["AMPLIFIER_HOME"]) / "commands"
    theirs = project / ".amplifier" / "commands"
    for folder in (own, theirs):
        folder.mkdir(parents=True)
    changes = "---\ndescription: Explain changes\nargument-hint: SINCE\n---\nExplain since $1.\n"
    (own / "changes.md").write_text(changes)
    (own / "both.md").write_text("From the user\n")
    (theirs / "both.md").write_text("From the project\n")
    (theirs / "evil.md").write_text("From the project\n")
    (own / "help.md").write_text("x")
    (own / "empty.md").write_text("---\na: b\n---\n")
    (own / "broken.md").write_text("---\n{\n---\nx")
    (own / "Upper.md").write_text("x")
    (own / "binary.md").write_bytes(b"\xff")
    os.mkfifo(own / "notes.txt")
    os.mkfifo(own / "pipe.md")
    (project / "linked.md").write_text("From a link\n")
    (own / "linked.md").symlink_to(project / "linked.md")
    run_amplifier("trust", "--yes", cwd=project)
    shown = chat(
        project,
        ("/changes 'v 1' x", r"You said: Explain since v 1\."),
        ("/both now", "You said: From the project"),
        ("/linked", "You said: From a link"),
        ("/help", r"/changes SINCE +Explain changes \(user\)"),
    )
    assert "From the project\n\nnow" in shown.replace("\r", "")
    for file, why in (
        *(
            ("help", "/help already exists"),
            ("empty", "no prompt"),
            ("Upper", "lower-case letters"),
            ("pipe", "cannot read it: it is not a regular file"),
        ),
        *(("binary", "it is not UTF-8 text"), ("broken", "is not a command")),
    ):
        assert f"{file}.md is not a command" in " ".join(shown.split()), file
        assert why in " ".join(shown.split())
    (theirs / "evil.md").write_text("Changed\n")
    with Chat("-P", "mock", "--no-project", cwd=project) as terminal:
        terminal.enter("/evil", "unknown command: /evil")
        terminal.enter("/both", "You said: From the user")


@pytest.mark.parametrize(
    ("prompt", "argument", "sent"),
    [
        ("Do it.", "", "Do it."),
        ("Do it.", "now then", "Do it.\n\nnow then"),
        ("Do $ARGUMENTS.", "a 'b c'", "Do a 'b c'."),
        ("$2 and $1, $3", "a 'b c'", "b c and a, "),
        ("$1", "don't", "don't"),
        ("costs $10 $x $ARGUMENTSX", "", "costs 0 $x X"),
        ("$ARGUMENTS", "$1 $ARGUMENTS", "$1 $ARGUMENTS"),
    ],
)
def test_arguments_go_to_their_places_once(prompt: str, argument: str, sent: str) -> None:
    assert CommandFile("", "", prompt).fill(argument) == sent
