"""The scripted LLM server behaves like the real APIs, judged by the vendor's SDK and bare httpx."""

import asyncio
import importlib
import socket
from typing import Any

import httpx
import httpx_sse
import pytest

from tests.support.fixtures import StartLLM
from tests.support.llm_server import (
    Cut,
    ErrorEvent,
    Garbage,
    Malformed,
    RedactedThinking,
    Reply,
    Request,
    Reset,
    ResetAfter,
    ScriptedLLM,
    Stall,
    Text,
    Thinking,
    ToolCall,
    closed_port,
)

WEATHER = {
    "name": "weather",
    "description": "Reports the weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
ASK: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]


@pytest.fixture
def anthropic() -> Any:
    """The vendor's SDK. Its import takes a second, and every worker of the suite imports this file."""
    return importlib.import_module("anthropic")


def sdk(server: ScriptedLLM, **options: Any) -> Any:
    import anthropic

    return anthropic.AsyncAnthropic(api_key="k", base_url=server.base_url, max_retries=0, **options)


async def post(server: ScriptedLLM, body: dict[str, Any], **headers: str) -> httpx.Response:
    given = {"x-api-key": "k", "anthropic-version": "2023-06-01", **headers}
    async with httpx.AsyncClient(verify=False, base_url=server.base_url) as client:
        return await client.post("/v1/messages", json=body, headers=given)


async def chat(server: ScriptedLLM, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(verify=False, base_url=server.openai_base_url) as client:
        return await client.post(
            "/chat/completions",
            json={"model": "m", "messages": ASK, **body},
            headers={"authorization": "Bearer k"},
        )


# -- Anthropic: what the SDK makes of the answers ----------------------------------------------


async def test_sdk_streams_every_block_type_to_the_same_message(llm_server: StartLLM) -> None:
    call = ToolCall("weather", {"city": "Zürich", "nested": [1, {"a": None}]}, id="toolu_1")
    blocks = [Thinking("let me see"), RedactedThinking("b64"), Text("héllo wörld"), call]
    reply = Reply(blocks=blocks, chars_per_delta=3, unknown_events=True, split_bytes=7)
    server = await llm_server([reply, reply])
    async with sdk(server) as client:
        options: Any = {"model": "m", "max_tokens": 9, "messages": ASK, "tools": [WEATHER]}
        whole = await client.messages.create(**options)
        async with client.messages.stream(**options) as stream:
            streamed = await stream.get_final_message()
    assert [b.type for b in whole.content] == ["thinking", "redacted_thinking", "text", "tool_use"]
    assert [b.to_dict() for b in streamed.content] == [b.to_dict() for b in whole.content]
    assert streamed.stop_reason == whole.stop_reason == "tool_use"
    assert streamed.usage.output_tokens == 5


# -- Anthropic: what is refused ------------------------------------------------------------------

USE = {"type": "tool_use", "id": "t1", "name": "weather", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "ok"}


def turns(*contents: Any) -> list[dict[str, Any]]:
    return [
        {"role": "assistant" if n % 2 else "user", "content": content}
        for n, content in enumerate(contents)
    ]


def marked(*texts: str) -> list[dict[str, Any]]:
    control = {"type": "ephemeral"}
    return [{"type": "text", "text": text, "cache_control": control} for text in texts]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_tokens": None}, "max_tokens: Field required"),
        ({"max_tokens": 0}, "max_tokens: Input should be greater"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "first message"),
        ({"messages": [{"role": "system", "content": "a"}]}, 'Unexpected role "system"'),
        ({"messages": [{"role": "tool", "content": "a"}]}, 'Unexpected role "tool"'),
        ({"messages": turns("a", "b")}, "must end with a user message"),
        ({"messages": turns("")}, "user messages must have non-empty content"),
        ({"messages": turns("a", [], "b")}, "assistant messages must have non-empty content"),
        ({"messages": turns([{"type": "text", "text": ""}])}, "must be non-empty"),
        ({"messages": turns([{"type": "text", "text": " \n"}])}, "non-whitespace"),
        ({"messages": turns([{"type": "text", "text": "a", "visibility": None}])}, "Extra inputs"),
        ({"messages": [{"role": "user", "content": "a", "name": "x"}]}, "Extra inputs"),
        ({"messages": turns([{"type": "tool_call"}])}, "does not match any of the expected tags"),
        ({"messages": turns("a", [USE], "b")}, "without `tool_result` blocks immediately after"),
        ({"messages": turns("a", "b", [RESULT])}, "unexpected `tool_use_id`"),
        ({"messages": turns("a", [USE], [RESULT, RESULT])}, "must have a single result"),
        (
            {"messages": turns("a", [USE], [{"type": "text", "text": "x"}, RESULT])},
            "without `tool_result` blocks immediately after",
        ),
        ({"messages": turns("a", [USE, USE], [RESULT])}, "ids must be unique"),
        ({"messages": turns("a", [USE], [RESULT], [USE], [RESULT])}, "ids must be unique"),
        ({"messages": turns("a", [{**USE, "id": "a b"}], [RESULT])}, "should match pattern"),
        ({"messages": turns("a", [{**USE, "input": "{}"}], [RESULT])}, "valid dictionary"),
        ({"messages": turns("a", [USE], [RESULT]), "tools": None}, "must define tools"),
        ({"messages": turns(marked(*"abcde"))}, "maximum of 4 blocks with cache_control"),
        ({"system": marked("a", "b", "c"), "messages": turns(marked("d", "e"))}, "Found 5"),
        ({"tools": [{**WEATHER, "name": "we ather"}]}, "should match pattern"),
        ({"tools": [{**WEATHER, "input_schema": {"type": "string"}}]}, "should be 'object'"),
        ({"tools": [{**WEATHER, "parameters": {}}]}, "Extra inputs"),
        ({"tools": [WEATHER, WEATHER]}, "must be unique"),
        ({"tool_choice": {"type": "tool", "name": "nope"}}, "not found in provided tools"),
        ({"temperature": 2}, "temperature"),
        ({"shimmer": 1}, "shimmer: Extra inputs"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1024},
            "must be greater than `thinking.budget_tokens`",
        ),
        (
            {
                "messages": turns(
                    "a", [{"type": "thinking", "thinking": "x", "signature": "y"}], "b"
                )
            },
            "Invalid `signature` in `thinking` block",
        ),
        (
            {"messages": turns("a", [{"type": "redacted_thinking", "data": "y"}], "b")},
            "Invalid `data`",
        ),
        (
            {
                "messages": turns(
                    [{"type": "image", "source": {"type": "base64", "media_type": "image/bmp"}}]
                )
            },
            "media_type",
        ),
    ],
)
async def test_broken_requests_are_answered_400(
    llm_server: StartLLM, change: dict[str, Any], message: str
) -> None:
    server = await llm_server(["never said"])
    body = {"model": "m", "max_tokens": 9, "messages": ASK, "tools": [WEATHER], **change}
    response = await post(server, {k: v for k, v in body.items() if v is not None})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert message in error["message"]
    assert server.rejections == [error["message"]]
    assert server.remaining == 1


