"""What was recorded is answered again: chunks, answers, errors and events."""

from __future__ import annotations

import asyncio
import json
import logging
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from amplifier_core.interfaces import Provider
from amplifier_core.llm_errors import (
    AbortError,
    InvalidRequestError,
    LLMError,
    RateLimitError,
    StreamError,
)
from amplifier_core.message_models import ChatResponse, TextBlock, ToolCall
from amplifier_core.models import ProviderInfo
from amplifier_core.testing import MockCoordinator
from amplifier_core.validation import ProviderValidator
from amplifier_core.validation.behavioral import ProviderBehaviorTests
from amplifier_modules import provider_anthropic, provider_openai, provider_replay
from tests.modules.planted import PLANTED, SECRETS
from tests.modules.provider_replay.support import (
    ask,
    chunks_of,
    coordinator_in,
    heard_on,
    lines_of,
    recording,
    replaying,
)
from tests.support.llm_server import Reply, ScriptedLLM, Status, Thinking
from tests.support.llm_server import ToolCall as Call


async def collect(provider: Any, seen: list[Any]) -> None:
    async for chunk in provider.stream_complete(ask()):
        seen.append(chunk)  # noqa: PERF401 - those before an error count


CALLS = {"text": "I look.", "tool_calls": [{"name": "read", "input": {"path": "a", "to": None}}]}


# -- the same again --------------------------------------------------------------------------


async def test_streamed_answers_come_again_chunk_by_chunk(tmp_path: Path):
    reply = {**CALLS, "thinking": "hm", "signature": "sig"}
    async with recording(tmp_path, reply, "done") as coordinator:
        provider = coordinator.get("providers", "mock")
        first = [await chunks_of(provider, ask()), await chunks_of(provider, ask("hi", "a", "b"))]
    async with replaying(tmp_path) as coordinator:
        provider = coordinator.get("providers", "mock")
        assert [
            await chunks_of(provider, ask()),
            await chunks_of(provider, ask("hi", "a", "b")),
        ] == first


async def test_whole_answers_come_again(tmp_path: Path):
    async with recording(tmp_path, CALLS) as coordinator:
        first = await coordinator.get("providers", "mock").complete(ask())
    async with replaying(tmp_path) as coordinator:
        provider = coordinator.get("providers", "mock")
        again = await provider.complete(ask())
        assert again == first
        assert provider.parse_tool_calls(again) == first.tool_calls
        assert again.tool_calls[0].arguments == {"path": "a", "to": None}


async def test_what_was_streamed_can_be_asked_for_whole(tmp_path: Path):
    async with recording(tmp_path, "one") as coordinator:
        [*_, first] = await chunks_of(coordinator.get("providers", "mock"), ask())
    async with replaying(tmp_path) as coordinator:
        assert await coordinator.get("providers", "mock").complete(ask()) == first


async def test_the_same_events_are_heard_with_the_ids_of_this_run(tmp_path: Path):
    async with recording(tmp_path, "one") as coordinator:
        first = heard_on(coordinator)
        await chunks_of(coordinator.get("providers", "mock"), ask())
    async with replaying(tmp_path) as coordinator:
        again = heard_on(coordinator)
        await chunks_of(coordinator.get("providers", "mock"), ask())
    assert [name for name, _ in again] == ["llm:request", "llm:response"]

    def own(events: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
        return [{k: v for k, v in data.items() if k != "timestamp"} for _, data in events]

    assert own(again) == own(first)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"type": "RateLimitError", "message": "slow", "retry_after": 7.5}, RateLimitError),
        ({"type": "StreamError", "message": "broke", "after_chunks": 2}, StreamError),
        ({"type": "ContextLengthError", "status_code": 400}, LLMError),
    ],
)
async def test_errors_come_again_as_the_same_kind(tmp_path: Path, error: Any, kind: type):
    async def failing(coordinator: MockCoordinator) -> tuple[int, Any]:
        seen: list[Any] = []
        with pytest.raises(kind) as caught:
            await collect(coordinator.get("providers", "mock"), seen)
        return len(seen), (type(caught.value), repr(caught.value))

    async with recording(tmp_path, {"text": "some text to break", "error": error}) as coordinator:
        first = await failing(coordinator)
    async with replaying(tmp_path) as coordinator:
        assert await failing(coordinator) == first


