"""The file: whose it is, what it holds and keeps out, and files that are none."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amplifier_core.llm_errors import AbortError, LLMError
from tests.extras.provider_replay.support import (
    ask,
    chunks_of,
    lines_of,
    record,
    recording,
    replay,
    replaying,
)
from tests.support.planted import PLANTED, SECRETS


async def test_the_file_is_the_owners_alone_and_reads_line_by_line(tmp_path: Path):
    async with recording(tmp_path, "Grüße", "two") as coordinator:
        provider = coordinator.get("providers", "mock")
        await chunks_of(provider, ask("ä", tools=[{"name": "t", "parameters": {"type": "object"}}]))
        tools = [{"name": "t", "parameters": {"type": "object"}}]
        await provider.complete(ask("ä", "Grüße", "more", tools=tools))
    path = tmp_path / "rec.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "Grüße" in path.read_text(encoding="utf-8")
    header, provider_line, first, *_, last = lines_of(path)
    assert (header["type"], header["schema"], header["folder"]) == ("header", 1, str(tmp_path))
    assert (provider_line["name"], provider_line["streams"]) == ("mock", True)
    assert first["request"]["messages"] == [{"role": "user", "content": "ä"}]
    [second] = [line for line in lines_of(path) if line.get("call") == 2][:1]
    # what it shares with the first is not written again
    assert (second["as"], second["first"], second["tools_as"]) == (1, 1, 1)
    assert [m["content"] for m in second["request"]["messages"]] == ["Grüße", "more"]
    assert "tools" not in second["request"]
    assert last["response"]["usage"]["input_tokens"] > 0


@pytest.mark.parametrize("name", ["bearer", "github-classic", "rsa-key", "url-password"])
async def test_secrets_are_kept_out_also_when_they_come_in_pieces(tmp_path: Path, name: str):
    secret, text = SECRETS[name], PLANTED[name]
    request = ask(f"see {text} here")
    mock = {"chunk_size": 5}
    async with recording(tmp_path, f"it is {text} indeed", mock=mock) as coordinator:
        await chunks_of(coordinator.get("providers", "mock"), request)
    written = (tmp_path / "rec.jsonl").read_text(encoding="utf-8")
    assert json.dumps(secret)[1:-1] not in written
    deltas = [
        line["chunk"].get("delta", "")
        for line in lines_of(tmp_path / "rec.jsonl")
        if "chunk" in line
    ]
    assert secret not in "".join(deltas)
    async with replaying(tmp_path) as coordinator:
        [*_, again] = await chunks_of(coordinator.get("providers", "mock"), request)
        assert "[REDACTED" in again.content[0].text


async def test_keys_of_the_environment_are_kept_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SOME_API_KEY", "plain-looking-words")
    await record(tmp_path, ask("say plain-looking-words"))
    assert "plain-looking" not in (tmp_path / "rec.jsonl").read_text()


async def test_a_recording_is_never_overwritten(tmp_path: Path):
    path = tmp_path / "rec.jsonl"
    path.write_text("mine\n")
    with pytest.raises(ValueError, match="not empty"):
        async with recording(tmp_path, "ok"):
            pass
    assert path.read_text() == "mine\n"
    path.write_text("")
    path.chmod(0o644)
    await record(tmp_path, ask())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_links_and_folders_are_not_recorded_to(tmp_path: Path):
    (tmp_path / "target").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for file in ("link", "."):
        with pytest.raises(ValueError, match="cannot write the recording"):
            async with recording(tmp_path, "ok", file=file):
                pass


async def test_a_session_without_requests_leaves_the_file_empty(tmp_path: Path):
    for _ in range(2):
        async with recording(tmp_path, "ok"):
            pass
    assert (tmp_path / "rec.jsonl").read_text() == ""


_BEGUN = b'{"type": "header", "schema": 1}\n'
_REQUEST = b"""{"type": "request", "call": 1, "provider": "a", "request": {"messages": %s}}
"""


@pytest.mark.parametrize(
    ("content", "reported"),
    [
        (b"", "not a recording"),
        (b'{"type": "request"}\n', "not a recording"),
        (b'{"type": "header", "schema": 99}\n', "schema 99"),
        (b'{"type": "header", "schema": 1}\nnonsense\n{}\n', "rec.jsonl:2 is not valid JSON"),
        (b'{"type": "header", "schema": 1}\n{"type": "request"}\n', "rec.jsonl:2"),
        (b'{"type": "header", "schema": 1}\n', "has no provider"),
        (b"\xff\xfe\n1\n", "rec.jsonl:1"),
        (b"[" * 200_000 + b"\n{}\n", "rec.jsonl:1 is not valid JSON"),
        (_BEGUN + b'{"type": "provider", "name": ["a"]}\n', "rec.jsonl:2"),
        (_BEGUN + _REQUEST % b"[1]", "rec.jsonl:2"),
        (_BEGUN + _REQUEST % b'"text"', "rec.jsonl:2"),
        (_BEGUN + _REQUEST % b"[]" + b'{"type": "cut", "call": 1, "at": 1e400}\n', "rec.jsonl:3"),
        (_BEGUN + _REQUEST % b"[]" + b'{"type": "cut", "call": 1, "at": NaN}\n', "rec.jsonl:3"),
    ],
)
async def test_a_file_that_is_not_a_recording_is_refused(
    tmp_path: Path, content: bytes, reported: str
):
    (tmp_path / "rec.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=reported):
        async with replaying(tmp_path):
            pass


async def test_a_torn_last_line_loses_its_call_alone(tmp_path: Path):
    async with recording(tmp_path, "one", "two") as coordinator:
        provider = coordinator.get("providers", "mock")
        await provider.complete(ask("a"))
        await provider.complete(ask("b"))
    path = tmp_path / "rec.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    async with replaying(tmp_path) as coordinator:
        provider = coordinator.get("providers", "mock")
        assert (await provider.complete(ask("a"))).content[0].text == "one"
        with pytest.raises(AbortError, match="call 2"):
            await provider.complete(ask("b"))


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path), os.mkdir])
async def test_only_regular_files_are_read(tmp_path: Path, make: Any):
    make(tmp_path / "rec.jsonl")
    with pytest.raises(ValueError, match=r"not a regular file|Is a directory"):
        async with replaying(tmp_path):
            pass


async def _changed(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Record an answer to `say it`, and change the lines of the recording."""
    async with recording(tmp_path, "hello") as coordinator:
        await coordinator.get("providers", "mock").complete(ask("say it"))
    lines = lines_of(tmp_path / "rec.jsonl")
    for line in lines:
        change(line)
    (tmp_path / "rec.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


async def test_many_redacted_places_do_not_take_for_ever_to_compare(tmp_path: Path):
    def redact(line: dict[str, Any]) -> None:
        if line["type"] == "request":
            line["request"]["messages"][0]["content"] = "[REDACTED:k]a" * 14 + "X"

    await _changed(tmp_path, redact)
    async with replaying(tmp_path) as coordinator:
        with pytest.raises(LLMError, match="not the one recorded"):
            await coordinator.get("providers", "mock").complete(ask("a" * 5000))
        answer = await coordinator.get("providers", "mock").complete(ask("a" * 28 + "X"))
        assert answer.content[0].text == "hello"


async def test_a_recording_has_only_provider_calls(tmp_path: Path):
    await _changed(
        tmp_path, lambda line: line["type"] == "event" and line.update(event="approval:granted")
    )
    async with replaying(tmp_path) as coordinator:
        heard: list[str] = []
        coordinator.hooks.register("approval:granted", lambda event, data: heard.append(event))
        await coordinator.get("providers", "mock").complete(ask("say it"))
    assert heard == []


@pytest.mark.parametrize("kind", ["\0", "\ud800", "no name", ""])
async def test_an_error_of_a_kind_that_has_no_name_is_an_error(tmp_path: Path, kind: str):
    def fail(line: dict[str, Any]) -> None:
        if line["type"] == "response":
            line.update(type="error", error={"type": kind, "message": "it broke"})

    await _changed(tmp_path, fail)
    with pytest.raises(Exception, match="it broke"):
        await replay(tmp_path, ask("say it"))
