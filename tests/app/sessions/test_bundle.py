"""Bundles: what goes out has no secrets, and what comes in cannot do harm."""

import gzip
import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.base.errors import SessionError
from amplifier_app.sessions import bundle as bundles
from amplifier_app.sessions.bundle import import_bundle, read_bundle, write_bundle
from amplifier_app.sessions.removal import remove_leftovers
from amplifier_app.sessions.store import SessionStore
from amplifier_support.redaction import Redactor
from tests.app.sessions.killed import Killer
from tests.support import planted
from tests.support.thorough import Scale

SECRET = planted.SECRETS["github-classic"]


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    store = SessionStore(tmp_path / "from")
    facts = {
        "title": f"T {SECRET}",
        "prompts": 1,
        "mode": "auto",
        "trusted_project": {"folder": "/x"},
    }
    saved = store.create("lead", project="/p", plan_yaml=f"instruction: {SECRET}\n", **facts)
    saved.append({"role": "user", "content": f"use {SECRET}"})
    saved.append({"role": "assistant", "content": "Grüße"})
    saved.close()
    store.create("lead-1", project="/p", plan_yaml="x: 1\n", parent="lead", agent="reader").close()
    folder = store.root / "lead"
    (folder / "events.jsonl").write_text('{"event": "x", "data": {}}\n{torn')
    (folder / "approvals.json").write_text('["bash"]')
    for name in ("tool-output", "backups"):
        (folder / name).mkdir()
        (folder / name / "out.txt").write_text(SECRET)
    (folder / "tool-output" / "link").symlink_to("/etc/passwd")
    return store


def bundled(store: SessionStore, folder: Path) -> Path:
    file = folder / "out.tar.gz"
    sessions = [store.find("lead"), store.find("lead-1")]
    write_bundle(file, sessions, Redactor().value, "1.0")
    return file


def test_a_bundle_becomes_the_same_sessions_again(store: SessionStore, tmp_path: Path) -> None:
    file = bundled(store, tmp_path)
    target = SessionStore(tmp_path / "to")
    assert import_bundle(target, read_bundle(file)) == ["lead", "lead-1"]
    metadata, messages = target.read("lead")
    assert messages == [
        {"role": "user", "content": "use [REDACTED:github-pat]"},
        {"role": "assistant", "content": "Grüße"},
    ]
    assert metadata["title"] == "T [REDACTED:github-pat]"
    child = target.read("lead-1")[0]
    assert (child["parent"], child["agent"]) == ("lead", "reader")
    names = {path.relative_to(target.root / "lead").as_posix()
             for path in (target.root / "lead").rglob("*") if path.is_file()}  # fmt: skip
    assert names == {
        *("metadata.json", "transcript.jsonl", "events.jsonl", "imported-plan.yaml", "lock"),
        "tool-output/out.txt",
    }
    content = b"".join(path.read_bytes() for path in target.root.rglob("*") if path.is_file())
    assert SECRET.encode() not in content
    for path in target.root.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0


def test_an_import_keeps_nothing_that_changes_how_a_session_runs(
    store: SessionStore, tmp_path: Path
) -> None:
    target = SessionStore(tmp_path / "to")
    import_bundle(target, read_bundle(bundled(store, tmp_path)))
    metadata = target.read("lead")[0]
    assert metadata["imported"] is True
    assert not metadata.keys() & {"mode", "trusted_project", "spent"}
    assert not (target.root / "lead" / "plan.yaml").exists()


