"""The record of trust: kept whole, kept private, and never taken for trust when in doubt."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from amplifier_app.base.errors import ConfigError
from amplifier_app.trust import Content, TrustStore, examine
from tests.support.cli import start_python
from tests.support.module_repositories import write_files


@pytest.fixture
def content(tmp_path: Path) -> Content:
    project = write_files(tmp_path / "project", {".amplifier/settings.yaml": "profile: x\n"})
    (project / ".amplifier" / os.fsdecode(b"odd-\xff")).write_bytes(b"\xff")
    return examine(project / ".amplifier")


def only_record(store: TrustStore) -> Path:
    [file] = store.folder.glob("*.json")
    return file


def test_a_trust_record_is_read_back(content: Content) -> None:
    store = TrustStore()
    assert store.record(content.root) is None
    stored = store.trust(content)
    record = TrustStore().record(content.root)
    assert record == stored
    assert record is not None
    assert record.allows(content)
    assert record.entries[".amplifier/settings.yaml"].text == "profile: x\n"
    (content.folder / "settings.yaml").write_text("profile: y\n")
    assert not record.allows(examine(content.folder))


def test_always_allows_any_content(content: Content) -> None:
    record = TrustStore().trust(content, always=True)
    (content.folder / "settings.yaml").write_text("profile: y\n")
    assert record.allows(examine(content.folder))


def test_a_record_applies_to_its_own_folder_only(content: Content, tmp_path: Path) -> None:
    record = TrustStore().trust(content)
    content.root.rename(tmp_path / "moved")
    moved = examine(tmp_path / "moved/.amplifier")
    assert moved.hash == content.hash
    assert not record.allows(moved)
    assert TrustStore().record(moved.root) is None


def test_trust_can_be_revoked(content: Content) -> None:
    store = TrustStore()
    store.trust(content)
    assert store.revoke(content.root)
    assert store.record(content.root) is None
    assert not store.revoke(content.root)


@pytest.mark.skipif(os.name == "nt", reason="needs permissions of this kind")
def test_only_the_user_can_read_it_regardless_of_umask(content: Content) -> None:
    before = os.umask(0)
    try:
        store = TrustStore()
        store.trust(content)
    finally:
        os.umask(before)
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(only_record(store).stat().st_mode) == 0o600


DAMAGE: dict[str, Callable[[str], str]] = {
    "empty": lambda text: "",
    "cut": lambda text: text[: len(text) // 2],
    "not JSON": lambda text: text.replace("{", "["),
    "deep": lambda text: "[" * 100_000,
    "another shape": lambda text: json.dumps([text]),
    "no entries": lambda text: json.dumps({**json.loads(text), "entries": None}),
    "odd entries": lambda text: json.dumps({**json.loads(text), "entries": {"a": [1, 2, 3, 4]}}),
    "another hash": lambda text: json.dumps({**json.loads(text), "hash": "sha256:" + "0" * 64}),
    "another content": lambda text: json.dumps({**json.loads(text), "entries": {}}),
    "no version": lambda text: json.dumps({**json.loads(text), "version": None}),
    "another project": lambda text: json.dumps({**json.loads(text), "root": "/elsewhere"}),
    "names that cannot be": lambda text: json.dumps(
        {**json.loads(text), "entries": {"\ud800": ["file", "", 0, None]}}
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_is_an_error_and_can_be_removed(content: Content, damage: str) -> None:
    store = TrustStore()
    store.trust(content)
    file = only_record(store)
    file.write_text(DAMAGE[damage](file.read_text()))
    with pytest.raises(ConfigError, match="damaged") as error:
        store.record(content.root)
    assert str(file) in str(error.value)
    if damage != "another project":
        with pytest.raises(ConfigError, match="damaged"):
            store.records()
    assert store.revoke(content.root)
    assert store.record(content.root) is None


def test_a_record_of_a_newer_version_is_an_error(content: Content) -> None:
    store = TrustStore()
    store.trust(content)
    file = only_record(store)
    file.write_text(json.dumps({**json.loads(file.read_text()), "version": 2}))
    with pytest.raises(ConfigError, match="newer version"):
        store.record(content.root)


@pytest.mark.skipif(os.name == "nt", reason="needs permissions of this kind")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_record_that_others_could_write_grants_no_trust(content: Content, what: str) -> None:
    store = TrustStore()
    store.trust(content)
    place = only_record(store) if what == "file" else store.folder
    place.chmod(0o777)
    with pytest.raises(ConfigError, match="is writable by others"):
        store.record(content.root)


@pytest.mark.parametrize("what", ["file", "folder", "fifo"])
def test_nothing_is_read_or_written_through_a_link(
    content: Content, tmp_path: Path, what: str
) -> None:
    store = TrustStore()
    store.trust(content)
    place = store.folder if what == "folder" else only_record(store)
    elsewhere = tmp_path / "elsewhere"
    place.rename(elsewhere)
    if what == "fifo":
        os.mkfifo(place)
    else:
        place.symlink_to(elsewhere)
    with pytest.raises(ConfigError):
        store.record(content.root)
    if what == "folder":
        with pytest.raises(ConfigError, match="link"):
            store.trust(content)


def test_a_failed_write_is_an_error(
    content: Content, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").write_text("no folder")
    monkeypatch.setenv("AMPLIFIER_HOME", str(tmp_path / "home"))
    with pytest.raises(ConfigError):
        TrustStore().trust(content)


def test_many_writers_leave_one_complete_record(content: Content) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from amplifier_app.trust import TrustStore, examine\n"
        "content = examine(Path(sys.argv[1]))\n"
        "for _ in range(20): TrustStore().trust(content)\n"
    )
    writers = [start_python(code, content.folder) for _ in range(4)]
    store = TrustStore()
    while any(writer.poll() is None for writer in writers):
        record = store.record(content.root)
        assert record is None or record.allows(content)
    assert [writer.returncode for writer in writers] == [0] * 4
    assert [record.root for record in store.records()] == [content.root]
