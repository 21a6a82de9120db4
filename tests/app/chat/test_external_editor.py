"""The user's editor: whatever it is set to and does, the input line is kept."""

from pathlib import Path

import pytest

from amplifier_app.base.errors import AppError
from amplifier_app.chat.application import edit


def test_text_is_edited_even_if_it_is_not_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", "sed -i s/a/b/")
    assert edit("a\udcff", 2) == "b?"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("vi 'x", r"\$VISUAL is not a command: \"vi 'x\""),
        ("false", "exit code 1; nothing was changed"),
        ("rm -f", "No such file or directory; nothing was changed"),
    ],
)
def test_an_editor_that_fails_is_an_error(
    command: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VISUAL", command)
    with pytest.raises(AppError, match=message):
        edit("text", 2)


def test_a_folder_that_cannot_be_written_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VISUAL", "true")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(AppError, match="No such file or directory"):
        edit("text", 2)
