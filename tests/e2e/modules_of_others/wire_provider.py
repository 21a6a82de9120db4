"""A provider that knows messages only by their own fields.

It builds what it sends from the `tool_calls` and the `tool_call_id` of messages, and never looks at
typed blocks of tool calls.
"""

from typing import Any

import httpx

from amplifier_core import (
    ChatResponse,
    ModelInfo,
    ProviderInfo,
    TextBlock,
    ToolCall,
    ToolCallBlock,
    Usage,
)

__amplifier_module_type__ = "provider"


class WireProvider:
    name = "wire"

    def __init__(self, base_url: str) -> None:
        self._url = f"{base_url}/chat/completions"

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(id="wire", display_name="Wire")

    async def list_models(self) -> list[ModelInfo]:
        return []

    async def complete(self, request: Any, **_: Any) -> ChatResponse:
        body: dict[str, Any] = {
            "model": "any",
            "messages": [self._wire(message) for message in request.messages],
        }
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.parameters,
                    },
                }
                for tool in request.tools
            ]
        async with httpx.AsyncClient(headers={"authorization": "Bearer key"}) as client:
            answer = (await client.post(self._url, json=body)).raise_for_status().json()
        return self._read(answer)

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return response.tool_calls or []

    def _wire(self, message: Any) -> dict[str, Any]:
        content = message.content
        if not isinstance(content, str):
            content = "".join(block.text for block in content if block.type == "text")
        if message.role == "tool":
            return {"role": "tool", "content": content, "tool_call_id": message.tool_call_id}
        calls = getattr(message, "tool_calls", None)
        if message.role != "assistant" or not calls:
            return {"role": message.role, "content": content}
        return {"role": "assistant", "content": content or None, "tool_calls": [*map(_call, calls)]}

    def _read(self, answer: dict[str, Any]) -> ChatResponse:
        import json

        message = answer["choices"][0]["message"]
        calls = [
            ToolCall(
                id=call["id"],
                name=call["function"]["name"],
                arguments=json.loads(call["function"]["arguments"]),
            )
            for call in message.get("tool_calls") or []
        ]
        blocks = [ToolCallBlock(id=call.id, name=call.name, input=call.arguments) for call in calls]
        text = [TextBlock(text=message["content"])] if message.get("content") else []
        usage = Usage(input_tokens=1, output_tokens=1, total_tokens=2)
        return ChatResponse(content=[*text, *blocks], tool_calls=calls or None, usage=usage)


def _call(call: dict[str, Any]) -> dict[str, Any]:
    import json

    function = {"name": call["tool"], "arguments": json.dumps(call["arguments"])}
    return {"id": call["id"], "type": "function", "function": function}


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    provider = WireProvider((config or {})["base_url"])
    await coordinator.mount("providers", provider, name=provider.name)
