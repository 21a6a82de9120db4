"""provider-mock plays its script, streamed or whole, with all that real services do to a caller."""

from pathlib import Path
from typing import Any

import pytest

from amplifier_core import llm_errors
from amplifier_core.message_models import ChatRequest, ChatResponse, Message
from amplifier_core.testing import MockCoordinator
from amplifier_modules import provider_mock
from amplifier_modules.provider_mock.provider import MockProvider, StreamingMockProvider


async def mounted(config: dict[str, Any] | None = None, working_dir: Path | None = None) -> Any:
    coordinator = MockCoordinator()
    if working_dir is not None:
        coordinator.register_capability("session.working_dir", str(working_dir))
    await provider_mock.mount(coordinator, config)
    return coordinator.get("providers", "mock")


def asking(text: str = "hi") -> ChatRequest:
    return ChatRequest(messages=[Message(role="user", content=text)])


async def streamed(provider: Any, request: Any = None) -> list[Any]:
    return [chunk async for chunk in provider.stream_complete(request or asking())]


def text(response: ChatResponse) -> str:
    return "".join(block.text for block in response.content if block.type == "text")


class TestScript:
    async def test_without_a_script_it_repeats_its_input(self) -> None:
        provider = await mounted()
        assert text(await provider.complete(asking("good morning"))) == "You said: good morning"

    async def test_replies_come_in_order(self) -> None:
        provider = await mounted({"replies": ["one", {"text": "two"}]})
        assert [text(await provider.complete(asking())) for _ in range(2)] == ["one", "two"]

    async def test_its_end_is_an_error_that_says_so(self) -> None:
        provider = await mounted({"replies": ["one"]})
        await provider.complete(asking())
        with pytest.raises(llm_errors.InvalidRequestError, match="has no reply to request 2"):
            await provider.complete(asking())

    @pytest.mark.parametrize(
        ("on_end", "then"),
        [("repeat", ["two", "two"]), ("cycle", ["one", "two"]), ("echo", ["You said: hi"] * 2)],
    )
    async def test_its_end_may_be_configured(self, on_end: str, then: list[str]) -> None:
        provider = await mounted({"replies": ["one", "two"], "on_end": on_end})
        answers = [text(await provider.complete(asking())) for _ in range(4)]
        assert answers == ["one", "two", *then]

    async def test_it_echoes_tool_results_too(self) -> None:
        provider = await mounted()
        request = {
            "messages": [
                {"role": "user", "content": "go"},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_call", "id": "a", "name": "t", "input": {}}],
                },
                {"role": "tool", "tool_call_id": "a", "content": "42"},
            ]
        }
        assert text(await provider.complete(request)) == "The tool said: 42"

    async def test_requests_are_kept(self) -> None:
        provider = await mounted({"replies": ["a", "b"]})
        await provider.complete(asking("first"))
        await provider.complete({"messages": [{"role": "user", "content": "second"}]})
        assert [r.messages[-1].content for r in provider.requests] == ["first", "second"]


