"""The history normaliser: each rule by example, then random histories against a strict checker."""

import copy
import json
from collections.abc import Iterable
from datetime import date
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amplifier_core.content_models import TextContent, ToolCallContent
from amplifier_core.message_models import (
    ChatRequest,
    ImageBlock,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolCallBlock,
    ToolResultBlock,
    ToolSpec,
)
from amplifier_core.models import ToolResult
from amplifier_modules._shared.history.request import (
    INTERRUPTED,
    LEAD_IN,
    NormalisedRequest,
    normalise,
    to_chat_request,
)
from amplifier_modules._shared.history.values import call_ids, portable_id, result_ids
from tests.modules._shared.history.history_rules import plain, violations

USER = {"role": "user", "content": "go"}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "sig=="}
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}


def listed(call_id: str, name: str = "read", arguments: Any = '{"path": "a"}') -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def asks(*calls: dict[str, Any], content: Any = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def block(call_id: str, name: str = "read", **more: Any) -> dict[str, Any]:
    return {"type": "tool_call", "id": call_id, "name": name, "input": {"path": "a"}, **more}


def answer(call_id: str, content: Any = "text of a") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def build(*messages: Any) -> list[dict[str, Any]]:
    """The normalised messages as plain dicts."""
    return [plain(message) for message in to_chat_request(list(messages)).messages]


# --- message forms ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stored",
    [
        {"role": "assistant", "content": [THOUGHT, block("c1", signature="s1")]},
        asks(
            {"id": "c1", "tool": "read", "arguments": {"path": "a"}, "signature": "s1"},
            content=[THOUGHT],
        ),
        {**asks({**listed("c1"), "signature": "s1"}, content=""), "thinking_block": THOUGHT},
    ],
    ids=["blocks", "listed calls", "thinking and calls next to the content"],
)
def test_an_assistant_message_goes_out_in_both_forms(stored: dict[str, Any]):
    message = to_chat_request([USER, stored, answer("c1")]).messages[1]

    dumped = message.model_dump(exclude_none=True)
    assert dumped["content"] == [THOUGHT, block("c1", signature="s1")]
    call = {"id": "c1", "tool": "read", "arguments": {"path": "a"}, "signature": "s1"}
    assert dumped["tool_calls"] == [call]
    assert dumped["thinking_block"] == THOUGHT
    again = normalise(ChatRequest(messages=[Message(**USER), message, Message(**answer("c1"))]))
    assert again.messages[1].model_dump(exclude_none=True) == dumped


@pytest.mark.parametrize(
    "call",
    [
        {"id": "c1", "tool": "read", "arguments": {"path": "a"}},
        {"id": "c1", "name": "read", "arguments": {"path": "a"}},
        {"id": "c1", "name": "read", "input": {"path": "a"}},
        ToolCall(id="c1", name="read", arguments={"path": "a"}),
        listed("c1", arguments={"path": "a"}),
    ],
    ids=["tool", "name", "input", "typed", "arguments as a mapping"],
)
def test_every_spelling_of_a_listed_call_is_read(call):
    assert build(
        USER, {"role": "assistant", "content": "", "tool_calls": [call]}, answer("c1")
    ) == [
        USER,
        {"role": "assistant", "content": [block("c1")]},
        {"role": "tool", "tool_call_id": "c1", "name": "read", "content": "text of a"},
    ]


@pytest.mark.parametrize(
    "result",
    [
        {"role": "tool", "tool_call_id": "c1", "content": "out"},
        {"role": "function", "tool_call_id": "c1", "name": "read", "content": "out"},
        {
            "role": "function",
            "tool_call_id": "c1",
            "content": [{"type": "tool_result", "output": "out"}],
        },
        {
            "role": "tool",
            "content": [{"type": "tool_result", "tool_call_id": "c1", "output": "out"}],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "out"}],
        },
        Message(role="tool", tool_call_id="c1", content="out"),
        Message(role="tool", content=[ToolResultBlock(tool_call_id="c1", output="out")]),
    ],
    ids=["tool", "function", "own id", "block id", "vendor's", "typed", "typed block"],
)
def test_every_spelling_of_a_result_is_read(result):
    use = {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "a"}}
    assert build(USER, {"role": "assistant", "content": [use]}, result)[1:] == [
        {"role": "assistant", "content": [block("c1")]},
        {"role": "tool", "tool_call_id": "c1", "name": "read", "content": "out"},
    ]


