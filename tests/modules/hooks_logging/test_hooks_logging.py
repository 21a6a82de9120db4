"""hooks-logging writes what happened, safely, and never gets in the way."""

import dataclasses
import enum
import itertools
import json
import logging
import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from amplifier_core.message_models import ChatResponse, TextBlock, Usage
from amplifier_core.models import HookResult, ToolResult
from amplifier_core.testing import MockCoordinator
from amplifier_modules import hooks_logging
from amplifier_support.redaction import secrets_in

SECRET = "sk-proj-0123456789"


class Session:
    """A coordinator with the hook mounted, and its file."""

    def __init__(self, folder: Path) -> None:
        self.coordinator = MockCoordinator()
        self.coordinator.register_capability("session.dir", str(folder))
        self.coordinator.register_capability("session.working_dir", str(folder))
        self.coordinator.hooks.set_default_fields(session_id="s-1")
        self.file = folder / "events.jsonl"
        self.close: Any = None

    async def mount(self, **config: Any) -> None:
        self.close = await hooks_logging.mount(self.coordinator, config)
        await hooks_logging.on_session_ready(self.coordinator)

    async def emit(self, event: str = "tool:pre", **data: Any) -> HookResult:
        return await self.coordinator.hooks.emit(event, data)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text("utf-8").splitlines()]

    def data(self) -> dict[str, Any]:
        return self.lines()[-1]["data"]


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    session = Session(tmp_path)
    yield session
    if session.close is not None:
        session.close()


class TestLines:
    async def test_one_line_of_json_per_event(self, session: Session) -> None:
        await session.mount()
        result = await session.emit("tool:pre", tool_name="bash", tool_input={"command": "ls"})
        assert result.action == "continue"
        assert len(session.lines()) == 1, "it is on disk when the event is over"
        await session.emit("orchestrator:complete", status="success")

        first, second = session.lines()
        assert list(first) == ["ts", "level", "event", "session_id", "data"]
        assert first["event"] == "tool:pre"
        assert first["session_id"] == "s-1"
        assert first["data"] == {"tool_name": "bash", "tool_input": {"command": "ls"}}
        assert datetime.fromisoformat(first["ts"]).tzinfo is not None
        assert second["data"] == {"status": "success"}

    async def test_data_changed_by_earlier_hooks_is_written(self, session: Session) -> None:
        await session.mount()

        def redact(event: str, data: dict[str, Any]) -> HookResult:
            return HookResult(action="modify", data={**data, "text": "***"})

        session.coordinator.hooks.register("tool:pre", redact, priority=10)
        await session.emit(text="private")
        assert session.data()["text"] == "***"

    async def test_a_line_cut_by_a_crash_does_not_spoil_the_next(self, session: Session) -> None:
        session.file.write_text('{"event": "whole"}\n{"event": "cu')
        await session.mount()
        await session.emit()
        lines = session.file.read_text().splitlines()
        assert lines[1] == '{"event": "cu'
        assert json.loads(lines[2])["event"] == "tool:pre"

    async def test_the_same_value_under_two_names_is_written_once(self, session: Session) -> None:
        await session.mount()
        value, result = {"a": 1}, {"output": "x"}
        await session.emit(tool_input=value, input=value, tool_result=result, result=result)
        assert session.data() == {"tool_input": value, "tool_result": result}

    async def test_messages_of_a_request_are_counted(self, session: Session) -> None:
        await session.mount()
        await session.emit("provider:request", messages=[{"role": "user"}] * 3, model="m")
        assert session.data() == {"model": "m", "message_count": 3}

    async def test_messages_of_a_request_are_written_on_demand(self, session: Session) -> None:
        await session.mount(include_messages=True)
        await session.emit("provider:request", messages=[{"role": "user"}])
        assert session.data() == {"messages": [{"role": "user"}]}

    async def test_long_strings_are_cut_with_a_note(self, session: Session) -> None:
        await session.mount(max_value_chars=100)
        await session.emit(text="x" * 150)
        assert session.data()["text"] == "x" * 100 + "... (truncated 50 chars)"


