"""The spans of a session, over a real loopback receiver that decodes them."""

import asyncio
import json
import logging
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics, trace

from amplifier_core.session import AmplifierSession
from amplifier_core.testing import MockCoordinator
from amplifier_extras import hooks_otel
from amplifier_support.installation import install_command
from tests.extras.hooks_otel.collector import Collector, attributes, running

SECRET = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz"
OK, ERROR = 0, 2


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running() as collector:
        yield collector


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith(("OTEL_", "TRACE"))]:
        monkeypatch.delenv(name)


def plan(replies: list[Any], **config: Any) -> dict[str, Any]:
    return {
        "session": {
            "orchestrator": {"module": "loop-streaming"},
            "context": {"module": "context-simple"},
        },
        "providers": [{"module": "provider-mock", "config": {"replies": replies}}],
        "tools": [{"module": "tool-filesystem"}, {"module": "tool-todo"}],
        "hooks": [{"module": "hooks-otel", "config": config}],
    }


@asynccontextmanager
async def session(
    replies: list[Any], folder: Path, *, more: Any = None, **config: Any
) -> AsyncGenerator[AmplifierSession]:
    opened = AmplifierSession(plan(replies, **config), **(more or {}))
    opened.coordinator.register_capability("session.working_dir", str(folder))
    async with opened:
        yield opened


CALLS = {
    "text": "let me see",
    "tool_calls": [
        {"id": "c1", "name": "read_file", "input": {"path": "a.txt"}},
        {"id": "c2", "name": "read_file", "input": {"path": "gone.txt"}},
        {"id": "c3", "name": "no_such_tool", "input": {}},
    ],
}


async def converse(collector: Collector, folder: Path, **config: Any) -> AmplifierSession:
    (folder / "a.txt").write_text(f"the key is {SECRET}\n")
    async with session([CALLS, "done"], folder, endpoint=collector.url, **config) as opened:
        await opened.execute(f"look at {SECRET}")
    return opened


async def test_a_session_is_one_trace_of_turns_calls_and_tools(
    collector: Collector, tmp_path: Path
) -> None:
    seen: list[tuple[str, dict[str, Any]]] = []
    (tmp_path / "a.txt").write_text("text")
    async with session([CALLS, "done"], tmp_path, endpoint=collector.url) as opened:
        for event in ("prompt:submit", "provider:request", "tool:pre"):
            opened.coordinator.hooks.register(
                event, lambda event, data: seen.append((event, dict(data)))
            )
        await opened.execute("look")
    root, turn = collector.named("session"), collector.named("invoke_agent")
    asked = [span for span in collector.spans if span.name.startswith("chat")]
    tools = [span for span in collector.spans if span.name.startswith("execute_tool")]
    assert len(collector.spans) == 7
    assert len({span.trace_id for span in collector.spans}) == 1
    assert root.parent_span_id == b""
    assert turn.parent_span_id == root.span_id
    assert [span.parent_span_id for span in asked] == [turn.span_id] * 2
    first = min(asked, key=lambda span: span.start_time_unix_nano)
    assert [span.parent_span_id for span in tools] == [first.span_id] * 3
    # The ids are those of the events, so that logs and traces can be compared.
    assert turn.span_id.hex() == next(d["span_id"] for e, d in seen if e == "prompt:submit")
    assert {s.span_id.hex() for s in asked} == {
        d["span_id"] for e, d in seen if e == "provider:request"
    }
    assert {d["span_id"] for e, d in seen if e == "tool:pre"} <= {s.span_id.hex() for s in tools}
    for span in (turn, *asked, *tools):
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= root.end_time_unix_nano


