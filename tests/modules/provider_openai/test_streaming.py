"""What comes back: chunks as they arrive, the whole answer last, whatever the server's habits."""

import json
from decimal import Decimal

import pytest

from amplifier_core.llm_errors import LLMError, StreamError
from amplifier_core.message_models import ChatResponse
from amplifier_modules.provider_openai.config import OpenAIConfig
from amplifier_modules.provider_openai.provider import OPENAI_URL, OpenAIProvider
from amplifier_support.provider_access import Access
from tests.modules.provider_openai.conftest import ask
from tests.support.llm_server import Reply, Status, ToolCall

TOOLS = [{"name": "files.read", "parameters": {"type": "object"}}]


async def chunks_of(provider, request) -> list:
    return [chunk async for chunk in provider.stream_complete(request)]


def events(*deltas: dict | str, finish: str | None = "stop", **more: object) -> Status:
    """An event stream as some other server would write it."""
    lines = [
        delta
        if isinstance(delta, str)
        else json.dumps({"id": "x", "model": "m", "choices": [{"index": 0, "delta": delta}]})
        for delta in deltas
    ]
    if finish is not None:
        lines.append(json.dumps({"choices": [{"delta": {}, "finish_reason": finish}], **more}))
    body = "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"])
    return Status(200, body=body, headers={"content-type": "text/event-stream"})


async def test_blocks_start_grow_and_end_and_the_response_comes_last(llm_server, mounted):
    reply = Reply(
        thinking="let me see",
        text="Hello there",
        tool_calls=[ToolCall("a", {"x": 1}, id="c1"), ToolCall("b", {"y": 2}, id="c2")],
        chars_per_delta=4,
        unknown_events=True,
    )
    server = await llm_server([reply])
    provider = await mounted(server)
    *pieces, response = await chunks_of(provider, ask())
    assert isinstance(response, ChatResponse)
    assert all(type(piece) is dict for piece in pieces)
    for index, block in enumerate(response.content):
        own = [piece for piece in pieces if piece["index"] == index]
        kinds = [piece["type"] for piece in own]
        assert kinds[0] == "content_block_start"
        assert kinds[-1] == "content_block_end"
        assert set(kinds[1:-1]) == {"content_block_delta"}
        assert {piece["block_type"] for piece in own} == {block.type}
        assert own[-1]["block"].items() <= block.model_dump().items()
    text = "".join(p["delta"] for p in pieces if p["index"] == 1 and "delta" in p)
    assert text == "Hello there"
    start = next(p for p in pieces if p["index"] == 2)
    assert (start["id"], start["name"]) == ("c1", "a")


@pytest.mark.parametrize(
    ("stopped", "finish"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("tool_calls", "tool_calls"),
        ("function_call", "tool_calls"),
        ("eos", "stop"),
    ],
)
async def test_finish_reasons(answered, stopped, finish):
    response = await answered(events({"content": "x"}, finish=stopped))
    assert response.finish_reason == finish
    assert response.metadata["stop_reason"] == stopped


async def test_calls_count_more_than_a_finish_reason_that_forgets_them(answered):
    call = {"id": "c", "function": {"name": "t", "arguments": "{}"}}
    response = await answered(events({"tool_calls": [call]}, finish="stop"))
    assert response.finish_reason == "tool_calls"


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("raw", ['{"city": "Ro', "[1, 2]", "not json", '"text"'])
async def test_invalid_arguments_are_kept_next_to_empty_ones(answered, raw, api):
    response = await answered(Reply(tool_calls=[ToolCall("t", id="c", raw_input=raw)]), api=api)
    [call] = response.tool_calls
    assert call.arguments == {}
    assert call.invalid_arguments == raw
    assert response.content[0].invalid_arguments == raw


async def test_an_answer_with_broken_arguments_can_be_sent_back(llm_server, mounted):
    server = await llm_server([Reply(tool_calls=[ToolCall("t", id="c", raw_input='{"a')]), "ok"])
    provider = await mounted(server)
    response = await provider.complete(ask())
    answered = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [b.model_dump() for b in response.content]},
        {"role": "tool", "tool_call_id": "c", "name": "t", "content": "no valid JSON"},
    ]
    await provider.complete({"messages": answered})
    assert server.rejections == []


async def test_the_model_calls_a_tool_by_its_sent_name_and_is_heard_by_its_own(llm_server, mounted):
    server = await llm_server(
        [lambda r: Reply(tool_calls=[ToolCall(r.body["tools"][0]["function"]["name"], id="c")])]
    )
    response = await (await mounted(server)).complete(ask(tools=TOOLS))
    assert server.rejections == []
    assert response.tool_calls[0].name == "files.read"


