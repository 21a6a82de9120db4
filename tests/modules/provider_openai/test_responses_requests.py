"""What is sent to the Responses API, and reasoning kept from one answer to the next."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier_core.message_models import ChatResponse
from amplifier_modules._shared.history.request import normalise
from amplifier_modules.provider_openai.config import OpenAIConfig
from amplifier_modules.provider_openai.provider import OPENAI_URL, OpenAIProvider
from amplifier_modules.provider_openai.responses import wire_input
from amplifier_support.provider_access import Access
from tests.modules.provider_anthropic.test_validity import IDS, MESSAGES
from tests.modules.provider_openai.conftest import Mounted, ask
from tests.support.fixtures import StartLLM
from tests.support.llm.responses_rules import check_request, encrypted_for
from tests.support.llm_server import (
    Reply,
    Status,
    ToolCall,
)

WEATHER = {
    "name": "weather.now",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
PIXEL = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
NEW = {"api": "responses"}


async def sent(
    start: StartLLM, mounted: Mounted, request: object, **config: object
) -> dict[str, Any]:
    """The body the server received, which it has found valid."""
    server = await start(["fine"])
    provider = await mounted(server, **NEW, **config)
    await provider.complete(request)
    assert server.rejections == []
    assert server.requests[-1].path == "/v1/responses"
    return server.requests[-1].body


def assistant(response: ChatResponse) -> dict[str, Any]:
    """The answer as a loop stores it."""
    blocks = [block.model_dump(exclude_none=True) for block in response.content]
    return {"role": "assistant", "content": blocks}


async def test_nothing_is_stored_and_reasoning_is_requested(llm_server, mounted):
    body = await sent(llm_server, mounted, ask("hi"))
    assert body == {
        "model": "m",
        "input": [{"role": "user", "content": "hi"}],
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }


async def test_every_field_has_its_place(llm_server, mounted):
    schema = {"type": "object", "properties": {}, "title": "Found"}
    request = {
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "developer", "content": "in English"},
            {"role": "user", "content": "go"},
        ],
        "tools": [WEATHER],
        "tool_choice": {"type": "tool", "name": "weather.now", "disable_parallel_tool_use": True},
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 100,
        "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": schema, "strict": False},
    }
    body = await sent(llm_server, mounted, request, reasoning_summary="auto")
    assert [item["role"] for item in body["input"]] == ["system", "developer", "user"]
    [tool] = body["tools"]
    name = tool["name"]
    assert name != "weather.now"  # not in the letters the API allows
    assert tool == {
        "type": "function",
        "name": name,
        "description": WEATHER["description"],
        "parameters": WEATHER["parameters"],
        "strict": False,
    }
    assert body["tool_choice"] == {"type": "function", "name": name}
    assert body["parallel_tool_calls"] is False
    assert (body["temperature"], body["top_p"], body["max_output_tokens"]) == (0.5, 0.9, 100)
    assert body["reasoning"] == {"effort": "low", "summary": "auto"}
    described = {"type": "json_schema", "name": "Found", "schema": schema, "strict": False}
    assert body["text"] == {"format": described}


async def test_config_fills_in_and_extra_body_wins(llm_server, mounted):
    body = await sent(
        llm_server,
        mounted,
        ask(max_output_tokens=3, response_format={"type": "json"}),
        temperature=0.1,
        reasoning_effort="high",
        extra_body={"service_tier": "flex", "store": True},
    )
    assert body["max_output_tokens"] == 16  # the least the API takes
    assert body["reasoning"] == {"effort": "high"}
    assert (body["temperature"], body["service_tier"], body["store"]) == (0.1, "flex", True)
    assert body["text"] == {"format": {"type": "json_object"}}


async def test_calls_and_results_become_items(llm_server, mounted):
    call = {"type": "tool_call", "id": "a b", "name": "weather.now", "input": {"city": "Köln"}}
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "see"}, {"type": "image", "source": PIXEL}],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, call]},
        {
            "role": "tool",
            "tool_call_id": "a b",
            "content": [{"type": "text", "text": "sun"}, {"type": "image", "source": PIXEL}],
        },
    ]
    body = await sent(llm_server, mounted, {"messages": messages, "tools": [WEATHER]})
    user, said, called, output = body["input"]
    assert user["content"][0] == {"type": "input_text", "text": "see"}
    assert user["content"][1]["image_url"] == "data:image/png;base64,iVBORw0KGgo="
    assert said == {"role": "assistant", "content": "I look."}
    assert called["type"] == "function_call"
    assert (called["name"], called["arguments"]) == (body["tools"][0]["name"], '{"city":"Köln"}')
    assert output["call_id"] == called["call_id"] != "a b"
    assert [part["type"] for part in output["output"]] == ["input_text", "input_image"]


async def test_unsupported_options_are_reported(llm_server, mounted):
    server = await llm_server(["fine"])
    provider = await mounted(server, **NEW)
    response = await provider.complete(ask(stop=["END"]))
    assert "stop" not in server.requests[-1].body
    assert response.degradation.requested == "stop sequences"


async def test_reasoning_is_requested_only_once_from_models_without_it(llm_server, mounted):
    refusal = Status(400, message="Encrypted content is not supported with this model.")
    server = await llm_server([refusal, "one", "two"])
    provider = await mounted(server, **NEW)
    for text in ("one", "two"):
        assert (await provider.complete(ask())).content[0].text == text
    assert ["include" in request.body for request in server.requests] == [True, False, False]


@pytest.mark.parametrize(
    ("url", "model", "api", "speaks"),
    [
        (OPENAI_URL, "gpt-6-sol", "auto", True),
        (OPENAI_URL, "gpt-4o", "auto", False),
        (OPENAI_URL, "gpt-6-sol", "chat", False),
        (OPENAI_URL, "gpt-4o", "responses", True),
        (OPENAI_URL, "gpt-6-astra", "auto", True),
        (OPENAI_URL, "gpt-5.3-codex", "auto", True),
        (OPENAI_URL, "gpt-9-pro-2029-01-01", "auto", True),
        (OPENAI_URL, "gpt-9", "auto", False),
        ("http://localhost:4000/v1", "gpt-6-sol", "auto", False),
        ("http://localhost:4000/v1", "my-codex", "auto", False),
    ],
)
def test_models_that_need_it_to_reason_with_tools_use_it(url, model, api, speaks):
    provider = OpenAIProvider(OpenAIConfig(api=api), Access({"api_key": "k"}, url, "base_url"))
    assert provider._speaks_responses(model) is speaks


def test_capabilities_depend_on_the_api():
    def able(api: str) -> list[str]:
        config = OpenAIConfig(api=api, model="gpt-6-astra")
        return OpenAIProvider(config, Access({"api_key": "k"}, None, "")).get_info().capabilities

    assert "tools" in able("auto")
    assert "tools" not in able("chat")


@pytest.mark.parametrize("given", ["/v1/responses", "/v1", ""])
async def test_the_address_may_name_the_api(llm_server, mounted, given):
    server = await llm_server(["fine"])
    provider = await mounted(f"{server.base_url}{given}", **NEW)
    assert (await provider.complete(ask())).content[0].text == "fine"


# -- tools that a search has found -----------------------------------------------------------

SEARCH = {
    "name": "tool_search",
    "description": "Finds.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
}
READ = {**SEARCH, "name": "read", "description": "Reads."}
FOUND: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": [
                {"type": "tool_call", "id": "c", "name": "tool_search", "input": {"query": "read"}}
            ],
        },
        {
            "role": "tool",
            "tool_call_id": "c",
            "name": "tool_search",
            "content": "You can call these tools now:\n- read: Reads.\n- gone: Was here.",
        },
    ],
    "tools": [SEARCH, READ],
}


async def test_a_found_tool_is_loaded_where_it_was_found(llm_server, mounted):
    body = await sent(llm_server, mounted, FOUND, tool_references=True)
    about = {"description": "Finds.", "parameters": SEARCH["parameters"]}
    assert body["tools"] == [{"type": "tool_search", "execution": "client", **about}]
    status = {"call_id": "c", "execution": "client", "status": "completed"}
    assert body["input"][1:] == [
        {"type": "tool_search_call", **status, "arguments": {"query": "read"}},
        {
            "type": "tool_search_output",
            **status,
            "tools": [{"type": "function", "strict": False, **READ, "defer_loading": True}],
        },
    ]


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        ({}, {}),
        ({"tool_references": True}, {"tools": [READ]}),
        ({"tool_references": True}, {"tool_choice": {"type": "tool", "name": "read"}}),
    ],
    ids=["off", "there is no search", "a tool must be called"],
)
async def test_otherwise_found_tools_are_loaded_from_the_start(
    llm_server, mounted, config, changes
):
    body = await sent(llm_server, mounted, {**FOUND, **changes}, **config)
    assert "read" in [tool["name"] for tool in body["tools"]]
    assert [item.get("type") for item in body["input"][1:]] == [
        "function_call",
        "function_call_output",
    ]


async def test_a_server_without_tool_search_gets_all_tools_from_then_on(llm_server, mounted):
    refusal = Status(400, message="Tool 'tool_search' is not supported with m.")
    server = await llm_server([refusal, "one", "two"])
    provider = await mounted(server, **NEW, tool_references=True)
    for text in ("one", "two"):
        assert (await provider.complete(FOUND)).content[0].text == text
    types = [[tool["type"] for tool in request.body["tools"]] for request in server.requests]
    assert types == [["tool_search"], ["function", "function"], ["function", "function"]]


@pytest.mark.parametrize(
    ("url", "model", "given", "refers"),
    [
        (OPENAI_URL, "gpt-5.4", None, True),
        (OPENAI_URL, "gpt-6-sol-2026-09-01", None, True),
        (OPENAI_URL, "gpt-5.2", None, False),
        (OPENAI_URL, "o3-pro", None, False),
        (OPENAI_URL, "gpt-6-sol", False, False),
        ("http://localhost:4000/v1", "gpt-6-sol", None, False),
        ("http://localhost:4000/v1", "other", True, True),
    ],
)
def test_newer_models_of_openai_load_tools_where_they_were_found(url, model, given, refers):
    config = OpenAIConfig(api="responses", tool_references=given)
    provider = OpenAIProvider(config, Access({"api_key": "k"}, url, "base_url"))
    assert provider._taste(model).tool_references is refers


# -- reasoning from one answer to the next ---------------------------------------------------


async def test_reasoning_goes_back_as_it_came(llm_server, mounted):
    first = Reply(thinking="hm", text="I look.", tool_calls=[ToolCall("weather", {}, id="c1")])
    server = await llm_server([first, Reply(thinking="so", text="Sunny."), "You are welcome."])
    provider = await mounted(server, **NEW)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "weather?"}]
    messages.append(assistant(await provider.complete({"messages": messages})))
    messages.append({"role": "tool", "tool_call_id": "c1", "content": "sun"})
    messages.append(assistant(await provider.complete({"messages": messages})))
    messages.append({"role": "user", "content": "thanks"})
    await provider.complete({"messages": messages})
    assert server.rejections == []
    items = server.requests[-1].body["input"]
    assert [item.get("type", item.get("role")) for item in items] == [
        *("user", "reasoning", "assistant", "function_call", "function_call_output"),
        *("reasoning", "assistant", "user"),
    ]
    assert items[1]["summary"] == [{"type": "summary_text", "text": "hm"}]
    assert items[1]["encrypted_content"] == f"gAAAAA-{items[1]['id']}-encrypted"


async def test_reasoning_that_the_service_cannot_read_stays_behind(llm_server, mounted):
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "content": []}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [reasoning, {"type": "text", "text": "one"}]},
        {"role": "user", "content": "on"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "two"},
                {**reasoning, "encrypted_content": "gAAAAA-rs_1-encrypted"},
            ],
        },
        {"role": "user", "content": "on"},
    ]
    body = await sent(llm_server, mounted, {"messages": messages})
    assert [item.get("type", item.get("role")) for item in body["input"]] == [
        *("user", "assistant", "user", "assistant", "user")
    ]


REASONING = st.sampled_from(["rs_1", "rs_2"]).flatmap(
    lambda own_id: st.sampled_from(
        [
            {"type": "reasoning", "id": own_id, "summary": [], "content": []},
            {
                "type": "reasoning",
                "id": own_id,
                "summary": [],
                "content": [],
                "encrypted_content": encrypted_for(own_id),
            },
        ]
    )
)
ANSWERS = st.fixed_dictionaries(
    {
        "role": st.just("assistant"),
        "content": st.lists(
            st.one_of(
                REASONING,
                st.sampled_from(["", "said"]).map(lambda text: {"type": "text", "text": text}),
                IDS.map(lambda id: {"type": "tool_call", "id": id, "name": "read", "input": {}}),
            ),
            max_size=5,
        ),
    }
)


@given(st.lists(st.one_of(ANSWERS, MESSAGES.map(lambda some: (some or [None])[0])), max_size=8))
def test_every_conversation_makes_a_valid_request(messages):
    request = normalise({"messages": [m for m in messages if m], "model": "m"})
    check_request({"model": "m", "store": False, "input": wire_input(request.messages)})


async def test_another_vendors_thinking_stays_behind(llm_server, mounted):
    thinking = {"type": "thinking", "thinking": "hm", "signature": "sig"}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [thinking, {"type": "text", "text": "one"}]},
        {"role": "user", "content": "on"},
    ]
    body = await sent(llm_server, mounted, {"messages": messages})
    assert [item["content"] for item in body["input"]] == ["go", "one", "on"]


async def test_reasoning_is_nothing_for_the_other_api(llm_server, mounted):
    server = await llm_server([Reply(thinking="hm", text="one"), "two"])
    provider = await mounted(server, **NEW)
    first = await provider.complete(ask())
    chat = await mounted(server)
    request = {"messages": [ask()["messages"][0], assistant(first), *ask("on")["messages"]]}
    assert (await chat.complete(request)).content[0].text == "two"
    assert server.rejections == []


async def test_the_chosen_model_decides_on_the_api_whatever_extra_body_calls_it(
    llm_server, mounted, monkeypatch
):
    server = await llm_server(["fine"])
    provider = await mounted(server, model="gpt-6.1-sol", extra_body={"model": "my-deployment"})
    monkeypatch.setattr(provider, "_is_openai", True)
    await provider.complete(ask())
    assert server.requests[-1].path == "/v1/responses"
    assert server.requests[-1].body["model"] == "my-deployment"
    assert server.rejections == []