async def test_spans_speak_the_conventions_without_content(
    collector: Collector, tmp_path: Path
) -> None:
    opened = await converse(collector, tmp_path)
    identity = opened.session_id
    turn = attributes(collector.named("invoke_agent"))
    assert turn["gen_ai.operation.name"] == "invoke_agent"
    assert turn["gen_ai.conversation.id"] == identity
    assert (turn["amplifier.turn.status"], turn["amplifier.turn.model_calls"]) == ("success", 2)
    assert turn["gen_ai.usage.input_tokens"] > 0
    chats = [span for span in collector.spans if span.name.startswith("chat ")]
    first, last = (attributes(s) for s in sorted(chats, key=lambda s: s.start_time_unix_nano))
    assert first["gen_ai.operation.name"] == "chat"
    assert first["gen_ai.provider.name"] == "mock"
    assert first["gen_ai.request.stream"] is True
    asked = (chats[0].end_time_unix_nano - chats[0].start_time_unix_nano) / 1e9
    assert 0 < attributes(chats[0])["gen_ai.response.time_to_first_chunk"] <= asked
    assert chats[0].name == f"chat {first['gen_ai.request.model']}"
    assert first["gen_ai.response.model"] == first["gen_ai.request.model"]
    assert isinstance(first["gen_ai.usage.output_tokens"], int)
    assert len(first["gen_ai.response.finish_reasons"]) == 1
    assert first["gen_ai.response.finish_reasons"] != last["gen_ai.response.finish_reasons"]
    assert all(span.kind == trace.SpanKind.CLIENT.value + 1 for span in chats)
    tool = {attributes(s)["gen_ai.tool.call.id"]: s for s in collector.spans if "tool" in s.name}
    assert tool["c1"].name == "execute_tool read_file"
    assert attributes(tool["c1"])["gen_ai.tool.name"] == "read_file"
    assert [tool[name].status.code for name in ("c1", "c2", "c3")] == [OK, ERROR, ERROR]
    assert "error.type" not in attributes(tool["c1"])
    assert attributes(tool["c3"])["error.type"] == "UnknownTool"
    assert collector.resources[0]["service.name"] == "amplifier"
    assert not [text for text in ("let me see", "a.txt", SECRET) if text in str(collector.spans)]


async def test_captured_content_has_no_secrets(collector: Collector, tmp_path: Path) -> None:
    await converse(collector, tmp_path, capture_content=True)
    assert SECRET not in str(collector.spans)
    chats = [attributes(s) for s in collector.spans if s.name.startswith("chat")]
    chats.sort(key=lambda chat: len(chat["gen_ai.input.messages"]))
    (prompt,) = json.loads(chats[0]["gen_ai.input.messages"])
    assert prompt["role"] == "user"
    assert prompt["parts"][0]["content"].startswith("look at [REDACTED")
    (answer,) = json.loads(chats[0]["gen_ai.output.messages"])
    assert [part["type"] for part in answer["parts"]] == ["text"] + ["tool_call"] * 3
    assert answer["parts"][1] == {
        "type": "tool_call",
        "id": "c1",
        "name": "read_file",
        "arguments": {"path": "a.txt"},
    }
    second = json.loads(chats[1]["gen_ai.input.messages"])
    assert [message["role"] for message in second] == ["user", "assistant", "tool", "tool", "tool"]
    assert second[2]["parts"][0]["id"] == "c1"
    (tool,) = [s for s in collector.spans if attributes(s).get("gen_ai.tool.call.id") == "c1"]
    assert json.loads(attributes(tool)["gen_ai.tool.call.arguments"]) == {
        "file_path": "a.txt",
        "path": "a.txt",
    }
    assert "[REDACTED" in attributes(tool)["gen_ai.tool.call.result"]


async def test_the_sessions_own_rules_of_redaction_count(
    collector: Collector, tmp_path: Path
) -> None:
    config = {"endpoint": collector.url, "capture_content": True}
    opened = AmplifierSession(
        {
            **plan(["call 555-0199"], **config),
            "hooks": [
                {"module": "hooks-otel", "config": config},
                {"module": "hooks-redaction", "config": {"patterns": ["555-[0-9]+"]}},
            ],
        }
    )
    async with opened:
        await opened.execute("ring 555-0100")
    assert "555-01" not in str(collector.spans)
    assert str(collector.spans).count("[REDACTED:custom]") >= 3


async def test_content_has_a_limit_and_stays_json(collector: Collector, tmp_path: Path) -> None:
    async with session(
        ["word " * 1000] * 4,
        tmp_path,
        endpoint=collector.url,
        capture_content=True,
        max_content_chars=500,
    ) as opened:
        for _ in range(3):
            await opened.execute("é" * 5000)
    chats = [attributes(s) for s in collector.spans if s.name.startswith("chat")]
    assert len(chats) == 3
    for chat in chats:
        assert len(json.loads(chat["gen_ai.input.messages"])) == 1
        assert len(json.loads(chat["gen_ai.output.messages"])) == 1
        assert len(chat["gen_ai.output.messages"]) < 700
    assert sorted(c.get("amplifier.content.messages_left_out", 0) for c in chats) == [0, 2, 4]


