"""A valid module of each kind, small, to be spoiled in one place by the tests."""

from pathlib import Path
from typing import Any

from amplifier_app.base.checks import Check, Report
from amplifier_kit.validation.command import Subject, validate_module
from tests.support.module_repositories import write_files

TOOL = """
from amplifier_core import ToolResult

__amplifier_module_type__ = "tool"


class Shout:
    name = "shout"
    description = "Gives a text back in capitals."
    input_schema = {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    }

    async def execute(self, input):
        text = input.get("text")
        if not text:
            return ToolResult(success=False, error={"message": "text is required"})
        return ToolResult(output=text.upper())


def config_schema():
    return {"type": "object", "properties": {"times": {"type": "integer"}}}


async def mount(coordinator, config=None):
    tool = Shout()
    await coordinator.mount("tools", tool)
"""

PROVIDER = """
from amplifier_core import ChatResponse, ModelInfo, ProviderInfo, TextBlock

__amplifier_module_type__ = "provider"


class Parrot:
    name = "parrot"

    def get_info(self):
        return ProviderInfo(
            id="parrot",
            display_name="Parrot",
            defaults={"context_window": 8000, "max_output_tokens": 1000},
        )

    async def list_models(self):
        return [ModelInfo(id="p", display_name="P", context_window=9, max_output_tokens=9)]

    async def complete(self, request, **kwargs):
        return ChatResponse(content=[TextBlock(text="Hello")])

    def parse_tool_calls(self, response):
        return list(response.tool_calls or ())


def config_schema():
    return {"type": "object", "properties": {}}


async def mount(coordinator, config=None):
    await coordinator.mount("providers", Parrot(), name="parrot")
"""

HOOK = """
from amplifier_core import HookResult

__amplifier_module_type__ = "hook"


async def watch(event, data):
    return HookResult(action="continue")


def config_schema():
    return {"type": "object", "properties": {}}


async def mount(coordinator, config=None):
    return coordinator.hooks.register("tool:pre", watch, name="watch")
"""

ORCHESTRATOR = """
from amplifier_core import ToolResult

__amplifier_module_type__ = "orchestrator"


class Loop:
    async def execute(self, prompt, context, providers, tools, hooks, **kwargs):
        await context.add_message({"role": "user", "content": prompt})
        provider = next(iter(providers.values()))
        turns = 0
        while True:
            turns += 1
            response = await provider.complete({"messages": await context.get_messages()})
            text = "".join(getattr(block, "text", "") for block in response.content)
            await context.add_message({"role": "assistant", "content": text})
            calls = provider.parse_tool_calls(response)
            if not calls:
                break
            for call in calls:
                tool = tools.get(call.name)
                if tool is None:
                    result = ToolResult(success=False, error={"message": "no such tool"})
                else:
                    result = await tool.execute(call.arguments)
                await context.add_message(
                    {
                        "role": "tool",
                        "tool_call_id": call.id,
                        "content": result.get_serialized_output(),
                    }
                )
        await hooks.emit(
            "orchestrator:complete",
            {"orchestrator": "loop", "turn_count": turns, "status": "success"},
        )
        return text


def config_schema():
    return {"type": "object", "properties": {}}


async def mount(coordinator, config=None):
    await coordinator.mount("orchestrator", Loop())
"""

CONTEXT = """
__amplifier_module_type__ = "context"


class Notebook:
    def __init__(self):
        self.messages = []

    async def add_message(self, message):
        self.messages.append(message)

    async def get_messages_for_request(self, token_budget=None, provider=None):
        turns = [[]]
        for message in self.messages:
            if message.get("role") == "user":
                turns.append([])
            turns[-1].append(message)
        while token_budget and len(turns) > 2 and len(str(turns)) > token_budget * 4:
            del turns[1]
        return [message for turn in turns for message in turn]

    async def get_messages(self):
        return list(self.messages)

    async def set_messages(self, messages):
        self.messages = list(messages)

    async def clear(self):
        self.messages = []


def config_schema():
    return {"type": "object", "properties": {}}


async def mount(coordinator, config=None):
    await coordinator.mount("context", Notebook())
"""

SAMPLES = {
    "tool": TOOL,
    "provider": PROVIDER,
    "hook": HOOK,
    "orchestrator": ORCHESTRATOR,
    "context": CONTEXT,
}

PROJECT = """
[project]
name = "amplifier-module-thing"
version = "1.0"
requires-python = ">=3.11"
dependencies = []

[project.entry-points."amplifier.modules"]
thing = "amplifier_module_thing:mount"

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
"""


def write_module(folder: Path, code: str, project: str | None = PROJECT) -> Path:
    """A project folder with one package of this code; without a pyproject.toml if it is None."""
    files = {"amplifier_module_thing/__init__.py": code}
    if project is not None:
        files["pyproject.toml"] = project
    return write_files(folder, files)


def spoiled(kind: str, *changes: tuple[str, str]) -> str:
    """The code of the sample of a kind with some of its text replaced; each has to be there."""
    code = SAMPLES[kind]
    for old, new in changes:
        assert old in code, old
        code = code.replace(old, new)
    return code


def validated(path: Path, **options: Any) -> Report:
    """The report on the module at a path."""
    return validate_module(Subject(str(path), path), **options)


def named(report: Report) -> dict[str, Check]:
    """The checks of a report by name; of several, the one that failed, else the last."""
    return {check.name: check for check in sorted(report.checks, key=lambda c: not c.passed)}