def test_the_same_sessions_have_the_same_bundle(store: SessionStore, tmp_path: Path) -> None:
    first = bundled(store, tmp_path).read_bytes()
    (tmp_path / "out.tar.gz").unlink()
    assert bundled(store, tmp_path).read_bytes() == first
    with pytest.raises(SessionError, match="already exists"):
        bundled(store, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["from", "out.tar.gz"]


def test_taken_ids_are_refused_or_replaced(store: SessionStore, tmp_path: Path) -> None:
    bundle = read_bundle(bundled(store, tmp_path))
    with pytest.raises(SessionError, match="session lead already exists"):
        import_bundle(store, bundle)
    lead, child = import_bundle(store, bundle, new_ids=True)
    assert store.read(child)[0]["parent"] == lead
    assert store.read(lead)[0]["id"] == lead
    assert remove_leftovers(store.root) == []


def test_a_bundle_adds_no_sub_sessions_to_sessions_that_are_here(
    store: SessionStore, tmp_path: Path
) -> None:
    file = tmp_path / "child.tar.gz"
    write_bundle(file, [store.find("lead-1")], Redactor().value, "1.0")
    (imported,) = import_bundle(store, read_bundle(file), new_ids=True)
    assert {one.id for one in store.summaries() if one.parent == "lead"} == {"lead-1"}
    assert "parent" not in store.read(imported)[0]


def archive(
    *members: tuple[str, bytes], change: Callable[[tarfile.TarInfo], None] | None = None
) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            if change is not None:
                change(info)
            tar.addfile(info, io.BytesIO(data))
    return raw.getvalue()


def manifest(**files: bytes) -> tuple[str, bytes]:
    entries = {
        name.replace("_", "."): {"sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
    }
    found = {"format": "amplifier-sessions", "version": 1, "sessions": {"s": entries}}
    return ("manifest.json", json.dumps(found).encode())


META = b'{"id": "s"}'
SAY = b'{"role": "user", "content": "x"}\n'


def as_link(info: tarfile.TarInfo) -> None:
    info.type, info.linkname, info.size = tarfile.SYMTYPE, "/etc/passwd", 0


def as_hard_link(info: tarfile.TarInfo) -> None:
    info.type, info.linkname, info.size = tarfile.LNKTYPE, "manifest.json", 0


def as_device(info: tarfile.TarInfo) -> None:
    info.type, info.size = tarfile.CHRTYPE, 0


HOSTILE: dict[str, tuple[bytes, str]] = {
    "no archive": (b"plain text", "not a bundle"),
    "empty": (b"", "not a bundle"),
    "torn": (archive(manifest(), ("sessions/s/metadata.json", META))[:700], "not a bundle|damaged"),
    "torn gzip": (gzip.compress(archive(manifest()))[:40], "not a bundle|cannot read"),
    "no manifest": (archive(("sessions/s/metadata.json", META)), "not a bundle of sessions"),
    "climbing": (archive(("sessions/../../x", b"")), "unexpected file"),
    "climbing id": (archive(("sessions/../metadata.json", b"")), "unexpected file"),
    "absolute": (archive(("/etc/cron.d/x", b"")), "unexpected file"),
    "nested": (archive(("sessions/s/tool-output/a/b", b"")), "unexpected file"),
    "dots": (archive(("sessions/s/tool-output/..", b"")), "unexpected file"),
    "approvals": (archive(("sessions/s/approvals.json", b"")), "unexpected file"),
    "backups": (archive(("sessions/s/backups/index.jsonl", b"")), "unexpected file"),
    "lock": (archive(("sessions/s/lock", b"")), "unexpected file"),
    "link": (archive(("sessions/s/metadata.json", b""), change=as_link), "not a regular file"),
    "hard link": (archive(("sessions/s/plan.yaml", b""), change=as_hard_link), "not a regular"),
    "device": (archive(("sessions/s/plan.yaml", b""), change=as_device), "not a regular file"),
    "twice": (archive(manifest(), manifest()), "twice"),
    "wrong digest": (
        archive(manifest(metadata_json=b"x"), ("sessions/s/metadata.json", META)),
        "other contents",
    ),
    "missing file": (archive(manifest(metadata_json=META)), "incomplete"),
    "unlisted file": (
        archive(manifest(), ("sessions/s/metadata.json", META)),
        "incomplete",
    ),
    "unlisted session": (
        archive(
            manifest(metadata_json=META),
            ("sessions/s/metadata.json", META),
            ("sessions/t/metadata.json", META),
        ),
        "does not list",
    ),
    "no metadata": (archive(manifest(), ), "metadata of session s"),
    "damaged metadata": (
        archive(manifest(metadata_json=b"[1]"), ("sessions/s/metadata.json", b"[1]")),
        "metadata of session s",
    ),
    "deep metadata": (
        archive(manifest(metadata_json=b"[" * 99999), ("sessions/s/metadata.json", b"[" * 99999)),
        "metadata of session s",
    ),
    "damaged transcript": (
        archive(
            manifest(metadata_json=META, transcript_jsonl=b"{\n" + SAY),
            ("sessions/s/metadata.json", META),
            ("sessions/s/transcript.jsonl", b"{\n" + SAY),
        ),
        "transcript of session s",
    ),
}  # fmt: skip


def test_hostile_archives_are_refused_with_nothing_written(tmp_path: Path) -> None:
    file = tmp_path / "in.tar"
    for kind, (data, message) in HOSTILE.items():
        file.write_bytes(data)
        with pytest.raises(SessionError) as refused:
            import_bundle(SessionStore(tmp_path / "to"), read_bundle(file))
        assert re.search(message, str(refused.value)), kind
        assert [path.name for path in tmp_path.iterdir()] == ["in.tar"], kind


def test_what_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "_MAX_BYTES", 1_000_000)
    monkeypatch.setattr(bundles, "_MAX_FILES", 5)
    file = tmp_path / "bomb.tar.gz"
    file.write_bytes(gzip.compress(archive(("manifest.json", b"\0" * 50_000_000))))
    assert file.stat().st_size < 100_000
    with pytest.raises(SessionError, match="unpacks to more than"):
        read_bundle(file)
    many = [(f"sessions/s/tool-output/{n}", b"") for n in range(9)]
    file.write_bytes(archive(*many))
    with pytest.raises(SessionError, match="more than 5 files"):
        read_bundle(file)

    def sparse(info: tarfile.TarInfo) -> None:
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0",
                            "GNU.sparse.realsize": "99999999999"}  # fmt: skip

    file.write_bytes(archive(("manifest.json", b"0\n" + b"\0" * 510), change=sparse))
    with pytest.raises(SessionError):
        read_bundle(file)