def test_calls_only_in_the_list_are_added_behind_the_blocks():
    message = asks(listed("c1"), listed("c2"), content=[THOUGHT, block("c1")])
    content = build(USER, message, answer("c1"), answer("c2"))[1]["content"]
    assert content == [THOUGHT, block("c1"), block("c2")]


@pytest.mark.parametrize(
    ("output", "content"),
    [
        (None, ""),
        ("", ""),
        ({"lines": 3}, '{"lines": 3}'),
        (["a", 1], '["a", 1]'),
        (7, "7"),
        (ToolResult(success=True, output={"lines": 3}), '{"lines": 3}'),
        (
            [{"type": "text", "text": "a picture"}, PNG],
            [{"type": "text", "text": "a picture"}, PNG],
        ),
        ([TextBlock(text="a")], [{"type": "text", "text": "a"}]),
        (ToolSpec(name="a", parameters={}), '{"name":"a","parameters":{},"description":null}'),
        ((1, 2), "[1, 2]"),
        ([{"type": "chart", "x": 1}], '[{"type": "chart", "x": 1}]'),
    ],
    ids=[
        "none",
        "empty",
        "dict",
        "list",
        "int",
        "ToolResult",
        "blocks",
        "typed",
        "model",
        "tuple",
        "other blocks",
    ],
)
def test_outputs_become_text_or_text_and_image_blocks(output, content):
    assert build(USER, asks(listed("c1")), answer("c1", output))[-1]["content"] == content
    result = {"type": "tool_result", "tool_call_id": "c1", "output": output}
    assert build(USER, asks(listed("c1")), {"role": "function", "content": [result]})[-1] == {
        "role": "tool",
        "tool_call_id": "c1",
        "name": "read",
        "content": content,
    }


@pytest.mark.parametrize("arguments", ["{not json", "[1]", '"text"', "NaN", "[" * 100_000])
def test_arguments_that_are_no_object_keep_the_call_and_the_text(arguments):
    call = build(USER, asks(listed("c1", arguments=arguments)), answer("c1"))[1]["content"][0]
    assert call["input"] == {}
    assert call["invalid_arguments"] == arguments


@pytest.mark.parametrize("arguments", [None, "", "{}", {}])
def test_no_arguments_are_an_empty_input_and_not_invalid(arguments):
    call = build(USER, asks(listed("c1", arguments=arguments)), answer("c1"))[1]["content"][0]
    assert call == {"type": "tool_call", "id": "c1", "name": "read", "input": {}}


def test_values_json_cannot_hold_become_text_and_endless_nesting_ends():
    deep: Any = "bottom"
    for _ in range(5000):
        deep = [deep]
    given_input = {"ratio": float("nan"), 1: {"a"}, "deep": deep, "when": date(2026, 1, 1)}
    message = {"role": "assistant", "content": [{**block("c1"), "input": given_input}]}
    sent = build(USER, message, answer("c1"))[1]["content"][0]["input"]
    assert sent["ratio"] == "nan"
    assert sent["when"] == "2026-01-01"
    assert sent["1"] == ["a"]
    json.dumps(sent, allow_nan=False)


@pytest.mark.parametrize("depth", [90, 150, 5000])
def test_nesting_is_kept_up_to_a_hundred_levels(depth):
    deep: Any = "bottom"
    for _ in range(depth):
        deep = [deep]
    message = {"role": "assistant", "content": [{**block("c1"), "input": {"deep": deep}}]}
    sent = json.dumps(build(USER, message, answer("c1"))[1]["content"][0]["input"])
    assert ("bottom" in sent) == (depth == 90)
    assert ("[nested too deep]" in sent) == (depth > 90)


# --- whole pairs -----------------------------------------------------------------------------------


def test_a_call_without_a_result_is_answered_as_interrupted():
    request = to_chat_request([USER, asks(listed("c1"), listed("c2")), answer("c2"), USER])
    assert plain(request.messages[2]) == {
        "role": "tool",
        "tool_call_id": "c1",
        "name": "read",
        "content": INTERRUPTED,
        "is_error": True,
    }
    assert request.messages[3].tool_call_id == "c2"
    assert request.repairs == ("answered call c1 (read) as interrupted",)


def test_a_result_without_a_call_is_dropped_and_reported():
    request = to_chat_request([USER, answer("c9"), {"role": "tool", "content": "lost"}])
    assert [m.role for m in request.messages] == ["user"]
    assert set(request.repairs) == {
        "dropped a result of call c9",
        "dropped a result of call (no id)",
    }


