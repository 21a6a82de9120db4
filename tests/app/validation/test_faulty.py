"""A corpus of broken modules: each gets its own finding, which says what is wrong and how to mend it.

A case is a valid module of its kind (`samples`) with one thing spoiled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.app.validation.samples import PROJECT, named, spoiled, validated, write_module


class Case(NamedTuple):
    """A broken module.

    Attributes:
        title: What is wrong, for a person.
        kind: Kind of module.
        changes: Texts of the sample's code and what takes their place.
        check: The check that finds it.
        message: What it says.
        advice: What it says of mending.
        options: For `validate_module`.
        severity: How bad it is.
        project: The pyproject.toml, if it is not the ordinary one.
    """

    title: str
    kind: str
    changes: tuple[tuple[str, str], ...]
    check: str
    message: str
    advice: str
    options: dict[str, Any] = {}  # noqa: RUF012 - read only
    severity: str = "error"
    project: str | None = PROJECT

    def __str__(self) -> str:
        return f"{self.kind}: {self.title}"


BEHAVIOUR: dict[str, Any] = {"behavioral": True}
ALL = "__amplifier_module_type__"
MOUNT_TOOL = "async def mount(coordinator, config=None):\n    tool = Shout()\n"
MOUNTED_TOOL = '    await coordinator.mount("tools", tool)\n'


def project(*changes: tuple[str, str]) -> str:
    text = PROJECT
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


IMPORT = [
    Case(
        "a missing requirement",
        "tool",
        ((ALL, "import not_there_at_all\n" + ALL),),
        "module_importable",
        "No module named 'not_there_at_all' (amplifier_module_thing/__init__.py, line 4)",
        "add what brings not_there_at_all to 'dependencies'",
    ),
    Case(
        "a missing file of its own",
        "tool",
        ((ALL, "from amplifier_module_thing.gone import x\n" + ALL),),
        "module_importable",
        "No module named 'amplifier_module_thing.gone'",
        "add the file of amplifier_module_thing.gone",
    ),
    Case(
        "a requirement in another version than it needs",
        "tool",
        ((ALL, "from pydantic import NotYetThere\n" + ALL),),
        "module_importable",
        "cannot import name 'NotYetThere' from 'pydantic'",
        "say in 'dependencies' which version of pydantic it needs",
    ),
    Case(
        "a name that its own file lacks",
        "tool",
        ((ALL, "from amplifier_module_thing import gone\n" + ALL),),
        "module_importable",
        "cannot import name 'gone'",
        "add it to amplifier_module_thing, or mend the import",
    ),
    Case(
        "a syntax error",
        "tool",
        (("async def mount(coordinator, config=None):", "async def mount(coordinator:"),),
        "module_importable",
        "SyntaxError: '(' was never closed (amplifier_module_thing/__init__.py, line 27)",
        "mend that line",
    ),
    Case(
        "an exception while it is imported",
        "provider",
        ((ALL, "import os\nKEY = os.environ['NO_SUCH_KEY_AT_ALL']\n" + ALL),),
        "module_importable",
        "KeyError: 'NO_SUCH_KEY_AT_ALL' (amplifier_module_thing/__init__.py, line 5)",
        "leave it to mount()",
    ),
    Case(
        "sys.exit while it is imported",
        "hook",
        ((ALL, "import sys\nsys.exit(0)\n" + ALL),),
        "module_importable",
        "SystemExit: 0",
        "must not end the program",
    ),
    Case(
        "KeyboardInterrupt while it is imported",
        "hook",
        ((ALL, "raise KeyboardInterrupt\n" + ALL),),
        "isolation",
        "it raised KeyboardInterrupt (amplifier_module_thing/__init__.py, line 4)",
        "raise an Exception",
    ),
    Case(
        "recursion without an end",
        "tool",
        ((ALL, "def deep():\n    return deep() + 1\n\n\ndeep()\n" + ALL),),
        "module_importable",
        "RecursionError: maximum recursion depth exceeded",
        "leave it to mount()",
    ),
]

FOLDER = [
    Case(
        "no mount function at all",
        "tool",
        (("async def mount", "async def start"),),
        "structure",
        "holds no module: no package or file there has a mount function",
        "write 'async def mount(coordinator, config)'",
        project=None,
    ),
    Case(
        "an entry point that leads nowhere",
        "tool",
        (),
        "structure",
        "names 'amplifier_module_thin:mount', but there is no amplifier_module_thin/",
        "",
        project=project(("amplifier_module_thing:mount", "amplifier_module_thin:mount")),
    ),
    Case(
        "an entry point that is no entry point",
        "tool",
        (),
        "structure",
        "'amplifier_module_thing.mount()' in",
        "",
        project=project(("amplifier_module_thing:mount", "amplifier_module_thing.mount()")),
    ),
    Case(
        "a pyproject.toml that is no TOML",
        "tool",
        (),
        "structure",
        "is not valid TOML",
        "",
        project="[project\n",
    ),
    Case(
        "a Python that is not there yet",
        "tool",
        (),
        "structure",
        "needs Python >=3.99",
        "",
        project=project((">=3.11", ">=3.99")),
    ),
    Case(
        "no entry point",
        "tool",
        (),
        "entry_point",
        "an installed package does not",
        'add [project.entry-points."amplifier.modules"] with thing = "amplifier_module_thing:mount"',
        severity="warning",
        project=None,
    ),
    Case(
        "a requirement nobody has",
        "tool",
        (),
        "dependencies",
        "not-anywhere-at-all",
        "mend 'dependencies' in pyproject.toml",
        project=project(("dependencies = []", 'dependencies = ["not-anywhere-at-all"]')),
    ),
]

MOUNT = [
    Case(
        "no mount",
        "tool",
        (("async def mount", "async def start"),),
        "mount_exists",
        "amplifier_module_thing.mount is missing",
        "write `async def mount(coordinator, config)`",
    ),
    Case(
        "mount is a number",
        "context",
        (
            (
                "async def mount(coordinator, config=None):\n    ",
                "mount = 5\n\n\nasync def other(coordinator):\n    ",
            ),
        ),
        "mount_exists",
        "mount is not callable",
        "write `async def mount(coordinator, config)`",
    ),
    Case(
        "a sync mount",
        "context",
        (
            ("async def mount", "def mount"),
            ("    await coordinator.mount", "    coordinator.mount"),
        ),
        "mount_signature",
        "mount is not async",
        "write `async def mount(coordinator, config=None)`",
    ),
    Case(
        "a mount without config",
        "orchestrator",
        (("mount(coordinator, config=None)", "mount(coordinator)"),),
        "mount_signature",
        "mount takes 1 arguments, not 2",
        "write `async def mount(coordinator, config=None)`",
    ),
    Case(
        "a mount that raises",
        "hook",
        (("    return coordinator", "    config['key']\n    return coordinator"),),
        "protocol_compliance",
        "mount() raised KeyError: 'key' (amplifier_module_thing/__init__.py, line 16, in mount)",
        "give them with --config",
    ),
    Case(
        "settings that are required and not given",
        "provider",
        (
            ('"properties": {}}', '"properties": {"key": {}}, "required": ["key"]}'),
            ("    await coordinator", "    config['key']\n    await coordinator"),
        ),
        "protocol_compliance",
        "mount() raised KeyError: 'key'",
        "it requires settings: give --config key=…",
    ),
    Case(
        "mounting nothing",
        "tool",
        ((MOUNTED_TOOL, "    return None\n"),),
        "protocol_compliance",
        "mount() mounted no tool and returned NoneType",
        'mount it with `await coordinator.mount("tools", tool, name="…")`',
    ),
    Case(
        "a provider that declines",
        "provider",
        (
            (
                "    await coordinator",
                "    import logging\n"
                "    logging.getLogger(__name__).warning('parrot: PARROT_KEY is not set')\n"
                "    return\n    await coordinator",
            ),
        ),
        "protocol_compliance",
        "(it said: parrot: PARROT_KEY is not set)",
        "give it what it asks for, in its --config or the environment",
    ),
    Case(
        "a provider that declines and does not say why",
        "provider",
        (("    await coordinator", "    return\n    await coordinator"),),
        "protocol_compliance",
        "mount() mounted no provider and returned NoneType",
        "if it wants a key, give it in its --config or the environment",
    ),
    Case(
        "a mount point there is not",
        "tool",
        (('mount("tools"', 'mount("tool"'),),
        "protocol_compliance",
        "mount() raised ValueError",
        "log a warning that says why",
    ),
    Case(
        "state that outlives a mount",
        "tool",
        (
            (
                MOUNT_TOOL,
                MOUNT_TOOL + "    assert not globals().get('open'), 'the port is in use'\n"
                "    globals()['open'] = True\n",
            ),
        ),
        "second_mount",
        "AssertionError: the port is in use",
        "keep no state between mounts",
    ),
    Case(
        "an on_session_ready that is not async",
        "hook",
        (("async def mount", "def on_session_ready(coordinator):\n    pass\n\n\nasync def mount"),),
        "on_session_ready_async",
        "on_session_ready is not async",
        "write `async def on_session_ready(coordinator)`",
    ),
    Case(
        "a kind there is not",
        "tool",
        (('= "tool"', '= "toll"'),),
        "module_type",
        "__amplifier_module_type__ = 'toll'; known: orchestrator, provider, tool",
        '__amplifier_module_type__ = "tool"',
    ),
    Case(
        "another kind than it is checked as",
        "tool",
        (),
        "module_type",
        "it says it is a tool, and is checked as a hook",
        "check it with --type tool",
        options={"kind": "hook"},
    ),
    Case(
        "a kind that has to be guessed",
        "tool",
        (('__amplifier_module_type__ = "tool"', ""),),
        "module_type",
        "tool, guessed from its name",
        'add __amplifier_module_type__ = "tool"',
        severity="warning",
    ),
]

PROTOCOL = [
    Case(
        "no name",
        "tool",
        (('    name = "shout"\n', ""), ('mount("tools", tool)', 'mount("tools", tool, name="x")')),
        "tool_name",
        "name is missing",
        "write `name: str`",
    ),
    Case(
        "a name that is a number",
        "tool",
        (
            ('name = "shout"', "name = 5"),
            ('mount("tools", tool)', 'mount("tools", tool, name="x")'),
        ),
        "tool_name",
        "name is int, not str",
        "write `name: str`",
    ),
    Case(
        "a name that services of models refuse",
        "tool",
        (('name = "shout"', 'name = "shout it out!"'),),
        "tool_name_form",
        "mounted as 'shout it out!', which services of models refuse",
        "letters, digits, '_' and '-'",
        severity="warning",
    ),
    Case(
        "no description",
        "tool",
        (("Gives a text back in capitals.", " "),),
        "tool_description",
        "description is empty",
        "write `description: str`",
        severity="warning",
    ),
    Case(
        "a sync execute",
        "tool",
        (("async def execute", "def execute"),),
        "tool_execute",
        "execute is not async",
        "write `async def execute(self, input: dict) -> ToolResult`",
    ),
    Case(
        "an execute without input",
        "tool",
        (("execute(self, input)", "execute(self)"),),
        "tool_execute",
        "execute takes 0 arguments, not 1",
        "write `async def execute(self, input: dict) -> ToolResult`",
    ),
    Case(
        "a property that raises",
        "tool",
        (
            (
                '    name = "shout"\n',
                "    @property\n    def name(self):\n        raise OSError('gone')\n\n",
            ),
            ('mount("tools", tool)', 'mount("tools", tool, name="x")'),
        ),
        "tool_name",
        "name raised OSError: gone",
        "write `name: str`",
    ),
    Case(
        "a provider without complete",
        "provider",
        (("async def complete", "async def completes"),),
        "provider_complete",
        "complete is missing",
        "write `async def complete(self, request, **kwargs) -> ChatResponse`",
    ),
    Case(
        "a sync complete",
        "provider",
        (("async def complete", "def complete"),),
        "provider_complete",
        "complete is not async",
        "write `async def complete(self, request, **kwargs) -> ChatResponse`",
    ),
    Case(
        "an info that is a dict",
        "provider",
        (("return ProviderInfo(", "return dict("),),
        "provider_get_info",
        "get_info returned dict",
        "write `def get_info(self) -> ProviderInfo`",
    ),
    Case(
        "a list of models that is not async",
        "provider",
        (("async def list_models", "def list_models"),),
        "provider_list_models",
        "list_models is not async",
        "write `async def list_models(self) -> list[ModelInfo]`",
    ),
    Case(
        "no parse_tool_calls",
        "provider",
        (("def parse_tool_calls", "def parse"),),
        "provider_parse_tool_calls",
        "parse_tool_calls is missing",
        "write `def parse_tool_calls(self, response) -> list[ToolCall]`",
    ),
    Case(
        "an orchestrator without execute",
        "orchestrator",
        (("async def execute", "async def run"),),
        "orchestrator_execute",
        "execute is missing",
        "write `async def execute(self, prompt, context, providers, tools, hooks, **kwargs) -> str`",
    ),
    Case(
        "an execute with too few arguments",
        "orchestrator",
        (("prompt, context, providers, tools, hooks, **kwargs", "prompt, context"),),
        "orchestrator_execute",
        "execute takes 2 arguments, not 5",
        "write `async def execute(self, prompt, context, providers, tools, hooks, **kwargs) -> str`",
    ),
    Case(
        "a context that cannot be resumed",
        "context",
        (("async def set_messages", "async def put_messages"),),
        "context_set_messages",
        "set_messages is missing",
        "write `async def set_messages(self, messages: list[dict]) -> None`",
    ),
    Case(
        "a context that does not forget",
        "context",
        (("async def clear", "async def clean"),),
        "context_clear",
        "clear is missing",
        "write `async def clear(self) -> None`",
    ),
    Case(
        "a sync add_message",
        "context",
        (("async def add_message", "def add_message"),),
        "context_add_message",
        "add_message is not async",
        "write `async def add_message(self, message: dict) -> None`",
    ),
    Case(
        "a handler that is returned and not async",
        "hook",
        (
            ("async def watch", "def watch"),
            ('return coordinator.hooks.register("tool:pre", watch, name="watch")', "return watch"),
        ),
        "hook_call",
        "is not async",
        "write `async def __call__(self, event, data) -> HookResult`",
    ),
]

SCHEMA = [
    Case(
        "a schema that is no mapping",
        "tool",
        (("input_schema = {\n", "input_schema = ['text']\n    other = {\n"),),
        "schema",
        "there is no schema of 'shout'",
        "give the tool an 'input_schema'",
        severity="warning",
    ),
    Case(
        "a schema that is no schema",
        "tool",
        (('"text": {"type": "string"}', '"text": {"type": "strng"}'),),
        "schema",
        "is no JSON Schema: 'strng' is not valid",
        "JSON Schema, draft 2020-12",
    ),
    Case(
        "a schema of a list",
        "tool",
        (('"type": "object",\n        "properties"', '"type": "array",\n        "properties"'),),
        "schema",
        "is of type 'array'",
        'give it "type": "object"',
        severity="warning",
    ),
    Case(
        "a schema that requires what it does not have",
        "tool",
        (('"required": ["text"]', '"required": ["txt"]'),),
        "schema",
        "requires what it does not describe: txt",
        "under 'properties'",
        severity="warning",
    ),
    Case(
        "a get_schema that raises",
        "tool",
        (
            (
                "    async def execute",
                "    def get_schema(self):\n        return 1 / 0\n\n    async def execute",
            ),
            ("    input_schema = {\n", "    input_schema = {}\n    other = {\n"),
        ),
        "schema",
        "ZeroDivisionError: division by zero (amplifier_module_thing/__init__.py, line",
        "give it as a plain dict",
    ),
    Case(
        "no config_schema",
        "tool",
        (("def config_schema", "def schema"),),
        "config_schema",
        "a plan's config for it is checked only when it is mounted",
        "add 'def config_schema() -> dict'",
        severity="info",
    ),
    Case(
        "an async config_schema",
        "tool",
        (("def config_schema", "async def config_schema"),),
        "config_schema",
        "config_schema is async, not a plain function",
        "write 'def config_schema()",
    ),
    Case(
        "a config_schema that raises",
        "tool",
        (
            (
                '    return {"type": "object", "properties": {"times"',
                '    return {"type": objekt, "properties": {"times"',
            ),
        ),
        "config_schema",
        "config_schema() raised NameError: name 'objekt' is not defined",
        "write 'def config_schema()",
    ),
    Case(
        "a config_schema that gives a text",
        "tool",
        (
            (
                '    return {"type": "object", "properties": {"times": {"type": "integer"}}}',
                "    return '{}'",
            ),
        ),
        "config_schema",
        "config_schema() returned str, not dict",
        "write 'def config_schema()",
    ),
    Case(
        "a config_schema that is no schema",
        "tool",
        (('"times": {"type": "integer"}', '"times": 5'),),
        "config_schema",
        "config_schema() gives no JSON Schema: 5 is not of type",
        "write 'def config_schema()",
    ),
    Case(
        "a config that does not fit the schema",
        "tool",
        (),
        "config_schema",
        "the config does not fit it: times does not satisfy 'type'",
        "mend the config",
        options={"config": {"times": "secret"}},
    ),
]

CLEANUP = [
    Case(
        "a cleanup that raises",
        "tool",
        ((MOUNTED_TOOL, MOUNTED_TOOL + "    return lambda: {}['gone']\n"),),
        "cleanup",
        "the cleanup returned by mount() raised KeyError: 'gone' (amplifier_module_thing/",
        "whatever state the module is in",
        severity="warning",
    ),
    Case(
        "a cleanup that hangs",
        "tool",
        (
            (
                MOUNTED_TOOL,
                MOUNTED_TOOL + "    import asyncio\n\n    async def close():\n"
                "        await asyncio.Event().wait()\n\n    return close\n",
            ),
        ),
        "time",
        "it did not end within 4 s during mount and was stopped; it was at "
        "amplifier_module_thing/__init__.py, line 33, in close",
        "wait for nothing without a limit",
        options={"seconds": 4},
    ),
    Case(
        "a task that is left behind",
        "hook",
        (
            (
                "    return coordinator",
                "    import asyncio\n"
                "    coordinator.task = asyncio.create_task(asyncio.sleep(600), name='my-poller')\n"
                "    return coordinator",
            ),
        ),
        "left_behind",
        "tasks still run after the cleanup: my-poller",
        "cancels and awaits them",
        severity="warning",
    ),
    Case(
        "a thread that is left behind",
        "context",
        (
            (
                "    await coordinator",
                "    import threading\n"
                "    threading.Thread(target=threading.Event().wait, name='my-watcher').start()\n"
                "    await coordinator",
            ),
        ),
        "left_behind",
        "threads still run after the cleanup: my-watcher",
        "stops and joins them",
        severity="warning",
    ),
    Case(
        "a process that is left behind",
        "tool",
        (
            (
                MOUNT_TOOL,
                MOUNT_TOOL + "    import subprocess\n"
                "    subprocess.Popen(['sleep', '600'], start_new_session=True)\n",
            ),
        ),
        "left_behind",
        "it left 2 processes running, which had to be killed: sleep",
        "ends them and waits for them",
        severity="warning",
    ),
]

SUITE = [
    Case(
        "a tool that answers with a text",
        "tool",
        (
            (
                'return ToolResult(success=False, error={"message": "text is required"})',
                "return 'no'",
            ),
        ),
        "execute_returns_tool_result",
        "what execute() returned is str, not ToolResult",
        "return ToolResult(output=…)",
        BEHAVIOUR,
    ),
    Case(
        "a tool that trips over missing input",
        "tool",
        (('text = input.get("text")', 'text = input["text"]'),),
        "invalid_input_returns_error_result",
        "empty input is not handled: KeyError: 'text'",
        "look at what is required first",
        BEHAVIOUR,
    ),
    Case(
        "a tool that raises",
        "tool",
        (('text = input.get("text")', 'raise OSError("no disk")'),),
        "execute_returns_tool_result",
        "OSError: no disk (amplifier_module_thing/__init__.py, line 17, in execute)",
        "on every path of execute()",
        BEHAVIOUR,
    ),
    Case(
        "a tool that hangs",
        "tool",
        (('text = input.get("text")', 'import time\n        time.sleep(600)\n        text = ""'),),
        "time",
        "during execute_returns_tool_result and was stopped; it was at "
        "amplifier_module_thing/__init__.py, line 18, in execute",
        "wait for nothing without a limit",
        {"behavioral": True, "seconds": 6},
    ),
    Case(
        "models in a dict",
        "provider",
        (("return [ModelInfo(", "return {}\n        return [ModelInfo("),),
        "list_models_returns_list",
        "what list_models() returned is dict, not list",
        "return a list of ModelInfo",
        BEHAVIOUR,
    ),
    Case(
        "tool calls that are None",
        "provider",
        (("return list(response.tool_calls or ())", "return response.tool_calls"),),
        "parse_tool_calls_returns_list",
        "what parse_tool_calls() returned is NoneType, not list",
        "return list(response.tool_calls or ())",
        BEHAVIOUR,
    ),
    Case(
        "tool calls that get lost",
        "provider",
        (("return list(response.tool_calls or ())", "return list(response.tool_calls or ())[:1]"),),
        "parses_tool_calls",
        "does not give the calls of a response in their order",
        "return list(response.tool_calls or ())",
        BEHAVIOUR,
    ),
    Case(
        "a window nobody knows",
        "provider",
        (('"max_output_tokens": 1000', '"max_output": 1000'),),
        "window",
        "the defaults of get_info() lack max_output_tokens",
        "in tokens",
        BEHAVIOUR,
        "warning",
    ),
    Case(
        "a hook that raises",
        "hook",
        (('    return HookResult(action="continue")', '    return data["tool_input"]["command"]'),),
        "handlers",
        "on tool:pre it raised KeyError: 'command' (amplifier_module_thing/__init__.py, line 8",
        "a handler that raises is skipped",
        BEHAVIOUR,
    ),
    Case(
        "a hook that answers True",
        "hook",
        (('    return HookResult(action="continue")', "    return True"),),
        "handlers",
        "on tool:pre it answered bool, not a HookResult",
        "denies the event",
        BEHAVIOUR,
    ),
    Case(
        "a hook that hears nothing",
        "hook",
        (('return coordinator.hooks.register("tool:pre", watch, name="watch")', "return None"),),
        "handlers",
        "it registers no handler",
        "register one",
        BEHAVIOUR,
        "warning",
    ),
    Case(
        "an orchestrator that returns the response",
        "orchestrator",
        (("        return text", "        return response"),),
        "execute_returns_string",
        "what execute() returned is ChatResponse, not str",
        "return the text of the provider's last answer",
        BEHAVIOUR,
    ),
    Case(
        "an orchestrator that asks nobody",
        "orchestrator",
        (
            (
                "response = await provider.complete",
                'return "Hello"\n            response = await provider.complete',
            ),
        ),
        "orchestrator_uses_provider",
        "execute() did not await complete() of the provider",
        "await provider.complete(request)",
        BEHAVIOUR,
    ),
    Case(
        "an orchestrator that does not tell its end",
        "orchestrator",
        (('"orchestrator:complete"', '"orchestrator:done"'),),
        "orchestrator:complete",
        "the event is not emitted",
        'await hooks.emit("orchestrator:complete"',
        BEHAVIOUR,
    ),
    Case(
        "an orchestrator that tells half of its end",
        "orchestrator",
        ((', "turn_count": turns, "status": "success"', ""),),
        "orchestrator:complete",
        "the event lacks status, turn_count",
        'await hooks.emit("orchestrator:complete"',
        BEHAVIOUR,
    ),
    Case(
        "an orchestrator that leaves calls open",
        "orchestrator",
        (
            (
                "                if tool is None:\n",
                "                if tool is None:\n                    continue\n                if tool is None:\n",
            ),
        ),
        "tool_calls",
        "of two tool calls 1 got no answer in the context",
        "for each call run the tool, or say why not",
        BEHAVIOUR,
        "warning",
    ),
    Case(
        "an orchestrator that fails with tools",
        "orchestrator",
        (("result = await tool.execute(call.arguments)", "result = await tool.call()"),),
        "tool_calls",
        "it raised AttributeError: 'MockTool' object has no attribute 'call' (amplifier_module_th",
        "contracts/orchestrator.md of amplifier_core",
        BEHAVIOUR,
    ),
    Case(
        "a context that gives None",
        "context",
        (("        return list(self.messages)\n", "        return list(self.messages) or None\n"),),
        "get_messages_never_returns_none",
        "get_messages() returned None",
        "[] where there is nothing",
        BEHAVIOUR,
    ),
    Case(
        "a context that turns messages round",
        "context",
        (("self.messages.append(message)", "self.messages.insert(0, message)"),),
        "multiple_messages",
        "get_messages() gives ['third', 'second', 'first']",
        "in the order they come in",
        BEHAVIOUR,
    ),
    Case(
        "a context that flattens",
        "context",
        (
            (
                "self.messages.append(message)",
                'self.messages.append({**message, "content": str(message.get("content"))} if message else message)',
            ),
        ),
        "fidelity",
        "messages do not come back as they were added",
        "blocks whole, thinking with its signature",
        BEHAVIOUR,
    ),
    Case(
        "a context that tears pairs apart",
        "context",
        (
            (
                "        return [message for turn in turns for message in turn]",
                "        view = [message for turn in turns for message in turn]\n        return view[1:] if token_budget else view",
            ),
            ('if message.get("role") == "user"', 'if message.get("role") == "tool"'),
        ),
        "view",
        "has calls without results, or results without calls",
        "keep an assistant's tool calls and their results together",
        BEHAVIOUR,
    ),
    Case(
        "a context that forgets for good",
        "context",
        (
            (
                "        return [message for turn in turns for message in turn]",
                "        self.messages = [message for turn in turns for message in turn]\n        return list(self.messages)",
            ),
        ),
        "view",
        "making a view that fits the budget changed what is stored",
        "compact a copy",
        BEHAVIOUR,
    ),
    Case(
        "a context that does not compact",
        "context",
        (("while token_budget and", "while False and"),),
        "view",
        "token_budget makes no difference",
        "leave out the oldest turns",
        BEHAVIOUR,
        "warning",
    ),
]

CORPUS = [*IMPORT, *FOLDER, *MOUNT, *PROTOCOL, *SCHEMA, *CLEANUP, *SUITE]


@pytest.mark.parametrize("case", CORPUS, ids=str)
def test_what_is_wrong_is_found_and_how_to_mend_it_is_told(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_NO_INDEX", "1")
    folder = write_module(tmp_path / "thing", spoiled(case.kind, *case.changes), case.project)
    report = validated(folder, **case.options)
    check = named(report)[case.check]
    assert (check.passed, check.severity) == (False, case.severity), report.checks
    assert case.message in check.message
    assert case.advice in (check.advice or "")
    assert report.passed == (case.severity != "error"), report.failed
    for one in report.checks:
        assert "Traceback" not in one.message
        assert one.passed or one.advice, one


def test_the_corpus_is_large_and_has_every_kind() -> None:
    assert len(CORPUS) >= 60
    assert {case.kind for case in CORPUS} == {"tool", "provider", "hook", "orchestrator", "context"}
    assert len({str(case) for case in CORPUS}) == len(CORPUS)
