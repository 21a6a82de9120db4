"""hooks-redaction keeps secrets out of events, and what runs on them as it was."""

import re
from typing import Any

import pytest

from amplifier_core.message_models import ChatResponse, TextBlock, ThinkingBlock
from amplifier_core.models import HookResult, ToolResult
from amplifier_core.testing import MockCoordinator
from amplifier_modules import hooks_redaction
from amplifier_modules.hooks_redaction.hook import FLOWING
from tests.support import planted

TOKEN = planted.SECRETS["github-classic"]
MARK = "[REDACTED:github-pat]"


async def mounted(coordinator: MockCoordinator | None = None, **config: Any) -> MockCoordinator:
    coordinator = coordinator or MockCoordinator()
    await hooks_redaction.mount(coordinator, config)
    await hooks_redaction.on_session_ready(coordinator)
    return coordinator


async def test_others_see_an_event_without_secrets() -> None:
    coordinator = await mounted()
    seen: list[Any] = []
    coordinator.hooks.register("tool:error", lambda event, data: seen.append(data["error"]))
    coordinator.hooks.register(
        "tool:error", lambda event, data: seen.append(data["error"]), priority=50
    )
    await coordinator.hooks.emit("tool:error", {"error": {"message": TOKEN}})
    assert [error["message"] for error in seen] == [TOKEN, MARK]


@pytest.mark.parametrize("event", FLOWING)
async def test_data_for_tools_and_the_model_is_unchanged(event: str) -> None:
    coordinator = await mounted()
    thinking = ThinkingBlock(thinking=TOKEN, signature="c2ln" * 20)
    data: dict[str, Any] = {
        "prompt": TOKEN,
        "tool_input": {"command": f"curl -H 'Authorization: Bearer {TOKEN}'"},
        "tool_result": ToolResult(output=TOKEN),
        "messages": [{"role": "user", "content": TOKEN}],
        "response": ChatResponse(content=[thinking, TextBlock(text=TOKEN)]),
    }
    result = await coordinator.hooks.emit(event, data)
    assert result.action == "continue"
    assert result.data is not None
    assert {key: result.data[key] for key in data} == data
    shown = coordinator.get_capability("redaction.event")(event, data)
    assert TOKEN not in repr(shown)
    assert data["response"].content[0].thinking == TOKEN


async def test_an_event_without_secrets_is_not_changed() -> None:
    coordinator = await mounted()
    result = await coordinator.hooks.emit("tool:error", {"error": {"message": "no such file"}})
    assert result.action == "continue"


async def test_the_keys_of_providers_and_variables_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "named-like-one")
    monkeypatch.setenv("PLAIN", "set-to-be-one")
    coordinator = MockCoordinator()
    coordinator.config["providers"] = [{"module": "p", "config": {"api_key": "configured-one"}}]
    coordinator.register_capability("secrets.variables", ("PLAIN",))
    await mounted(coordinator)
    text = "named-like-one set-to-be-one configured-one"
    result = await coordinator.hooks.emit("prompt:complete", {"response": text})
    assert result.data is not None
    assert result.data["response"] == " ".join(["[REDACTED:secret]"] * 3)


async def test_events_of_other_modules_are_redacted() -> None:
    coordinator = MockCoordinator()
    coordinator.register_contributor("observability.events", "one", lambda: ["one:reported"])
    coordinator.register_contributor("observability.events", "two", lambda: "two:reported")
    coordinator.register_contributor("observability.events", "odd", lambda: 7)
    coordinator.register_capability("observability.events", ["old:style"])
    await mounted(coordinator)
    for event in ("one:reported", "two:reported", "old:style"):
        result = await coordinator.hooks.emit(event, {"text": TOKEN})
        assert result.data is not None
        assert result.data["text"] == MARK


