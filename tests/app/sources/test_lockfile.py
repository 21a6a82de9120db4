"""The lock file: it is read back as written, and invalid files are reported."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.base.errors import ConfigError
from amplifier_app.sources.loading import load
from amplifier_app.sources.lockfile import Lock, LockEntry, lock_path_for
from tests.support.plans import mock_plan

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONTENT = f"sha256:{'ab' * 32}"

LOCK = Lock(
    plan="test",
    modules={
        "tool-b": LockEntry(
            kind="git",
            source="git+https://example.com/b@main",
            commit=COMMIT,
            content=CONTENT,
            requirements={"some-lib": "2.0", "another": "1.0"},
        ),
        "tool-a": LockEntry(kind="folder", source="./tool-ä", content=CONTENT),
        "loop-basic": LockEntry(kind="bundled", distribution="amplifier", version="0.1.0"),
    },
)


def test_a_written_lock_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "locks" / "plan.lock.json"
    LOCK.write(file)
    again = Lock.read(file)
    assert again == LOCK
    assert again.entry("tool-b") == LOCK.modules["tool-b"]
    assert again.entry("tool-c") is None
    assert [path.name for path in file.parent.iterdir()] == ["plan.lock.json"]


def test_the_text_has_sorted_keys_and_no_empty_ones(tmp_path: Path) -> None:
    LOCK.write(tmp_path / "lock")
    text = (tmp_path / "lock").read_text(encoding="utf-8")
    data = json.loads(text)
    assert text == json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    assert list(data["modules"]) == ["loop-basic", "tool-a", "tool-b"]
    assert data["modules"]["tool-a"] == {
        "content": CONTENT,
        "kind": "folder",
        "source": "./tool-ä",
    }


@pytest.mark.skipif(os.name == "nt", reason="modes are POSIX")
def test_writing_a_lock_keeps_its_mode_and_its_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    real = tmp_path / "real" / "lock"
    LOCK.write(real)
    assert real.stat().st_mode & 0o444 == 0o444 & ~_umask()
    real.chmod(0o640)
    (tmp_path / "lock").symlink_to(real)
    Lock(plan="other").write(tmp_path / "lock")
    assert (tmp_path / "lock").is_symlink()
    assert Lock.read(real).plan == "other"
    assert real.stat().st_mode & 0o777 == 0o640


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_failed_write_leaves_the_old_lock(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="cannot write"):
        LOCK.write(tmp_path / "file" / "lock")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="cannot write"):
        LOCK.write(tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def changed(**changes: Any) -> str:
    return json.dumps({**json.loads(LOCK.to_json()), **changes})


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "damaged: line 1, column 1", "amplifier plan lock"),
        ("<<<<<<< HEAD\n{}", "damaged: line 1, column 1", "version control"),
        ("\x00\xff", "damaged", "amplifier plan lock"),
        ("[" * 100_000, "damaged", "amplifier plan lock"),
        ("[]", "not an Amplifier lock", "another file"),
        ('{"lockfileVersion": 3}', "not an Amplifier lock", "another file"),
        (changed(version=2), "format version 2", "update Amplifier"),
        (changed(version="1"), "format version is '1'", "amplifier plan lock"),
        (changed(version=None), "format version is None", "amplifier plan lock"),
        (changed(plan=3), "plan: ", "amplifier plan lock"),
        (changed(modules=[]), "modules: ", "amplifier plan lock"),
        (changed(more=1), "more: ", "amplifier plan lock"),
        (
            changed(modules={"x": {"kind": "git", "commit": "main"}}),
            "modules.x.commit",
            "plan lock",
        ),
        (changed(modules={"x": {"kind": "svn"}}), "modules.x.kind", "plan lock"),
        (changed(modules={"x": {"kind": "folder", "content": "1"}}), "modules.x.content", "plan"),
        (changed(modules={"x": {"kind": "package", "version": "../x"}}), "x.version", "plan"),
        (changed(modules={"x": {"kind": "package", "version": "-r"}}), "x.version", "plan"),
        (changed(modules={"x": {"kind": "git", "requirements": {"-r": "1"}}}), "requirem", "plan"),
        (changed(modules={"x": {"kind": "git", "requirements": {"a": "1\n"}}}), "requirem", "plan"),
    ],
)
def test_an_invalid_lock_is_reported_with_a_fix(
    text: str, message: str, hint: str, tmp_path: Path
) -> None:
    file = tmp_path / "plan.lock.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError) as raised:
        Lock.read(file)
    assert message in raised.value.message
    assert hint in (raised.value.hint or "")
    assert str(raised.value.location) == str(file)


def test_a_missing_lock_is_reported_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"plan.lock.json: the lock does not exist") as raised:
        Lock.read(tmp_path / "plan.lock.json")
    assert "amplifier plan lock" in (raised.value.hint or "")
    with pytest.raises(ConfigError, match="cannot read the lock: is a directory"):
        Lock.read(tmp_path)


def test_a_lock_is_next_to_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = mock_plan(tmp_path, ["x"], name="agent.prod.yaml")
    assert lock_path_for(load(plan=file)) == tmp_path / "agent.prod.lock.json"
    monkeypatch.chdir(tmp_path)
    assert lock_path_for(load(plan="agent.prod.yaml")) == tmp_path / "agent.prod.lock.json"


def test_the_lock_of_a_profile_is_with_the_settings(home: Path) -> None:
    (home / "profiles").mkdir(parents=True)
    mock_plan(home / "profiles", ["x"], name="mine.yml")
    assert lock_path_for(load(profile="mine")) == home / "locks" / "mine.lock.json"
    assert lock_path_for(load(profile="default")) == home / "locks" / "default.lock.json"