async def test_thinking_must_come_back_unchanged(llm_server: StartLLM) -> None:
    reply = Reply(thinking="deep", tool_calls=[ToolCall("weather", id="t1")])
    server = await llm_server([reply, "done"])
    options: dict[str, Any] = {
        "model": "m",
        "max_tokens": 4000,
        "tools": [WEATHER],
        "thinking": {"type": "enabled", "budget_tokens": 2000},
    }
    thought, use = (await post(server, {**options, "messages": ASK})).json()["content"]
    result = [{**RESULT, "tool_use_id": "t1"}]
    changed = {**thought, "thinking": "deep."}
    for content, message in [
        ([changed, use], "Invalid `signature`"),
        ([use], "Expected `thinking` or `redacted_thinking`, but found `tool_use`"),
        ([thought, thought, use], "cannot be modified"),
    ]:
        response = await post(server, {**options, "messages": turns("a", content, result)})
        assert response.status_code == 400
        assert message in response.json()["error"]["message"]
    whole = await post(server, {**options, "messages": turns("a", [thought, use], result)})
    assert whole.status_code == 200


async def test_another_instance_knows_the_signature(llm_server: StartLLM) -> None:
    first = await llm_server([Reply("x", thinking="deep"), Reply(blocks=[RedactedThinking()])])
    second = await llm_server(["ok"])
    body = {"model": "m", "max_tokens": 9, "messages": ASK}
    thought, text = (await post(first, body)).json()["content"]
    (redacted,) = (await post(first, body)).json()["content"]
    history = turns("a", [thought, redacted, text], "b")
    assert (await post(second, {**body, "messages": history})).status_code == 200


