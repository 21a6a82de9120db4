"""The path guard: 0 escapes in a corpus of paths and links, and while things are renamed."""

import os
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from amplifier_modules._shared.files import (
    InvalidPath,
    OutsideRoots,
    PathError,
    PathGuard,
    ProtectedPath,
    protected_name,
)
from tests.support.renames import OUTSIDE, assert_untouched, racing_renames
from tests.support.thorough import Scale

SECRET = b"outside"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """`ws` with content, next to things that must stay out of reach."""
    ws = tmp_path / "ws"
    (ws / "src" / "deep").mkdir(parents=True)
    (ws / "a.txt").write_text("inside")
    (ws / "src" / "b.txt").write_text("inside")
    for outside in ("ws-evil", "WS", "ws.bak", "other"):
        (tmp_path / outside).mkdir()
        (tmp_path / outside / "a.txt").write_bytes(SECRET)
    (tmp_path / "a.txt").write_bytes(SECRET)
    return ws


def guard(ws: Path, *roots: str, writing: bool = False, **options: Any) -> PathGuard:
    return PathGuard(
        list(roots) or None, base=str(ws), writing=writing, setting="allowed_paths", **options
    )


def read(paths: PathGuard, path: str) -> bytes:
    with paths.locate(path) as location:
        descriptor = location.open(os.O_RDONLY)
        with os.fdopen(descriptor, "rb") as file:
            return file.read()