def test_an_id_used_again_in_a_later_turn_is_a_new_call_with_its_own_result():
    messages = build(
        USER,
        asks(listed("call_0")),
        answer("call_0", "first"),
        USER,
        asks(listed("call_0", name="write")),
        answer("call_0", "second"),
    )
    first, second = messages[1]["content"][0], messages[4]["content"][0]
    assert first["id"] != second["id"]
    assert (messages[2]["tool_call_id"], messages[2]["content"]) == (first["id"], "first")
    assert (messages[5]["tool_call_id"], messages[5]["content"]) == (second["id"], "second")


def test_calls_and_results_without_ids_meet_in_order():
    calls = [{"name": "read", "arguments": {}}, {"name": "write", "arguments": {}}]
    results = [{"role": "tool", "content": "one"}, {"role": "tool", "content": "two"}]
    messages = build(USER, {"role": "assistant", "content": None, "tool_calls": calls}, *results)
    assert [(m["name"], m["content"]) for m in messages[2:]] == [("read", "one"), ("write", "two")]
    assert messages[2]["tool_call_id"] != messages[3]["tool_call_id"]


def test_a_call_in_a_user_message_is_left_out_and_reported():
    message = {"role": "user", "content": [{"type": "text", "text": "hi"}, block("c1")]}
    request = to_chat_request([message])
    assert plain(request.messages[0])["content"] == [{"type": "text", "text": "hi"}]
    assert request.repairs == ("left out a tool call in a user message",)


# --- roles and empty messages ----------------------------------------------------------------------


def test_a_conversation_that_begins_with_the_assistant_gets_a_user_message_in_front():
    system = {"role": "system", "content": "be brief"}
    hello = {"role": "assistant", "content": "hello"}
    lead_in = {"role": "user", "content": LEAD_IN}
    assert build(system, hello, USER) == [system, lead_in, hello, USER]


def test_a_prefill_stays_last_where_it_is_asked_for():
    prefill = {"role": "assistant", "content": "{", "prefill": True}
    request = to_chat_request([USER, prefill])
    assert [m.role for m in request.messages] == ["user", "assistant"]
    again = normalise(ChatRequest(messages=list(request.messages)))
    assert again.messages == request.messages


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
@pytest.mark.parametrize("content", [None, "", " \n", [], [{"type": "text", "text": " "}], [""]])
def test_empty_messages_are_dropped(role, content):
    assert build(USER, {"role": role, "content": content}, USER) == [USER, USER]


def test_an_unknown_role_is_taken_as_user_and_reported():
    request = to_chat_request([{"role": "critic", "content": "no"}])
    assert plain(request.messages[0]) == {"role": "user", "content": "no"}
    assert request.repairs == ("role 'critic' taken as user",)


def test_metadata_and_unknown_keys_of_messages_stay_behind():
    stored = {**USER, "metadata": {"source": "hook"}, "timestamp": 1, "name": "ann"}
    assert build(stored) == [{**USER, "name": "ann"}]
    typed = Message(role="user", content="go", metadata={"source": "hook"}, timestamp=1)
    assert build(typed) == [USER]


def test_what_is_no_message_is_refused():
    with pytest.raises(TypeError, match="str"):
        to_chat_request(["hello"])  # type: ignore[list-item]


# --- blocks ----------------------------------------------------------------------------------------


def test_thinking_goes_back_with_everything_it_came_with():
    thought = {**THOUGHT, "thinking": "schrödinger \n\t ", "vendor_extra": {"a": [1, None]}}
    redacted = {"type": "redacted_thinking", "data": "AAA="}
    message = {"role": "assistant", "content": [thought, redacted, block("c1")]}
    assert build(USER, message, answer("c1"))[1]["content"] == [thought, redacted, block("c1")]


@pytest.mark.parametrize(
    "thought",
    [
        {"type": "thinking", "thinking": "hm"},
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "thinking", "thinking": "hm \ud800", "signature": "sig"},
        {"type": "thinking", "signature": "sig"},
        {"type": "redacted_thinking", "data": ""},
    ],
)
def test_thinking_that_cannot_go_back_unchanged_is_left_out(thought):
    content = [thought, {"type": "text", "text": "done"}]
    request = to_chat_request([USER, {"role": "assistant", "content": content}, USER])
    assert plain(request.messages[1])["content"] == content[1:]
    assert len(request.repairs) == 1


