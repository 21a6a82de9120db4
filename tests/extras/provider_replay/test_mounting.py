"""Several providers, several sessions, and what a plan may say."""

import logging
from pathlib import Path
from typing import Any

import pytest

from amplifier_core.llm_errors import InvalidRequestError
from amplifier_core.message_models import ChatResponse, TextBlock
from amplifier_extras import provider_replay
from tests.extras.provider_replay.support import (
    Foreign,
    ask,
    coordinator_in,
    lines_of,
    recording,
    replaying,
)


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


async def test_one_recorded_provider_can_be_replaced(tmp_path: Path):
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


@pytest.mark.parametrize("config", [{}, {"record": "rec.jsonl"}])
async def test_an_empty_config_mounts_nothing_with_a_warning(
    tmp_path: Path, config: dict[str, Any], caplog: pytest.LogCaptureFixture
):
    coordinator = coordinator_in(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert await provider_replay.mount(coordinator, config) is None
    assert coordinator.get("providers") == {}
    assert "provider-replay" in caplog.text


async def test_settings_that_make_no_sense_are_refused(tmp_path: Path):
    for config, reported in (
        ({"record": "a", "replay": "b"}, "mutually exclusive"),
        ({"replay": "a", "ignore": ["("]}, "not a valid regular expression"),
        ({"replay": "missing.jsonl"}, "cannot read the recording"),
    ):
        with pytest.raises(ValueError, match=reported):
            await provider_replay.mount(coordinator_in(tmp_path), config)
