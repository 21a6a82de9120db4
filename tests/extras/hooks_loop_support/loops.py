"""Orchestrators that know nothing of budgets and fallbacks, as other authors write them."""

from pathlib import Path
from typing import Any

import yaml

from tests.support.plans import mock_plan, module_folder

LOOP = """
from amplifier_core.message_models import ChatRequest, Message

__amplifier_module_type__ = "orchestrator"


class Loop:
    def __init__(self, settings):
        self.settings = settings

    async def execute(self, prompt, context, providers, tools, hooks):
        await hooks.emit("prompt:submit", {"prompt": prompt})
        await context.add_message({"role": "user", "content": prompt})
        provider = min(providers.values(), key=lambda one: getattr(one, "priority", 0))
        try:
            text = await self.work(context, provider, tools, hooks)
        except Exception as error:
            if not self.settings.get("answers_errors"):
                raise
            text = f"Error: {error}"
        await hooks.emit("orchestrator:complete", {"orchestrator": "foreign", "status": "success"})
        return text

    async def work(self, context, provider, tools, hooks):
        if self.settings.get("fails"):
            raise TypeError("wrong")
        while True:
            messages = [Message(**message) for message in await context.get_messages_for_request()]
            specs = [
                {"name": name, "description": tool.description, "parameters": tool.input_schema}
                for name, tool in tools.items()
            ]
            await hooks.emit("provider:request", {"provider": "x"})
            request = ChatRequest(messages=messages, tools=specs)
            response = await self.ask(provider, request)
            calls = provider.parse_tool_calls(response)
            blocks = [block.model_dump(exclude_none=True) for block in response.content]
            await context.add_message({"role": "assistant", "content": blocks})
            if not calls:
                if self.settings.get("reviews"):
                    await self.ask(provider, request)
                return "".join(block.get("text", "") for block in blocks)
            for call in calls:
                data = {"tool_name": call.name, "tool_call_id": call.id}
                await hooks.emit("tool:pre", {**data, "tool_input": call.arguments})
                result = await tools[call.name].execute(call.arguments)
                await hooks.emit("tool:post", {**data, "result": result})
                answer = str(result.output if result.success else result.error)
                message = {"role": "tool", "tool_call_id": call.id, "content": answer}
                await context.add_message({**message, "name": call.name})

    async def ask(self, provider, request):
        if not self.settings.get("streams"):
            return await provider.complete(request)
        async for part in provider.stream_complete(request):
            last = part
        return last


async def mount(coordinator, config=None):
    await coordinator.mount("orchestrator", Loop(config or {}))
"""


def foreign_plan(folder: Path, replies: list[Any], *, loop: Any = None, **more: Any) -> Path:
    """Like `mock_plan`, with an orchestrator of another author and its settings `loop`."""
    path = mock_plan(folder, replies, **more)
    source = folder / "amplifier-module-loop-foreign"
    if not source.exists():
        module_folder(folder, LOOP, "amplifier_module_loop_foreign")
    plan = yaml.safe_load(path.read_text())
    entry = {"module": "loop-foreign", "source": str(source), "config": loop or {}}
    plan["session"]["orchestrator"] = entry
    path.write_text(yaml.safe_dump(plan))
    return path
