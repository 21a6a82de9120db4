"""Output of any length: what is kept, what is spilled, and where it is cut."""

import os
from pathlib import Path

import pytest

from amplifier_core.testing import MockCoordinator
from amplifier_modules._shared.output import OutputCapture, known_output_dir, output_dir


def capture(folder: Path, limit: int = 100, spill: int = 10_000) -> OutputCapture:
    return OutputCapture(limit=limit, spill_limit=spill, new_file=lambda: folder / "spill.txt")


def feed(capture: OutputCapture, data: bytes, size: int) -> None:
    for at in range(0, len(data), size):
        capture.feed(data[at : at + size])


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_what_fits_is_kept_whole(tmp_path: Path, size: int) -> None:
    taken = capture(tmp_path)
    feed(taken, "ä".encode() * 50, size)
    captured = taken.captured()
    assert (captured.text, captured.cut, captured.total) == ("ä" * 50, False, 100)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [1, 7, 33, 1000, 100_000])
def test_what_does_not_is_cut_in_the_middle_and_spilled_whole(tmp_path: Path, size: int) -> None:
    data = b"".join(b"line %d\n" % n for n in range(1000))
    taken = capture(tmp_path)
    feed(taken, data, size)
    taken.close()
    captured = taken.captured()
    assert captured.cut
    assert captured.text.startswith("line 0\nline 1\n")
    assert captured.text.endswith("\nline 998\nline 999\n")
    assert "\n[… 8790 bytes are cut out here …]\n" in captured.text
    assert captured.file == tmp_path / "spill.txt"
    assert captured.file.read_bytes() == data
    assert captured.in_file == captured.total == len(data)
    assert os.stat(captured.file).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("shift", range(4))
def test_no_character_is_cut_through(tmp_path: Path, shift: int) -> None:
    taken = capture(tmp_path)
    feed(taken, b"x" * shift + "🙂".encode() * 100, 13)
    text = taken.captured().text
    assert "\ufffd" not in text
    assert text.count("🙂") in (23, 24)


def test_the_file_has_a_limit(tmp_path: Path) -> None:
    taken = capture(tmp_path, spill=500)
    feed(taken, b"abcdefghij" * 1000, 64)
    captured = taken.captured()
    assert (captured.in_file, captured.total) == (500, 10_000)
    assert (tmp_path / "spill.txt").read_bytes() == b"abcdefghij" * 50


def test_without_a_place_for_the_file_it_is_said(tmp_path: Path) -> None:
    taken = capture(tmp_path / "missing")
    feed(taken, b"x" * 1000, 100)
    captured = taken.captured()
    assert (captured.file, captured.problem) == (None, "No such file or directory")
    assert captured.total == 1000


def test_a_planted_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "spill.txt").symlink_to("victim")
    taken = capture(tmp_path)
    feed(taken, b"x" * 1000, 100)
    assert taken.captured().file is None
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_full_disk_becomes_a_note(tmp_path: Path) -> None:
    import resource

    taken = capture(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
    try:
        feed(taken, b"x" * 1000, 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    captured = taken.captured()
    assert (captured.in_file, captured.problem) == (300, "File too large")


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    taken = capture(tmp_path, limit=1000)
    taken.feed(bytes(range(256)))
    text = taken.captured().text
    assert text[:128] == bytes(range(128)).decode()
    assert set(text[128:]) == {"\ufffd"}


async def test_the_folder_is_in_the_session_or_goes_with_it(tmp_path: Path) -> None:
    saved = MockCoordinator()
    saved.register_capability("session.dir", str(tmp_path))
    assert known_output_dir(saved) == str(tmp_path / "tool-output")
    assert output_dir(saved) == output_dir(saved) == tmp_path / "tool-output"
    assert (tmp_path / "tool-output").stat().st_mode & 0o777 == 0o700

    unsaved = MockCoordinator()
    assert known_output_dir(unsaved) is None
    folder = output_dir(unsaved)
    assert known_output_dir(unsaved) == str(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    await unsaved.cleanup()
    assert not folder.exists()
