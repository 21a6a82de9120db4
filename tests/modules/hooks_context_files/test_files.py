"""Which files are found, what they include, and what they cannot reach."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier_modules.hooks_context_files.hook import (
    ContextFilesConfig,
    Reader,
    nested_folders,
    project_folders,
)

SECRET = "PRIVATE-LINE-OF-A-USER"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    (folder / "packages" / "web").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


def read(folder: Path, root: Path | None = None, **config: object) -> tuple[str | None, list[str]]:
    settings = ContextFilesConfig.model_validate(config)
    reader = Reader(settings, settings.max_bytes)
    file = reader.folder(str(folder), str(root or folder), "project")
    return (None if file is None else file.text), reader.problems


def test_folders_lead_from_the_repository_to_the_working_directory(repository: Path) -> None:
    web = repository / "packages" / "web"
    expected = [str(repository), str(repository / "packages"), str(web)]
    assert project_folders(str(web)) == expected
    assert project_folders(str(repository)) == [str(repository)]


def test_without_a_repository_it_is_the_working_directory_alone(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert project_folders(str(tmp_path / "a" / "b")) == [str(tmp_path / "a" / "b")]


def test_the_home_folder_is_not_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".git").mkdir()
    (tmp_path / "work").mkdir()
    assert project_folders(str(tmp_path / "work")) == [str(tmp_path / "work")]
    assert project_folders(str(tmp_path)) == [str(tmp_path)]


@pytest.mark.skipif(os.name != "posix", reason="needs modes")
def test_where_everybody_may_write_nothing_is_taken_from(tmp_path: Path) -> None:
    (tmp_path / "all" / "mine").mkdir(parents=True)
    (tmp_path / "all" / ".git").mkdir()
    (tmp_path / "all").chmod(0o1777)
    assert project_folders(str(tmp_path / "all" / "mine")) == [str(tmp_path / "all" / "mine")]
    assert project_folders(str(tmp_path / "all")) == []


def test_nested_folders_are_inside_and_not_of_others(repository: Path) -> None:
    root = str(repository)
    assert nested_folders(root, f"{root}/packages/web/index.ts") == [
        f"{root}/packages",
        f"{root}/packages/web",
    ]
    assert nested_folders(root, f"{root}/index.ts") == []
    for path in ("node_modules/x/index.js", ".venv/x.py", "../elsewhere/x", "a/.git/x"):
        assert nested_folders(root, f"{root}/{path}") == []


def test_the_first_name_found_is_used(tmp_path: Path) -> None:
    (tmp_path / "CLAUDE.md").write_text("from claude")
    assert read(tmp_path)[0] == "from claude"
    (tmp_path / "AGENTS.md").write_text("from agents")
    assert read(tmp_path)[0] == "from agents"
    assert read(tmp_path, files=["CLAUDE.md"])[0] == "from claude"
    (tmp_path / "AGENTS.md").write_text(" \n")
    assert read(tmp_path)[0] == "from claude"


def test_includes_stand_in_place_and_start_from_their_file(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "AGENTS.md").write_text("before\n  @docs/style.md\nafter")
    (tmp_path / "docs" / "style.md").write_text("style\n@more.txt\n")
    (tmp_path / "docs" / "more.txt").write_text("more\r\nlines\n")
    assert read(tmp_path) == ("before\nstyle\nmore\nlines\nafter", [])


def test_text_that_is_not_an_include_is_unchanged(tmp_path: Path) -> None:
    lines = [
        "```",
        "@code.md",
        "```",
        "see @inline.md",
        "@types/node",
        "@.env",
        "~~~~",
        "```",
        "@fenced.md",
        "~~~~",
    ]
    for name in ("code.md", "inline.md", "fenced.md", ".env"):
        (tmp_path / name).write_text(SECRET)
    (tmp_path / "AGENTS.md").write_text("\n".join([*lines, "@@escaped.md"]))
    assert read(tmp_path) == ("\n".join([*lines, "@escaped.md"]), [])


def test_circles_end_and_each_file_is_given_once(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("a\n@b.md\n@b.md")
    (tmp_path / "b.md").write_text("b\n@AGENTS.md\n@./b.md")
    assert read(tmp_path) == ("a\nb\n@AGENTS.md\n@./b.md\n@b.md", [])


def test_depth_has_a_limit(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("0\n@1.md")
    for number in range(1, 9):
        (tmp_path / f"{number}.md").write_text(f"{number}\n@{number + 1}.md")
    text, problems = read(tmp_path, max_depth=3)
    assert text == "0\n1\n2\n3\n@4.md"
    assert [problem.partition(": ")[2] for problem in problems] == [
        "includes are nested more than 3 deep"
    ]
    assert read(tmp_path, max_depth=0)[0] == "0\n@1.md"


def test_a_missing_include_is_reported_and_stays_a_line(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("a\n@gone.md")
    text, problems = read(tmp_path)
    assert text == "a\n@gone.md"
    assert problems == [f"cannot read {tmp_path}/gone.md: No such file or directory"]


@pytest.mark.skipif(os.name != "posix", reason="needs links and pipes")
def test_nothing_outside_is_reached(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    for folder in (outside, root, tmp_path / "root-twin"):
        folder.mkdir()
        (folder / "secret.md").write_text(SECRET if folder != root else "inside")
    (root / "link.md").symlink_to(outside / "secret.md")
    (root / "linked").symlink_to(outside)
    (root / "up.md").symlink_to("../outside/secret.md")
    (root / "proc.md").symlink_to("/proc/self/environ")
    (root / "loop.md").symlink_to("loop.md")
    os.mkfifo(root / "pipe.md")
    (root / "folder.md").mkdir()
    targets = [
        "../outside/secret.md",
        f"{outside}/secret.md",
        "link.md",
        "linked/secret.md",
        "up.md",
        "proc.md",
        "loop.md",
        "pipe.md",
        "folder.md",
        "../root-twin/secret.md",
        "linked/../../outside/secret.md",
        "~/secret.md",
    ]
    (root / "AGENTS.md").write_text("\n".join(f"@{target}" for target in targets))
    before = os.listdir("/dev/fd")
    text, problems = read(root)
    assert os.listdir("/dev/fd") == before
    assert f"cannot read {root}/pipe.md: it is not a regular file" in problems
    assert text == "\n".join(f"@{target}" for target in targets)
    assert len(problems) == len(targets)


@pytest.mark.skipif(os.name != "posix", reason="needs links")
def test_the_file_itself_may_not_be_a_link_out(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret.md").write_text(SECRET)
    (root / "AGENTS.md").symlink_to("../secret.md")
    (root / "CLAUDE.md").write_text("inside")
    text, problems = read(root)
    assert text == "inside"
    assert problems == [f"{root}/AGENTS.md leads out of its folder; skipping it"]


@pytest.mark.skipif(os.name != "posix", reason="needs links")
def test_links_inside_are_followed_and_count_as_their_file(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("text\n@b.md")
    (tmp_path / "docs" / "b.md").write_text("next to it")
    (tmp_path / "AGENTS.md").symlink_to("docs/a.md")
    assert read(tmp_path) == ("text\nnext to it", [])


def test_size_has_a_limit_over_all_files(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("x" * 1000 + "\n@more.md\n@none.md")
    (tmp_path / "more.md").write_text("é" * 40_000)
    (tmp_path / "none.md").write_text("no room")
    text, problems = read(tmp_path, max_bytes=3000)
    assert text is not None
    assert len(text) < 3100
    assert "[cut here; the file has 80000 bytes, read it for the rest]" in text
    assert text.endswith("@none.md")
    assert len(problems) == 2


def test_any_bytes_become_text(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_bytes(b"\xef\xbb\xbfstart " + bytes(range(256)))
    text, _ = read(tmp_path)
    assert text is not None
    assert text.startswith("start ")
    text.encode()


LINES = [
    "text",
    "@a.md",
    "@b.md",
    "  @sub/c.md",
    "@@a.md",
    "@../a.md",
    "@gone.md",
    "```",
    "~~~",
    "\0é",
]


@given(st.lists(st.lists(st.sampled_from(LINES), max_size=6), min_size=4, max_size=4))
def test_whatever_includes_whatever_there_is_an_end(contents: list[list[str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sub").mkdir()
        for name, lines in zip(("AGENTS.md", "a.md", "b.md", "sub/c.md"), contents, strict=True):
            Path(folder, name).write_text("\n".join(lines))
        text, _ = read(Path(folder))
    whole = "\n".join("\n".join(lines) for lines in contents)
    # Nothing is given twice, and nothing that was not there.
    assert len(text or "") <= len(whole)
    assert set((text or "").split("\n")) <= {*whole.split("\n"), "@a.md", ""}