async def test_failures_are_reported_without_secrets(collector: Collector, tmp_path: Path) -> None:
    fault = {"error": {"type": "ProviderUnavailableError", "message": f"no {SECRET}"}}
    with pytest.raises(Exception, match="no "):
        async with session([fault], tmp_path, endpoint=collector.url) as opened:
            await opened.execute("go")
    (chat,) = [s for s in collector.spans if s.name.startswith("chat")]
    turn, root = collector.named("invoke_agent"), collector.named("session")
    assert [s.status.code for s in (chat, turn, root)] == [ERROR] * 3
    assert attributes(chat)["error.type"] == attributes(turn)["error.type"]
    assert attributes(turn)["amplifier.turn.status"] == "error"
    assert SECRET not in str(collector.spans)
    assert "[REDACTED" in chat.status.message


async def test_unfinished_operations_are_reported(collector: Collector, tmp_path: Path) -> None:
    async with session([{"text": "slow", "delay": 30}], tmp_path, endpoint=collector.url) as opened:
        asked = asyncio.Event()
        opened.coordinator.hooks.register("provider:request", lambda event, data: asked.set(), 200)
        task = asyncio.create_task(opened.execute("go"))
        await asked.wait()
        opened.coordinator.cancellation.request_immediate()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert {span.name.split()[0] for span in collector.spans} == {"session", "invoke_agent", "chat"}


async def test_the_session_of_a_sub_agent_is_in_its_parents_trace(
    collector: Collector, tmp_path: Path
) -> None:
    class Task:
        name = "task"
        description = "runs a session of its own"
        input_schema: dict[str, Any] = {"type": "object", "properties": {}}  # noqa: RUF012

        async def execute(self, input: dict[str, Any]) -> Any:
            from amplifier_core.models import ToolResult

            more = {"parent_id": opened.session_id}
            async with session(["inner"], tmp_path, endpoint=collector.url, more=more) as child:
                return ToolResult(output=await child.execute("deep"))

    replies = [{"tool_calls": [{"name": "task", "input": {}}]}, "outer"]
    async with session(replies, tmp_path, endpoint=collector.url) as opened:
        await opened.coordinator.mount("tools", Task(), name="task")
        assert await opened.execute("go") == "outer"
    inner, outer = sorted(
        (span for span in collector.spans if span.name == "session"),
        key=lambda span: -span.start_time_unix_nano,
    )
    assert inner.trace_id == outer.trace_id
    assert inner.parent_span_id == collector.named("execute_tool task").span_id
    assert attributes(inner)["amplifier.session.parent_id"] == opened.session_id
    assert len({span.trace_id for span in collector.spans}) == 1


async def test_a_loop_without_ids_gets_spans_as_well(collector: Collector, tmp_path: Path) -> None:
    coordinator = MockCoordinator()
    close = await hooks_otel.mount(coordinator, {"endpoint": collector.url})
    assert close is not None
    emit = coordinator.hooks.emit
    await emit("prompt:submit", {"prompt": "hi"})
    await emit("provider:request", {"provider": "gemini"})
    await emit("provider:response", {"usage": {"input_tokens": 3, "cost_usd": "0.5"}})
    await emit("tool:pre", {"tool_name": "x", "tool_call_id": "1"})
    await emit("tool:post", {"tool_name": "x", "tool_call_id": "1", "tool_result": None})
    await emit("orchestrator:complete", {"status": "success"})
    await close()
    turn, chat = collector.named("invoke_agent"), collector.named("chat")
    assert chat.parent_span_id == turn.span_id
    assert collector.named("execute_tool x").parent_span_id == turn.span_id
    reported = attributes(chat)
    assert reported["gen_ai.provider.name"] == "gcp.gemini"
    assert (reported["gen_ai.usage.input_tokens"], reported["amplifier.cost_usd"]) == (3, 0.5)


async def test_odd_events_do_no_harm(collector: Collector, caplog: Any) -> None:
    coordinator = MockCoordinator()
    close = await hooks_otel.mount(
        coordinator, {"endpoint": collector.url, "capture_content": True}
    )
    assert close is not None
    odd = [None, 5, "x", [], {}, {"span_id": 5, "turn_id": [], "usage": "much", "messages": {}}]
    odd += [{"span_id": "zz" * 8, "provider": 7, "error": object(), "response": object()}]
    for data in odd:
        for event in list(coordinator.hooks.list_handlers()):
            await coordinator.hooks.emit(event, data)
    await close()
    await close()
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []
    assert collector.spans


