"""The scripted server's Responses API: answers in its shape, and refuses what the real one refuses."""

from typing import Any

import httpx
import pytest

from tests.support.fixtures import StartLLM
from tests.support.llm.responses_rules import encrypted_for
from tests.support.llm_server import ScriptedLLM

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
