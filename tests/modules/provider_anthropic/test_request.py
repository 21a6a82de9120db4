"""The body that goes out for a request and a config."""

from typing import Any

import pytest

from amplifier_core.message_models import ToolSpec
from amplifier_modules._shared.history.request import normalise
from amplifier_modules.provider_anthropic.config import AnthropicConfig
from amplifier_modules.provider_anthropic.provider import AnthropicProvider, open_transport
from amplifier_modules.provider_anthropic.request import Prepared, prepare

OLD = "claude-haiku-4-5"  # budgets, sampling, forced tools
PLAIN = "claude-opus-4-8"  # adaptive, off by default, no sampling
CURRENT = "claude-sonnet-5-5"  # thinks by default, never forced
ALWAYS = "claude-opus-5-5"  # cannot stop thinking
UNKNOWN = "claude-next-9"
USER = {"role": "user", "content": "hello"}
TOOL = {"name": "read", "description": "Reads.", "input_schema": {"type": "object"}}


def prepared(
    messages: list[dict[str, Any]] | None = None,
    config: dict[str, Any] | None = None,
    *,
    model: str = OLD,
    **fields: Any,
) -> Prepared:
    settings = AnthropicConfig.model_validate({"prompt_caching": False, **(config or {})})
    request = normalise({"messages": messages or [USER], **fields})
    return prepare(request.model_copy(update={"model": model}), settings)


def body(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return prepared(*args, **kwargs).body


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def call(call_id: str, name: str = "read", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_call", "id": call_id, "name": name, "input": arguments}


# -- messages --------------------------------------------------------------------------------


def test_messages_in_front_are_the_system_prompt():
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "developer", "content": [{"type": "text", "text": "and kind"}]},
        {"role": "system", "content": "  "},
        USER,
    ]
    assert body(messages)["system"] == [text("be brief"), text("and kind")]


def test_a_system_message_in_the_conversation_stays_where_it_is():
    messages = [USER, {"role": "assistant", "content": "hi"}, {"role": "system", "content": "now"}]
    turns = body([*messages, USER])["messages"]
    assert turns[2]["content"] == [
        text("<system-reminder>\nnow\n</system-reminder>"),
        text("hello"),
    ]


def test_calls_and_results_are_paired_in_turns():
    messages = [
        USER,
        {"role": "assistant", "content": [text("reading"), call("a", path="x"), call("b")]},
        {"role": "tool", "tool_call_id": "a", "content": "one"},
        {"role": "tool", "tool_call_id": "b", "content": [text("two")]},
        {"role": "user", "content": "go on"},
    ]
    turns = body(messages, tools=[TOOL])["messages"]
    assert turns[1]["content"] == [
        text("reading"),
        {"type": "tool_use", "id": "a", "name": "read", "input": {"path": "x"}},
        {"type": "tool_use", "id": "b", "name": "read", "input": {}},
    ]
    assert turns[2] == {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": "one"},
            {"type": "tool_result", "tool_use_id": "b", "content": [text("two")]},
            text("go on"),
        ],
    }


def test_call_ids_of_other_vendors_are_made_to_fit_on_both_sides():
    messages = [
        USER,
        {"role": "assistant", "content": [call("call:1|x")]},
        {"role": "tool", "tool_call_id": "call:1|x", "content": "one"},
    ]
    turns = body(messages, tools=[TOOL])["messages"]
    wire_id = turns[1]["content"][0]["id"]
    assert wire_id.replace("_", "").isalnum()
    assert turns[2]["content"][0]["tool_use_id"] == wire_id


def test_failed_results_are_marked_unless_they_hold_an_image():
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "eA=="},
    }
    messages = [
        USER,
        {"role": "assistant", "content": [call("a"), call("b")]},
        {"role": "tool", "tool_call_id": "a", "content": "no", "is_error": True},
        {"role": "tool", "tool_call_id": "b", "content": [image], "is_error": True},
    ]
    first, second = body(messages, tools=[TOOL])["messages"][2]["content"]
    assert first["is_error"] is True
    assert "is_error" not in second
    assert second["content"] == [image]


def test_thinking_goes_back_unchanged_and_in_order():
    blocks = [
        {"type": "thinking", "thinking": " odd  spacing ", "signature": "s1"},
        {"type": "redacted_thinking", "data": "opaque"},
        {"type": "thinking", "thinking": "", "signature": "s2"},
        text("done"),
    ]
    messages = [USER, {"role": "assistant", "content": blocks}, USER]
    assert body(messages)["messages"][1]["content"] == blocks