class Foreign:
    """A provider as others write them: only `complete`, answers and errors of its own."""

    name = "foreign"
    priority = 7

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.extra = "reachable"

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(id="foreign", display_name="Foreign")

    async def list_models(self) -> list[Any]:
        return []

    async def complete(self, request: Any, **kwargs: Any) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def parse_tool_calls(self, response: Any) -> list[ToolCall]:
        return [ToolCall(id="x", name="read", arguments={})]


class OwnError(Exception):
    pass


class OwnLLMError(LLMError):
    pass


async def test_providers_with_complete_alone_are_recorded_and_replayed(tmp_path: Path):
    response = ChatResponse(content=[TextBlock(text="a")])
    mapping = {"content": [{"type": "text", "text": "b"}], "usage": None}
    foreign = Foreign(
        response, mapping, OwnError("own"), OwnLLMError("x", retryable=True), KeyError("k")
    )
    async with recording(tmp_path, provider=foreign) as coordinator:
        provider = coordinator.get("providers", "foreign")
        assert provider.extra == "reachable"
        provider.extra = "set"
        assert foreign.extra == "set"
        assert not hasattr(type(provider), "stream_complete")
        assert isinstance(provider, Provider)
        await provider.complete(ask("1"))
        await provider.complete(ask("2"))
        for text in ("3", "4", "5"):
            with pytest.raises(Exception, match=r"own|x|k"):
                await provider.complete(ask(text))
    async with replaying(tmp_path) as coordinator:
        provider = coordinator.get("providers", "foreign")
        assert (provider.priority, provider.get_info().display_name) == (7, "Foreign")
        assert not hasattr(provider, "stream_complete")
        again = await provider.complete(ask("1"))
        # the calls that only the provider's own parse_tool_calls finds
        assert [call.name for call in provider.parse_tool_calls(again)] == ["read"]
        second = await provider.complete(ask("2"))
        assert second["content"] == mapping["content"]
        with pytest.raises(Exception, match=r"^own$") as caught:
            await provider.complete(ask("3"))
        assert type(caught.value).__name__ == "OwnError"
        with pytest.raises(LLMError) as caught:
            await provider.complete(ask("4"))
        assert (type(caught.value).__name__, caught.value.retryable) == ("OwnLLMError", True)
        with pytest.raises(KeyError):
            await provider.complete(ask("5"))


async def test_a_call_that_was_broken_off_ends_in_an_error(tmp_path: Path):
    async with recording(tmp_path, "a long answer of many words") as coordinator:
        stream = coordinator.get("providers", "mock").stream_complete(ask())
        await anext(stream)
        await anext(stream)
        await stream.aclose()
    assert lines_of(tmp_path / "rec.jsonl")[-1]["type"] == "cut"
    async with replaying(tmp_path) as coordinator:
        seen: list[Any] = []
        with pytest.raises(AbortError, match="call 1"):
            await collect(coordinator.get("providers", "mock"), seen)
    assert len(seen) == 2


async def test_an_answer_may_take_as_long_as_it_did(tmp_path: Path):
    async with recording(tmp_path, "one", mock={"delay": 0.3}) as coordinator:
        await coordinator.get("providers", "mock").complete(ask())
    for speed, least in ((1, 0.28), (0, 0.0)):
        async with replaying(tmp_path, speed=speed) as coordinator:
            begun = time.monotonic()
            await coordinator.get("providers", "mock").complete(ask())
            assert time.monotonic() - begun >= least