class TestReplies:
    async def test_blocks_calls_and_metadata(self) -> None:
        reply = {
            "redacted_thinking": "b64",
            "thinking": "hmm",
            "signature": "sig",
            "text": "calling",
            "tool_calls": [
                {"name": "t", "input": {"x": 1}},
                {"name": "u", "arguments": {}, "id": "z"},
            ],
        }
        provider = await mounted({"replies": [reply], "model": "m-1"})

        response = await provider.complete(asking())

        kinds = [block.type for block in response.content]
        assert kinds == ["redacted_thinking", "thinking", "text", "tool_call", "tool_call"]
        assert response.content[1].signature == "sig"
        calls = provider.parse_tool_calls(response)
        assert [(c.name, c.arguments) for c in calls] == [("t", {"x": 1}), ("u", {})]
        assert calls[0].id
        assert calls[1].id == "z"
        assert response.finish_reason == "tool_calls"
        assert response.metadata["model"] == "m-1"
        assert response.metadata["provider"] == "mock"
        assert response.metadata["stop_reason"] == "tool_calls"

    async def test_ids_of_calls_are_unique_over_replies(self) -> None:
        asks = {"tool_calls": [{"name": "t"}, {"name": "t"}]}
        provider = await mounted({"replies": [asks, asks]})
        ids = [c.id for _ in range(2) for c in (await provider.complete(asking())).tool_calls]
        assert len(set(ids)) == 4

    async def test_content_may_be_given_whole(self) -> None:
        blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        provider = await mounted({"replies": [{"content": blocks}]})
        response = await provider.complete(asking())
        assert [b.text for b in response.content] == ["a", "b"]
        assert response.finish_reason == "stop"

    async def test_calls_in_whole_content_need_no_id(self) -> None:
        calls = [{"type": "tool_call", "name": "t", "input": {}} for _ in "ab"]
        calls.append({**calls[0], "id": "own"})
        provider = await mounted({"replies": [{"content": calls}]})
        response = await provider.complete(asking())
        ids = [call.id for call in provider.parse_tool_calls(response)]
        assert ids == ["mock_call_1", "mock_call_2", "own"]

    async def test_usage_is_as_scripted_and_estimated_where_not(self) -> None:
        given = {"input_tokens": 100, "cache_read_tokens": 60, "cost_usd": "0.5"}
        provider = await mounted({"replies": [{"text": "x" * 400, "usage": given}]})
        usage = (await provider.complete(asking())).usage
        assert usage.input_tokens == 100
        assert usage.cache_read_tokens == 60
        assert str(usage.cost_usd) == "0.5"
        assert usage.output_tokens == 101
        assert usage.total_tokens == 201

    async def test_finish_reason_may_be_given(self) -> None:
        provider = await mounted({"replies": [{"text": "cut", "finish_reason": "length"}]})
        assert (await provider.complete(asking())).finish_reason == "length"

    async def test_the_requests_model_wins(self) -> None:
        provider = await mounted({"model": "own"})
        request = ChatRequest(messages=[Message(role="user", content="x")], model="asked")
        assert (await provider.complete(request)).metadata["model"] == "asked"


class TestStreaming:
    async def test_chunks_add_up_to_the_response(self) -> None:
        reply = {
            "thinking": "hm",
            "text": "Hello world",
            "tool_calls": [{"name": "t", "input": {"x": 1}}],
        }
        provider = await mounted({"replies": [reply], "chunk_size": 4})

        *chunks, response = await streamed(provider)

        assert isinstance(response, ChatResponse)
        for index, (kind, whole) in enumerate(
            [("thinking", "hm"), ("text", "Hello world"), ("tool_call", '{"x": 1}')]
        ):
            own = [c for c in chunks if c["index"] == index]
            assert [own[0]["type"], own[-1]["type"]] == ["content_block_start", "content_block_end"]
            assert {c["block_type"] for c in own} == {kind}
            deltas = [c["delta"] for c in own[1:-1]]
            assert "".join(deltas) == whole
            assert all(len(d) <= 4 for d in deltas)
            assert own[-1]["block"] == response.content[index].model_dump(exclude_none=True)
        start = next(c for c in chunks if c["block_type"] == "tool_call")
        assert response.tool_calls is not None
        assert (start["id"], start["name"]) == (response.tool_calls[0].id, "t")

    async def test_it_can_be_without(self) -> None:
        provider = await mounted({"streaming": False})
        assert not hasattr(provider, "stream_complete")
        assert "streaming" not in provider.get_info().capabilities

    async def test_delays_pass_the_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)

        monkeypatch.setattr("amplifier_modules.provider_mock.provider.asyncio.sleep", sleep)
        replies = [{"text": "ab"}, {"text": "c", "delay": 9}]
        config = {"replies": replies, "delay": 3, "chunk_delay": 0.5, "chunk_size": 1}
        provider = await mounted(config)

        await streamed(provider)
        await provider.complete(asking())

        assert slept == [3, 0.5, 0.5, 9]


class TestFaults:
    FAULT = {  # noqa: RUF012
        "type": "RateLimitError",
        "message": "slow down",
        "retry_after": 7,
        "status_code": 429,
    }

    async def test_complete_raises_the_scripted_error(self) -> None:
        provider = await mounted({"replies": [{"error": self.FAULT}, "fine"]})
        with pytest.raises(llm_errors.RateLimitError, match="slow down") as caught:
            await provider.complete(asking())
        error = caught.value
        assert (error.retry_after, error.status_code, error.retryable) == (7, 429, True)
        assert (error.provider, error.model) == ("mock", "mock-model")
        assert text(await provider.complete(asking())) == "fine"

    @pytest.mark.parametrize(
        "name",
        [
            name
            for name, kind in vars(llm_errors).items()
            if isinstance(kind, type) and issubclass(kind, llm_errors.LLMError)
        ],
    )
    async def test_every_error_of_the_kernel_can_be_scripted(self, name: str) -> None:
        provider = await mounted({"replies": [{"error": {"type": name, "retryable": True}}]})
        with pytest.raises(llm_errors.LLMError) as caught:
            await provider.complete(asking())
        assert type(caught.value).__name__ == name
        assert caught.value.retryable

    @pytest.mark.parametrize("after", [0, 1, 3, 99])
    async def test_a_stream_breaks_after_so_many_chunks(self, after: int) -> None:
        fault = {"type": "StreamError", "after_chunks": after}
        provider = await mounted({"replies": [{"text": "abc", "error": fault}], "chunk_size": 1})
        got: list[Any] = []

        async def read() -> None:
            async for chunk in provider.stream_complete(asking()):
                got.append(chunk)  # noqa: PERF401 - what came before the error is looked at

        with pytest.raises(llm_errors.StreamError):
            await read()
        assert len(got) == min(after, 5)
        assert all(isinstance(chunk, dict) for chunk in got)


