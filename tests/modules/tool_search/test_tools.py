"""Both engines on real files: what they find and skip, and how a search ends."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from amplifier_core.models import ToolResult
from amplifier_core.testing import MockCoordinator
from amplifier_modules.tool_search import mount
from amplifier_modules.tool_search.tools import BadGlob, alternatives


@pytest.fixture(autouse=True)
def _ripgrep(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """The ripgrep of the development tools, if the machine has no other."""
    monkeypatch.setenv(
        "PATH", os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)])
    )


class Search:
    """The mounted tools, working in a folder."""

    def __init__(self, coordinator: MockCoordinator, folder: Path) -> None:
        self.coordinator = coordinator
        self.folder = folder

    def put(self, path: str, content: str | bytes) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)

    def make_repository(self) -> None:
        subprocess.run(["git", "init", "-q", self.folder], check=True)

    async def call(self, name: str, **values: Any) -> ToolResult:
        return await self.coordinator.get("tools", name).execute(values)

    async def grep(self, pattern: str, **values: Any) -> list[str]:
        return await self._lines("grep", pattern=pattern, **values)

    async def glob(self, pattern: str, **values: Any) -> list[str]:
        return await self._lines("glob", pattern=pattern, **values)

    async def _lines(self, name: str, **values: Any) -> list[str]:
        result = await self.call(name, **values)
        assert result.success, result.error
        return str(result.output).split("\n")

    async def error(self, name: str, **values: Any) -> str:
        result = await self.call(name, **values)
        assert not result.success
        assert result.error is not None
        return str(result.error["message"])


@pytest.fixture(params=["ripgrep", "python"])
async def search(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    closing: list[Any] = []

    async def start(**config: Any) -> Search:
        folder = tmp_path / "ws"
        folder.mkdir(exist_ok=True)
        coordinator = MockCoordinator()
        coordinator.register_capability("session.working_dir", str(folder))
        closing.append(await mount(coordinator, {"engine": request.param, **config}))
        return Search(coordinator, folder)

    yield start
    for close in closing:
        await close()


async def test_matches_are_shown_by_path_and_line(search: Any) -> None:
    ws = await search()
    ws.put("b.txt", "one\ntwo apples\n")
    ws.put("a/z.txt", "apples\r\nnone\r\nApples and apples\r\n")
    ws.put("a-b.txt", "apples")
    assert await ws.grep("apples") == [
        "a/z.txt:1:apples",
        "a/z.txt:3:Apples and apples",
        "a-b.txt:1:apples",
        "b.txt:2:two apples",
    ]
    assert await ws.grep("^APPLES", ignore_case=True, path="a") == [
        "z.txt:1:apples",
        "z.txt:3:Apples and apples",
    ]
    assert await ws.grep("apples", path="b.txt") == ["b.txt:2:two apples"]
    assert await ws.grep("pears") == ["[no matches]"]


async def test_gaps_in_context_are_marked(search: Any) -> None:
    ws = await search()
    ws.put("n.txt", "".join(f"line {n}\n" for n in range(1, 21)))
    assert await ws.grep(r"line (5|6|12)$", context=1) == [
        "n.txt-4-line 4",
        "n.txt:5:line 5",
        "n.txt:6:line 6",
        "n.txt-7-line 7",
        "--",
        "n.txt-11-line 11",
        "n.txt:12:line 12",
        "n.txt-13-line 13",
    ]


async def test_output_modes_give_files_and_counts(search: Any) -> None:
    ws = await search()
    ws.put("a.py", "x\nx\ny\n")
    ws.put("b.py", "x\n")
    ws.put("c.py", "y\n")
    assert await ws.grep("x", output_mode="files") == ["a.py", "b.py"]
    assert await ws.grep("x", output_mode="count") == ["a.py:2", "b.py:1"]


async def test_results_are_capped_and_can_be_paged(search: Any) -> None:
    ws = await search(max_results=4)
    for name in "abcdefghij":
        ws.put(f"{name}.txt", "x\n")
    for mode, end in (("content", ":1:x"), ("files", "")):
        seen: list[str] = []
        for offset in (0, 4, 8):
            lines = await ws.grep("x", output_mode=mode, offset=offset, limit=100)
            if offset < 8:
                note = f"[more results: narrow the search, or continue with offset {offset + 4}]"
                assert lines[-2:] == ["", note]
                del lines[-2:]
            seen += lines
        assert seen == [f"{name}.txt{end}" for name in "abcdefghij"]


async def test_gitignore_is_honoured_at_every_level(search: Any) -> None:
    ws = await search()
    ws.make_repository()
    ws.put(".gitignore", "*.log\n/build/\n!keep.log\n")
    ws.put("src/.gitignore", "gen_*\n!gen_kept.py\n")
    ws.put("src/deep/.gitignore", "# nothing\n")
    seen = ["keep.log", "src/a.py", "src/build/b.py", "src/deep/c.py", "src/gen_kept.py"]
    hidden = ["x.log", "build/o.py", "src/gen_a.py", "src/deep/gen_b.py", "src/deep/x.log"]
    for path in (*seen, *hidden):
        ws.put(path, "needle\n")
    assert await ws.grep("needle", output_mode="files") == sorted(seen)
    assert await ws.glob("**/*.{py,log}") == sorted(seen)
    # Rules above the searched folder still count inside a repository.
    assert await ws.glob("*", path="src/deep") == [".gitignore", "c.py"]
    assert "src/gen_a.py" in await (await search(gitignore=False)).glob("*.py")


async def test_rules_above_count_only_inside_a_repository(search: Any) -> None:
    ws = await search()
    ws.folder.with_name(".gitignore").write_text("*\n")
    ws.put("a.txt", "needle\n")
    assert await ws.grep("needle") == ["a.txt:1:needle"]


async def test_hidden_files_are_searched_but_not_git_itself(search: Any) -> None:
    ws = await search()
    ws.put(".github/ci.yml", "needle\n")
    ws.put(".git/config", "needle\n")
    ws.put("sub/.git", "gitdir: needle\n")
    assert await ws.grep("needle") == [".github/ci.yml:1:needle"]
    assert await ws.glob("*") == [".github/ci.yml"]


async def test_glob_does_not_include_ignored_files(search: Any) -> None:
    ws = await search()
    ws.put(".gitignore", "*.min.js\n")
    for path in ("a.js", "a.min.js", "src/b.ts", "src/x/c.js", "d.py"):
        ws.put(path, "needle\n")
    assert await ws.grep("needle", glob="*.{js,ts}", output_mode="files") == [
        "a.js",
        "src/b.ts",
        "src/x/c.js",
    ]
    assert await ws.grep("needle", glob="src/*", output_mode="files") == ["src/b.ts", "src/x/c.js"]


async def test_names_are_found_by_pattern(search: Any) -> None:
    ws = await search()
    for path in ("a.py", "src/b.py", "src/x/c.py", "src/x/!odd.txt"):
        ws.put(path, "")
    for pattern, found in (
        ("*.py", ["a.py", "src/b.py", "src/x/c.py"]),
        ("src/*.py", ["src/b.py"]),
        ("src/**/*.py", ["src/b.py", "src/x/c.py"]),
        ("./src/x/", ["src/x/!odd.txt", "src/x/c.py"]),
        ("!odd.txt", ["src/x/!odd.txt"]),
        ("nothing", ["[no matching files]"]),
    ):
        assert await ws.glob(pattern) == found, pattern


async def test_glob_is_capped_and_can_be_paged(search: Any) -> None:
    ws = await search()
    for name in "abc":
        ws.put(f"{name}.txt", "")
    note = "[more files: continue with offset 2]"
    assert await ws.glob("*", limit=2) == ["a.txt", "b.txt", "", note]
    assert await ws.glob("*", limit=2, offset=2) == ["c.txt"]


async def test_binary_and_huge_files_are_skipped(search: Any) -> None:
    ws = await search(max_file_size=10_000)
    ws.put("binary", b"\0needle\n")
    ws.put("huge.txt", "needle\n" * 2000)
    ws.put("utf16.txt", "needle\n".encode("utf-16"))
    ws.put("latin.txt", "n\xe9edle needle\n".encode("latin-1"))
    assert await ws.grep("needle") == ["latin.txt:1:n\ufffdedle needle", "utf16.txt:1:needle"]


async def test_long_lines_are_cut_around_the_match(search: Any) -> None:
    ws = await search(max_line=40)
    ws.put("min.js", "ä" * 1000 + "needle" + "b" * 1000)
    [line] = await ws.grep("needle")
    assert line.startswith("min.js:1:…ä")
    assert "needle" in line
    assert line.endswith("b… [line of 2006 characters]")
    assert len(line) < 100


async def test_names_with_line_breaks_stay_on_one_line(search: Any) -> None:
    ws = await search()
    ws.put("a\nb.txt", "needle\x0bmore\u2028end\n")
    assert await ws.grep("needle") == [r"a\nb.txt:1:needle\x0bmore\u2028end"]
    assert await ws.glob("*") == [r"a\nb.txt"]


async def test_names_that_are_not_text_are_found(search: Any) -> None:
    ws = await search()
    file = os.fsencode(ws.folder) + b"/\xff.txt"
    try:
        Path(os.fsdecode(file)).write_text("needle\n")
    except OSError:
        pytest.skip("the file system takes only text as names")
    [line] = await ws.glob("*")
    assert line.endswith(".txt")
    [line] = await ws.grep("needle")
    assert line.endswith(".txt:1:needle")


async def test_links_are_not_followed(search: Any, tmp_path: Path) -> None:
    ws = await search()
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key.txt").write_text("needle\n")
    (ws.folder / "folder").symlink_to(tmp_path / "secret")
    (ws.folder / "file.txt").symlink_to(tmp_path / "secret/key.txt")
    assert await ws.grep("needle") == ["[no matches]"]
    assert await ws.glob("*.txt") == ["[no matching files]"]
    for path in ("folder", "file.txt", "../secret", str(tmp_path), "/etc"):
        assert "is outside the folders" in await ws.error("grep", pattern="x", path=path)


async def test_a_pattern_cannot_be_an_option(search: Any, tmp_path: Path) -> None:
    ws = await search()
    ws.put("a.txt", "--pre=touch\n-e x\n")
    ws.put("-rf", "--pre=touch\n")
    assert await ws.grep("--pre=touch") == ["-rf:1:--pre=touch", "a.txt:1:--pre=touch"]
    assert await ws.grep("touch", path="-rf") == ["-rf:1:--pre=touch"]
    assert await ws.glob("-rf") == ["-rf"]


INVALID: list[tuple[str, dict[str, Any], str]] = [
    ("grep", {"pattern": "(unclosed"}, "unclosed group|unterminated subpattern"),
    ("grep", {"pattern": ""}, "the pattern is empty"),
    ("grep", {"pattern": "a\0b"}, "the pattern is empty or contains a NUL"),
    ("grep", {}, "'pattern' is required"),
    ("grep", {"pattern": "x", "output_mode": "json"}, "must be content, files or count"),
    ("grep", {"pattern": "x", "glob": "../*"}, "not a pattern for paths"),
    ("grep", {"pattern": "x", "path": "gone"}, "'gone': no such file"),
    ("grep", {"pattern": "x", "context": -1}, "at least 0"),
    ("glob", {"pattern": " "}, "not a pattern for paths"),
    ("glob", {"pattern": "*", "path": "a.txt"}, "must be a folder"),
    ("glob", {"pattern": "{a,b}" * 9}, "more than 256 alternatives"),
]


async def test_invalid_requests_are_reported(search: Any) -> None:
    ws = await search()
    ws.put("a.txt", "x\n")
    for tool, values, message in INVALID:
        assert re.search(message, await ws.error(tool, **values)), message


async def test_a_search_that_is_cancelled_ends(search: Any) -> None:
    ws = await search()
    ws.put("a.txt", "x\n")
    task = asyncio.create_task(ws.call("grep", pattern="x"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await ws.grep("x") == ["a.txt:1:x"]


async def test_a_pattern_that_takes_forever_is_stopped(tmp_path: Path) -> None:
    coordinator = MockCoordinator()
    coordinator.register_capability("session.working_dir", str(tmp_path))
    close = await mount(coordinator, {"engine": "python", "timeout": 0.3})
    (tmp_path / "a.txt").write_text("a" * 64 + "!\n")
    ws = Search(coordinator, tmp_path)
    assert "time limit of 0.3 s reached" in await ws.error("grep", pattern=r"^(a+)+$")
    await close()


async def test_the_users_ripgrep_settings_are_ignored(
    search: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rc").write_text("--glob=!*.txt\n")
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", str(tmp_path / "rc"))
    ws = await search()
    ws.put(".ignore", "*.txt\n")
    ws.put(".rgignore", "*.txt\n")
    ws.put("a.txt", "needle\n")
    assert await ws.grep("needle") == ["a.txt:1:needle"]


async def test_without_ripgrep_python_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    coordinator = MockCoordinator()
    close = await mount(coordinator, {})
    assert "Python's syntax" in coordinator.get("tools", "grep").description
    await close()
    with pytest.raises(ValueError, match="no 'rg' is on PATH"):
        await mount(MockCoordinator(), {"engine": "ripgrep"})


def test_braces_expand_to_alternatives() -> None:
    assert sorted(alternatives("{a,b}.{c,{d,e}}")) == ["a.c", "a.d", "a.e", "b.c", "b.d", "b.e"]
    assert alternatives("a{b}c") == ["a{b}c"]
    with pytest.raises(BadGlob):
        alternatives("{a,b}" * 9)


async def test_a_folder_that_becomes_a_link_is_not_searched(search: Any, tmp_path: Path) -> None:
    (tmp_path / "ws" / "docs").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.txt").write_text("apples")
    ws = await search(allowed_read_paths=["docs"])
    (ws.folder / "docs").rmdir()
    (ws.folder / "docs").symlink_to(tmp_path / "other")
    assert "a.txt" not in await ws.error("grep", pattern="apples", path="docs")
    assert "a.txt" not in await ws.error("glob", pattern="*", path="docs")
