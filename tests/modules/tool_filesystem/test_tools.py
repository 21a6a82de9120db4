"""The four tools on real files: what the model gets, and what happens on disk."""

import asyncio
import codecs
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from amplifier_core.testing import MockCoordinator
from amplifier_modules.tool_filesystem import mount
from amplifier_support import files as storage
from tests.modules.tool_filesystem.conftest import edit
from tests.support.small_disk import file_size_limit


async def test_mounts_four_tools_with_schemas(files: Any) -> None:
    ws = await files()
    tools = ws.coordinator.get("tools")
    assert list(tools) == ["read_file", "write_file", "edit_file", "list_directory"]
    for name, tool in tools.items():
        assert tool.name == name
        assert tool.description
        assert tool.input_schema["type"] == "object"
        assert tool.get_schema() == tool.input_schema


async def test_the_process_folder_is_the_default(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("here")
    coordinator = MockCoordinator()
    await mount(coordinator)
    result = await coordinator.get("tools", "read_file").execute({"file_path": "a.txt"})
    assert result.output == "here"


# -- reading ---------------------------------------------------------------------------------------


async def test_read_returns_the_plain_content(files: Any) -> None:
    ws = await files()
    (ws.folder / "a.txt").write_text("one\ntwo\n")
    assert await ws.ok("read_file", file_path="a.txt") == "one\ntwo\n"
    assert await ws.ok("read_file", file_path=str(ws.folder / "a.txt")) == "one\ntwo\n"
    assert ws.events[0] == (
        "artifact:read",
        {"path": str(ws.folder / "a.txt"), "bytes": 8} | _ids(ws.events[0][1]),
    )


def _ids(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in ("path", "bytes")}


async def test_reading_a_range_says_how_to_continue(files: Any) -> None:
    ws = await files()
    (ws.folder / "a.txt").write_text("".join(f"line {n}\n" for n in range(1, 11)))
    assert await ws.ok("read_file", file_path="a.txt", offset=3, limit=2) == (
        "line 3\nline 4\n\n[lines 3-4 of 10; continue with offset 5]"
    )
    assert await ws.ok("read_file", file_path="a.txt", offset=9, limit=2.0) == (
        "line 9\nline 10\n\n[lines 9-10 of 10]"
    )
    assert await ws.error("read_file", "PastTheEnd", file_path="a.txt", offset=11) == (
        "'a.txt': it has 10 lines"
    )
    assert "10 lines" in await ws.error("read_file", "PastTheEnd", file_path="a.txt", offset=99)


async def test_read_without_a_last_line_end(files: Any) -> None:
    ws = await files()
    (ws.folder / "a.txt").write_text("one\ntwo")
    assert await ws.ok("read_file", file_path="a.txt") == "one\ntwo"
    assert await ws.ok("read_file", file_path="a.txt", limit=1) == (
        "one\n\n[lines 1-1 of 2; continue with offset 2]"
    )
    assert "2 lines" in await ws.error("read_file", "PastTheEnd", file_path="a.txt", offset=3)
    assert "2 lines" in await ws.error("read_file", "PastTheEnd", file_path="a.txt", offset=4)


async def test_pages_joined_are_the_file(files: Any) -> None:
    ws = await files({"max_bytes": 1000})
    lines = [f"{n}: {'ä' * (n % 90)}" for n in range(400)]
    (ws.folder / "a.txt").write_text("\n".join(lines))
    collected: list[str] = []
    while len(collected) < 400:
        text = await ws.ok("read_file", file_path="a.txt", offset=len(collected) + 1, limit=50)
        body = text.rpartition("\n\n[")[0] or text
        assert len(body.encode()) <= 1000
        collected += body.split("\n")
    assert collected == lines


async def test_a_line_too_long_is_cut_at_a_character(files: Any) -> None:
    ws = await files({"max_bytes": 1001})
    (ws.folder / "a.txt").write_text("x\n" + "ä" * 5000 + "\nend\n")
    text = await ws.ok("read_file", file_path="a.txt", offset=2)
    assert text == (
        "ä" * 500 + "\n\n[line 2 of 3 is cut here: it is too long; the next line is at offset 3]"
    )
    assert (await ws.ok("read_file", file_path="a.txt", offset=3)).startswith("end\n")


async def test_a_large_file_is_read_without_holding_it(files: Any) -> None:
    ws = await files()
    line = b"0123456789" * 10 + b"\n"
    with (ws.folder / "big.log").open("wb") as file:
        for _ in range(100):
            file.write(line * 2000)
    text = await ws.ok("read_file", file_path="big.log", offset=150_001, limit=2)
    assert text == (
        (line * 2).decode() + "\n[lines 150001-150002 of 200000; continue with offset 150003]"
    )


async def test_an_empty_file_is_reported_as_empty(files: Any) -> None:
    ws = await files()
    (ws.folder / "a.txt").touch()
    assert await ws.ok("read_file", file_path="a.txt") == "[the file is empty]"


@pytest.mark.parametrize("size", [10, 9 * 1024 * 1024])
async def test_binary_files_are_not_shown(files: Any, size: int) -> None:
    ws = await files()
    (ws.folder / "a.bin").write_bytes(b"\x7fELF\0\1" + b"\0" * size)
    message = await ws.error("read_file", "BinaryFile", file_path="a.bin")
    assert message == f"'a.bin': it is a binary file of {size + 6} bytes"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (codecs.BOM_UTF8 + "é\r\n".encode(), "é\n"),
        (codecs.BOM_UTF16_LE + "é\n".encode("utf-16-le"), "é\n"),
        (codecs.BOM_UTF16_BE + "é\n".encode("utf-16-be"), "é\n"),
        (codecs.BOM_UTF32_LE + "é\n".encode("utf-32-le"), "é\n"),
        ("“é”\n".encode("cp1252"), "“é”\n"),
        (b"\x81\xe9\n", "\x81é\n"),
        ("éèü".encode() + b"\xff\n", "éèü�\n"),
        ("x\x0b\u2028y\n".encode(), "x\x0b\u2028y\n"),
    ],
)
async def test_encodings_are_recognised(files: Any, data: bytes, text: str) -> None:
    ws = await files()
    (ws.folder / "a.txt").write_bytes(data)
    assert (await ws.call("read_file", file_path="a.txt")).output == text