def test_kernel_fields_of_blocks_stay_here():
    blocks = [{"type": "text", "text": "hi", "visibility": "internal", "citations": [1]}]
    messages = [USER, {"role": "assistant", "content": blocks}, USER]
    assert body(messages)["messages"][1]["content"] == [text("hi")]


@pytest.mark.parametrize(
    ("source", "wire"),
    [
        (
            {"type": "base64", "media_type": "image/png", "data": "eA==", "name": "x.png"},
            {"type": "base64", "media_type": "image/png", "data": "eA=="},
        ),
        (
            {"type": "url", "url": "https://a.invalid/x"},
            {"type": "url", "url": "https://a.invalid/x"},
        ),
        ({"url": "https://a.invalid/x"}, {"type": "url", "url": "https://a.invalid/x"}),
        (
            {"type": "url", "url": "data:image/png;base64,eA=="},
            {"type": "base64", "media_type": "image/png", "data": "eA=="},
        ),
        ({"type": "file", "file_id": "f1"}, {"type": "file", "file_id": "f1"}),
    ],
)
def test_images_are_sent_by_their_source(source: dict[str, str], wire: dict[str, str]):
    message = {"role": "user", "content": [text("look"), {"type": "image", "source": source}]}
    assert body([message])["messages"][0]["content"] == [
        text("look"),
        {"type": "image", "source": wire},
    ]


def test_a_begun_answer_is_sent_without_its_final_space():
    messages = [USER, {"role": "assistant", "content": "The answer is ", "prefill": True}]
    assert body(messages)["messages"][1]["content"] == [text("The answer is")]


# -- tools -----------------------------------------------------------------------------------


def test_tools_are_described():
    specs = [
        ToolSpec(name="read", description="Reads.", parameters={"type": "object"}),
        ToolSpec.model_validate({"name": "bare", "parameters": {"properties": {}}, "strict": True}),
    ]
    assert body(tools=specs)["tools"] == [
        TOOL,
        {"name": "bare", "input_schema": {"type": "object", "properties": {}}, "strict": True},
    ]


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ("auto", {"type": "auto"}),
        ("none", {"type": "none"}),
        ("any", {"type": "any"}),
        ("required", {"type": "any"}),
        ("read", {"type": "tool", "name": "read"}),
        ({"type": "tool", "name": "read"}, {"type": "tool", "name": "read"}),
        ({"type": "function", "function": {"name": "read"}}, {"type": "tool", "name": "read"}),
        ({"type": "required"}, {"type": "any"}),
        (
            {"type": "auto", "disable_parallel_tool_use": True},
            {"type": "auto", "disable_parallel_tool_use": True},
        ),
    ],
)
def test_the_choice_of_tools_is_translated(asked: Any, sent: dict[str, Any]):
    assert body(tools=[TOOL], tool_choice=asked)["tool_choice"] == sent


def test_tools_of_the_history_are_named_when_none_is_offered():
    messages = [
        USER,
        {"role": "assistant", "content": [call("a", "read"), call("b", "write")]},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
    ]
    sent = body(messages)
    assert [tool["name"] for tool in sent["tools"]] == ["read", "write"]
    assert sent["tool_choice"] == {"type": "none"}


def test_the_service_may_search_the_web():
    search = {"type": "web_search_20250305", "name": "web_search"}
    assert body(config={"web_search": True})["tools"] == [search]
    assert "tools" not in body(config={"web_search": {"max_uses": 3}})
    details = {"enabled": True, "max_uses": 3, "user_location": {"country": "CH"}}
    sent = body(config={"web_search": details, "prompt_caching": True}, tools=[TOOL])
    place = {"type": "approximate", "country": "CH"}
    assert sent["tools"][0] == {**search, "max_uses": 3, "user_location": place}
    assert sent["tools"][1]["name"] == "read"

    ours = {**TOOL, "name": "web_search"}
    made = prepared(config={"web_search": True}, tools=[ours])
    assert [tool.get("type") for tool in made.body["tools"]] == [None]
    assert made.degradations[0].requested == "web_search of the service"


def test_a_model_that_cannot_be_forced_chooses_itself():
    result = prepared(model=CURRENT, tools=[TOOL], tool_choice="read")
    assert result.body["tool_choice"] == {"type": "auto"}
    assert result.degradations[0].requested == "a call of read"