async def test_retries_are_events_of_the_call(collector: Collector) -> None:
    coordinator = MockCoordinator()
    close = await hooks_otel.mount(coordinator, {"endpoint": collector.url})
    assert close is not None
    ids = {"span_id": "00000000000000aa", "turn_id": "b" * 32}
    await coordinator.hooks.emit("prompt:submit", {"span_id": "00000000000000bb"})
    await coordinator.hooks.emit("provider:request", ids)
    await coordinator.hooks.emit("provider:retry", {**ids, "attempt": 1, "reason": SECRET})
    await coordinator.hooks.emit("provider:response", ids)
    await close()
    (event,) = collector.named("chat").events
    assert event.name == "provider:retry"
    assert attributes(event)["attempt"] == 1
    assert SECRET not in str(event)


async def test_address_headers_and_names_come_from_config_or_environment(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url + "/of-the-environment")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-env=1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "from-env")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=blue")
    async with session(["hi"], tmp_path) as opened:
        await opened.execute("go")
    path, headers = collector.requests[-1]
    assert path == "/of-the-environment/v1/traces"
    assert headers["x-env"] == "1"
    assert collector.resources[-1]["service.name"] == "from-env"
    assert collector.resources[-1]["team"] == "blue"
    given = {"headers": {"x-api-key": "k"}, "service_name": "mine", "resource": {"a": "b"}}
    async with session(["hi"], tmp_path, endpoint=f"{collector.url}/x/", **given) as opened:
        await opened.execute("go")
    path, headers = collector.requests[-1]
    assert path == "/x/v1/traces"
    assert headers["x-api-key"] == "k"
    assert collector.resources[-1]["service.name"] == "mine"
    assert collector.resources[-1]["a"] == "b"