class TestChoice:
    async def test_of_an_image_only_its_size_is_written(self, session: Session) -> None:
        await session.mount()
        source = {"type": "base64", "media_type": "image/png", "data": "iVBO" * 200}
        result = ToolResult(output="seen", content=[{"type": "image", "source": source}])  # type: ignore[list-item]
        await session.emit("tool:post", result=result)

        (block,) = session.data()["result"]["content"]
        assert block["source"] == {**source, "data": "<800 characters of base64>"}

    async def test_streamed_pieces_are_left_out(self, session: Session) -> None:
        await session.mount()
        for event in ("content_block:delta", "thinking:delta", "provider:stream"):
            await session.emit(event, delta="x")
        await session.emit("content_block:end")
        assert [line["event"] for line in session.lines()] == ["content_block:end"]

    async def test_events_may_be_chosen_by_pattern(self, session: Session) -> None:
        await session.mount(events={"include": ["tool:*"], "exclude": ["tool:post"]})
        for event in ("tool:pre", "tool:post", "prompt:submit"):
            await session.emit(event)
        assert [line["event"] for line in session.lines()] == ["tool:pre"]

    async def test_no_handler_is_registered_for_excluded_events(self, session: Session) -> None:
        await session.mount()
        assert session.coordinator.hooks.list_handlers("content_block:delta") == {
            "content_block:delta": []
        }

    async def test_events_of_other_modules_are_written(self, session: Session) -> None:
        contribute = session.coordinator.register_contributor
        contribute("observability.events", "one", lambda: ["one:started", "tool:pre"])
        contribute("observability.events", "two", lambda: "two:done")
        contribute("observability.events", "odd", lambda: 7)
        session.coordinator.register_capability("observability.events", ["old:style"])
        await session.mount()
        for event in ("one:started", "two:done", "old:style", "tool:pre", "unknown:event"):
            await session.emit(event)
        written = [line["event"] for line in session.lines()]
        assert written == ["one:started", "two:done", "old:style", "tool:pre"]


class _Colour(str, enum.Enum):  # noqa: UP042 - the older form is what needs care
    RED = "red"


@dataclasses.dataclass
class _Point:
    x: int
    y: Any = None


class _Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no")


class TestValues:
    @pytest.mark.parametrize(
        ("value", "written"),
        [
            (Path("/a/b"), "/a/b"),
            (Decimal("1.50"), "1.50"),
            (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02 00:00:00+00:00"),
            (b"\x00\xff", "<2 bytes>"),
            ((1, {2}), [1, [2]]),
            ({1: "a", None: "b"}, {"1": "a", "None": "b"}),
            (float("nan"), "nan"),
            (float("-inf"), "-inf"),
            (_Colour.RED, "red"),
            (_Point(1, _Point(2)), {"x": 1, "y": {"x": 2, "y": None}}),
            (_Hostile(), "<_Hostile not readable: RuntimeError>"),
            ("lone \ud800 surrogate", "lone \ud800 surrogate"),
            ("line\nbreak\u2028", "line\nbreak\u2028"),
        ],
    )
    async def test_values_that_are_not_json_become_text(
        self, session: Session, value: Any, written: Any
    ) -> None:
        await session.mount()
        await session.emit(value=value)
        assert session.data()["value"] == written
        assert session.file.read_bytes().count(b"\n") == 1

    async def test_models_are_written_as_their_fields(self, session: Session) -> None:
        await session.mount()
        usage = Usage(input_tokens=1, output_tokens=2, total_tokens=3, cost_usd=Decimal("0.5"))
        await session.emit(response=ChatResponse(content=[TextBlock(text="hi")], usage=usage))
        assert session.data()["response"] == {
            "content": [{"type": "text", "text": "hi"}],
            "usage": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3, "cost_usd": "0.5"},
        }

    async def test_data_that_refers_to_itself_is_cut_off(self, session: Session) -> None:
        await session.mount()
        loop: dict[str, Any] = {"a": 1}
        loop["self"] = loop
        log = session.coordinator.get_capability("hooks-logging.log")
        await log.record("tool:pre", {"loop": loop})
        assert "nested too deeply" in session.file.read_text()
        assert session.data()["loop"]["self"]["a"] == 1

    async def test_data_with_many_references_to_itself_is_written_in_bounded_time(
        self, session: Session
    ) -> None:
        await session.mount()
        nodes: list[dict[str, Any]] = [{"n": n} for n in range(30)]
        for before, after in itertools.pairwise(nodes):
            before["next"], after["before"] = after, before
        nodes[0] |= {"first": nodes[0], "same": nodes[0]}
        log = session.coordinator.get_capability("hooks-logging.log")
        await log.record("tool:pre", {"node": nodes[0]})
        assert session.data()["node"]["next"]["next"]["n"] == 2

    @pytest.mark.parametrize("data", [None, "text", 7, []])
    async def test_data_that_is_not_a_mapping_is_written(self, session: Session, data: Any) -> None:
        await session.mount()
        await session.coordinator.hooks.emit("tool:pre", data)
        assert session.lines()[0]["data"] == {"value": data}
        assert session.lines()[0]["session_id"] == "test-session"