# -- limits, sampling, format ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "asked", "configured", "sent"),
    [
        (OLD, None, None, 32_000),
        (OLD, 500, 900, 500),
        (OLD, None, 900, 900),
        (UNKNOWN, None, None, 8_192),
        (UNKNOWN, 1_000_000, None, 1_000_000),
        (OLD, 1_000_000, None, 64_000),
    ],
)
def test_the_longest_answer(model: str, asked: int | None, configured: int | None, sent: int):
    result = prepared(config={"max_tokens": configured}, model=model, max_output_tokens=asked)
    assert result.body["max_tokens"] == sent
    assert bool(result.degradations) == (asked is not None and sent < asked)


def test_sampling_is_sent_to_models_that_take_it_in_a_version_that_knows_it():
    result = prepared(config={"temperature": 0.5}, temperature=0.2)
    assert result.body["temperature"] == 0.2
    assert result.api_version == "2023-06-01"
    assert prepared().api_version == "2026-10-21"
    assert body(config={"temperature": 0.0})["temperature"] == 0.0
    assert body(top_p=0.9)["top_p"] == 0.9


def test_of_two_sampling_parameters_temperature_is_sent():
    result = prepared(temperature=0.2, top_p=0.9)
    assert "top_p" not in result.body
    assert result.degradations[0].requested == "top_p=0.9"


@pytest.mark.parametrize(
    ("model", "config"), [(CURRENT, {}), (PLAIN, {}), (OLD, {"thinking": {"budget_tokens": 2000}})]
)
def test_unsupported_sampling_is_left_out_and_reported(model: str, config: dict[str, Any]):
    result = prepared(config=config, model=model, temperature=0.2)
    assert "temperature" not in result.body
    assert result.api_version == "2026-10-21"
    assert [item.requested for item in result.degradations] == ["temperature=0.2"]


def test_a_configured_version_is_kept():
    assert prepared(config={"api_version": "2023-06-01"}).api_version == "2023-06-01"


def test_stops_and_user_are_passed_on():
    sent = body(stop=["END", " \n", ""], metadata={"user_id": "u1", "turn_id": "t"})
    assert sent["stop_sequences"] == ["END"]
    assert sent["metadata"] == {"user_id": "u1"}
    assert "metadata" not in body(metadata={"turn_id": "t"})
    assert "stop_sequences" not in body(stop=[" "])


def test_a_schema_is_closed_and_sent():
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "object", "properties": {"b": {"type": "string"}}},
            "c": {"type": "array", "items": {"type": "object", "properties": {}}},
            "d": {"type": "object"},
            "e": {"type": ["object", "null"], "properties": {}},
        },
        "additionalProperties": True,
    }
    sent = body(response_format={"type": "json_schema", "json_schema": schema})
    assert sent["output_config"]["format"] == {
        "type": "json_schema",
        "schema": {
            "type": "object",
            "properties": {
                "a": {
                    "type": "object",
                    "properties": {"b": {"type": "string"}},
                    "additionalProperties": False,
                },
                "c": {
                    "type": "array",
                    "items": {"type": "object", "properties": {}, "additionalProperties": False},
                },
                "d": {"type": "object"},
                "e": {"type": ["object", "null"], "properties": {}, "additionalProperties": False},
            },
            "additionalProperties": True,
        },
    }


def test_a_wrapped_schema_is_unwrapped():
    wrapped = {"name": "thing", "schema": {"type": "string"}, "strict": True}
    sent = body(response_format={"type": "json_schema", "json_schema": wrapped})
    assert sent["output_config"]["format"]["schema"] == {"type": "string"}


def test_json_without_a_schema_is_requested_in_the_prompt():
    result = prepared(response_format={"type": "json"})
    assert "JSON" in result.body["system"][-1]["text"]
    assert result.degradations[0].requested == "response_format json"
    assert "output_config" not in body(response_format={"type": "text"})


# -- thinking --------------------------------------------------------------------------------

ADAPTIVE = {"type": "adaptive", "display": "summarized"}
BOUND = {**ADAPTIVE, "block_binding": {"prefix_mismatch_behavior": "drop_block"}}


