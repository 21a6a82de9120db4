"""No tool reads or changes anything outside the allowed folders, whatever path it is given."""

from pathlib import Path
from typing import Any

from tests.modules._shared.test_files import PROTECTED, SECRET, hostile_paths, link_farm

REFUSALS = {"OutsideRoots", "InvalidPath", "NotADirectoryError", "FileNotFoundError", "NotAFile"}


def outside(folder: Path) -> dict[str, bytes | None]:
    """Everything outside the workspace."""
    return {
        str(path): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if not path.is_relative_to(folder / "ws")
    }


async def test_no_path_of_the_corpus_escapes(files: Any, tmp_path: Path) -> None:
    ws = await files()
    (ws.folder / "src" / "deep").mkdir(parents=True)
    for name in ("a.txt", "src/b.txt"):
        (ws.folder / name).write_text("inside")
    for twin in ("ws-evil", "WS", "ws.bak", "other"):
        (tmp_path / twin).mkdir()
        (tmp_path / twin / "a.txt").write_bytes(SECRET)
    (tmp_path / "a.txt").write_bytes(SECRET)
    before = outside(tmp_path)
    corpus = [*hostile_paths(ws.folder), *link_farm(ws.folder), "", "a\0b", "~", "~/a.txt"]
    for path in corpus:
        for name, more in (
            ("read_file", {}),
            ("list_directory", {}),
            ("write_file", {"content": "written"}),
            ("edit_file", {"old_string": "outside", "new_string": "written"}),
        ):
            key = "path" if name == "list_directory" else "file_path"
            result = await ws.call(name, **{key: path}, **more)
            assert not result.success, (name, path)
            assert result.error["type"] in REFUSALS, (name, path, result.error)
    for path in PROTECTED:
        await ws.error("write_file", "ProtectedPath", file_path=path, content="x")
    assert len(corpus) + len(PROTECTED) >= 200
    assert outside(tmp_path) == before
    assert not any(path.name.startswith(".") for path in ws.folder.iterdir())


async def test_denied_paths_are_not_written_by_any_route(files: Any, tmp_path: Path) -> None:
    ws = await files({"denied_write_paths": ["secrets", "keep.txt", "~/x"]})
    (ws.folder / "secrets").mkdir()
    (ws.folder / "keep.txt").write_text("kept")
    (ws.folder / "link").symlink_to("secrets")
    (ws.folder / "alias.txt").symlink_to("keep.txt")
    for path in (
        *(
            "secrets/a",
            "secrets/new/a",
            "./secrets/../secrets/a",
            "SECRETS/a",
            "link/a",
            "link/n/a",
        ),
        *("keep.txt", "alias.txt", str(ws.folder / "keep.txt")),
    ):
        message = await ws.error("write_file", "ProtectedPath", file_path=path, content="x")
        assert "denied" in message, path
    assert list((ws.folder / "secrets").iterdir()) == []
    assert await ws.ok("read_file", file_path="keep.txt") == "kept"
    await ws.ok("write_file", file_path="secrets.txt", content="x")


async def test_a_folder_that_becomes_a_link_before_the_first_call_is_not_followed(
    files: Any, tmp_path: Path
) -> None:
    (tmp_path / "ws" / "out").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.txt").write_bytes(SECRET)
    ws = await files({"allowed_read_paths": ["out"], "allowed_write_paths": ["out"]})
    (ws.folder / "out").rmdir()
    (ws.folder / "out").symlink_to(tmp_path / "other")
    assert not (await ws.call("read_file", file_path="out/a.txt")).success
    assert not (await ws.call("list_directory", path="out")).success
    assert not (await ws.call("write_file", file_path="out/b.txt", content="x")).success
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["a.txt"]
