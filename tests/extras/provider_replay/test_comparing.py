"""Which requests count as the same, and how a difference is reported."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from amplifier_core.llm_errors import InvalidRequestError
from tests.extras.provider_replay.support import (
    ask,
    called,
    chunks_of,
    record,
    recording,
    replay,
    replaying,
)


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
async def test_values_that_change_from_run_to_run_are_ignored(tmp_path: Path, then: Any, now: Any):
    await record(tmp_path, then)
    response = await replay(tmp_path, now)
    assert response.content[0].text == "ok"


async def test_the_folder_does_not_count(tmp_path: Path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    await record(here, called("x", f"{here}/a.py is new"))
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
    reported = "".join(chunk.get("delta", "") for chunk in chunks if chunk["index"] == 0)
    assert reported == answer.content[0].text


async def test_a_key_that_was_known_need_not_be_known_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    request = called("x", "KEYS: plain-looking-words, and more")
    monkeypatch.setenv("SOME_API_KEY", "plain-looking-words")
    await record(tmp_path, request)
    monkeypatch.delenv("SOME_API_KEY")
    assert await replay(tmp_path, request)
    other = called("x", "KEYS: plain-looking-words, and less")
    with pytest.raises(InvalidRequestError):
        await replay(tmp_path, other)


async def test_by_structure_texts_may_change_but_not_tools_options_or_turns(tmp_path: Path):
    tool = {"name": "grep", "description": "Search.", "parameters": {"type": "object"}}
    then = {**called("x", "3 hits"), "tools": [tool], "temperature": 0.5}
    await record(tmp_path, then)

    async def answer(now: dict[str, Any]) -> Any:
        async with replaying(tmp_path, match="structure") as coordinator:
            return await coordinator.get("providers", "mock").complete(now)

    messages: list[Any] = [
        {"role": "system", "content": "New."},
        *called("y", "no hits")["messages"],
    ]
    now: dict[str, Any] = {"messages": messages, "tools": [tool], "temperature": 0.5}
    assert (await answer(now)).content[0].text == "ok"
    for changed, said in (
        ({**now, "tools": [{**tool, "description": "Find."}]}, "tools.grep.description"),
        ({**now, "tools": []}, "grep is no longer offered"),
        ({**now, "temperature": 1}, "temperature: 0.5 → 1"),
        ({**now, "messages": messages[:2]}, "1 message fewer"),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            await answer(changed)


async def test_the_plan_can_ignore_more_text(tmp_path: Path):
    await record(tmp_path, ask("build 17 of main"))
    assert await replay(tmp_path, ask("build 18 of main"), ignore=[r"build \d+"])


async def differing(folder: Path, now: Any, *then: Any, **config: Any) -> list[str]:
    await record(folder, *then)
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
        "  tools: write is no longer offered",
        "  tools: list is new",
        "  tools.read.description:",
        "    - Reads.",
        "    + Reads a file.",
    ]


async def test_added_and_missing_messages_are_reported(tmp_path: Path):
    lines = await differing(tmp_path, ask("a", "b", "c"), ask("a"))
    assert lines[2:] == ["  messages: 2 messages more", "    + assistant: b"]
    (tmp_path / "rec.jsonl").unlink()
    lines = await differing(tmp_path, ask("a"), ask("a", "b", "c"))
    assert lines[2:] == ["  messages: 2 messages fewer", "    - assistant: b"]


async def test_an_extra_request_is_reported(tmp_path: Path):
    await record(tmp_path, ask())
    async with replaying(tmp_path) as coordinator:
        await coordinator.get("providers", "mock").complete(ask())
        with pytest.raises(
            InvalidRequestError, match="all 1 recorded calls of mock have already been replayed"
        ):
            await coordinator.get("providers", "mock").complete(ask())


async def test_the_model_counts_where_it_is_named(tmp_path: Path):
    lines = await differing(tmp_path, ask(), ask(), model="other")
    assert lines[2:] == ['  model: "mock-model" → "other"']


async def test_parallel_calls_may_come_in_any_order(tmp_path: Path):
    async with recording(tmp_path, "one", "two", "three") as coordinator:
        provider = coordinator.get("providers", "mock")
        for text in ("a", "b", "c"):
            await provider.complete(ask(text))
    async with replaying(tmp_path) as coordinator:
        provider = coordinator.get("providers", "mock")
        answers = await asyncio.gather(*(provider.complete(ask(t)) for t in ("c", "a", "b")))
    assert [a.content[0].text for a in answers] == ["three", "one", "two"]


async def test_calls_not_requested_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    async with recording(tmp_path, "one", "two") as coordinator:
        provider = coordinator.get("providers", "mock")
        await provider.complete(ask("a"))
        await provider.complete(ask("b"))
    async with replaying(tmp_path) as coordinator:
        await coordinator.get("providers", "mock").complete(ask("a"))
    assert "not requested: call 2" in caplog.text
