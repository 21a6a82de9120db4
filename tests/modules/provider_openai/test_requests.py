"""What is sent: every field of a request in the API's own words, valid for a strict server."""

import pytest

from amplifier_core.llm_errors import InvalidRequestError
from amplifier_core.message_models import ChatRequest, Message, ToolSpec
from tests.modules.provider_openai.conftest import Mounted, ask
from tests.support.fixtures import StartLLM
from tests.support.llm_server import Request, Status

WEATHER = {
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
PIXEL = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}


def conversation(*calls: str) -> list[dict]:
    """A user's question, one assistant message with these calls, and their results."""
    blocks = [{"type": "tool_call", "id": id, "name": "weather", "input": {}} for id in calls]
    results = [
        {"role": "tool", "tool_call_id": id, "name": "weather", "content": f"sun {id}"}
        for id in calls
    ]
    return [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, *blocks]},
        *results,
    ]


async def sent(start: StartLLM, mounted: Mounted, request: object, **config: object) -> dict:
    """The body the server received, which it has found valid."""
    server = await start(["fine"])
    provider = await mounted(server, **config)
    await provider.complete(request)
    assert server.rejections == []
    return server.completions[0].body


async def test_fields_of_a_request_win_over_the_config(llm_server, mounted):
    request = ChatRequest(
        messages=[Message(role="user", content="hi")],
        model="other",
        temperature=0.0,
        top_p=0.5,
        max_output_tokens=7,
        stop=["END"],
        reasoning_effort="low",
    )
    config = {"temperature": 1.0, "max_tokens": 99, "top_p": 1.0, "reasoning_effort": "high"}
    body = await sent(llm_server, mounted, request, **config)
    assert body["model"] == "other"
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.0, 0.5, 7)
    assert (body["stop"], body["reasoning_effort"]) == (["END"], "low")


async def test_keyword_arguments_win_over_the_request(llm_server, mounted):
    server = await llm_server(["fine"])
    provider = await mounted(server)
    await provider.complete(ask(model="a", temperature=0.1), model="b", temperature=0.9)
    body = server.completions[0].body
    assert (body["model"], body["temperature"]) == ("b", 0.9)


async def test_extra_body_is_merged_over_everything(llm_server, mounted):
    extra = {"seed": 7, "temperature": 0.5}
    body = await sent(llm_server, mounted, ask(temperature=0.1), extra_body=extra)
    assert (body["seed"], body["temperature"]) == (7, 0.5)


async def test_tools_are_offered_as_functions_with_object_schemas(llm_server, mounted):
    tools = [WEATHER, ToolSpec(name="now", parameters={})]
    body = await sent(llm_server, mounted, ask(tools=tools))
    assert body["tools"] == [
        {"type": "function", "function": WEATHER},
        {
            "type": "function",
            "function": {"name": "now", "parameters": {"type": "object", "properties": {}}},
        },
    ]
    assert "tool_choice" not in body


@pytest.mark.parametrize(
    ("choice", "wire"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ("any", "required"),
        ("weather", {"type": "function", "function": {"name": "weather"}}),
        (
            {"type": "tool", "name": "weather"},
            {"type": "function", "function": {"name": "weather"}},
        ),
        (
            {"type": "function", "function": {"name": "weather"}},
            {"type": "function", "function": {"name": "weather"}},
        ),
        ({"type": "any"}, "required"),
    ],
)
async def test_every_spelling_of_tool_choice_is_understood(llm_server, mounted, choice, wire):
    body = await sent(llm_server, mounted, ask(tools=[WEATHER], tool_choice=choice))
    assert body["tool_choice"] == wire
    assert "parallel_tool_calls" not in body


async def test_parallel_calls_can_be_forbidden(llm_server, mounted):
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    body = await sent(llm_server, mounted, ask(tools=[WEATHER], tool_choice=choice))
    assert (body["tool_choice"], body["parallel_tool_calls"]) == ("auto", False)


@pytest.mark.parametrize(
    ("wanted", "wire"),
    [
        ({"type": "text"}, None),
        ({"type": "json"}, {"type": "json_object"}),
        (
            {"type": "json_schema", "schema": {"title": "City", "type": "object"}, "strict": True},
            {
                "type": "json_schema",
                "json_schema": {
                    "name": "City",
                    "schema": {"title": "City", "type": "object"},
                    "strict": True,
                },
            },
        ),
        (
            {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": False},
            },
            {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": False},
            },
        ),
    ],
)
async def test_response_formats(llm_server, mounted, wanted, wire):
    body = await sent(llm_server, mounted, ask(response_format=wanted))
    assert body.get("response_format") == wire


async def test_calls_and_results_go_back_in_pairs(llm_server, mounted):
    body = await sent(llm_server, mounted, {"messages": conversation("c1", "c2")})
    assistant, first, second = body["messages"][1:]
    assert assistant["content"] == "I look."
    assert [call["id"] for call in assistant["tool_calls"]] == ["c1", "c2"]
    assert assistant["tool_calls"][0]["function"] == {"name": "weather", "arguments": "{}"}
    assert first == {"role": "tool", "tool_call_id": "c1", "content": "sun c1"}
    assert second["content"] == "sun c2"