async def test_missing_and_unreadable_files(files: Any) -> None:
    ws = await files()
    os.mkfifo(ws.folder / "pipe")
    (ws.folder / "sub").mkdir()
    message = await ws.error("read_file", "FileNotFoundError", file_path="no.txt")
    assert message == "'no.txt': no such file or folder"
    assert "it is a folder" in await ws.error("read_file", "NotAFile", file_path="sub")
    assert "pipe" in await ws.error("read_file", "NotAFile", file_path="pipe")
    assert "outside" in await ws.error("read_file", "OutsideRoots", file_path="../x")


async def test_reading_can_be_allowed_elsewhere(files: Any, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("doc")
    ws = await files({"allowed_read_paths": [".", "../docs"]})
    assert await ws.ok("read_file", file_path="../docs/a.txt") == "doc"
    await ws.error("write_file", "OutsideRoots", file_path="../docs/a.txt", content="x")


async def test_long_output_of_other_tools_can_be_read(files: Any, tmp_path: Path) -> None:
    output = tmp_path / "session" / "tool-output"
    output.mkdir(parents=True)
    (output / "x.txt").write_text("long")
    (tmp_path / "session" / "transcript.jsonl").write_text("private")
    ws = await files(session_dir=str(tmp_path / "session"))
    assert await ws.ok("read_file", file_path=str(output / "x.txt")) == "long"
    transcript = str(tmp_path / "session" / "transcript.jsonl")
    await ws.error("read_file", "OutsideRoots", file_path=transcript)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "the parameter 'file_path' is required"),
        ({"file_path": 3}, "'file_path' must be of type string, not int"),
        ({"file_path": "a", "offset": 0}, "'offset' must be at least 1, not 0"),
        ({"file_path": "a", "limit": True}, "'limit' must be of type integer, not bool"),
        ({"file_path": "a", "limit": 1.5}, "'limit' must be of type integer, not float"),
        ({"path": "a"}, "unknown parameter 'path'; known are: file_path, offset, limit"),
    ],
)
async def test_invalid_input_is_a_failed_result(
    files: Any, values: dict[str, Any], message: str
) -> None:
    ws = await files()
    assert await ws.error("read_file", "InvalidInput", **values) == message