def test_hostile_metadata_is_reduced_to_facts_of_the_right_type(tmp_path: Path) -> None:
    meta: dict[str, Any] = {
        **{"id": "../../x", "title": ["x"], "prompts": True, "usage": "much", "project": "/p"},
        **{"spent": {"cost_usd": "1"}, "spawned_with": {}, "schema_version": 99},
    }
    data = json.dumps(meta).encode()
    file = tmp_path / "in.tar"
    file.write_bytes(archive(manifest(metadata_json=data), ("sessions/s/metadata.json", data)))
    store = SessionStore(tmp_path / "to")
    import_bundle(store, read_bundle(file))
    stored = json.loads((store.root / "s" / "metadata.json").read_text())
    assert stored == {"schema_version": 2, "id": "s", "project": "/p", "imported": True}


def test_a_killed_import_leaves_whole_sessions_or_none(
    store: SessionStore, tmp_path: Path, scale: Scale
) -> None:
    bundle = read_bundle(bundled(store, tmp_path))
    target = SessionStore(tmp_path / "to")
    kill = Killer()
    for _ in range(scale(12, 40)):
        kill(lambda: import_bundle(target, bundle, new_ids=True))
        for path in target.root.iterdir():
            if not path.name.startswith("."):
                assert target.read(path.name)[0]["imported"] is True
                assert (path / "imported-plan.yaml").stat().st_size
        remove_leftovers(target.root)
        assert not list(target.root.glob(".*"))


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "checksum": lambda data: data[:-8] + bytes(byte ^ 0xFF for byte in data[-8:-4]) + data[-4:],
    "size": lambda data: data[:-4] + b"\1\2\3\4",
    "no-checksum": lambda data: data[:-8],
    "half": lambda data: data[: len(data) // 2],
    "one-bit": lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
    "more": lambda data: data + b"more",
}


def test_a_damaged_bundle_is_refused(store: SessionStore, tmp_path: Path) -> None:
    file = bundled(store, tmp_path)
    good = file.read_bytes()
    for name, damage in DAMAGES.items():
        file.write_bytes(damage(good))
        with pytest.raises(SessionError) as refused:
            read_bundle(file)
        assert re.search(r"out\.tar\.gz is (damaged|not a bundle)", str(refused.value)), name


def test_a_fifo_is_refused_as_a_bundle_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(SessionError, match="it is not a regular file"):
        read_bundle(tmp_path / "fifo")
