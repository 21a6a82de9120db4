"""The files of a session that have changed since, by the records of its copies."""

import hashlib
import json
from pathlib import Path
from typing import Any

from amplifier_app.sessions.backups import files_changed_since


def record(path: Path, content: str | None, **more: Any) -> str:
    digest = None if content is None else hashlib.sha256(content.encode()).hexdigest()
    entry = {"path": str(path), "before": [None, 0, 0], "after": [digest, 0o644, 9], **more}
    return json.dumps({"kind": "changes", "turn": "1", "call": str(path), "files": [entry]})


def changed(folder: Path, *records: str) -> list[str]:
    index = folder / "session" / "backups" / "index.jsonl"
    index.parent.mkdir(parents=True, exist_ok=True)
    index.write_text("\n".join([*records, ""]))
    return files_changed_since(folder / "session", str(folder / "project"))


def test_contents_are_compared_with_the_last_known_state(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (project / "same").write_text("last")
    (project / "src" / "edited").write_text("mine")
    (project / "created").write_text("again")
    (project / "folder").mkdir()
    assert changed(
        tmp_path,
        record(project / "same", "first"),
        record(project / "same", "last"),
        record(project / "src" / "edited", "yours"),
        record(project / "created", None),
        record(project / "gone", None),
        record(project / "lost" / "with its folder", "text"),
        record(project / "folder", "text"),
    ) == ["created", "folder", "lost/with its folder", "src/edited"]


def test_an_undone_change_is_back_at_the_state_before_it(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    done = record(project / "a", "text")
    undone = json.dumps({"kind": "undone", "turn": "1", "removed": [str(project / "a")]})
    assert changed(tmp_path, done) == ["a"]
    assert changed(tmp_path, done, undone) == []


def test_unknown_and_foreign_files_are_left_out(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "outside").write_text("text")
    (project / "link").symlink_to(tmp_path)
    (project / "large").touch()
    assert (
        changed(
            tmp_path,
            record(tmp_path / "outside", "other"),
            record(project / "link" / "outside", "other"),
            record(project / "large", None, after=["touched 1, file 2, 3 bytes", 0o644, 3]),
            "no record",
        )
        == []
    )
    assert files_changed_since(tmp_path / "missing", str(project)) == []
