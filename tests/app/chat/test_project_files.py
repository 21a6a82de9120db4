"""Files in prompts: which are offered, which are added, and which are refused."""

import subprocess
from pathlib import Path

import pytest

from amplifier_app.chat.project_files import (
    MAX_BYTES,
    Included,
    PromptFiles,
    matching,
    project_files,
    to_mention,
    with_files,
)
from amplifier_app.runtime.observers.observer import Renderer
from amplifier_support.files import open_inside


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "src/parse.py").write_text("".join(f"line {n}\n" for n in range(1, 51)))
    (folder / "notes.md").write_text("notes\n")
    (folder / ".env").write_text("KEY=1\n")
    (folder / "build.log").write_text("x\n")
    (folder / "image.png").write_bytes(b"\x89PNG\0\xff")
    (folder / "large.txt").write_text("x" * (MAX_BYTES + 1))
    (tmp_path / "outside.txt").write_text("secret\n")
    (folder / "link.txt").symlink_to(tmp_path / "outside.txt")
    return folder


def test_ignored_files_and_secrets_are_not_offered_and_git_runs_no_program(project: Path) -> None:
    subprocess.run(["git", "init", "-q", project], check=True)
    (project / ".gitignore").write_text("*.log\n")
    marker = project.parent / "ran"
    monitor = project / "monitor"
    monitor.write_text(f"#!/bin/sh\ntouch {marker}\n")
    monitor.chmod(0o755)
    subprocess.run(["git", "-C", project, "config", "core.fsmonitor", monitor], check=True)
    found = project_files(str(project))
    assert {"src/parse.py", "notes.md", ".gitignore"} <= set(found)
    assert not {".env", "build.log"} & set(found)
    assert not marker.exists()


def test_without_git_folders_are_walked(project: Path) -> None:
    found = project_files(str(project))
    assert {"src/parse.py", "build.log"} <= set(found)
    assert ".env" not in found


def test_the_best_match_comes_first() -> None:
    names = ["src/parse.py", "tests/test_parse.py", "docs/paper.md", "src/app.py"]
    assert matching(names, "par")[0] == "src/parse.py"
    assert matching(names, "srcapp") == ["src/app.py"]
    assert matching(names, "zzz") == []


def test_files_and_ranges_are_added_after_the_prompt(project: Path) -> None:
    text = "Compare @src/parse.py:10-12 with @notes.md, and ask @someone about @src/parse.py:50."
    included = with_files(text, str(project))
    assert included.text == (
        f"{text}\n\n"
        '<file path="src/parse.py" lines="10-12">\nline 10\nline 11\nline 12\n</file>\n\n'
        '<file path="notes.md">\nnotes\n</file>\n\n'
        '<file path="src/parse.py" lines="50-50">\nline 50\n</file>'
    )
    assert included.notes == [
        "added src/parse.py: 3 lines, about 6 tokens",
        "added notes.md: 1 line, about 2 tokens",
        "added src/parse.py: 1 line, about 2 tokens",
    ]
    assert included.problems == []


@pytest.mark.parametrize("name", ["a b.txt", "c:d.txt", "@scope/x.ts", "日本 語.txt", "plain.txt"])
def test_every_name_that_is_offered_can_be_mentioned(project: Path, name: str) -> None:
    (project / name).parent.mkdir(exist_ok=True)
    (project / name).write_text("one\ntwo\n")
    mention = to_mention(name)
    assert mention in (name, f'"{name}"')
    for text, lines in ((f"See @{mention}, please.", ""), (f"@{mention}:2", ' lines="2-2"')):
        included = with_files(text, str(project))
        assert f'<file path="{name}"{lines}>' in included.text
    assert to_mention('a "quote"') is None
    assert to_mention("two\nlines") is None


def test_missing_files_are_reported_and_other_words_stay_text(project: Path) -> None:
    meant = {
        "@src/parze.py": "src/parze.py was not added: it does not exist; did you mean 'src/parse.py'?",
        '@"my notes"': "my notes was not added: it does not exist",
        "(see) @note.md.": "note.md was not added: it does not exist; did you mean 'notes.md'?",
        "@./x": "./x was not added: it does not exist",
        "@/no/such": "/no/such was not added: it does not exist",
        "@other/x.y:3": "other/x.y was not added: it does not exist",
        "@src/new": "src/new was not added: it does not exist",
    }
    for text, problem in meant.items():
        assert with_files(text, str(project)) == Included(text, [], [problem])
    other = """Write to me@example.com and @alice, @org/team, and install @types/node or @vue/core@3.
        @pytest.fixture @app.route("/x") @property @functools.cache @media @Component({}) @@ -1,2 +1 @@
        image@sha256:12 a@b.py @example.com @NAME:path @ @: @1.2.3 git@github.com:x/y.py @recipes:a/b.md"""
    assert with_files(other, str(project)) == Included(other, [], [])


def test_of_a_folder_the_names_are_added(project: Path) -> None:
    (project / "src/inner").mkdir()
    (project / "src/.env").write_text("KEY=1\n")
    for text in ("See @src.", "See @src/"):
        included = with_files(text, str(project))
        folder = text.removeprefix("See @").rstrip(".")
        listing = f'<folder path="{folder}">\ninner/\nparse.py\n</folder>'
        assert included == Included(f"{text}\n\n{listing}", [f"added {folder}: 2 names"], [])
    (project / "up").symlink_to(project.parent)
    problems = with_files("@.. and @up", str(project)).problems
    assert problems == [
        f"{name} was not added: it is outside the working directory" for name in ("..", "up")
    ]


def test_what_cannot_be_added_is_reported_and_the_prompt_is_kept(project: Path) -> None:
    text = "See @../outside.txt @link.txt @image.png @large.txt @src/parse.py:60"
    included = with_files(text, str(project))
    assert included.text == text
    assert included.problems == [
        "../outside.txt was not added: it is outside the working directory",
        "link.txt was not added: it is outside the working directory",
        "image.png was not added: it is not an image that models take: it is not an image",
        "large.txt was not added: it is larger than 200 kB; add some of its lines with "
        "@large.txt:1-500",
        "src/parse.py was not added: it has 50 lines, not 60-60",
    ]


def test_the_files_of_a_message_are_read_once(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    opened: list[str] = []

    def open_counted(folder: str, path: str) -> int:
        opened.append(path)
        return open_inside(folder, path)

    monkeypatch.setattr("amplifier_app.chat.project_files.open_inside", open_counted)
    files = PromptFiles(Renderer())
    text = "see @notes.md"
    for content in ("notes", "changed"):
        (project / "notes.md").write_text(f"{content}\n")
        opened.clear()
        assert not files.is_refused(text)
        assert not files.has_images(text)
        assert content in files.add_to(text)
        assert opened == ["notes.md"]