async def test_callers_own_keys_and_nulls_are_ignored(files: Any) -> None:
    ws = await files()
    (ws.folder / "a.txt").write_text("x")
    assert await ws.ok("read_file", file_path="a.txt", limit=None, _tool_call_id="c1") == "x"


# -- writing ---------------------------------------------------------------------------------------


async def test_write_creates_folders_and_replaces(files: Any) -> None:
    ws = await files()
    target = ws.folder / "new" / "deep" / "a.txt"
    assert await ws.ok("write_file", file_path="new/deep/a.txt", content="é\n") == (
        "created new/deep/a.txt (3 bytes)"
    )
    assert target.read_bytes() == "é\n".encode()
    assert (
        await ws.ok("write_file", file_path=str(target), content="")
        == f"replaced {target} (0 bytes)"
    )
    assert target.read_bytes() == b""
    assert [event for event, _ in ws.events] == ["artifact:write"] * 2
    assert ws.events[0][1]["path"] == str(target)
    assert ws.events[0][1]["bytes"] == 3


async def test_write_respects_the_umask_and_keeps_the_mode(files: Any) -> None:
    ws = await files()
    old = os.umask(0o027)
    try:
        await ws.ok("write_file", file_path="new.sh", content="x")
    finally:
        os.umask(old)
    assert stat.S_IMODE((ws.folder / "new.sh").stat().st_mode) == 0o640
    (ws.folder / "new.sh").chmod(0o754)
    await ws.ok("write_file", file_path="new.sh", content="y")
    await ws.ok("edit_file", **edit("new.sh", "y", "z"))
    assert stat.S_IMODE((ws.folder / "new.sh").stat().st_mode) == 0o754
    assert (ws.folder / "new.sh").read_text() == "z"


async def test_write_through_a_link_changes_its_target(files: Any) -> None:
    ws = await files()
    (ws.folder / "real.txt").write_text("old")
    (ws.folder / "link.txt").symlink_to("real.txt")
    await ws.ok("write_file", file_path="link.txt", content="new")
    assert (ws.folder / "link.txt").is_symlink()
    assert (ws.folder / "real.txt").read_text() == "new"


async def test_a_reader_sees_the_old_file_or_the_new(files: Any) -> None:
    ws = await files()
    path = ws.folder / "a.txt"
    path.write_text("A" * 500_000)
    with path.open() as before:
        await ws.ok("write_file", file_path="a.txt", content="B" * 500_000)
        assert set(before.read()) == {"A"}
    assert set(path.read_text()) == {"B"}
    assert [p.name for p in ws.folder.iterdir()] == ["a.txt"]