@pytest.mark.parametrize(
    ("model", "thinking", "sent"),
    [
        (OLD, None, None),
        (OLD, False, None),
        (OLD, True, {"type": "enabled", "budget_tokens": 8192}),
        (OLD, "adaptive", {"type": "enabled", "budget_tokens": 8192}),
        (OLD, {"budget_tokens": 2048}, {"type": "enabled", "budget_tokens": 2048}),
        (PLAIN, None, None),
        (PLAIN, False, None),
        (PLAIN, True, ADAPTIVE),
        (PLAIN, {"type": "adaptive", "display": "omitted"}, {**ADAPTIVE, "display": "omitted"}),
        (PLAIN, {"budget_tokens": 2048}, ADAPTIVE),
        (CURRENT, None, BOUND),
        (CURRENT, True, BOUND),
        (CURRENT, False, {"type": "between_tools"}),
        (CURRENT, {"enabled": False}, {"type": "between_tools"}),
        (CURRENT, "disabled", {"type": "between_tools"}),
        (ALWAYS, False, BOUND),
        ("claude-opus-5", False, {"type": "disabled"}),
        ("claude-opus-4-6", {"type": "enabled"}, {"type": "enabled", "budget_tokens": 8192}),
        ("claude-opus-4-6", True, ADAPTIVE),
        (UNKNOWN, None, None),
        (UNKNOWN, True, ADAPTIVE),
        (UNKNOWN, {"budget_tokens": 2048}, {"type": "enabled", "budget_tokens": 2048}),
        (UNKNOWN, False, {"type": "disabled"}),
    ],
)
def test_thinking_uses_the_form_the_model_supports(model: str, thinking: Any, sent: Any):
    assert body(config={"thinking": thinking}, model=model).get("thinking") == sent


def test_a_model_that_always_thinks_says_so():
    result = prepared(config={"thinking": False}, model=ALWAYS)
    assert result.degradations[0].reason == "the model always thinks"


def test_a_budget_fits_into_the_answer():
    config = {"thinking": {"budget_tokens": 8000}}
    fitted = prepared(config=config, max_output_tokens=4000)
    assert fitted.body["thinking"]["budget_tokens"] == 3999
    assert fitted.degradations[0].actual == "3999"
    without = prepared(config=config, max_output_tokens=1000)
    assert "thinking" not in without.body
    assert without.degradations[0].actual == "no thinking"


def test_earlier_thinking_may_be_dropped_where_the_service_checks_it():
    assert prepared(model=CURRENT).betas == ["thinking-binding-controls-2026-08-01"]
    assert prepared(model=PLAIN, config={"thinking": True}).betas == []
    for config in ({"transport": "bedrock"}, {"thinking": {"drop_changed": False}}):
        without = prepared(model=CURRENT, config=config)
        assert (without.body["thinking"], without.betas) == (ADAPTIVE, [])


def test_a_forced_call_turns_thinking_off():
    result = prepared(
        config={"thinking": {"budget_tokens": 2048}}, tools=[TOOL], tool_choice="read"
    )
    assert "thinking" not in result.body
    assert result.degradations[0].requested == "thinking"
    by_default = body(model="claude-opus-5", tools=[TOOL], tool_choice="any")
    assert by_default["thinking"] == {"type": "disabled"}


@pytest.mark.parametrize(
    ("model", "effort", "config", "sent"),
    [
        (CURRENT, "medium", {}, "medium"),
        (CURRENT, None, {"effort": "max"}, "max"),
        (CURRENT, "minimal", {}, "low"),
        (CURRENT, "xhigh", {"thinking": False}, "high"),
        ("claude-opus-4-6", "xhigh", {}, "high"),
        ("claude-opus-4-5", "max", {}, "high"),
        (UNKNOWN, "xhigh", {}, "xhigh"),
        (PLAIN, None, {}, None),
    ],
)
def test_effort_is_the_nearest_the_model_takes(
    model: str, effort: str | None, config: dict[str, Any], sent: str | None
):
    result = prepared(config=config, model=model, reasoning_effort=effort)
    assert result.body.get("output_config", {}).get("effort") == sent
    asked = effort or config.get("effort")
    assert bool(result.degradations) == (sent != asked and asked not in ("minimal", None))


def test_effort_becomes_a_budget_where_there_is_no_effort():
    result = prepared(reasoning_effort="high")
    assert result.body["thinking"] == {"type": "enabled", "budget_tokens": 16384}
    assert "output_config" not in result.body
    assert result.degradations == []


