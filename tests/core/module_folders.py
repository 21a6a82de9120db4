"""Real module packages on disk, for tests that load modules."""

import itertools
import sys
import textwrap
from pathlib import Path

import pytest

_serial = itertools.count()


class ModuleFolders:
    """Writes packages to a temporary folder, by default each with a different name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known = set(sys.modules)

    def package(self, code: str, name: str | None = None, **files: str) -> Path:
        """A package folder with ``code`` as its ``__init__.py`` and ``files`` as its modules."""
        folder = self.root / (name or f"sample_module_{next(_serial)}")
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(textwrap.dedent(code))
        for stem, text in files.items():
            (folder / f"{stem}.py").write_text(textwrap.dedent(text))
        return folder

    def forget(self) -> None:
        """Remove modules from these folders from ``sys.modules``."""
        for name in set(sys.modules) - self._known:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).is_relative_to(self.root):
                del sys.modules[name]


@pytest.fixture
def module_folders(tmp_path: Path):
    folders = ModuleFolders(tmp_path.resolve())
    yield folders
    folders.forget()


TOOL = """
    from amplifier_core.models import ToolResult

    __amplifier_module_type__ = "tool"

    class Shout:
        name = "shout"
        description = "Gives its text back in capitals."
        input_schema = {"type": "object", "properties": {"text": {"type": "string"}}}

        async def execute(self, input):
            if "text" not in input:
                return ToolResult(success=False, error={"message": "text is missing"})
            return ToolResult(output=input["text"].upper())

    async def mount(coordinator, config=None):
        await coordinator.mount("tools", Shout())
"""

PROVIDER = """
    from amplifier_core.message_models import ChatResponse, TextBlock
    from amplifier_core.models import ModelInfo, ProviderInfo

    class Parrot:
        name = "parrot"

        def get_info(self):
            return ProviderInfo(id="parrot", display_name="Parrot")

        async def list_models(self):
            return [ModelInfo(id="p", display_name="P", context_window=9, max_output_tokens=9)]

        async def complete(self, request, **kwargs):
            return ChatResponse(content=[TextBlock(text="Hello")])

        def parse_tool_calls(self, response):
            return response.tool_calls or []

    async def mount(coordinator, config=None):
        await coordinator.mount("providers", Parrot(), name="parrot")
"""

HOOK = """
    from amplifier_core.models import HookResult

    async def watch(event, data):
        return HookResult(action="continue")

    async def mount(coordinator, config=None):
        return coordinator.hooks.register("tool:pre", watch)
"""

ORCHESTRATOR = """
    class Once:
        async def execute(self, prompt, context, providers, tools, hooks, **kwargs):
            await context.add_message({"role": "user", "content": prompt})
            provider = next(iter(providers.values()))
            response = await provider.complete({"messages": await context.get_messages()})
            return response.content[0].text

    async def mount(coordinator, config=None):
        await coordinator.mount("orchestrator", Once())
"""

CONTEXT = """
    class Notebook:
        def __init__(self):
            self.messages = []

        async def add_message(self, message):
            self.messages.append(message)

        async def get_messages_for_request(self, token_budget=None, provider=None):
            return list(self.messages)

        async def get_messages(self):
            return list(self.messages)

        async def set_messages(self, messages):
            self.messages = list(messages)

        async def clear(self):
            self.messages = []

    async def mount(coordinator, config=None):
        await coordinator.mount("context", Notebook())
"""

SAMPLES = {
    "provider": PROVIDER,
    "tool": TOOL,
    "hook": HOOK,
    "orchestrator": ORCHESTRATOR,
    "context": CONTEXT,
}
"""A valid module of each kind."""