def test_a_message_does_not_end_in_thinking():
    said = {"type": "text", "text": "done"}
    assert build(USER, {"role": "assistant", "content": [said, THOUGHT]}, USER)[1] == {
        "role": "assistant",
        "content": [said],
    }
    assert build(USER, {"role": "assistant", "content": [THOUGHT]}, USER) == [USER, USER]


def test_images_in_both_vendors_spellings_are_read():
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    far = {"type": "image_url", "image_url": {"url": "https://example.test/a.png"}}
    assert build(
        {"role": "user", "content": [PNG, url, far, ImageBlock(source=PNG["source"])]}
    ) == [
        {
            "role": "user",
            "content": [
                PNG,
                PNG,
                {"type": "image", "source": {"type": "url", "url": "https://example.test/a.png"}},
                PNG,
            ],
        }
    ]


def test_content_no_model_takes_is_named_rather_than_lost():
    video = {"type": "video", "data": "x"}
    texts = [
        *(b["text"] for b in build({"role": "user", "content": [video]})[0]["content"]),
        *(b["text"] for b in build(USER, {"role": "assistant", "content": [PNG]})[1]["content"]),
    ]
    assert texts == ["[content of type 'video' left out]", "[image left out]"]


def test_a_block_with_a_field_of_the_wrong_type_is_left_out_alone():
    bad = {"type": "text", "text": "hidden", "visibility": "sometimes"}
    good = {"type": "text", "text": "hi", "visibility": "user"}
    request = to_chat_request([{"role": "user", "content": [bad, good]}])
    assert plain(request.messages[0])["content"] == [good]
    assert request.repairs == ("dropped 1 malformed blocks of a user message",)


def test_content_that_is_no_text_and_no_list_becomes_text():
    assert build({"role": "user", "content": {"a": 1}})[0]["content"][0]["text"] == '{"a": 1}'
    assert build({"role": "user", "content": [7]})[0]["content"][0]["text"] == "7"


def test_content_dataclasses_are_read():
    content = [
        TextContent(text="so"),
        ToolCallContent(id="c1", name="read", arguments={"path": "a"}),
    ]
    messages = build(USER, {"role": "assistant", "content": content}, answer("c1"))
    assert messages[1]["content"] == [{"type": "text", "text": "so"}, block("c1")]


def test_reasoning_items_go_back_unchanged_or_not_at_all():
    item = {"type": "reasoning", "content": [], "summary": [{"text": "s"}], "id": "rs_1"}
    content = [item, {**item, "summary": None}, {"type": "text", "text": "done"}]
    sent = build(USER, {"role": "assistant", "content": content}, USER)[1]["content"]
    assert sent == [item, content[2]]


def test_odd_images_are_repaired_or_named():
    content = [
        {"type": "input_image", "image_url": "https://example.test/a.png"},
        {**PNG, "note": "\ud800"},
        {"type": "image"},
    ]
    assert build({"role": "user", "content": content})[0]["content"] == [
        {"type": "image", "source": {"type": "url", "url": "https://example.test/a.png"}},
        {**PNG, "note": "�"},
        {"type": "text", "text": "[image without a source left out]"},
    ]


def test_a_result_with_only_malformed_blocks_is_an_empty_one():
    bad = {"type": "text", "text": "hidden", "visibility": "sometimes"}
    request = to_chat_request([USER, asks(listed("c1")), answer("c1", [bad])])
    assert request.messages[-1].content == ""
    assert request.repairs == ("dropped 1 malformed blocks of a tool message",)


def test_surrogates_are_joined_or_replaced_everywhere():
    messages = build(
        {"role": "user", "content": "\ud83d\ude00 and \udcff"},
        asks(listed("c\udc801", name="r\udc80", arguments={"k\udc80": ["\udc81"]})),
        answer("c\udc801", {"out": "\udc82"}),
        {"role": "user", "content": [{"type": "text", "text": "\udc83", "tag": "\udc84"}]},
    )
    json.dumps(messages, ensure_ascii=False).encode()
    assert messages[0]["content"] == "😀 and �"
    assert messages[1]["content"][0]["input"] == {"k�": ["�"]}
    assert messages[2]["content"] == '{"out": "�"}'


# --- requests --------------------------------------------------------------------------------------


def test_a_normalised_request_costs_nothing_and_is_the_same_object():
    request = to_chat_request([USER])
    assert normalise(request) is request


def test_a_request_changed_afterwards_is_normalised_again():
    request = to_chat_request([USER])
    request.messages.append(Message(role="tool", tool_call_id="x", content="orphan"))
    assert [m.role for m in normalise(request).messages] == ["user"]
    copied = to_chat_request([USER]).model_copy(
        update={"messages": [Message(role="assistant", content="hi")]}
    )
    assert [m.role for m in normalise(copied).messages] == ["user", "assistant", "user"]