async def test_key_and_version_are_required(llm_server: StartLLM) -> None:
    server = await llm_server(["x"], api_key="right")
    body = {"model": "m", "max_tokens": 9, "messages": ASK}
    async with httpx.AsyncClient(verify=False, base_url=server.base_url) as client:
        missing = await client.post("/v1/messages", json=body)
    assert missing.status_code == 401
    assert missing.json()["error"]["type"] == "authentication_error"
    wrong = await post(server, body, **{"x-api-key": "wrong"})
    assert (wrong.status_code, wrong.json()["error"]["message"]) == (401, "invalid x-api-key")
    old = await post(server, body, **{"x-api-key": "right", "anthropic-version": ""})
    assert old.status_code == 200
    async with httpx.AsyncClient(verify=False, base_url=server.base_url) as client:
        no_version = await client.post("/v1/messages", json=body, headers={"x-api-key": "right"})
    assert no_version.status_code == 400


async def test_lenient_server_takes_anything(llm_server: StartLLM) -> None:
    server = await llm_server(["x"], strict=False)
    assert (await post(server, {"model": "m", "messages": []})).status_code == 200


# -- OpenAI --------------------------------------------------------------------------------------

CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
ANSWER = {"role": "tool", "tool_call_id": "c1", "content": "ok"}
ASSISTANT = {"role": "assistant", "content": None, "tool_calls": [CALL]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"messages": []}, "empty array"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "Invalid value: 'robot'"),
        ({"messages": [{"role": "user", "content": None}]}, "expected a string, got null"),
        ({"messages": [{"role": "user", "content": 3}]}, "but got an integer instead"),
        ({"messages": [{"role": "assistant", "content": None}]}, "got null"),
        ({"messages": [*ASK, ANSWER]}, "must be a response to a preceeding message"),
        ({"messages": [*ASK, ASSISTANT, *ASK]}, "did not have response messages: c1"),
        ({"messages": [*ASK, ASSISTANT]}, "did not have response messages: c1"),
        ({"messages": [*ASK, ASSISTANT, ANSWER, ANSWER]}, "must be a response"),
        (
            {"messages": [*ASK, {**ASSISTANT, "tool_calls": [CALL, CALL]}, ANSWER]},
            "Duplicate value",
        ),
        (
            {
                "messages": [
                    *ASK,
                    {
                        **ASSISTANT,
                        "tool_calls": [{**CALL, "function": {"name": "a", "arguments": {}}}],
                    },
                    ANSWER,
                ]
            },
            "expected a string, but got an object",
        ),
        (
            {"messages": [*ASK, {**ASSISTANT, "tool_calls": [{**CALL, "id": "x" * 41}]}, ANSWER]},
            "maximum length 40",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "Invalid value"),
        ({"messages": [{"role": "user", "content": "a", "metadata": {}}]}, "Unknown parameter"),
        ({"tools": []}, "empty array"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "does not match pattern"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": {}}}]},
            "schema must be a JSON Schema of 'type: \"object\"'",
        ),
        ({"stream_options": {"include_usage": True}}, "only allowed when 'stream' is enabled"),
        ({"max_tokens": 0}, "below minimum value"),
        ({"thinking": {}}, "Unknown parameter: 'thinking'"),
    ],
)
async def test_broken_chat_requests_are_answered_400(
    llm_server: StartLLM, change: dict[str, Any], message: str
) -> None:
    server = await llm_server(["never said"])
    response = await chat(server, **change)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert message in error["message"]
    assert server.remaining == 1


async def test_chat_requires_a_key_by_default(llm_server: StartLLM) -> None:
    closed, opened = await llm_server(["x"]), await llm_server(["x"], require_key=False)
    body = {"model": "m", "messages": ASK}
    async with httpx.AsyncClient(verify=False) as client:
        refused = await client.post(f"{closed.openai_base_url}/chat/completions", json=body)
        taken = await client.post(f"{opened.openai_base_url}/chat/completions", json=body)
        listed = await client.get(f"{opened.openai_base_url}/models")
    assert (refused.status_code, taken.status_code) == (401, 200)
    assert listed.json()["data"][0]["object"] == "model"


# -- faults --------------------------------------------------------------------------------------


async def streamed(server: ScriptedLLM, **options: Any) -> list[str]:
    """Event names as they arrive; raises what the transport raises."""
    names: list[str] = []
    body = {"model": "m", "max_tokens": 9, "messages": ASK, "stream": True}
    headers = {"x-api-key": "k", "anthropic-version": "1"}
    async with (
        httpx.AsyncClient(verify=False, **options) as client,
        httpx_sse.aconnect_sse(
            client, "POST", f"{server.base_url}/v1/messages", json=body, headers=headers
        ) as source,
    ):
        try:
            async for event in source.aiter_sse():
                names.append(event.event)  # noqa: PERF401 - kept when the transport raises
        except httpx.HTTPError as error:
            names.append(type(error).__name__)
    return names