class TestOtherServers:
    """Streams as compatible servers write them."""

    async def test_refusals_are_shown_and_named(self, answered):
        response = await answered(events({"refusal": "I can"}, {"refusal": "not."}))
        assert response.content[0].text == "I cannot."
        assert response.finish_reason == "content_filter"
        assert response.metadata["refusal"] == "I cannot."

    async def test_whole_calls_without_index_or_id(self, answered):
        calls = [{"function": {"name": n, "arguments": {"n": n}}} for n in ("a", "b")]
        response = await answered(events({"tool_calls": calls}))
        assert [(c.name, c.arguments) for c in response.tool_calls] == [
            ("a", {"n": "a"}),
            ("b", {"n": "b"}),
        ]
        ids = [c.id for c in response.tool_calls]
        assert len(set(ids)) == 2
        assert all(ids)

    async def test_calls_that_all_have_the_index_zero(self, answered):
        deltas = [
            {"tool_calls": [{"index": 0, "id": i, "function": {"name": i, "arguments": "{}"}}]}
            for i in ("a", "b")
        ]
        response = await answered(events(*deltas))
        assert [c.id for c in response.tool_calls] == ["a", "b"]

    async def test_arguments_interleaved_by_index(self, llm_server, mounted):
        def delta(index: int, arguments: str, name: str | None = None) -> dict:
            function = {"arguments": arguments} | ({"name": name} if name else {})
            return {"tool_calls": [{"index": index, "function": function}]}

        server = await llm_server(
            [events(delta(0, '{"a"', "x"), delta(1, '{"b"', "y"), delta(0, ":1}"), delta(1, ":2}"))]
        )
        response = await (await mounted(server)).complete(ask())
        assert [c.arguments for c in response.tool_calls] == [{"a": 1}, {"b": 2}]

    async def test_content_as_a_list_of_parts(self, answered):
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        assert (await answered(events({"content": parts}))).content[0].text == "ab"

    async def test_usage_is_optional_and_its_fields_may_be_null(self, llm_server, mounted):
        odd = {"prompt_tokens": 3, "completion_tokens": None, "prompt_tokens_details": None}
        server = await llm_server([events({"content": "a"}), events({"content": "a"}, usage=odd)])
        provider = await mounted(server)
        assert (await provider.complete(ask())).usage is None
        usage = (await provider.complete(ask())).usage
        assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (3, 0, 3)

    async def test_deepseek_names_its_cache_hits_otherwise(self, answered):
        usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_cache_hit_tokens": 4}
        assert (await answered(events({"content": "a"}, usage=usage))).usage.cache_read_tokens == 4

    @pytest.mark.parametrize("event", ['{"choices": [7]}', '{"choices": 7}', "[]", "7", "{"])
    async def test_events_of_an_unknown_shape_are_a_broken_stream(self, answered, event):
        with pytest.raises(StreamError):
            await answered(events({"content": "a"}, event))

    @pytest.mark.parametrize("reason", ["error", "insufficient_system_resource"])
    async def test_a_server_that_gives_up_has_not_answered(self, answered, reason):
        with pytest.raises(StreamError):
            await answered(events({"content": "a"}, finish=reason))

    async def test_done_without_a_finish_reason_is_an_error(self, answered):
        with pytest.raises(StreamError):
            await answered(events({"content": "a"}, finish=None))

    async def test_a_whole_answer_instead_of_a_stream_is_an_error(self, answered):
        with pytest.raises(LLMError) as caught:
            await answered(Status(200, body={"choices": []}))
        assert not caught.value.retryable


async def test_one_connection_serves_a_whole_conversation(llm_server, mounted):
    ports = set()
    server = await llm_server(["a"] * 3, on_request=lambda r: ports.add(r.client_port))
    provider = await mounted(server)
    for _ in range(3):
        await provider.complete(ask())
    assert len(ports) == 1


class TestCost:
    """What a call to OpenAI itself costs, from the shipped price list."""

    def cost(self, model: str, tier: str | None = None, url: str = OPENAI_URL, **counts: int):
        from amplifier_core.message_models import Usage

        provider = OpenAIProvider(OpenAIConfig(), Access({"api_key": "k"}, url, "base_url"))
        total = counts["input_tokens"] + counts["output_tokens"]
        return provider._cost(model, Usage(total_tokens=total, **counts), tier)

    def test_cached_and_fresh_input_and_output_have_their_own_prices(self):
        cost = self.cost(
            "gpt-4.1", input_tokens=1_000_000, output_tokens=100_000, cache_read_tokens=400_000
        )
        assert cost == Decimal("0.6") * 2 + Decimal("0.4") * Decimal("0.5") + Decimal("0.8")

    def test_a_long_prompt_has_prices_of_its_own(self):
        short = self.cost("gpt-5.4", input_tokens=272_000, output_tokens=0)
        long = self.cost("gpt-5.4", input_tokens=272_001, output_tokens=0)
        assert long > short * Decimal("1.9")

    @pytest.mark.parametrize("tier", ["flex", "priority"])
    def test_other_tiers_are_not_priced(self, tier):
        assert self.cost("gpt-4.1", tier, input_tokens=1, output_tokens=1) is None

    def test_unknown_models_are_not_priced(self):
        assert self.cost("gpt-99", input_tokens=1, output_tokens=1) is None

    def test_other_servers_are_not_priced(self):
        url = "http://127.0.0.1:1/v1"
        assert self.cost("gpt-4.1", url=url, input_tokens=1, output_tokens=1) is None