def test_a_request_that_was_not_built_here_is_normalised_whatever_its_class():
    given_request = NormalisedRequest(messages=[Message(role="assistant", content="hi")])
    assert [m.role for m in normalise(given_request).messages] == ["user", "assistant", "user"]


def test_surrogates_in_typed_tools_are_replaced():
    tool = ToolSpec(name="a", parameters={"x": "\ud800"})
    request = to_chat_request([USER], tools=[tool])
    assert request.tools is not None
    assert request.tools[0].parameters == {"x": "�"}


def test_fields_of_a_typed_request_are_kept():
    given_request = ChatRequest(
        messages=[Message(role="user", content="go")],
        temperature=0.5,
        tools=[ToolSpec(name="read", parameters={"type": "object"})],
        vendor_option={"a": 1},
    )
    request = normalise(given_request)
    assert isinstance(request, NormalisedRequest)
    assert request.model_dump() == given_request.model_dump()
    assert request.model_fields_set == given_request.model_fields_set
    assert request.tools is not None
    assert request.tools[0] is given_request.tools[0]


def test_a_dict_request_is_read_with_tools_in_either_spelling():
    schema = {"type": "object", "properties": {}}
    request = normalise(
        {
            "messages": [USER],
            "max_tokens": 7,
            "tools": [
                {"type": "function", "function": {"name": "a", "parameters": schema}},
                {"name": "b", "description": "d\ud800", "input_schema": schema},
                {"name": "c", "parameters": schema},
            ],
        }
    )
    assert request.max_output_tokens == 7
    assert request.tools is not None
    assert [(t.name, t.description) for t in request.tools] == [
        ("a", None),
        ("b", "d�"),
        ("c", None),
    ]
    assert all(tool.parameters == schema for tool in request.tools)


def test_a_dict_without_messages_is_refused():
    with pytest.raises(ValueError, match="messages"):
        normalise({"prompt": "hi"})


def test_portable_ids_are_stable_and_keep_what_fits():
    assert portable_id("toolu_01-A") == "toolu_01-A"
    odd = portable_id("functions.bash:0")
    assert odd == portable_id("functions.bash:0")
    assert odd != portable_id("functions.bash:1")
    for call_id in ("functions.bash:0", "ü" * 100, "x" * 100, "\ud800"):
        fitting = portable_id(call_id)
        assert len(fitting) <= 64
        assert fitting.replace("_", "").replace("-", "").isascii()


def test_call_and_result_ids_are_read_in_both_forms():
    assert call_ids(asks(listed("c1"), listed("c2"), content=[block("c1")])) == ["c1", "c2"]
    assert call_ids({**asks(listed("c1")), "role": "user"}) == []
    assert result_ids(answer("c1")) == ["c1"]
    blocks = [{"type": "tool_result", "tool_use_id": f"c{i}", "content": ""} for i in (1, 2)]
    assert result_ids({"role": "user", "content": blocks}) == ["c1", "c2"]
    assert result_ids(USER) == []


# --- random histories ------------------------------------------------------------------------------