@pytest.mark.parametrize("module", [provider_anthropic, provider_openai])
async def test_bundled_providers_answer_again_without_server_or_key(tmp_path: Path, module: Any):
    reply = Reply(
        thinking=Thinking("hm"), text="answer", tool_calls=[Call("read", {"path": "x"}, id="t1")]
    )
    coordinator = coordinator_in(tmp_path)
    tools = [{"name": "read", "parameters": {"type": "object", "properties": {}}}]
    async with ScriptedLLM([Status(503, "busy"), reply]) as server:
        config = {"api_key": "k", "base_url": server.base_url, "model": "claude-haiku-4-5"}
        closing = [await module.mount(coordinator, config)]
        closing.insert(0, await provider_replay.mount(coordinator, {"record": "rec.jsonl"}))
        first_events = heard_on(coordinator)
        [(name, provider)] = coordinator.get("providers").items()
        first = await chunks_of(provider, ask("go", tools=tools))
        for close in closing:
            await close()
    async with replaying(tmp_path) as coordinator:
        events = heard_on(coordinator)
        player = coordinator.get("providers", name)
        assert await chunks_of(player, ask("go", tools=tools)) == first
        assert (player.model, player.priority) == (provider.model, provider.priority)
        assert player.get_info().defaults == provider.get_info().defaults
    assert [e for e, _ in events] == [e for e, _ in first_events]
    assert [e for e, _ in events] == ["llm:request", "provider:retry", "llm:response"]


# -- which requests are the same -------------------------------------------------------------


def called(call_id: str, result: str = "found") -> dict[str, Any]:
    """A request with a tool call and its result."""
    call = {"type": "tool_call", "id": call_id, "name": "read", "input": {"path": "a"}}
    return {
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [call]},
            {"role": "tool", "tool_call_id": call_id, "content": result},
        ]
    }


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (called("toolu_1"), called("call_abc")),
        (called("x", "2026-11-21 21:13:02 done"), called("x", "2027-01-02T03:04:05.678Z done")),
        (called("x", "took 0.3 s"), called("x", "took 12 ms")),
        (called("x", "Sat Nov 21 21:13"), called("x", "Mon Jan 2 03:04")),
        (called("x", "in 20261121-212140-427f8b"), called("x", "in 20270101-000000-abcdef")),
        (
            called("x", "id 0b5f2a3c-6a39-4d7e-9a48-2f5b2f0e3c11"),
            called("x", "id 9e107d9d-3720-4b6a-8b1d-1c1b1a190817"),
        ),
        (
            called("x", 'f\n<system-reminder source="hooks-status">\nbranch a\n</system-reminder>'),
            called("x", 'f\n<system-reminder source="hooks-status">\nb, dirty\n</system-reminder>'),
        ),
        (ask("hi", metadata={"a": 1}), ask("hi", metadata={"a": 2}, timeout=3.0)),
    ],
)
async def test_what_changes_from_run_to_run_does_not_count(tmp_path: Path, then: Any, now: Any):
    async with recording(tmp_path, "ok") as coordinator:
        await coordinator.get("providers", "mock").complete(then)
    async with replaying(tmp_path) as coordinator:
        response = await coordinator.get("providers", "mock").complete(now)
    assert response.content[0].text == "ok"