async def test_no_temporary_file_remains_without_unnamed_files(
    files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_UNNAMED", None)
    ws = await files()
    await ws.ok("write_file", file_path="a.txt", content="one")
    await ws.ok("write_file", file_path="a.txt", content="two")
    assert (ws.folder / "a.txt").read_text() == "two"
    assert [p.name for p in ws.folder.iterdir()] == ["a.txt"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_folder_without_permission_is_reported(files: Any) -> None:
    ws = await files()
    (ws.folder / "sealed").mkdir(mode=0o500)
    message = await ws.error("write_file", "PermissionError", file_path="sealed/a", content="x")
    assert message == "'sealed/a': permission denied"


@pytest.mark.parametrize("unnamed", [True, False])
async def test_a_write_that_fails_leaves_the_old_file(
    files: Any, unnamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not unnamed:
        monkeypatch.setattr(storage, "_UNNAMED", None)
    ws = await files()
    await ws.ok("write_file", file_path="a.txt", content="old")
    with file_size_limit(100_000):
        message = await ws.error("write_file", "OSError", file_path="a.txt", content="x" * 200_000)
    assert message == "'a.txt': File too large"
    assert (ws.folder / "a.txt").read_text() == "old"
    assert [p.name for p in ws.folder.iterdir()] == ["a.txt"]


async def test_devices_and_pipes_are_not_written_to(files: Any) -> None:
    ws = await files({"allowed_write_paths": [".", "/dev/full"]})
    os.mkfifo(ws.folder / "pipe")
    for path in ("/dev/full", "pipe"):
        message = await ws.error("write_file", "NotAFile", file_path=path, content="x")
        assert "it is a device, pipe or socket" in message


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
async def test_write_keeps_encoding_and_line_ends(files: Any, encoding: str) -> None:
    ws = await files()
    path = ws.folder / "a.txt"
    path.write_bytes("é alt\r\n".encode(encoding))
    text = await ws.ok("write_file", file_path="a.txt", content="é neu\nzwei\n")
    assert path.read_bytes() == "é neu\r\nzwei\r\n".encode(encoding)
    assert "kept its CRLF line endings" in text


async def test_write_converts_to_utf8_if_the_old_encoding_cannot_represent_the_text(
    files: Any,
) -> None:
    ws = await files()
    (ws.folder / "a.txt").write_bytes("é".encode("cp1252"))
    await ws.ok("write_file", file_path="a.txt", content="日本")
    assert (ws.folder / "a.txt").read_bytes() == "日本".encode()


async def test_write_replaces_binary_files_and_refuses_folders(files: Any) -> None:
    ws = await files()
    (ws.folder / "a.bin").write_bytes(b"\0\1")
    await ws.ok("write_file", file_path="a.bin", content="text")
    assert (ws.folder / "a.bin").read_bytes() == b"text"
    (ws.folder / "sub").mkdir()
    assert "folder" in await ws.error("write_file", "NotAFile", file_path="sub", content="x")
    assert "folder" in await ws.error("write_file", "NotAFile", file_path=".", content="x")


async def test_write_names_text_that_cannot_be_encoded(files: Any) -> None:
    ws = await files()
    message = await ws.error("write_file", "NotEncodable", file_path="a", content="x\ud800")
    assert message == "'a': the text has half a surrogate pair (U+D800)"
    assert list(ws.folder.iterdir()) == []


async def test_protected_names_are_refused_unless_allowed(files: Any) -> None:
    ws = await files()
    for path in (".git/hooks/pre-commit", ".amplifier/x.yaml", ".bashrc"):
        message = await ws.error("write_file", "ProtectedPath", file_path=path, content="x")
        assert "allowed_write_paths" in message
    assert list(ws.folder.iterdir()) == []
    granted = await files({"allowed_write_paths": [".", ".git"]})
    await granted.ok("write_file", file_path=".git/config", content="x")


# -- editing ---------------------------------------------------------------------------------------


async def test_edit_replaces_and_shows_a_diff(files: Any) -> None:
    ws = await files()
    path = ws.folder / "a.py"
    path.write_text("".join(f"line {n}\n" for n in range(1, 11)))
    text = await ws.ok("edit_file", **edit("a.py", "line 5", "LINE 5\nand more"))
    assert path.read_text().split("\n")[4:6] == ["LINE 5", "and more"]
    assert text == (
        "edited a.py in 1 place\n--- a/a.py\n+++ b/a.py\n@@ -2,7 +2,8 @@\n line 2\n line 3\n line 4\n"
        "-line 5\n+LINE 5\n+and more\n line 6\n line 7\n line 8\n"
    )
    assert ws.events[-1][0] == "artifact:write"


async def test_edit_must_be_unique_unless_replace_all_is_set(files: Any) -> None:
    ws = await files()
    path = ws.folder / "a.txt"
    path.write_text("x\naa\nx\n")
    message = await ws.error("edit_file", "TextNotUnique", **edit("a.txt", "x", "y"))
    assert "2 times, at lines 1, 3" in message
    assert path.read_text() == "x\naa\nx\n"
    await ws.ok("edit_file", **edit("a.txt", "x", "y", replace_all=True))
    assert path.read_text() == "y\naa\ny\n"


async def test_occurrences_that_overlap_are_not_unique(files: Any) -> None:
    ws = await files()
    (ws.folder / "a.txt").write_text("aaa")
    (ws.folder / "b.txt").write_text("\r\na\na\na")
    await ws.error("edit_file", "TextNotUnique", **edit("a.txt", "aa", "b"))
    await ws.error("edit_file", "TextNotUnique", **edit("b.txt", "a\na", "b"))


async def test_edit_says_why_text_is_missing(files: Any) -> None:
    ws = await files()
    (ws.folder / "a.py").write_text("def f():\n\treturn 1\n")
    message = await ws.error(
        "edit_file", "TextNotFound", **edit("a.py", "def f():\n    return 1", "x")
    )
    assert "the text at lines 1-2 differs only in white space" in message
    message = await ws.error("edit_file", "TextNotFound", **edit("a.py", "q", "x"))
    assert "read the file again" in message
    await ws.error("edit_file", "TextNotFound", **edit("a.py", "", "x"))
    await ws.error("edit_file", "NothingToChange", **edit("a.py", "def", "def"))
    await ws.error("edit_file", "FileNotFoundError", **edit("no.py", "a", "b"))


@pytest.mark.parametrize("everywhere", [False, True])
async def test_edit_keeps_every_other_byte(files: Any, everywhere: bool) -> None:
    ws = await files()
    path = ws.folder / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\nthree\r\nfour\r\xc3\xa9\r\n")
    await ws.ok("edit_file", **edit("a.txt", "two\nthree\n", "2\n3\n", replace_all=everywhere))
    assert path.read_bytes() == b"\xef\xbb\xbfone\r\n2\n3\nfour\r\xc3\xa9\r\n"
    await ws.ok("edit_file", **edit("a.txt", "one\n2", "1\n2\n2b", replace_all=everywhere))
    assert path.read_bytes() == b"\xef\xbb\xbf1\r\n2\r\n2b\n3\nfour\r\xc3\xa9\r\n"


async def test_edit_of_files_that_are_not_utf8(files: Any) -> None:
    ws = await files()
    path = ws.folder / "a.txt"
    path.write_bytes("é: “x”\n".encode("cp1252"))
    await ws.ok("edit_file", **edit("a.txt", "é", "ü"))
    assert path.read_bytes() == "ü: “x”\n".encode("cp1252")
    message = await ws.error("edit_file", "NotEncodable", **edit("a.txt", "ü", "日"))
    assert "cp1252, cannot represent '日'" in message
    path.write_bytes("éèü ".encode() + b"\xff\xfe\n")
    await ws.ok("edit_file", **edit("a.txt", "è", "日"))
    assert path.read_bytes() == "é日ü ".encode() + b"\xff\xfe\n"


async def test_diffs_of_many_places_have_right_line_numbers(files: Any, tmp_path: Path) -> None:
    ws = await files()
    lines = [f"{n}" + (" mark" if n % 37 == 0 else "") for n in range(1, 500)]
    old = "\n".join(lines)
    (ws.folder / "a.txt").write_text(old)
    text = await ws.ok("edit_file", **edit("a.txt", " mark", " one\n two", replace_all=True))
    new = (ws.folder / "a.txt").read_text()
    assert new == old.replace(" mark", " one\n two")
    (tmp_path / "a.txt").write_text(old)
    diff = text.partition("\n")[2]
    patched = await asyncio.create_subprocess_exec(
        *("git", "apply", "-"), cwd=tmp_path, stdin=asyncio.subprocess.PIPE
    )
    await patched.communicate(diff.encode())
    assert patched.returncode == 0
    assert (tmp_path / "a.txt").read_text() == new


async def test_a_long_diff_is_cut(files: Any) -> None:
    ws = await files()
    (ws.folder / "a.txt").write_text("mark\n" * 5000)
    text = await ws.ok("edit_file", **edit("a.txt", "mark", "done", replace_all=True))
    assert len(text) < 21_000
    assert text.endswith("lines of the diff not shown]\n")


async def test_parallel_edits_do_not_undo_each_other(files: Any) -> None:
    ws = await files()
    path = ws.folder / "a.txt"
    path.write_text("".join(f"<{n}>" + "x" * 40_000 + "\n" for n in range(40)))
    calls = [ws.ok("edit_file", **edit("a.txt", f"<{n}>", f"({n})")) for n in range(40)]
    await asyncio.gather(*calls)
    text = path.read_text()
    assert all(f"({n})" in text for n in range(40))


async def test_a_cancelled_write_is_whole_or_not_at_all(files: Any) -> None:
    ws = await files()
    path = ws.folder / "a.txt"
    path.write_text("old")
    task = asyncio.create_task(ws.call("write_file", file_path="a.txt", content="B" * 30_000_000))
    await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.wait([task])
    assert path.stat().st_size in (3, 30_000_000)
    assert [p.name for p in ws.folder.iterdir()] == ["a.txt"]


# -- listing ---------------------------------------------------------------------------------------


async def test_list_shows_files_folders_and_links(files: Any) -> None:
    ws = await files()
    (ws.folder / "b").mkdir()
    (ws.folder / ".hidden").write_text("x")
    (ws.folder / "a.txt").write_text("12345")
    (ws.folder / "link").symlink_to("../elsewhere")
    (ws.folder / "two\nlines\x1b[31m").touch()
    os.mkfifo(ws.folder / "pipe")
    assert await ws.ok("list_directory") == (
        "b/\n.hidden  1 bytes\na.txt  5 bytes\nlink -> ../elsewhere\n"
        "pipe  (device, pipe or socket)\ntwo\\nlines\\x1b[31m  0 bytes"
    )
    assert await ws.ok("list_directory", path="b") == "[the folder is empty]"


async def test_list_stops_at_many_entries(files: Any) -> None:
    ws = await files()
    for n in range(1010):
        (ws.folder / f"{n:04}").touch()
    text = await ws.ok("list_directory", path=".")
    assert text.endswith("0999  0 bytes\n\n[10 more not shown]")


async def test_list_of_a_file_or_outside(files: Any) -> None:
    ws = await files()
    (ws.folder / "a.txt").touch()
    message = await ws.error("list_directory", "NotAFolder", path="a.txt")
    assert message == "'a.txt': it is a file, not a folder"
    message = await ws.error("list_directory", "NotADirectoryError", path="a.txt/b/c")
    assert message == "'a.txt/b/c': part of the path is a file, not a folder"
    await ws.error("list_directory", "OutsideRoots", path="..")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts descriptors in /proc")
async def test_no_descriptor_is_left_open(files: Any) -> None:
    ws = await files()
    (ws.folder / "a.txt").write_text("x" * 2_000_000)
    before = len(os.listdir("/proc/self/fd"))
    await ws.ok("read_file", file_path="a.txt")
    await ws.ok("write_file", file_path="b.txt", content="x")
    await ws.ok("edit_file", **edit("b.txt", "x", "y"))
    await ws.ok("list_directory")
    await ws.error("read_file", "NotAFile", file_path=".")
    await ws.error("edit_file", "TextNotFound", **edit("b.txt", "q", "y"))
    assert len(os.listdir("/proc/self/fd")) == before