texts = st.one_of(
    st.sampled_from(["", " ", "go on", "größe", "\ud800", "\ud83d\ude00 x", "a\x00b"]),
    st.text(max_size=8),
)
ids = st.sampled_from(["c1", "c2", "c3", "call_0", "x:y", "", "\udc80"])
names = st.sampled_from(["read", "write", "", "b\udc80"])
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=5,
)
inputs = st.dictionaries(texts, json_values, max_size=3)
text_blocks = texts.map(lambda text: {"type": "text", "text": text})
thoughts = st.one_of(
    st.builds(
        lambda text, signature: {"type": "thinking", "thinking": text, "signature": signature},
        texts,
        st.sampled_from(["sig=", "", None]),
    ),
    st.sampled_from([{"type": "redacted_thinking", "data": "AA=="}]),
)
call_blocks = st.builds(
    lambda kind, i, n, v: {"type": kind, "id": i, "name": n, "input": v},
    st.sampled_from(["tool_call", "tool_use"]),
    ids,
    names,
    inputs,
)
listed_calls = st.one_of(
    st.builds(lambda i, n, v: listed(i, n, json.dumps(v)), ids, names, inputs),
    st.builds(lambda i, n, v: listed(i, n, v), ids, names, texts),
    st.builds(lambda i, n, v: {"id": i, "tool": n, "arguments": v}, ids, names, inputs),
    st.builds(lambda i, v: ToolCall(id=i, name="read", arguments=v), st.just("c2"), st.just({})),
)
result_blocks = st.one_of(
    st.builds(
        lambda i, v: {"type": "tool_result", "tool_call_id": i, "output": v}, ids, json_values
    ),
    st.builds(lambda i, v: {"type": "tool_result", "tool_use_id": i, "content": v}, ids, texts),
)
typed_blocks = st.sampled_from(
    [
        TextBlock(text="typed"),
        ThinkingBlock(thinking="typed", signature="sig"),
        ToolCallBlock(id="c3", name="read", input={}),
    ]
)
any_blocks = st.one_of(
    text_blocks,
    thoughts,
    call_blocks,
    result_blocks,
    typed_blocks,
    st.sampled_from([PNG, {"type": "video"}, "loose"]),
)
assistants = st.builds(
    lambda content, calls: {
        "role": "assistant",
        "content": content,
        **({"tool_calls": calls} if calls is not None else {}),
    },
    st.one_of(st.none(), texts, st.lists(any_blocks, max_size=4)),
    st.one_of(st.none(), st.lists(listed_calls, max_size=3)),
)
results = st.builds(
    lambda role, i, content: {"role": role, "tool_call_id": i, "content": content},
    st.sampled_from(["tool", "function"]),
    ids,
    st.one_of(st.none(), texts, st.lists(st.one_of(result_blocks, text_blocks), max_size=2)),
)
others = st.builds(
    lambda role, content: {"role": role, "content": content, "metadata": {"n": 1}},
    st.sampled_from(["user", "user", "user", "system", "developer", "critic"]),
    st.one_of(st.none(), texts, st.lists(any_blocks, max_size=3)),
)
typed_messages = st.sampled_from(
    [
        Message(role="user", content="typed"),
        Message(role="assistant", content="typed"),
        Message(role="assistant", content=[ToolCallBlock(id="c1", name="read", input={})]),
        Message(role="tool", tool_call_id="c1", content="typed"),
    ]
)
histories = st.lists(st.one_of(assistants, results, others, typed_messages), max_size=14)


def thinking_of(messages: Iterable[Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for message in messages:
        content = message.get("content")
        for raw in content if isinstance(content, list) else []:
            part = raw if isinstance(raw, dict | str) else raw.model_dump(exclude_none=True)
            if isinstance(part, dict) and str(part.get("type")).endswith("thinking"):
                found.append(part)
    return found


def snapshot(history: list[Any]) -> str:
    return repr(history)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(histories)
def test_any_history_becomes_a_valid_request_without_being_changed(history):
    before, shapes = snapshot(history), copy.deepcopy(history)
    request = to_chat_request(history)

    assert list(violations(request.messages)) == []
    assert snapshot(history) == before
    assert repr(shapes) == repr(history)

    again = normalise(ChatRequest(messages=list(request.messages)))
    assert [plain(m) for m in again.messages] == [plain(m) for m in request.messages]
    assert again.repairs == ()

    given_thinking = iter(thinking_of(history))
    for thought in thinking_of(request.messages):
        assert thought in given_thinking  # same bytes, same order


@given(
    st.lists(st.lists(st.sampled_from(["c1", "c2", "c3"]), unique=True, max_size=3), max_size=5),
    st.booleans(),
)
def test_a_history_that_is_fine_is_not_repaired_and_loses_nothing(turns, as_blocks):
    history: list[dict[str, Any]] = []
    for number, calls in enumerate(turns):
        history.append({"role": "user", "content": f"prompt {number}"})
        wanted = [f"{call}-{number}" for call in calls]
        if wanted and as_blocks:
            content = [THOUGHT, {"type": "text", "text": "ok"}, *map(block, wanted)]
            history.append({"role": "assistant", "content": content})
        elif wanted:
            history.append(asks(*map(listed, wanted), content="ok"))
        history += [answer(call, f"out {call}") for call in wanted]
        history.append({"role": "assistant", "content": f"answer {number}"})
    history.append(USER)
    request = to_chat_request(history)
    assert request.repairs == ()
    assert len(request.messages) == len(history)
    for stored, sent in zip(history, request.messages, strict=True):
        assert sent.role == stored["role"]
        if isinstance(stored["content"], str) and "tool_calls" not in stored:
            assert sent.content == stored["content"]
