"""The scripted server's Responses API: answers in its shape, and refuses what the real one refuses."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.support.fixtures import StartLLM
from tests.support.llm.responses_rules import encrypted_for
from tests.support.llm_server import Reply, ScriptedLLM, ToolCall

USER = {"role": "user", "content": "go"}
SAID = {"role": "assistant", "content": "I look."}
CALL = {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "found"}
REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "encrypted_content": encrypted_for("rs_1"),
}
TOOL = {"type": "function", "name": "read", "parameters": {"type": "object"}, "strict": False}


async def asked(server: ScriptedLLM, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(verify=False) as client:
        return await client.post(
            f"{server.openai_base_url}/responses",
            json={"model": "m", "input": "go", "store": False, **body},
            headers={"authorization": "Bearer k"},
        )


async def test_a_whole_answer_and_a_streamed_one_say_the_same(llm_server: StartLLM) -> None:
    reply = Reply("Hi.", thinking="a\n\nb", tool_calls=[ToolCall("read", {"x": 1}, id="c9")])
    server = await llm_server([reply, reply])
    include = ["reasoning.encrypted_content"]
    whole = (await asked(server, include=include)).json()
    streamed = await asked(server, include=include, stream=True)
    events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line[:6] == "data: "]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    last = events[-1]["response"]
    assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.completed")
    for answer in (whole, last):
        assert answer["status"] == "completed"
        reasoning, message, call = answer["output"]
        assert [part["text"] for part in reasoning["summary"]] == ["a", "b"]
        assert reasoning["encrypted_content"] == encrypted_for(reasoning["id"])
        assert message["content"][0]["text"] == "Hi."
        assert (call["call_id"], call["arguments"]) == ("c9", '{"x":1}')


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"messages": [USER]}, 400, "Unknown parameter: 'messages'"),
        ({"input": []}, 400, "empty array"),
        ({"input": 1}, 400, "Invalid type for 'input'"),
        ({"input": [{"role": "tool", "content": "x"}]}, 400, "Invalid value: 'tool'"),
        ({"input": [{**USER, "name": "x"}]}, 400, "Unknown parameter: 'input[0].name'"),
        ({"input": [USER, CALL]}, 400, "No tool output found for function call c1"),
        ({"input": [USER, OUTPUT]}, 400, "No tool call found for function call output"),
        ({"input": [USER, CALL, CALL, OUTPUT]}, 400, "Duplicate call_id"),
        ({"input": [USER, REASONING]}, 400, "without its required following item"),
        ({"input": [USER, REASONING, USER]}, 400, "without its required following item"),
        (
            {"input": [USER, {**REASONING, "encrypted_content": None}, SAID]},
            404,
            "Items are not persisted",
        ),
        (
            {"input": [USER, {**REASONING, "encrypted_content": "changed"}, SAID]},
            400,
            "could not be verified",
        ),
        (
            {"input": [{**USER, "content": [{"type": "text", "text": "x"}]}]},
            400,
            "Supported values are: 'input_text' and 'input_image'",
        ),
        (
            {"input": [USER, {**SAID, "content": [{"type": "input_text", "text": "x"}]}, USER]},
            400,
            "'output_text' and 'refusal'",
        ),
        ({"tools": [{"type": "function", "function": TOOL}]}, 400, "tools[0].name"),
        ({"tools": [{**TOOL, "strict": True}]}, 400, "'additionalProperties' is required"),
        ({"tool_choice": {"type": "function", "name": "x"}}, 400, "not found in 'tools'"),
        ({"max_output_tokens": 15}, 400, "Expected a value >= 16"),
        ({"include": ["everything"]}, 400, "Invalid value: 'everything'"),
        ({"reasoning": {"budget": 1}}, 400, "Unknown parameter: 'reasoning.budget'"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, 400, "text.format.schema"),
        ({"stop": ["x"]}, 400, "Unknown parameter: 'stop'"),
    ],
)
async def test_broken_requests_are_refused(
    llm_server: StartLLM, body: dict[str, Any], status: int, message: str
) -> None:
    server = await llm_server(["never said"])
    response = await asked(server, **body)
    assert response.status_code == status
    assert message in response.json()["error"]["message"]
    assert server.remaining == 1


async def test_a_whole_conversation_is_taken(llm_server: StartLLM) -> None:
    server = await llm_server(["fine"])
    items = [{"role": "developer", "content": "s"}, USER, REASONING, SAID, CALL, OUTPUT, USER]
    response = await asked(server, input=items, tools=[TOOL], tool_choice="auto")
    assert response.status_code == 200