class TestEvents:
    async def test_a_call_is_bracketed(self) -> None:
        coordinator = MockCoordinator()
        seen: list[tuple[str, dict[str, Any]]] = []
        for event in ("llm:request", "llm:response"):
            coordinator.hooks.register(event, lambda e, d: seen.append((e, dict(d))))
        await provider_mock.mount(
            coordinator, {"replies": ["ok", {"error": {"type": "StreamError"}}]}
        )
        provider = coordinator.get("providers", "mock")

        await provider.complete(asking())
        with pytest.raises(llm_errors.StreamError):
            await streamed(provider)

        assert [event for event, _ in seen] == ["llm:request", "llm:response"] * 2
        assert [data.get("status") for _, data in seen] == [None, "ok", None, "error"]
        assert seen[1][1]["usage"]["output_tokens"] >= 1
        assert seen[3][1]["error"] == {"type": "StreamError", "message": "scripted fault"}
        assert seen[0][1]["request_id"] == seen[1][1]["request_id"]

    async def test_it_works_without_a_coordinator(self) -> None:
        from amplifier_modules.provider_mock.provider import MockConfig

        provider = MockProvider(MockConfig(), [])
        assert text(await provider.complete(asking("x"))) == "You said: x"


class TestScriptFile:
    @pytest.mark.parametrize(
        "content", ["- one\n- text: two\n", "replies:\n  - one\n  - text: two\n"]
    )
    async def test_replies_may_stand_in_a_file(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "script.yaml").write_text(content)
        provider = await mounted({"script": "script.yaml"}, tmp_path)
        assert [text(await provider.complete(asking())) for _ in range(2)] == ["one", "two"]

    async def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"cannot read script .*nowhere\.yaml"):
            await mounted({"script": "nowhere.yaml"}, tmp_path)

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ("a: [", r"script\.yaml:1 is not valid YAML"),
            ("text", "must be a list of replies"),
            ("model: x\n", "must be a list of replies"),
            ("- texxt: one\n", r"unknown key 'replies\[0\]\.texxt'"),
        ],
    )
    async def test_a_wrong_file_is_refused(self, tmp_path: Path, content: str, said: str) -> None:
        (tmp_path / "script.yaml").write_text(content)
        with pytest.raises(ValueError, match=said):
            await mounted({"script": "script.yaml"}, tmp_path)

    async def test_a_file_cannot_build_objects(self, tmp_path: Path) -> None:
        (tmp_path / "s.yaml").write_text("- !!python/object/apply:os.getcwd []\n")
        with pytest.raises(ValueError, match="not valid YAML"):
            await mounted({"script": "s.yaml"}, tmp_path)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"reply": []}, "did you mean 'replies'"),
        ({"replies": ["a"], "script": "b"}, "'replies' and 'script' are mutually exclusive"),
        ({"replies": [{"error": {"type": "Oops"}}]}, "'Oops' is not an error class"),
        ({"replies": [{"error": {"type": "Any"}}]}, "'Any' is not an error class"),
        ({"chunk_size": 0}, "'chunk_size'"),
    ],
)
async def test_wrong_settings_are_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        await mounted(config)


async def test_it_describes_itself() -> None:
    provider = await mounted(
        {"default_model": "m", "context_window": 1000, "max_output_tokens": 10, "priority": 3}
    )
    assert isinstance(provider, StreamingMockProvider)
    assert (provider.name, provider.priority, provider.model) == ("mock", 3, "m")
    assert provider.supports_tools
    assert provider.get_info().defaults == {
        "model": "m",
        "context_window": 1000,
        "max_output_tokens": 10,
    }
    (model,) = await provider.list_models()
    assert (model.id, model.context_window, model.max_output_tokens) == ("m", 1000, 10)