def test_no_effort_means_no_thinking():
    assert body(model=CURRENT, reasoning_effort="none")["thinking"] == {"type": "between_tools"}
    assert "thinking" not in body(config={"thinking": True}, reasoning_effort="none")


# -- caching ---------------------------------------------------------------------------------


def marked(value: Any, path: str = "") -> list[str]:
    """Where the breakpoints stand."""
    if isinstance(value, list):
        return [p for at, item in enumerate(value) for p in marked(item, f"{path}.{at}")]
    if not isinstance(value, dict):
        return []
    own = [path] if "cache_control" in value else []
    return own + [p for key, item in value.items() for p in marked(item, f"{path}.{key}")]


HISTORY = [
    {"role": "system", "content": "one"},
    {"role": "system", "content": "two"},
    USER,
    {"role": "assistant", "content": [text("hm"), call("a")]},
    {"role": "tool", "tool_call_id": "a", "content": "result"},
    {"role": "assistant", "content": "done"},
    {"role": "user", "content": [text("first"), text("second")]},
]


def test_breakpoints_stand_on_tools_system_and_the_last_two_user_turns():
    other = {**TOOL, "name": "write"}
    sent = body(HISTORY, {"prompt_caching": True}, tools=[TOOL, other])
    assert marked(sent) == [
        ".messages.2.content.0",
        ".messages.4.content.1",
        ".system.1",
        ".tools.1",
    ]
    assert sent["tools"][1]["cache_control"] == {"type": "ephemeral"}


def test_caching_for_an_hour_and_not_at_all():
    assert body(config={"prompt_caching": "1h"})["messages"][0]["content"][0]["cache_control"] == {
        "type": "ephemeral",
        "ttl": "1h",
    }
    assert marked(body(HISTORY, {"prompt_caching": False})) == []


def test_the_request_itself_is_not_changed():
    request = normalise({"messages": HISTORY, "tools": [TOOL], "model": OLD})
    before = request.model_dump()
    first = prepare(request, AnthropicConfig()).body
    assert request.model_dump() == before
    assert prepare(request, AnthropicConfig()).body == first


# -- tools that a search has found -----------------------------------------------------------

SEARCH = {"name": "tool_search", "description": "Finds.", "input_schema": {"type": "object"}}
FOUND = [
    USER,
    {"role": "assistant", "content": [call("find", "tool_search", query="read")]},
    {
        "role": "tool",
        "tool_call_id": "find",
        "name": "tool_search",
        "content": "Found:\n- read: Reads.\n- gone: Was here.",
    },
]


def test_a_found_tool_is_loaded_by_a_reference():
    config = {"tool_references": True, "prompt_caching": True}
    made = body(FOUND, config, model=PLAIN, tools=[SEARCH, TOOL])
    search, tool = made["tools"]
    assert (search["name"], search["cache_control"]) == ("tool_search", {"type": "ephemeral"})
    assert (tool["name"], tool["defer_loading"]) == ("read", True)
    assert "cache_control" not in tool
    [result] = made["messages"][2]["content"]
    assert result["content"] == [{"type": "tool_reference", "tool_name": "read"}]


@pytest.mark.parametrize(
    ("config", "model", "tools"),
    [
        ({}, PLAIN, [SEARCH, TOOL]),
        ({"tool_references": True}, OLD, [SEARCH, TOOL]),
        ({"tool_references": True}, PLAIN, [TOOL]),
        ({"tool_references": True}, PLAIN, [SEARCH]),
    ],
    ids=["off", "model", "nothing else is loaded", "the tool is gone"],
)
def test_without_references_the_result_of_a_search_is_text(
    config: dict[str, Any], model: str, tools: list[dict[str, Any]]
):
    made = body(FOUND, config, model=model, tools=tools)
    assert not any("defer_loading" in tool for tool in made["tools"])
    assert made["messages"][2]["content"][0]["content"].startswith("Found:")


@pytest.mark.parametrize(
    ("address", "is_used"),
    [("https://api.anthropic.com", True), ("https://gateway.example", False)],
)
def test_references_are_used_at_the_address_of_anthropic(address: str, is_used: bool):
    config = AnthropicConfig.model_validate({"api_key": "sk-test", "base_url": address})
    transport = open_transport(config)
    assert transport is not None
    assert AnthropicProvider(config, transport)._config.tool_references is is_used