def write(paths: PathGuard, path: str) -> str:
    with paths.locate(path, create_parents=True) as location:
        descriptor = location.open(os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(descriptor, b"written")
        os.close(descriptor)
        return location.path


@pytest.mark.parametrize("by_descriptor", [True, False])
@pytest.mark.parametrize(
    "path",
    ["a.txt", "./a.txt", "src/../a.txt", "src/deep/../../a.txt", "{ws}/a.txt", "{ws}//a.txt"],
)
def test_paths_inside_are_found(workspace: Path, path: str, by_descriptor: bool) -> None:
    paths = guard(workspace, by_descriptor=by_descriptor)
    assert read(paths, path.format(ws=workspace)) == b"inside"


def hostile_paths(ws: Path) -> list[str]:
    """Ways out by spelling: climbing, twins of the name, homes, absolute paths."""
    parent = ws.parent
    names = ["a.txt", "ws-evil/a.txt", "WS/a.txt", "ws.bak/a.txt", "other/a.txt"]
    climbs = [
        "..",
        "../.",
        "./..",
        "src/../..",
        "src/deep/../../..",
        "nowhere/../..",
        "src/.././..",
        ".//..",
        "src//..//..",
        "src/deep/../..//..",
        "a.txt/../..",
        "src/b.txt/../../..",
        "new/folder/../../..",
        "...//../..",
        "src/./deep/./../.././..",
        "../ws/..",
        "../ws-evil/..",
        "src/../src/../..",
        "src/deep/../../src/../..",
        "../ws/../ws/src/../..",
        f"{ws}/src/../..",
        f"{ws}/nowhere/../..",
    ]
    escapes = [f"{climb}/{name}" for climb, name in product(climbs, names)]
    escapes += [str(parent / name) for name in names]
    escapes += [f"{ws}/../{name}" for name in names] + [f"{ws}{twin}" for twin in ("-evil/a.txt",)]
    escapes += [f"{ws}-evil/../ws-evil/a.txt", f"//{parent}/a.txt", f"{parent}/ws/../a.txt"]
    escapes += ["/etc/passwd", "/", "..", "../..", "/proc/self/environ", "/dev/stdin", "../ws-evil"]
    escapes += [".." + "/.." * n + "/etc/passwd" for n in range(12)]
    return escapes


@pytest.mark.parametrize("by_descriptor", [True, False])
def test_no_spelling_leads_out(workspace: Path, by_descriptor: bool) -> None:
    paths = guard(workspace, by_descriptor=by_descriptor)
    writing = guard(workspace, writing=True, by_descriptor=by_descriptor)
    corpus = hostile_paths(workspace)
    assert len(corpus) + len(PROTECTED) + len(link_farm(workspace)) > 200
    for path in corpus:
        with pytest.raises(OutsideRoots):
            read(paths, path)
        with pytest.raises(OutsideRoots):
            write(writing, path)


@pytest.mark.parametrize("path", ["", "\0", "a.txt\0", "\0/../a.txt", "~", "~/a.txt", "a\ud800b"])
def test_what_is_no_path_is_refused(workspace: Path, path: str) -> None:
    with pytest.raises(InvalidPath):
        guard(workspace).locate(path)


@pytest.mark.parametrize("path", ["~root/a.txt", "~a", "$HOME/a.txt", "%2e%2e/a.txt", "..\\a.txt"])
def test_nothing_in_a_path_is_expanded(workspace: Path, path: str) -> None:
    assert write(guard(workspace, writing=True), path) == f"{workspace}/{path}"


def link_farm(ws: Path) -> list[str]:
    """Ways out through links of every kind, each by itself and on the way to something."""
    out = ws.parent / "other"
    targets = [
        str(out),
        "../other",
        "src/../../other",
        "../ws/../other",
        f"{ws}/../other",
        "../ws-evil",
        "/",
        "..",
        "../ws/..",
    ]
    paths: list[str] = []
    for number, target in enumerate(targets):
        link = ws / f"folder{number}"
        link.symlink_to(target)
        chained = ws / "src" / f"chain{number}"
        chained.symlink_to(f"../folder{number}")
        absolute = ws / f"absolute{number}"
        absolute.symlink_to(link)
        tail = "a.txt" if target.endswith(("other", "evil")) else "other/a.txt"
        tail = f"{out}/a.txt"[1:] if target == "/" else tail
        paths += [f"{link.name}/{tail}", f"src/chain{number}/{tail}", f"{absolute.name}/{tail}"]
    for number, target in enumerate([str(out / "a.txt"), "../a.txt", "../ws-evil/a.txt"]):
        (ws / f"file{number}").symlink_to(target)
        (ws / "src" / f"again{number}").symlink_to(f"../file{number}")
        (ws / f"hop{number}").symlink_to(f"src/again{number}")
        paths += [f"file{number}", f"src/again{number}", f"hop{number}", f"src/../file{number}"]
    (ws / "new").symlink_to(out / "made-by-write")
    (ws / "newdir").symlink_to(out / "made-folder")
    return [*paths, "new", "newdir/x.txt", "src/../new"]


@pytest.mark.parametrize("by_descriptor", [True, False])
def test_no_link_leads_out(workspace: Path, by_descriptor: bool) -> None:
    corpus = link_farm(workspace)
    assert len(corpus) > 40
    reading = guard(workspace, by_descriptor=by_descriptor)
    writing = guard(workspace, writing=True, by_descriptor=by_descriptor)
    for path in corpus:
        with pytest.raises((PathError, OSError)):
            read(reading, path)
        with pytest.raises((PathError, OSError)):
            write(writing, path)
    others = [p for p in workspace.parent.iterdir() if p.name != "ws" and p.is_dir()]
    assert {p.name: sorted(f.name for f in p.iterdir()) for p in others} == {
        name: ["a.txt"] for name in ("ws-evil", "WS", "ws.bak", "other")
    }
    assert (workspace.parent / "a.txt").read_bytes() == SECRET


def test_links_that_stay_inside_are_followed(workspace: Path) -> None:
    (workspace / "link").symlink_to("src")
    (workspace / "up").symlink_to("src/../src/deep/..")
    (workspace / "absolute").symlink_to(workspace / "src" / "b.txt")
    (workspace / "src" / "back").symlink_to("../../ws/a.txt")
    paths = guard(workspace, writing=True)
    for path in ("link/b.txt", "up/b.txt", "absolute", "src/back", "link/back"):
        assert read(paths, path) == b"inside"
    assert write(paths, "link/new/c.txt") == str(workspace / "src" / "new" / "c.txt")


def test_links_in_a_circle_end(workspace: Path) -> None:
    (workspace / "a").symlink_to("b")
    (workspace / "b").symlink_to("a")
    (workspace / "self").symlink_to("self/self")
    for path in ("a", "a/x", "self", "self/x"):
        with pytest.raises(OSError, match="symbolic links"):
            read(guard(workspace), path)


def test_a_root_reached_through_a_link_is_the_root(workspace: Path, tmp_path: Path) -> None:
    alias = tmp_path / "alias"
    alias.symlink_to(workspace)
    paths = guard(alias)
    assert read(paths, "a.txt") == read(paths, f"{alias}/a.txt") == b"inside"
    assert read(paths, f"{workspace}/a.txt") == b"inside"
    with pytest.raises(OutsideRoots):
        read(paths, f"{alias}/../a.txt")


def test_several_roots_and_single_files(workspace: Path, tmp_path: Path) -> None:
    paths = guard(workspace, "src", "../other/a.txt", str(tmp_path / "WS"), writing=True)
    assert read(paths, "src/b.txt") == b"inside"
    assert read(paths, "../other/a.txt") == SECRET
    assert read(paths, f"{tmp_path}/WS/a.txt") == SECRET
    for path in ("a.txt", "../other/b.txt", "../other", "../other/a.txt/x"):
        with pytest.raises((OutsideRoots, NotADirectoryError)):
            read(paths, path)
    with pytest.raises(OutsideRoots):
        write(paths, "../other/b.txt")


def test_a_root_that_is_not_there_yet_is_made(workspace: Path) -> None:
    paths = guard(workspace, "out/new", "single.txt", writing=True)
    assert write(paths, "out/new/x/y.txt") == str(workspace / "out" / "new" / "x" / "y.txt")
    assert write(paths, "single.txt") == str(workspace / "single.txt")


@pytest.mark.parametrize("existed", [True, False])
@pytest.mark.parametrize("swapped", ["out", "out/new"])
@pytest.mark.parametrize("root", ["out/new", "out/new/file.txt"])
def test_a_link_in_place_of_a_root_or_above_it_does_not_lead_out(
    workspace: Path, root: str, swapped: str, existed: bool
) -> None:
    folder, elsewhere = workspace / "out" / "new", workspace.parent / "other"
    if existed:
        folder.mkdir(parents=True)
        (folder / "file.txt").write_bytes(b"inside")
    paths = guard(workspace, root, writing=True)
    (elsewhere / "new").mkdir()
    for place in (elsewhere, elsewhere / "new"):
        (place / "file.txt").write_bytes(SECRET)
    if existed:
        (workspace / swapped).rename(workspace / "moved")
    (workspace / swapped).parent.mkdir(exist_ok=True)
    (workspace / swapped).symlink_to(elsewhere)
    for action in (read, write):
        with pytest.raises((OSError, PathError)):
            action(paths, "out/new/file.txt")
    with pytest.raises((OSError, PathError)):
        write(paths, "out/new/more/file.txt")
    files = [path for path in elsewhere.rglob("*") if path.is_file()]
    assert {path.read_bytes() for path in files} == {SECRET}
    assert sorted(path.name for path in files) == ["a.txt", "file.txt", "file.txt"]
    assert not (elsewhere / "new" / "new").exists()


def test_everything_can_be_granted(workspace: Path) -> None:
    paths = guard(workspace, "/")
    assert read(paths, "../a.txt") == SECRET
    (workspace / "out").symlink_to("/")
    assert read(paths, f"out{workspace}/a.txt") == b"inside"
    with paths.locate("/") as location:
        assert location.path == "/"


def test_a_file_in_place_of_a_folder_is_said(workspace: Path) -> None:
    for path in ("a.txt/x", "a.txt/x/y"):
        with pytest.raises(NotADirectoryError):
            read(guard(workspace), path)
    with pytest.raises(FileNotFoundError):
        read(guard(workspace), "missing/x")


PROTECTED = [
    ".git/config",
    ".git/hooks/pre-commit",
    "src/.git",
    "vendored/.git/config",
    ".GIT/config",
    ".git./config",
    ".git /config",
    ".git::$INDEX_ALLOCATION/config",
    ".g\u200cit/config",
    "GIT~1/config",
    ".amplifier/settings.yaml",
    ".Amplifier/x",
    ".bashrc",
    "home/.zshenv",
    ".profile",
    ".config/fish/config.fish",
    ".config/fish/conf.d/x.fish",
]


@pytest.mark.parametrize("path", PROTECTED)
def test_protected_names_need_a_grant_for_writing(workspace: Path, path: str) -> None:
    with pytest.raises(ProtectedPath, match="needs a grant of its own"):
        write(guard(workspace, writing=True), path)
    with pytest.raises(ProtectedPath):
        write(guard(workspace, ".", writing=True), path)
    assert sorted(p.name for p in workspace.iterdir()) == ["a.txt", "src"]


@pytest.mark.parametrize(
    "path", [".gitignore", ".github/x.yml", "git/config", ".config/x", "bashrc"]
)
def test_similar_names_do_not(workspace: Path, path: str) -> None:
    assert write(guard(workspace, writing=True), path)


def test_protected_names_can_be_read_and_granted(workspace: Path) -> None:
    (workspace / ".git").mkdir()
    (workspace / ".git" / "config").write_text("inside")
    assert read(guard(workspace), ".git/config") == b"inside"
    granted = guard(workspace, ".", ".git", ".bashrc", writing=True)
    assert write(granted, ".git/config")
    assert write(granted, ".bashrc")
    with pytest.raises(ProtectedPath):
        write(granted, "src/.git/config")
    with pytest.raises(ProtectedPath):
        write(granted, ".git/modules/x/.amplifier/y")


def test_a_link_does_not_lead_to_a_protected_name(workspace: Path) -> None:
    (workspace / ".git").mkdir()
    (workspace / "innocent").symlink_to(".git")
    (workspace / "config").symlink_to(".git/config")
    for path in ("innocent/config", "innocent/hooks/x", "config"):
        with pytest.raises(ProtectedPath):
            write(guard(workspace, writing=True), path)
    assert list((workspace / ".git").iterdir()) == []


def test_standing_in_a_protected_folder_is_no_grant(workspace: Path) -> None:
    inner = workspace / ".git" / "hooks"
    inner.mkdir(parents=True)
    with pytest.raises(ProtectedPath):
        write(guard(inner, writing=True), "pre-commit")


def test_the_first_protected_name_is_named() -> None:
    assert protected_name(["a", ".GIT", "b"]) == ".GIT"
    assert protected_name(["a", "b"]) is None


def test_racing_renames_never_lead_out(tmp_path: Path, scale: Scale) -> None:
    workspace, outside = tmp_path / "ws", tmp_path / "outside"
    workspace.mkdir()
    reading, writing = guard(workspace), guard(workspace, writing=True)
    outcomes = {"read": 0, "written": 0, "refused": 0}
    with racing_renames(workspace, outside):
        until = time.monotonic() + scale(0.1, 10)
        while time.monotonic() < until or not min(outcomes.values()):
            for path in ("spot/a.txt", "leaf"):
                try:
                    assert OUTSIDE not in read(reading, path).decode()
                    outcomes["read"] += 1
                except (PathError, OSError):
                    outcomes["refused"] += 1
            for path in ("spot/new.txt", "spot/sub/new.txt", "leaf"):
                try:
                    write(writing, path)
                    outcomes["written"] += 1
                except (PathError, OSError):
                    outcomes["refused"] += 1
    assert_untouched(outside)
    assert min(outcomes.values()) > 0


def test_no_descriptor_is_left_open(workspace: Path) -> None:
    link_farm(workspace)
    paths = guard(workspace, writing=True)
    before = len(os.listdir("/proc/self/fd"))
    for path in ("a.txt", "src/deep/x/y/z.txt", "folder0/a.txt", "../a.txt", "missing/x", ".git/x"):
        try:
            with paths.locate(path, create_parents=not path.startswith("missing")):
                pass
        except (PathError, OSError):
            pass
    assert len(os.listdir("/proc/self/fd")) == before