async def test_the_folder_does_not_count(tmp_path: Path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    async with recording(here, "ok") as coordinator:
        await coordinator.get("providers", "mock").complete(called("x", f"{here}/a.py is new"))
    async with replaying(there, str(here / "rec.jsonl")) as coordinator:
        provider = coordinator.get("providers", "mock")
        assert await provider.complete(called("x", f"{there}/a.py is new"))
    async with replaying(there, str(here / "rec.jsonl")) as coordinator:
        provider = coordinator.get("providers", "mock")
        with pytest.raises(InvalidRequestError, match="elsewhere"):
            await provider.complete(called("x", "/elsewhere/a.py is new"))


async def test_answers_name_the_folder_and_the_ids_of_now(tmp_path: Path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    then, now = "s-00112233445566aa_reader", "s-ffeeddccbbaa9988_reader"
    reply = {
        "text": f"I go on with {then} in {here}/sub.",
        "tool_calls": [{"name": "task", "input": {"session_id": then, "path": f"{here}/a"}}],
    }
    async with recording(here, reply) as coordinator:
        await chunks_of(coordinator.get("providers", "mock"), called("x", f"done: {then}"))
    async with replaying(there, str(here / "rec.jsonl")) as coordinator:
        provider = coordinator.get("providers", "mock")
        *chunks, answer = await chunks_of(provider, called("x", f"done: {now}"))
    assert answer.content[0].text == f"I go on with {now} in {there}/sub."
    assert answer.tool_calls[0].arguments == {"session_id": now, "path": f"{there}/a"}
    told = "".join(chunk.get("delta", "") for chunk in chunks if chunk["index"] == 0)
    assert told == answer.content[0].text


async def test_one_provider_of_a_recording_stands_in_for_one(tmp_path: Path):
    async with recording(tmp_path, "recorded") as coordinator:
        await coordinator.get("providers", "mock").complete(ask())
    coordinator = coordinator_in(tmp_path)
    other = Foreign(ChatResponse(content=[TextBlock(text="real")]))
    await coordinator.mount("providers", other, name="foreign")
    config = {"replay": "rec.jsonl", "provider": "mock", "priority": 5}
    cleanup = await provider_replay.mount(coordinator, config)
    assert cleanup is not None
    await provider_replay.on_session_ready(coordinator)
    assert list(coordinator.get("providers")) == ["foreign", "mock"]
    assert coordinator.get("providers", "mock").priority == 5
    await coordinator.get("providers", "mock").complete(ask())
    await cleanup()


async def test_a_provider_that_was_not_recorded_is_not_mounted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with recording(tmp_path, "recorded") as coordinator:
        await coordinator.get("providers", "mock").complete(ask())
    config = {"replay": "rec.jsonl", "provider": "openai"}
    assert await provider_replay.mount(coordinator_in(tmp_path), config) is None
    assert "openai is not in the recording" in caplog.text


async def test_the_plan_says_what_else_does_not_count(tmp_path: Path):
    async with recording(tmp_path, "ok") as coordinator:
        await coordinator.get("providers", "mock").complete(ask("build 17 of main"))
    async with replaying(tmp_path, ignore=[r"build \d+"]) as coordinator:
        assert await coordinator.get("providers", "mock").complete(ask("build 18 of main"))


async def differing(folder: Path, now: Any, *then: Any, **config: Any) -> list[str]:
    async with recording(folder, *(["ok"] * len(then))) as coordinator:
        for request in then:
            await coordinator.get("providers", "mock").complete(request)
    async with replaying(folder, **config) as coordinator:
        with pytest.raises(InvalidRequestError) as caught:
            await coordinator.get("providers", "mock").complete(now)
    assert caught.value.is_failed_check  # type: ignore[attr-defined]
    return str(caught.value).splitlines()


async def test_a_changed_result_is_shown_where_it_changed(tmp_path: Path):
    then = called("x", "one\ntwo\nthree")
    lines = await differing(tmp_path, called("y", "one\n2\nthree"), ask("other"), then)
    assert lines[0] == f"the request to mock is not the one recorded in {tmp_path}/rec.jsonl"
    assert lines[1:] == [
        "compared with call 2:",
        "  messages[2] (tool).content[0].text:",
        "    - two",
        "    + 2",
    ]


async def test_changed_tools_and_options_are_named(tmp_path: Path):
    def tools(*names: str, about: str = "Reads.") -> list[dict[str, Any]]:
        schema = {"type": "object", "properties": {}}
        return [{"name": name, "description": about, "parameters": schema} for name in names]

    then = ask("go", tools=tools("read", "write"), temperature=0.5)
    now = ask("go", tools=tools("read", "list", about="Reads a file."), max_output_tokens=9)
    lines = await differing(tmp_path, now, then)
    assert lines[2:] == [
        "  max_output_tokens: none → 9",
        "  temperature: 0.5 → none",
        "  tools: write is not offered any more",
        "  tools: list is new",
        "  tools.read.description:",
        "    - Reads.",
        "    + Reads a file.",
    ]


async def test_more_and_fewer_messages_are_told(tmp_path: Path):
    lines = await differing(tmp_path, ask("a", "b", "c"), ask("a"))
    assert lines[2:] == ["  messages: 2 messages more", "    + assistant: b"]
    (tmp_path / "rec.jsonl").unlink()
    lines = await differing(tmp_path, ask("a"), ask("a", "b", "c"))
    assert lines[2:] == ["  messages: 2 messages fewer", "    - assistant: b"]


async def test_a_request_too_many_is_told(tmp_path: Path):
    async with recording(tmp_path, "ok") as coordinator:
        await coordinator.get("providers", "mock").complete(ask())
    async with replaying(tmp_path) as coordinator:
        await coordinator.get("providers", "mock").complete(ask())
        with pytest.raises(InvalidRequestError, match="it has 1 calls of mock and all of them"):
            await coordinator.get("providers", "mock").complete(ask())


async def test_the_model_counts_where_it_is_named(tmp_path: Path):
    lines = await differing(tmp_path, ask(), ask(), model="other")
    assert lines[2:] == ['  model: "mock-model" → "other"']


async def test_calls_beside_each_other_may_come_in_any_order(tmp_path: Path):
    async with recording(tmp_path, "one", "two", "three") as coordinator:
        provider = coordinator.get("providers", "mock")
        for text in ("a", "b", "c"):
            await provider.complete(ask(text))
    async with replaying(tmp_path) as coordinator:
        provider = coordinator.get("providers", "mock")
        answers = await asyncio.gather(*(provider.complete(ask(t)) for t in ("c", "a", "b")))
    assert [a.content[0].text for a in answers] == ["three", "one", "two"]


async def test_what_nobody_asked_for_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    async with recording(tmp_path, "one", "two") as coordinator:
        provider = coordinator.get("providers", "mock")
        await provider.complete(ask("a"))
        await provider.complete(ask("b"))
    async with replaying(tmp_path) as coordinator:
        await coordinator.get("providers", "mock").complete(ask("a"))
    assert "nobody asked for call 2" in caplog.text


# -- several providers, several sessions -----------------------------------------------------


async def test_all_providers_are_recorded_and_kept_apart(tmp_path: Path):
    coordinator = coordinator_in(tmp_path)
    response = ChatResponse(content=[TextBlock(text="foreign")])
    await coordinator.mount("providers", Foreign(response), name="foreign")
    from amplifier_modules import provider_mock

    await provider_mock.mount(coordinator, {"replies": ["mock"], "priority": 3})
    cleanup = await provider_replay.mount(coordinator, {"record": "rec.jsonl"})
    for name in ("foreign", "mock"):
        await coordinator.get("providers", name).complete(ask())
    assert cleanup is not None
    await cleanup()
    async with replaying(tmp_path) as coordinator:
        providers = coordinator.get("providers")
        assert {name: one.priority for name, one in providers.items()} == {"foreign": 7, "mock": 3}
        for name in ("mock", "foreign"):
            assert (await providers[name].complete(ask())).content[0].text == name


async def test_sessions_of_one_process_share_the_file(tmp_path: Path):
    async with (
        recording(tmp_path, "parent", "after") as parent,
        recording(tmp_path, "child") as child,
    ):
        await parent.get("providers", "mock").complete(ask("p"))
        await child.get("providers", "mock").complete(ask("c"))
        await parent.get("providers", "mock").complete(ask("p2"))
    requests = [line for line in lines_of(tmp_path / "rec.jsonl") if line["type"] == "request"]
    assert [line["call"] for line in requests] == [1, 2, 3]
    async with replaying(tmp_path) as parent, replaying(tmp_path) as child:
        await parent.get("providers", "mock").complete(ask("p"))
        answer = await child.get("providers", "mock").complete(ask("c"))
        assert answer.content[0].text == "child"
        with pytest.raises(InvalidRequestError):  # the parent's, which the child did not ask
            await child.get("providers", "mock").complete(ask("p"))


async def test_providers_mounted_later_are_taken_over_when_the_session_is_ready(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    from amplifier_modules import provider_mock

    async with recording(tmp_path, "first") as coordinator:
        await coordinator.mount("providers", Foreign("x"), name="late")
        await provider_replay.on_session_ready(coordinator)
        assert "Recorder" in type(coordinator.get("providers", "late")).__name__
        await coordinator.get("providers", "mock").complete(ask())
    async with replaying(tmp_path) as coordinator:
        await provider_mock.mount(coordinator, {"replies": ["real"]})
        await coordinator.mount("providers", Foreign("x"), name="other")
        await provider_replay.on_session_ready(coordinator)
        assert sorted(coordinator.get("providers")) == ["late", "mock"]
        answer = await coordinator.get("providers", "mock").complete(ask())
        assert answer.content[0].text == "first"
    assert "other is not in the recording" in caplog.text


# -- the file --------------------------------------------------------------------------------


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


@pytest.mark.parametrize("name", sorted(SECRETS))
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
    async with recording(tmp_path, "ok") as coordinator:
        await coordinator.get("providers", "mock").complete(ask("say plain-looking-words"))
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
    async with recording(tmp_path, "ok") as coordinator:
        await coordinator.get("providers", "mock").complete(ask())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_links_and_folders_are_not_recorded_to(tmp_path: Path):
    (tmp_path / "target").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for file in ("link", "."):
        with pytest.raises(ValueError, match="cannot be written"):
            async with recording(tmp_path, "ok", file=file):
                pass


async def test_a_session_that_asks_nobody_leaves_the_file_empty(tmp_path: Path):
    for _ in range(2):
        async with recording(tmp_path, "ok"):
            pass
    assert (tmp_path / "rec.jsonl").read_text() == ""


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "no recording"),
        (b'{"type": "request"}\n', "no recording"),
        (b'{"type": "header", "schema": 99}\n', "schema 99"),
        (b'{"type": "header", "schema": 1}\nnonsense\n{}\n', "rec.jsonl:2 is no JSON"),
        (b'{"type": "header", "schema": 1}\n{"type": "request"}\n', "rec.jsonl:2"),
        (b'{"type": "header", "schema": 1}\n', "has no provider"),
        (b"\xff\xfe\n1\n", "rec.jsonl:1"),
    ],
)
async def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, content: bytes, told: str):
    (tmp_path / "rec.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=told):
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


# -- mounting --------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [{}, {"record": "rec.jsonl"}])
async def test_with_nothing_to_do_nothing_is_mounted_and_that_is_said(
    tmp_path: Path, config: dict[str, Any], caplog: pytest.LogCaptureFixture
):
    coordinator = coordinator_in(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert await provider_replay.mount(coordinator, config) is None
    assert coordinator.get("providers") == {}
    assert "provider-replay" in caplog.text


async def test_settings_that_make_no_sense_are_refused(tmp_path: Path):
    for config, told in (
        ({"record": "a", "replay": "b"}, "not both"),
        ({"replay": "a", "ignore": ["("]}, "no regular expression"),
        ({"replai": "a"}, "did you mean 'replay'"),
        ({"replay": "missing.jsonl"}, "cannot be read"),
    ):
        with pytest.raises(ValueError, match=told):
            await provider_replay.mount(coordinator_in(tmp_path), config)


async def test_it_passes_the_validator(tmp_path: Path):
    async with recording(tmp_path, "ok") as coordinator:
        await coordinator.get("providers", "mock").complete(ask())
    config = {"replay": str(tmp_path / "rec.jsonl")}
    result = await ProviderValidator().validate("amplifier_modules.provider_replay", config=config)
    assert result.passed, result.summary() + str(result.errors)


class TestBehavior(ProviderBehaviorTests):
    @pytest.fixture
    async def provider_module(self, tmp_path: Path):
        async with recording(tmp_path, *["ok"] * 20) as coordinator:
            await coordinator.get("providers", "mock").complete(ask())
        async with replaying(tmp_path) as coordinator:
            yield coordinator.get("providers", "mock")
