"""Tools by constrained output: the prompt for the model, and the reading of its output."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier_core.message_models import ChatRequest, ChatResponse
from amplifier_modules._shared.history.request import normalise
from amplifier_modules.provider_local.tool_protocol import (
    Reading,
    constrain_output,
    has_images,
    plain,
)

READ = {
    "name": "read_file",
    "description": "Read a file.\n\nLong explanations follow.",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["path"],
    },
}
SHELL = {
    "name": "bash",
    "description": "Run a command.",
    "parameters": {
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
    },
}
HISTORY = [
    {"role": "system", "content": "You are kind."},
    {"role": "user", "content": "what is in a.txt?"},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_call", "id": "c1", "name": "read_file", "input": {"path": "a.txt"}},
            {"type": "tool_call", "id": "c2", "name": "bash", "input": {"command": "ls"}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "name": "read_file", "content": "hello"},
    {"role": "tool", "tool_call_id": "c2", "name": "bash", "content": "a.txt"},
    {"role": "assistant", "content": "It says hello."},
    {"role": "user", "content": "thanks"},
]


def request(**fields) -> ChatRequest:
    return normalise({"messages": HISTORY, "tools": [READ, SHELL], **fields})


def schema_of(asked: ChatRequest) -> dict:
    return asked.response_format.json_schema


def names_in(asked: ChatRequest) -> list[str]:
    shapes = [shape["properties"] for shape in schema_of(asked)["anyOf"]]
    return [shape["tool"]["const"] if "tool" in shape else "answer" for shape in shapes]


def read(*pieces: str, finish: str = "stop") -> tuple[list[dict], ChatResponse]:
    reading = Reading()
    chunks = [chunk for piece in pieces for chunk in reading.feed(piece)]
    whole = ChatResponse(content=[], finish_reason=finish, metadata={"model": "m"})
    last, response = reading.finish(whole)
    return [*chunks, *last], response


class TestTheRequest:
    def test_tools_move_to_the_system_message(self):
        asked = constrain_output(request())
        assert asked.tools is None
        system = asked.messages[0].content
        assert system.startswith("You are kind.")
        assert "- read_file(path: string, limit?: integer): Read a file.\n" in system
        assert "Long explanations" not in system

    def test_earlier_turns_use_the_two_shapes_with_results_in_place(self):
        reported = constrain_output(request()).messages[-7:]
        assert [(m.role, m.content) for m in reported] == [
            ("user", "what is in a.txt?"),
            ("assistant", '{"tool": "read_file", "arguments": {"path": "a.txt"}}'),
            ("user", "Result of read_file:\nhello"),
            ("assistant", '{"tool": "bash", "arguments": {"command": "ls"}}'),
            ("user", "Result of bash:\na.txt"),
            ("assistant", '{"answer": "It says hello."}'),
            ("user", "thanks"),
        ]

    def test_roles_alternate(self):
        roles = [message.role for message in constrain_output(request()).messages[1:]]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]

    def test_the_beginning_stays_the_same_while_the_conversation_grows(self):
        short = constrain_output(normalise({"messages": HISTORY[:2], "tools": [READ]}))
        long = constrain_output(normalise({"messages": HISTORY, "tools": [READ]}))
        assert long.messages[: len(short.messages)] == short.messages

    def test_a_tool_that_runs_commands_is_shown_in_use(self):
        with_shell = [m.content for m in constrain_output(request()).messages]
        without = [m.content for m in constrain_output(request(tools=[READ])).messages]
        assert any('"tool": "bash"' in text for text in with_shell[:-7])
        assert not any('"tool": "bash"' in text for text in without[:-7])

    @pytest.mark.parametrize(
        ("choice", "names"),
        [
            (None, ["read_file", "bash", "answer"]),
            ("auto", ["read_file", "bash", "answer"]),
            ("required", ["read_file", "bash"]),
            ({"type": "any"}, ["read_file", "bash"]),
            ("bash", ["bash"]),
            ({"type": "tool", "name": "bash"}, ["bash"]),
            ({"type": "function", "function": {"name": "bash"}}, ["bash"]),
        ],
    )
    def test_the_choice_of_tools_narrows_the_shapes(self, choice, names):
        assert names_in(constrain_output(request(tool_choice=choice))) == names

    def test_arguments_are_held_to_the_tools_schema(self):
        arguments = schema_of(constrain_output(request()))["anyOf"][0]["properties"]["arguments"]
        assert arguments == {**READ["parameters"], "additionalProperties": False}

    def test_schemas_that_cannot_be_a_part_of_another_are_left_open(self):
        parameters = {
            "$defs": {"p": {"type": "string"}},
            "type": "object",
            "properties": {"path": {"$ref": "#/$defs/p"}},
        }
        asked = constrain_output(request(tools=[{"name": "t", "parameters": parameters}]))
        assert schema_of(asked)["anyOf"][0]["properties"]["arguments"] == {"type": "object"}

    def test_loose_leaves_every_schema_open(self):
        asked = constrain_output(request(), loose=True)
        assert schema_of(asked)["anyOf"][0]["properties"]["arguments"] == {"type": "object"}

    def test_plain_requests_have_calls_and_results_as_text(self):
        reported = plain(request())
        assert reported.tools is None
        assert [(m.role, m.content) for m in reported.messages[2:5]] == [
            ("assistant", "I look.\n(used read_file)\n(used bash)"),
            ("user", "Result of read_file:\nhello"),
            ("user", "Result of bash:\na.txt"),
        ]

    def test_plain_adds_a_system_message_only_where_there_is_none(self):
        alone = normalise({"messages": [{"role": "user", "content": "hi"}]})
        assert plain(alone, "Be brief.").messages[0].content == "Be brief."
        assert plain(alone).messages[0].role == "user"
        assert plain(request(), "Be brief.").messages[0].content == "You are kind."

    def test_images_are_replaced_with_a_note(self):
        pixel = {"type": "base64", "media_type": "image/png", "data": "AA=="}
        content = [{"type": "text", "text": "see"}, {"type": "image", "source": pixel}]
        asked = normalise({"messages": [{"role": "user", "content": content}]})
        assert has_images(asked)
        assert not has_images(request())
        assert "cannot see" in plain(asked).messages[0].content


class TestTheAnswer:
    def test_an_answer_streams_as_text(self):
        chunks, response = read('{"ans', 'wer": "Hel', "lo", ' there"', "}")
        assert [chunk.get("delta") for chunk in chunks[1:-1]] == ["Hel", "lo", " there"]
        assert chunks[0]["type"] == "content_block_start"
        assert chunks[-1]["block"] == {"type": "text", "text": "Hello there"}
        assert response.content[0].text == "Hello there"
        assert response.tool_calls is None
        assert response.finish_reason == "stop"
        assert response.metadata == {"model": "m"}

    @given(st.text(), st.lists(st.integers(1, 7), min_size=1))
    def test_any_text_survives_being_cut_anywhere(self, text, sizes):
        written = json.dumps({"answer": text})
        pieces = []
        while written:
            size = sizes[len(pieces) % len(sizes)]
            pieces.append(written[:size])
            written = written[size:]
        chunks, response = read(*pieces)
        assert response.content[0].text == text
        assert "".join(chunk.get("delta", "") for chunk in chunks) == text

    def test_half_a_surrogate_pair_becomes_a_replacement(self):
        _, response = read('{"answer": "a\\ud83d', '\\ud83d b"}')
        assert "�" in response.content[0].text or "?" in response.content[0].text

    def test_a_call_is_a_tool_call(self):
        chunks, response = read('{"tool": "read', '_file", "arguments": {"path": "a"}}')
        [call] = response.tool_calls
        assert (call.name, call.arguments) == ("read_file", {"path": "a"})
        assert response.finish_reason == "tool_calls"
        assert [chunk["type"] for chunk in chunks] == [
            "content_block_start",
            "content_block_delta",
            "content_block_end",
        ]
        assert json.loads(chunks[1]["delta"]) == {"path": "a"}
        assert chunks[2]["block"]["id"] == call.id == response.content[0].id

    def test_a_call_that_broke_off_has_invalid_arguments(self):
        _, response = read('{"tool": "read_file", "arguments": {"pa', finish="length")
        [call] = response.tool_calls
        assert call.arguments == {}
        assert call.invalid_arguments == '{"pa'
        assert response.finish_reason == "length"

    def test_a_cut_off_answer_is_shown_as_far_as_it_goes(self):
        _, response = read('{"answer": "Once upo', finish="length")
        assert response.content[0].text == "Once upo"
        assert response.finish_reason == "length"

    def test_output_of_neither_shape_is_shown_unchanged(self):
        chunks, response = read('{"to', finish="length")
        assert response.content[0].text == '{"to'
        assert chunks[1]["delta"] == '{"to'

    def test_nothing_is_an_empty_answer(self):
        chunks, response = read()
        assert chunks == []
        assert response.content == []