class TestConfig:
    async def redacted(self, text: str, **config: Any) -> str:
        coordinator = await mounted(**config)
        return coordinator.get_capability("redaction.event")("x", {"text": text})["text"]

    async def test_rules(self) -> None:
        text = f"{TOKEN} {planted.SECRETS['npm']} a@example.org"
        npm = planted.SECRETS["npm"]
        assert await self.redacted(text, rules=["pii-basic"]) == f"{TOKEN} {npm} [REDACTED:email]"
        assert await self.redacted(text, rules=["npm-access-token"]) == (
            f"{TOKEN} [REDACTED:npm-access-token] a@example.org"
        )
        assert await self.redacted(
            text, rules=["secrets", "pii-basic"], skip_rules=["npm-access-token"]
        ) == (f"{MARK} {npm} [REDACTED:email]")

    async def test_patterns(self) -> None:
        assert await self.redacted("PROJ-1234", patterns=[r"PROJ-\d+"]) == "[REDACTED:custom]"

    async def test_allowlist_adds_to_the_ids(self) -> None:
        coordinator = await mounted(allowlist=["note"])
        data = {"note": TOKEN, "session_id": TOKEN, "text": TOKEN}
        result = await coordinator.hooks.emit("tool:error", data)
        assert result.data is not None
        assert {key: result.data[key] for key in data} == {**data, "text": MARK}

    async def test_events(self) -> None:
        coordinator = await mounted(events=["tool:*"], skip_events=["tool:error"])
        changed = [
            event
            for event in ("tool:pre", "tool:error", "prompt:complete")
            if (await coordinator.hooks.emit(event, {"text": TOKEN})).action == "modify"
        ]
        assert changed == ["tool:pre"]

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ({"rules": ["secret"]}, "unknown rule 'secret'"),
            ({"skip_rules": ["secrets"]}, "unknown rule 'secrets'"),
            ({"patterns": ["("]}, "not a valid regular expression"),
            ({"patterns": ["(a)b"]}, "captures"),
            ({"patterns": ["a*"]}, "empty text"),
        ],
    )
    async def test_wrong_settings_are_refused(self, config: Any, message: str) -> None:
        with pytest.raises(ValueError, match=re.escape(message)):
            await hooks_redaction.mount(MockCoordinator(), config)


class TestStream:
    async def shown(self, text: str, size: int, end: str = "content_block:end") -> list[str]:
        """What a display gets of a text that comes in pieces of `size` characters."""
        coordinator = await mounted()
        pieces: list[str] = []
        hooks = coordinator.hooks
        hooks.register("content_block:delta", lambda e, d: pieces.append(d["delta"]), priority=99)
        block = {"block_type": "text", "block_index": 0, "span_id": "s"}
        for start in range(0, len(text), size):
            piece = text[start : start + size]
            await hooks.emit("content_block:delta", {**block, "delta": piece})
        await hooks.emit(end, block)
        return pieces

    async def test_a_secret_split_over_pieces_is_replaced(self) -> None:
        for name, secret in planted.SECRETS.items():
            text = f"It is {planted.PLANTED[name]} and that was it."
            shown = "".join(await self.shown(text, 3))
            assert secret not in shown, name
            assert shown.startswith("It is "), name
            assert shown.endswith(" and that was it."), name
            assert shown.count("[REDACTED:") == 1, name

    async def test_words_come_as_they_are_made(self) -> None:
        assert await self.shown("one two three", 4) == ["one ", "two ", "", "", "three"]

    @pytest.mark.parametrize("end", ["provider:error", "execution:end"])
    async def test_held_back_text_is_emitted_when_the_response_is_cut_off(self, end: str) -> None:
        assert "".join(await self.shown("half a wor", 3, end)) == "half a wor"

    async def test_not_more_than_a_page_is_held_back(self) -> None:
        shown = await self.shown("x" * 50_000, 1_000)
        assert "".join(shown) == "x" * 50_000
        assert sum(bool(piece) for piece in shown) == 3

    async def test_values_that_are_not_text_pass_through(self) -> None:
        coordinator = await mounted()
        for data in (None, {"delta": None}, {"delta": {"text": "x"}}):
            result = await coordinator.hooks.emit("content_block:delta", data)
            assert isinstance(result, HookResult)


async def test_after_cleanup_nothing_listens() -> None:
    coordinator = MockCoordinator()
    close = await hooks_redaction.mount(coordinator, {})
    close()
    close()
    assert not any(coordinator.hooks.list_handlers().values())