class TestSecrets:
    async def test_values_under_sensitive_keys_are_redacted(self, session: Session) -> None:
        await session.mount()
        await session.emit(config={"api_key": "abc", "nested": [{"Password": "x"}], "model": "m"})
        assert session.data()["config"] == {
            "api_key": "[REDACTED]",
            "nested": [{"Password": "[REDACTED]"}],
            "model": "m",
        }

    async def test_values_of_the_environment_are_blanked_wherever_they_stand(
        self, session: Session
    ) -> None:
        await session.mount()
        response = ChatResponse(content=[TextBlock(text=f"it is {SECRET}!")])
        await session.emit(command=f"curl -H {SECRET}", response=response, keys={SECRET: 1})
        text = session.file.read_text()
        assert SECRET not in text
        assert text.count("[REDACTED:secret]") == 3

    async def test_a_secret_is_blanked_before_a_string_is_cut(self, session: Session) -> None:
        await session.mount(max_value_chars=100)
        await session.emit(text="x" * 95 + SECRET)
        assert SECRET[:5] not in session.file.read_text()

    def test_what_counts_as_a_secret_of_the_environment(self) -> None:
        environment = {
            "OPENAI_API_KEY": "long-enough-1",
            "GITHUB_TOKEN": "long-enough-22",
            "DB_PASSWORD": "long-enough-333",
            "my_secret": "long-enough-4444",
            "PGPASSWORD": "long-enough-55555",
            "DB_PASS": "long-enough-666666",
            "GITHUB_PAT": "long-enough-7777777",
            "PWD": "/home/someone",
            "SSH_AUTH_SOCK": "/tmp/ssh-1/agent.1",
            "SHORT_KEY": "abc",
            "HOME": "/home/someone",
            "MONKEY": "not-a-secret",
        }
        assert secrets_in(environment) == [
            "long-enough-7777777",
            "long-enough-666666",
            "long-enough-55555",
            "long-enough-4444",
            "long-enough-333",
            "long-enough-22",
            "long-enough-1",
        ]


@pytest.mark.skipif(os.name != "posix", reason="modes and links of POSIX")
class TestFile:
    @pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
    async def test_only_the_owner_may_read_it(self, session: Session, umask: int) -> None:
        await session.mount()
        before = os.umask(umask)
        try:
            await session.emit()
        finally:
            os.umask(before)
        assert stat.S_IMODE(session.file.stat().st_mode) == 0o600

    async def test_a_planted_link_is_not_followed(
        self, session: Session, caplog: pytest.LogCaptureFixture
    ) -> None:
        target = session.file.with_name("precious")
        target.write_text("untouched")
        session.file.symlink_to(target)
        await session.mount()
        await session.emit()
        assert target.read_text() == "untouched"
        assert "cannot write events" in caplog.text

    @pytest.mark.timeout(20)
    async def test_a_planted_pipe_does_not_hang_the_session(
        self, session: Session, caplog: pytest.LogCaptureFixture
    ) -> None:
        os.mkfifo(session.file)
        await session.mount()
        await session.emit()
        assert "not a regular file" in caplog.text

    async def test_a_failure_is_reported_once_and_the_event_goes_on(
        self, session: Session, caplog: pytest.LogCaptureFixture
    ) -> None:
        session.file.mkdir()
        await session.mount()
        with caplog.at_level(logging.WARNING):
            results = [await session.emit() for _ in range(3)]
        assert [result.action for result in results] == ["continue"] * 3
        assert len(caplog.records) == 1
        assert str(session.file) in caplog.text

    async def test_a_full_disk_is_reported_and_survived(
        self, session: Session, caplog: pytest.LogCaptureFixture
    ) -> None:
        if not Path("/dev/full").exists():
            pytest.skip("no /dev/full here")
        await session.mount()
        await session.emit(n=1)
        log = session.coordinator.get_capability("hooks-logging.log")
        own, log._file._file = log._file._file, os.open("/dev/full", os.O_WRONLY)
        await session.emit(n=2)
        os.close(log._file._file)
        log._file._file = own
        await session.emit(n=3)
        assert "No space left" in caplog.text
        assert [line["data"]["n"] for line in session.lines()] == [1, 3]

    async def test_a_path_may_be_configured(self, session: Session, tmp_path: Path) -> None:
        await session.mount(path="logs/own.jsonl")
        await session.emit()
        assert not session.file.exists()
        assert (tmp_path / "logs" / "own.jsonl").read_text().count("\n") == 1
        assert stat.S_IMODE((tmp_path / "logs").stat().st_mode) == 0o700


class TestLifetime:
    async def test_after_cleanup_nothing_is_written_and_nothing_listens(
        self, session: Session
    ) -> None:
        await session.mount()
        await session.emit()
        log = session.coordinator.get_capability("hooks-logging.log")
        session.close()
        session.close()
        await session.emit()
        await log.record("tool:pre", {})
        assert len(session.lines()) == 1
        assert not any(session.coordinator.hooks.list_handlers().values())

    async def test_a_session_that_is_not_saved_is_left_alone(self) -> None:
        coordinator = MockCoordinator()
        assert await hooks_logging.mount(coordinator, {}) is None
        await hooks_logging.on_session_ready(coordinator)
        assert coordinator.hooks.list_handlers() == {}

    async def test_no_file_is_made_before_there_is_something_to_write(
        self, session: Session
    ) -> None:
        await session.mount()
        assert not session.file.exists()