async def test_a_call_without_text_has_null_content(llm_server, mounted):
    messages = conversation("c1")
    messages[1]["content"].pop(0)
    body = await sent(llm_server, mounted, {"messages": messages})
    assert body["messages"][1]["content"] is None


async def test_ids_and_names_of_other_vendors_are_made_to_fit(llm_server, mounted):
    long_id = "toolu_" + "x" * 60
    messages = conversation(long_id)
    messages[1]["content"][1]["name"] = "files.read/äö"
    body = await sent(llm_server, mounted, {"messages": messages})
    call = body["messages"][1]["tool_calls"][0]
    assert call["id"] == body["messages"][2]["tool_call_id"]
    assert len(call["id"]) <= 40
    assert call["function"]["name"].startswith("files_read_")


async def test_thinking_stays_at_home(llm_server, mounted):
    messages = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "hello"},
            ],
        },
        {"role": "user", "content": "again"},
    ]
    body = await sent(llm_server, mounted, {"messages": messages})
    assert body["messages"][1] == {"role": "assistant", "content": "hello"}


async def test_images_of_users_and_of_tools_are_sent(llm_server, mounted):
    messages = conversation("c1", "c2")
    messages[0]["content"] = [
        {"type": "text", "text": "look"},
        {"type": "image", "source": PIXEL},
        {"type": "image", "source": {"type": "url", "url": "https://example.invalid/a.png"}},
    ]
    messages[2]["content"] = [
        {"type": "text", "text": "a screenshot"},
        {"type": "image", "source": PIXEL},
    ]
    body = await sent(llm_server, mounted, {"messages": messages})
    url = "data:image/png;base64,iVBORw0KGgo="
    assert body["messages"][0]["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image_url", "image_url": {"url": "https://example.invalid/a.png"}},
    ]
    assert [m["role"] for m in body["messages"]] == ["user", "assistant", "tool", "tool", "user"]
    assert body["messages"][2]["content"].startswith("a screenshot\n")
    assert body["messages"][4]["content"][1] == {"type": "image_url", "image_url": {"url": url}}


async def test_developer_messages_become_system_messages_for_other_servers(llm_server, mounted):
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}]
    body = await sent(llm_server, mounted, {"messages": messages})
    assert body["messages"][0] == {"role": "system", "content": "be brief"}


def refuses(parameter: str, message: str):
    """A server that answers 400 as long as the parameter is there."""

    def answer(request: Request):
        if parameter in request.body:
            return Status(400, message=message)
        return "fine"

    return answer


@pytest.mark.parametrize(
    ("parameter", "message", "config"),
    [
        ("stream_options", "Unknown parameter: stream_options", {}),
        (
            "max_tokens",
            "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.",
            {"max_tokens": 5},
        ),
    ],
)
async def test_a_refused_parameter_is_done_without_and_remembered(
    llm_server, mounted, parameter, message, config
):
    answer = refuses(parameter, message)
    server = await llm_server([answer] * 3)
    provider = await mounted(server, **config)
    await provider.complete(ask())
    await provider.complete(ask())
    assert [parameter in request.body for request in server.completions] == [True, False, False]


async def test_a_server_that_refuses_both_limits_gets_each_once(llm_server, mounted):
    message = "neither max_tokens nor max_completion_tokens is supported"
    server = await llm_server([Status(400, message=message)], repeat_last=True)
    provider = await mounted(server, max_tokens=5)
    with pytest.raises(InvalidRequestError):
        await provider.complete(ask())
    assert len(server.completions) == 2


NO_REASONING = (
    "Function tools with reasoning_effort are not supported for m in /v1/chat/completions. "
    "To use function tools, use /v1/responses or set reasoning_effort to 'none'."
)


async def test_tools_with_a_model_that_must_not_reason_then_are_offered_without(
    llm_server, mounted
):
    def answer(request: Request):
        effort = request.body.get("reasoning_effort")
        return "fine" if effort == "none" else Status(400, message=NO_REASONING)

    server = await llm_server([answer] * 2)
    provider = await mounted(server)
    response = await provider.complete(ask(tools=[WEATHER]))
    assert response.degradation is not None
    assert response.degradation.actual == "reasoning_effort none"
    assert [r.body.get("reasoning_effort") for r in server.completions] == [None, "none"]


async def test_a_requested_effort_is_never_dropped(llm_server, mounted):
    server = await llm_server([Status(400, message=NO_REASONING)])
    provider = await mounted(server)
    with pytest.raises(InvalidRequestError, match="reasoning_effort"):
        await provider.complete(ask(tools=[WEATHER], reasoning_effort="high"))
    assert len(server.completions) == 1