async def test_a_trace_can_begin_outside(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", f"00-{'a' * 32}-{'b' * 16}-01")
    await converse(collector, tmp_path)
    assert {span.trace_id.hex() for span in collector.spans} == {"a" * 32}
    assert collector.named("session").parent_span_id.hex() == "b" * 16


async def test_an_unsampled_trace_is_left_out_completely(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    await converse(collector, tmp_path)
    assert collector.requests == []
    assert caplog.text == ""


async def test_metrics_are_sent_if_wanted(collector: Collector, tmp_path: Path) -> None:
    await converse(collector, tmp_path, metrics=True)
    by_name = {metric.name: metric for metric in collector.metrics}
    durations = {
        "invoke_agent": "gen_ai.invoke_agent.duration",
        "chat": "gen_ai.client.operation.duration",
        "execute_tool": "gen_ai.execute_tool.duration",
    }
    first_chunk = "gen_ai.client.operation.time_to_first_chunk"
    assert set(by_name) == {"gen_ai.client.token.usage", first_chunk, *durations.values()}
    points = by_name["gen_ai.client.token.usage"].histogram.data_points
    assert {attributes(p)["gen_ai.token.type"] for p in points} == {"input", "output"}
    assert {point.count for point in points} == {2}
    for operation, name in durations.items():
        timed = by_name[name].histogram.data_points
        assert {attributes(p)["gen_ai.operation.name"] for p in timed} == {operation}
        assert by_name[name].unit == "s"
    assert sum(point.count for point in by_name[first_chunk].histogram.data_points) == 2


@pytest.mark.parametrize("resource", [{}, {"service.instance.id": "pod-1"}])
async def test_metrics_of_a_sub_agent_and_another_session_do_not_replace_each_other(
    collector: Collector, tmp_path: Path, resource: dict[str, str]
) -> None:
    more = {"metrics": True, "resource": resource}
    async with session(["one", "two"], tmp_path, endpoint=collector.url, **more) as opened:
        await opened.execute("go")
        parent = {"parent_id": opened.session_id}
        async with session(
            ["sub"], tmp_path, more=parent, endpoint=collector.url, **more
        ) as sub_agent:
            await sub_agent.execute("go")
        if not resource:
            await converse(collector, tmp_path, **more)
        await opened.execute("go")
    chats = [span for span in collector.spans if span.name.startswith("chat ")]
    counted = [
        count for series, count in collector.series.items() if "client.operation.duration" in series
    ]
    assert sum(counted) == len(chats) == (3 if resource else 5)


async def test_tokens_are_counters_for_those_who_opt_in(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "http, gen_ai_latest_experimental")
    await converse(collector, tmp_path, metrics=True)
    by_name = {metric.name: metric for metric in collector.metrics}
    assert "gen_ai.client.token.usage" not in by_name
    usage = "gen_ai.client.inference.usage"
    chats = [attributes(span) for span in collector.spans if span.name.startswith("chat ")]
    for part in ("input_tokens", "output_tokens"):
        points = by_name[f"{usage}.{part}"].sum.data_points
        spent = sum(chat[f"gen_ai.usage.{part}"] for chat in chats)
        assert sum(point.as_int for point in points) == spent > 0


async def test_nothing_global_is_touched(collector: Collector, tmp_path: Path) -> None:
    providers = trace.get_tracer_provider(), metrics.get_meter_provider()
    await converse(collector, tmp_path, metrics=True)
    loggers = [logging.getLogger(n) for n in logging.root.manager.loggerDict if "telemetry" in n]
    filters = [list(logger.filters) for logger in loggers]
    await converse(collector, tmp_path, metrics=True)
    assert (trace.get_tracer_provider(), metrics.get_meter_provider()) == providers
    assert [logger.filters for logger in loggers] == filters
    assert not [each for some in filters for each in some if "amplifier" in repr(each)]


@pytest.mark.parametrize("kind", ["silent", "refused", "unavailable", "not found"])
async def test_a_dead_collector_holds_the_end_for_no_longer_than_it_may(
    collector: Collector, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = collector.url
    collector.status = {"silent": 0, "unavailable": 503, "not found": 404}.get(kind, 200)
    with socket.socket() as reserved:
        if kind == "refused":
            reserved.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        async with session(["hi"], tmp_path, endpoint=url, flush_timeout=0.5) as opened:
            assert await opened.execute("go") == "hi"
            began = time.monotonic()
        took = time.monotonic() - began
    # Its own limit is ten seconds.
    assert took < 8
    # Reported once, with the reason where there is one, without messages of the library.
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.name.startswith("amplifier_extras.hooks_otel")
    wanted = {"silent": "within 0.5 s", "refused": "refused", "unavailable": "503"}
    assert wanted.get(kind, "404") in record.getMessage() or "Unavailable" in record.getMessage()


async def test_an_unavailable_collector_is_reported_once(
    collector: Collector, tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    collector.status = 503
    config = {"endpoint": collector.url, "timeout": 0.1, "flush_timeout": 0.3, "metrics": True}
    async with session(["hi"] * 9, tmp_path, **config) as opened:
        for _ in range(9):
            await opened.execute("go")
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)
    reported = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.name for record in reported if "metric" not in record.name] == [
        "amplifier_extras.hooks_otel.export"
    ]
    assert len(reported) <= 2


async def test_lines_of_a_file_are_the_same_spans(tmp_path: Path) -> None:
    config = {"exporter": "file", "path": "traces/spans.jsonl"}
    async with session([CALLS, "done"], tmp_path, **config) as opened:
        await opened.execute("go")
    file = tmp_path / "traces" / "spans.jsonl"
    spans = [json.loads(line) for line in file.read_text().splitlines()]
    assert {span["name"].split()[0] for span in spans} == {
        "session",
        "invoke_agent",
        "chat",
        "execute_tool",
    }
    assert file.stat().st_mode & 0o777 == 0o600


async def test_a_file_behind_a_link_is_not_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "spans").symlink_to("victim")
    async with session(["hi"], tmp_path, exporter="file", path="spans") as opened:
        assert await opened.execute("go") == "hi"
    assert (tmp_path / "victim").read_text() == "mine"
    assert caplog.text.count("cannot deliver spans") == 1


async def test_it_can_be_switched_off(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = MockCoordinator()
    coordinator.register_capability("offline", True)
    assert await hooks_otel.mount(coordinator, {"endpoint": collector.url}) is None
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    await converse(collector, tmp_path)
    assert collector.requests == []


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"endpoint": "localhost:4318"}, "http://"),
        ({"endpoint": "http://x/?a=b"}, "without"),
        ({"exporter": "file"}, "needs a 'path'"),
        ({"exporter": "grpc"}, "exporter"),
        ({"timeout": 0}, "timeout"),
    ],
)
async def test_settings_that_cannot_work_are_errors(config: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        await hooks_otel.mount(MockCoordinator(), config)


MOUNTED = """
import asyncio, sys
from amplifier_core.testing import MockCoordinator
from amplifier_extras import hooks_otel
hooks_otel.config_schema()
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
sys.modules[{missing!r}] = None
try:
    print("mounted", callable(asyncio.run(hooks_otel.mount(MockCoordinator(), {config}))))
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("missing", "config", "printed"),
    [
        ("opentelemetry", {}, install_command("otel")),
        ("opentelemetry.exporter", {"exporter": "console"}, "mounted True"),
    ],
)
def test_the_sdk_is_imported_by_mounting_and_only_what_the_exporter_needs(
    missing: str, config: dict[str, Any], printed: str
) -> None:
    script = MOUNTED.format(missing=missing, config=config)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert printed in done.stdout, done.stderr
