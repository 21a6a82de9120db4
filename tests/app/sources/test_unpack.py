"""Hostile and damaged archives."""

import gzip
import io
import lzma
import os
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.fetch import archives as unpacking
from amplifier_app.sources.fetch.archives import (
    _XZ_MEMORY,  # pyright: ignore[reportPrivateUsage]
    unpack,
)

Member = tuple[str, bytes, bytes, str]
"""Name, type, content and target of an entry of a tar archive."""

FILE, LINK, SAME, FOLDER = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


def tarred(file: Path, *members: Member, mode: int = 0o644) -> Path:
    with tarfile.open(file, "w") as archive:
        for name, kind, content, target in members:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname, info.mode = kind, len(content), target, mode
            archive.addfile(info, io.BytesIO(content))
    return file


def zipped(file: Path, *members: tuple[str, int, bytes]) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, mode, content in members:
            info = zipfile.ZipInfo("placeholder")
            info.filename = info.orig_filename = name
            info.external_attr, info.compress_type = mode << 16, zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return file


def into(tmp_path: Path) -> Path:
    folder = tmp_path / "inside" / "here"
    folder.mkdir(parents=True)
    return folder


def tree(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


# -- what may be in one ------------------------------------------------------------------


def test_files_folders_and_inner_links_are_extracted(tmp_path: Path) -> None:
    folder = into(tmp_path)
    file = tarred(
        tmp_path / "m.tar",
        ("./", FOLDER, b"", ""),
        ("pkg", FOLDER, b"", ""),
        ("pkg/data.txt", FILE, b"data", ""),
        ("pkg/same.txt", SAME, b"", "pkg/data.txt"),
        ("pkg/link.txt", LINK, b"", "data.txt"),
        ("deep/er/up", LINK, b"", "../../pkg"),
    )
    unpack(file, file.name, folder)
    assert (folder / "pkg/same.txt").read_text() == "data"
    assert (folder / "pkg/link.txt").read_text() == "data"
    assert (folder / "deep/er/up/data.txt").read_text() == "data"
    assert os.readlink(folder / "deep/er/up") == "../../pkg"


def test_only_the_executable_bit_of_a_mode_is_kept(tmp_path: Path) -> None:
    folder = into(tmp_path)
    unpack(tarred(tmp_path / "m.tar", ("run", FILE, b"x", ""), mode=0o6777), "m.tar", folder)
    assert stat.S_IMODE((folder / "run").stat().st_mode) == 0o755
    zipped(tmp_path / "m.zip", ("z", 0o104777, b"x"), ("plain", 0o100600, b"x"))
    unpack(tmp_path / "m.zip", "m.zip", folder)
    assert stat.S_IMODE((folder / "z").stat().st_mode) == 0o755
    assert not (folder / "plain").stat().st_mode & 0o111


def test_a_link_in_a_zip_is_extracted(tmp_path: Path) -> None:
    folder = into(tmp_path)
    zipped(tmp_path / "m.zip", ("a", 0o100644, b"x"), ("b", 0o120777, b"a"))
    unpack(tmp_path / "m.zip", "m.zip", folder)
    assert os.readlink(folder / "b") == "a"


# -- what may not ------------------------------------------------------------------------

NAMES = [
    "../evil",
    "a/../../evil",
    "/tmp/evil",
    "//tmp/evil",
    "..",
    "a/..",
    "C:\\evil",
    "C:/evil",
    "..\\evil",
    "a\\..\\..\\evil",
    "evil\x1b[2J",
    "evil\n",
    "evil\u202e",
    "e" * 2000,
]


def test_paths_that_escape_are_refused(tmp_path: Path) -> None:
    for number, name in enumerate(NAMES):
        for kind in ("tar", "zip"):
            place = tmp_path / f"{number}-{kind}"
            folder = into(place)
            if kind == "tar":
                file = tarred(place / "m.tar", ("ok", FILE, b"x", ""), (name, FILE, b"evil", ""))
            else:
                file = zipped(place / "m.zip", ("ok", 0o100644, b"x"), (name, 0o100644, b"evil"))
            with pytest.raises(SourceError, match="is not a valid path inside the archive"):
                unpack(file, file.name, folder)
            assert tree(folder) in ([], ["ok"]), name
            assert tree(place / "inside") in (["here"], ["here", "here/ok"]), name


def test_a_nul_in_a_name_is_refused(tmp_path: Path) -> None:
    file = zipped(tmp_path / "m.zip", ("ok.py?.txt", 0o100644, b"x"))
    file.write_bytes(file.read_bytes().replace(b"ok.py?", b"ok.py\0"))
    with pytest.raises(SourceError, match=r"is not a valid path inside the archive|is damaged"):
        unpack(file, "m.zip", into(tmp_path))


LINKS: dict[str, tuple[tuple[Member, ...], str]] = {
    "absolute": ((("l", LINK, b"", "/etc/passwd"),), "points outside it"),
    "up": ((("l", LINK, b"", "../evil"),), "points outside it"),
    "up from a folder": ((("a/l", LINK, b"", "../../evil"),), "points outside it"),
    "empty": ((("l", LINK, b"", ""),), "points outside it"),
    "a circle": ((("a", LINK, b"", "b"), ("b", LINK, b"", "a")), "points outside it"),
    "by way of another": (
        (
            ("d/e/f/x", FILE, b"", ""),
            ("s", LINK, b"", "d/e/f"),
            ("t", LINK, b"", "s/../../../../evil"),
        ),
        "points outside it",
    ),
    "shorter than it looks": (
        (("deep/er/up", LINK, b"", "../.."), ("t", LINK, b"", "deep/er/up/..")),
        "points outside it",
    ),
    "written through": ((("l", LINK, b"", "."), ("l/evil", FILE, b"x", "")), "below a link"),
    "written through later": (
        (("l", LINK, b"", "../.."), ("l/../evil", FILE, b"x", "")),
        "is not a valid path inside the archive",
    ),
    "replaced": ((("l", LINK, b"", "ok"), ("l", FILE, b"x", "")), "duplicate entry"),
    "replaces": ((("l", FILE, b"x", ""), ("l", LINK, b"", "/etc")), "duplicate entry"),
    "the same as outside": (
        (("l", SAME, b"", "/etc/passwd"),),
        "is not a valid path inside the archive",
    ),
    "the same as above": (
        (("l", SAME, b"", "../../evil"),),
        "is not a valid path inside the archive",
    ),
    "the same as a link": (
        (("s", LINK, b"", "../../x"), ("l", SAME, b"", "s")),
        "below a link",
    ),
    "the same as nothing": (
        (("l", SAME, b"", "later"), ("later", FILE, b"", "")),
        "which is missing",
    ),
    "a device": ((("d", tarfile.CHRTYPE, b"", ""),), "a device or a pipe"),
    "a disk": ((("d", tarfile.BLKTYPE, b"", ""),), "a device or a pipe"),
    "a pipe": ((("d", tarfile.FIFOTYPE, b"", ""),), "a device or a pipe"),
    "a file in a file": ((("a", FILE, b"x", ""), ("a/b", FILE, b"x", "")), "cannot unpack m.tar"),
    "a folder over a file": (
        (("a", FILE, b"x", ""), ("a", FOLDER, b"", "")),
        "cannot unpack m.tar",
    ),
    "twice": ((("a", FILE, b"x", ""), ("./a", FILE, b"y", "")), "duplicate entry"),
}


def test_links_and_odd_entries_are_refused(tmp_path: Path) -> None:
    for case, (members, message) in LINKS.items():
        folder = into(tmp_path / case)
        evil = tmp_path / case / "inside" / "evil"
        evil.write_text("outside")
        with pytest.raises(SourceError, match=message):
            unpack(tarred(tmp_path / case / "m.tar", *members), "m.tar", folder)
        assert evil.read_text() == "outside", case


def test_odd_entries_of_a_zip_are_refused(tmp_path: Path) -> None:
    cases: list[tuple[int, bytes, str]] = [
        (0o120777, b"/etc/passwd", "points outside it"),
        (0o120777, b"../../evil", "points outside it"),
        (0o120777, b"", "points outside it"),
        (0o120777, b"\xff\xfe", "is damaged"),
        (0o010644, b"", "a device or a pipe"),
        (0o020644, b"", "a device or a pipe"),
    ]
    for number, (mode, content, message) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(SourceError, match=message):
            unpack(zipped(tmp_path / "m.zip", ("x", mode, content)), "m.zip", folder)
        assert tree(folder) in ([], ["x"])


# -- too much ----------------------------------------------------------------------------


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of entries as 500, so that tests need not write 10,000."""
    assert unpacking.MAX_ENTRIES == 10_000
    monkeypatch.setattr(unpacking, "MAX_ENTRIES", 500)


@pytest.mark.usefixtures("few")
def test_too_many_entries_are_refused(tmp_path: Path) -> None:
    members = [(f"f{n}", FILE, b"", "") for n in range(unpacking.MAX_ENTRIES + 1)]
    with pytest.raises(SourceError, match="more than 500 entries"):
        unpack(tarred(tmp_path / "m.tar", *members), "m.tar", into(tmp_path))
    zipped(tmp_path / "m.zip", *((name, 0o100644, b"") for name, *_ in members))
    (tmp_path / "two").mkdir()
    with pytest.raises(SourceError, match="more than 500 entries"):
        unpack(tmp_path / "m.zip", "m.zip", tmp_path / "two")


@pytest.mark.usefixtures("few")
def test_implicit_folders_count_as_entries(tmp_path: Path) -> None:
    members = [(f"{n}/" + "d/" * 200 + "f", FILE, b"", "") for n in range(3)]
    with pytest.raises(SourceError, match="more than 500 entries"):
        unpack(tarred(tmp_path / "m.tar", *members), "m.tar", into(tmp_path))


def test_an_oversized_list_of_entries_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, 100_000_000, 0, 0)
    (tmp_path / "m.zip").write_bytes(b"x" * 1000 + end)
    monkeypatch.setattr(zipfile, "ZipFile", None)
    with pytest.raises(SourceError, match="more than 10000 entries"):
        unpack(tmp_path / "m.zip", "m.zip", into(tmp_path))
    locator = b"PK\6\7" + bytes(16)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, 46, 0, 0)
    (tmp_path / "m.zip").write_bytes(b"x" * 1000 + locator + end)
    with pytest.raises(SourceError, match="more than 10000 entries"):
        unpack(tmp_path / "m.zip", "m.zip", tmp_path / "inside" / "here")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    """The limit of bytes as a tenth of a megabyte, so that tests need not write 200."""
    monkeypatch.setattr(unpacking, "MAX_BYTES", 100_000)
    monkeypatch.setattr(unpacking, "_TAR_OVERHEAD", 100_000)
    return 100_000


def bomb_zip(file: Path, size: int) -> Path:
    return zipped(file, *((f"f{n}", 0o100644, bytes(size // 4)) for n in range(5)))


def bomb_tar(file: Path, size: int) -> Path:
    return tarred(file, *((f"f{n}", FILE, bytes(size // 4), "") for n in range(5)))


def bomb_gz(file: Path, size: int) -> Path:
    file.write_bytes(gzip.compress(bomb_tar(file.with_suffix(".raw"), size).read_bytes()))
    return file


def bomb_xz(file: Path, size: int) -> Path:
    file.write_bytes(lzma.compress(bomb_tar(file.with_suffix(".raw"), size).read_bytes()))
    return file


def bomb_header(file: Path, size: int) -> Path:
    """A tar whose extended header alone is more than all that may be in it."""
    with tarfile.open(file, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("x")
        info.pax_headers = {"comment": "x" * (3 * size)}
        archive.addfile(info)
    return file


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (bomb_zip, "m.zip"),
        (bomb_tar, "m.tar"),
        (bomb_gz, "m.tar.gz"),
        (bomb_xz, "m.tar.xz"),
        (bomb_header, "m.tgz"),
    ],
)
def test_more_than_the_limit_is_refused(
    make: Callable[[Path, int], Path], name: str, small: int, tmp_path: Path
) -> None:
    folder = into(tmp_path)
    with pytest.raises(SourceError, match=r"the content of .* is larger than 0 MiB"):
        unpack(make(tmp_path / name, small), name, folder)
    assert sum(path.stat().st_size for path in folder.rglob("*")) <= small


def test_an_entry_larger_than_declared_is_refused(tmp_path: Path, small: int) -> None:
    file = zipped(tmp_path / "m.zip", ("x", 0o100644, bytes(10 * small)))
    data = bytearray(file.read_bytes())
    size = struct.pack("<L", 10 * small)
    assert data.count(size) == 2
    file.write_bytes(bytes(data).replace(size, struct.pack("<L", 10)))
    folder = into(tmp_path)
    with pytest.raises(SourceError, match="is damaged"):
        unpack(file, "m.zip", folder)
    assert sum(path.stat().st_size for path in folder.rglob("*")) <= 10


def test_an_xz_that_wants_a_gigabyte_of_memory_is_refused(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 2 * _XZ_MEMORY}]
    data = lzma.compress(b"x" * 1000, filters=filters)
    (tmp_path / "m.tar.xz").write_bytes(data)
    with pytest.raises(SourceError, match="is damaged: Memory usage limit"):
        unpack(tmp_path / "m.tar.xz", "m.tar.xz", into(tmp_path))


# -- damaged -----------------------------------------------------------------------------


def with_bit(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] |= 1
    return bytes(changed)


def test_an_encrypted_or_oddly_compressed_zip_is_refused(tmp_path: Path) -> None:
    file = zipped(tmp_path / "m.zip", ("x", 0o100644, b"x"))
    data = file.read_bytes()
    (tmp_path / "locked.zip").write_bytes(with_bit(data, data.index(b"PK\1\2") + 8))
    with pytest.raises(SourceError, match="is encrypted"):
        unpack(tmp_path / "locked.zip", "locked.zip", into(tmp_path))
    with zipfile.ZipFile(tmp_path / "odd.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x", "x")
    with pytest.raises(SourceError, match="unsupported compression method"):
        unpack(tmp_path / "odd.zip", "odd.zip", tmp_path / "inside" / "here")


def test_an_invalid_archive_is_reported(tmp_path: Path) -> None:
    contents = [b"", b"x", b"PK\5\6", b"PK\5\6" + bytes(40), os.urandom(4096)]
    for number, content in enumerate(contents):
        for name in ("m.zip", "m.whl", "m.tar", "m.tar.gz", "m.tar.bz2", "m.tar.xz"):
            folder = into(tmp_path / f"{number}-{name}")
            (tmp_path / name).write_bytes(content)
            # An archive without entries is valid; the missing module is reported later.
            if len(content) == 44 and name in ("m.zip", "m.whl"):
                unpack(tmp_path / name, name, folder)
            else:
                with pytest.raises(SourceError, match=f"{name} is damaged"):
                    unpack(tmp_path / name, name, folder)
            assert tree(folder) == [], (name, content)


@pytest.mark.parametrize("name", ["m.zip", "m.tar.gz", "m.tar.bz2", "m.tar.xz"])
def test_a_truncated_archive_is_reported(name: str, tmp_path: Path) -> None:
    if name.endswith("zip"):
        zipped(tmp_path / name, *((f"f{n}", 0o100644, os.urandom(500)) for n in range(20)))
    else:
        mode: Any = f"w:{name.rpartition('.')[2]}"
        with tarfile.open(tmp_path / name, mode) as archive:
            for n in range(20):
                info = tarfile.TarInfo(f"f{n}")
                info.size = 500
                archive.addfile(info, io.BytesIO(os.urandom(500)))
    data = (tmp_path / name).read_bytes()
    for part in (0.1, 0.5, 0.9):
        (tmp_path / name).write_bytes(data[: int(len(data) * part)])
        folder = tmp_path / str(part)
        folder.mkdir()
        with pytest.raises(SourceError, match="is damaged"):
            unpack(tmp_path / name, name, folder)


def test_a_wrong_checksum_behind_the_entries_is_noticed(tmp_path: Path) -> None:
    plain = tarred(tmp_path / "m.tar", ("file", FILE, b"content", "")).read_bytes()
    packed = gzip.compress(plain)
    file = tmp_path / "m.tar.gz"
    file.write_bytes(packed[:-8] + bytes(byte ^ 0xFF for byte in packed[-8:-4]) + packed[-4:])
    with pytest.raises(SourceError, match=r"m\.tar\.gz is damaged: CRC check failed"):
        unpack(file, "m.tar.gz", into(tmp_path))
