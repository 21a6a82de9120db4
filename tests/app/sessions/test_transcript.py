"""The transcript loses nothing that was acknowledged, whatever a crash leaves behind."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from amplifier_app.base.errors import SessionError
from amplifier_app.base.json_text import json_line
from amplifier_app.sessions.transcript import TranscriptWriter, read_transcript
from amplifier_support import journal
from amplifier_support.journal import CLEAR, encode, replacement

RECORDS = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": [{"type": "text", "text": "grüß dich"}]},
    {"role": "tool", "tool_call_id": "c1", "content": "x" * 50},
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "transcript.jsonl"


def write(path: Path, records: list[dict]) -> None:
    writer = TranscriptWriter(path, read_transcript(path))
    for record in records:
        writer.append(record)
    writer.close()


def test_records_are_read_back_unchanged(path: Path) -> None:
    write(path, RECORDS)
    assert read_transcript(path).messages == RECORDS


def test_numbers_that_json_lacks_are_written_as_text() -> None:
    record = {
        "content": [math.inf, {"x": -math.inf}],
        "usage": Usage.model_construct(cost=math.nan),
    }

    def refuse(text: str) -> None:
        raise ValueError(text)

    for line in (encode(record), json_line(record).encode()):
        data = json.loads(line, parse_constant=refuse)
        assert data["content"] == ["inf", {"x": "-inf"}]


class Usage(BaseModel):
    cost: float


def test_a_cut_at_every_byte_of_the_last_record_keeps_the_earlier_ones(path: Path) -> None:
    write(path, RECORDS)
    whole = path.read_bytes()
    start = len(whole) - len(encode(RECORDS[-1]))
    for cut in range(start, len(whole)):
        path.write_bytes(whole[:cut])
        reading = read_transcript(path)
        # The record is whole once only its line feed is missing.
        kept = RECORDS if cut == len(whole) - 1 else RECORDS[:-1]
        assert reading.messages == kept, cut
        assert reading.file.torn == (0 if kept is RECORDS else cut - start)
        write(path, [{"role": "user", "content": "next"}])
        assert read_transcript(path).messages == [*kept, {"role": "user", "content": "next"}], cut


@pytest.mark.parametrize(("nuls", "cut"), [(1, 20), (100, 0), (4096, 1)])
def test_a_tail_of_nul_bytes_is_cut_off(path: Path, nuls: int, cut: int) -> None:
    write(path, RECORDS)
    last = encode(RECORDS[-1])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - len(last) + cut] + b"\0" * nuls)
    assert read_transcript(path).messages == RECORDS[:-1]
    write(path, RECORDS[:1])
    assert read_transcript(path).messages == [*RECORDS[:-1], RECORDS[0]]
    assert b"\0" not in path.read_bytes()


def test_nul_block_with_the_end_of_the_record_behind_it_is_cut_off(path: Path) -> None:
    write(path, RECORDS[:2])
    last = encode(RECORDS[2])
    path.write_bytes(path.read_bytes() + b"\0" * 30 + last[30:])
    assert read_transcript(path).messages == RECORDS[:2]


def test_damage_before_a_whole_record_is_an_error_that_names_the_line(path: Path) -> None:
    write(path, RECORDS)
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = lines[0] + b"{broken\0\n" + lines[2]
    path.write_bytes(damaged)
    with pytest.raises(SessionError) as caught:
        read_transcript(path)
    assert caught.value.location is not None
    assert caught.value.location.line == 2
    assert path.read_bytes() == damaged


def test_a_finished_line_that_does_not_parse_is_damage_not_a_torn_write(path: Path) -> None:
    write(path, RECORDS)
    path.write_bytes(path.read_bytes() + b"not json\n")
    with pytest.raises(SessionError):
        read_transcript(path)


def test_every_byte_value_and_lone_surrogates_survive(path: Path) -> None:
    text = "".join(map(chr, range(256))) + "\ud800 \udfff \U0001f600 \u2028"
    write(path, [{"role": "user", "content": text}])
    assert read_transcript(path).messages == [{"role": "user", "content": text}]
    assert path.read_bytes().count(b"\n") == 1


def test_clearing_restarts_the_conversation_and_keeps_the_file(path: Path) -> None:
    write(path, [*RECORDS, CLEAR, RECORDS[0]])
    assert read_transcript(path).messages == RECORDS[:1]
    assert path.read_bytes().count(b"\n") == 5


def test_appending_never_rewrites_existing_records(path: Path) -> None:
    write(path, RECORDS)
    before, inode = path.read_bytes(), path.stat().st_ino
    write(path, RECORDS)
    assert path.read_bytes().startswith(before)
    assert path.stat().st_ino == inode


def test_a_planted_link_is_refused_and_its_target_untouched(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    link = tmp_path / "transcript.jsonl"
    link.symlink_to(target)
    with pytest.raises(SessionError, match="link"):
        TranscriptWriter(link, read_transcript(tmp_path / "none"))
    assert target.read_text() == "precious"


def test_a_failed_write_is_an_error_and_keeps_the_old_records(path: Path) -> None:
    """A file size limit makes the kernel refuse the write half way, as a full disk does."""
    write(path, RECORDS)
    before = path.read_bytes()
    program = """