async def test_cut_after_each_event_sends_exactly_that_many(llm_server: StartLLM) -> None:
    total = len(await streamed(await llm_server(["one two three"])))
    for k in range(total):
        names = await streamed(await llm_server([Reply("one two three", fault=Cut(k))]))
        assert (len(names) - 1, names[-1]) == (k, "RemoteProtocolError")
        clean = await streamed(await llm_server([Reply("one two three", fault=Cut(k, clean=True))]))
        assert len(clean) == k


async def test_reset_before_and_inside_the_answer(llm_server: StartLLM) -> None:
    server = await llm_server([Reset(), Reply("hello", fault=ResetAfter(2))])
    with pytest.raises(httpx.ReadError):
        await post(server, {"model": "m", "max_tokens": 9, "messages": ASK})
    names = await streamed(server)
    assert names == ["message_start", "content_block_start", "ReadError"]


async def test_stall_lasts_until_the_client_leaves(llm_server: StartLLM) -> None:
    server = await llm_server([Reply("hello", fault=Stall(3))])
    assert (await streamed(server, timeout=httpx.Timeout(5, read=0.2)))[-1] == "ReadTimeout"
    await asyncio.to_thread(server.wait_for, lambda s: s.requests[0].client_left)
    assert not server.requests[0].answered


async def test_stall_with_seconds_goes_on(llm_server: StartLLM) -> None:
    server = await llm_server([Reply("hello", fault=Stall(3, seconds=0.05))])
    assert (await streamed(server))[-1] == "message_stop"


async def test_error_event_ends_a_200_stream(llm_server: StartLLM, anthropic: Any) -> None:
    server = await llm_server([Reply("hello", fault=ErrorEvent(3))] * 2)
    assert (await streamed(server))[-1] == "error"
    async with sdk(server) as client:
        with pytest.raises(anthropic.APIStatusError, match="Overloaded"):
            async with client.messages.stream(model="m", max_tokens=9, messages=ASK) as stream:
                await stream.get_final_message()


async def test_malformed_and_garbage_reach_the_client(llm_server: StartLLM) -> None:
    server = await llm_server(
        [Reply("hello", fault=Malformed(3)), Reply("hello", fault=Garbage(3)), Reply("fine")]
    )
    async with sdk(server) as client:
        for _ in range(2):
            with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the SDK makes of it
                async with client.messages.stream(model="m", max_tokens=9, messages=ASK) as stream:
                    await stream.get_final_message()
        assert (await client.messages.create(model="m", max_tokens=9, messages=ASK)).content


@pytest.mark.parametrize("fault", [Cut(0), ResetAfter(0), Malformed(0), Garbage(0)])
async def test_faults_without_streaming_break_the_body(llm_server: StartLLM, fault: Any) -> None:
    server = await llm_server([Reply("hello", fault=fault)])
    with pytest.raises((httpx.HTTPError, ValueError)):
        (await post(server, {"model": "m", "max_tokens": 9, "messages": ASK})).json()


async def test_closed_port_refuses() -> None:
    with closed_port() as port:
        async with httpx.AsyncClient(verify=False) as client:
            with pytest.raises(httpx.ConnectError):
                await client.get(f"http://127.0.0.1:{port}/")


# -- the script and the record -------------------------------------------------------------------


async def test_replies_are_consumed_in_order_then_400_or_repeated(llm_server: StartLLM) -> None:
    def echo(request: Request) -> str:
        return request.body["messages"][-1]["content"]

    async def later(request: Request) -> Reply:
        return Reply(f"call {len(ended.completions)}")

    body = {"model": "m", "max_tokens": 9, "messages": ASK}
    ended = await llm_server([echo, later])
    texts = [(await post(ended, body)).json()["content"][0]["text"] for _ in range(2)]
    assert texts == ["hi", "call 2"]
    assert "no reply for completion 3" in (await post(ended, body)).json()["error"]["message"]
    endless = await llm_server(["again"], repeat_last=True)
    assert [(await post(endless, body)).status_code for _ in range(3)] == [200] * 3


# -- the suite stays on loopback -----------------------------------------------------------------


@pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::1"])
def test_connecting_beyond_loopback_is_forbidden(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with (
        socket.socket(family) as reaching,
        pytest.raises(OSError, match="tests stay on loopback"),
    ):
        reaching.connect((address, 9))
    with pytest.raises(OSError, match="tests stay on loopback"):
        socket.getaddrinfo("host.invalid", 80)