import resource, signal, sys
from pathlib import Path
from amplifier_app.base.errors import SessionError
from amplifier_app.sessions.transcript import TranscriptWriter, read_transcript
path = Path(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = TranscriptWriter(path, read_transcript(path))
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, -1))
try:
    writer.append({"role": "user", "content": "y" * 10_000})
except SessionError as error:
    print(error)
else:
    sys.exit("no error")
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    assert "cannot save" in done.stdout
    assert path.read_bytes() == before


def test_models_and_dataclasses_in_a_message_are_saved_as_data() -> None:
    from amplifier_core.content_models import TextContent
    from amplifier_core.message_models import TextBlock

    line = encode({"role": "assistant", "content": [TextBlock(text="a"), TextContent(text="b")]})
    content = json.loads(line)["content"]
    assert content[0]["text"] == "a"
    assert content[1]["text"] == "b"


def test_a_replacement_is_one_atomic_record(path: Path) -> None:
    write(path, RECORDS)
    before = path.stat().st_size
    write(path, [replacement(RECORDS[1:]), RECORDS[0]])
    assert read_transcript(path).messages == [*RECORDS[1:], RECORDS[0]]
    whole = path.read_bytes()
    for cut in range(before, before + len(encode(replacement(RECORDS[1:]))) - 1, 7):
        path.write_bytes(whole[:cut])
        assert read_transcript(path).messages == RECORDS, cut


def test_a_record_of_a_later_version_is_an_error_that_names_the_line(path: Path) -> None:
    write(path, [RECORDS[0], {"control": "rewind", "to": 1}])
    with pytest.raises(SessionError, match="does not support: 'rewind'") as caught:
        read_transcript(path)
    assert caught.value.location is not None
    assert caught.value.location.line == 2


def test_a_message_without_a_role_is_still_a_message(path: Path) -> None:
    odd = [{"content": "no role"}, {"role": "user", "control": "clear"}]
    write(path, odd)
    assert read_transcript(path).messages == odd


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_append_does_not_affect_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch, interrupt: type[BaseException]
) -> None:
    """Handlers of signals raise between any two steps: here, after the bytes are written."""
    write(path, RECORDS[:1])
    writer = TranscriptWriter(path, read_transcript(path))

    def interrupted(descriptor: int) -> None:
        raise interrupt

    with monkeypatch.context() as patch:
        patch.setattr(journal, "_sync_data", interrupted)
        with pytest.raises(interrupt):
            writer.append({"role": "tool", "tool_call_id": "c", "content": "x" * 1000})
    writer.append(RECORDS[1])
    writer.close()
    reading = read_transcript(path)
    assert reading.messages == RECORDS[:2]
    assert reading.file[1:] == (path.stat().st_size, 0, True)


@pytest.mark.parametrize("value", [{(1, 2): 3}, "circular"])
def test_a_message_that_is_not_json_is_reported_and_leaves_the_file_alone(
    path: Path, value: object
) -> None:
    write(path, RECORDS)
    before = path.read_bytes()
    message: dict = {"role": "user", "content": value}
    if value == "circular":
        message["content"] = [message]
    with pytest.raises(SessionError, match="a message is not valid JSON"):
        write(path, [message])
    assert path.read_bytes() == before


def test_a_pipe_in_place_of_the_file_is_refused_at_once(path: Path, tmp_path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(SessionError, match="cannot open"):
        TranscriptWriter(path, read_transcript(tmp_path / "none"))


def test_a_transcript_that_cannot_be_read_or_written_is_reported(
    path: Path, tmp_path: Path
) -> None:
    path.mkdir()
    with pytest.raises(SessionError, match="cannot read"):
        read_transcript(path)
    with pytest.raises(SessionError, match="cannot open"):
        TranscriptWriter(path, read_transcript(tmp_path / "none"))
