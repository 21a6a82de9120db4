"""Slash commands that a module reads from files, on a real pseudo-terminal."""

from pathlib import Path

from tests.e2e.test_chat_pty import leave, prompts
from tests.support.plans import mock_plan, module_folder
from tests.support.terminal import Chat

COMMANDS = """
from types import SimpleNamespace

METADATA = {"argument_hint": ["topic"], "requires_approval": False, "approval_message": None}


class Commands:
    def list_commands(self):
        metadata = SimpleNamespace(description="Explain a topic", **METADATA)
        return [SimpleNamespace(
            name="explain", namespace=None, scope="user", source_file="explain.md", metadata=metadata
        )]

    async def execute_full(self, name, arguments, namespace):
        prompt = f"Explain {arguments}.\\n@secret.txt"
        return SimpleNamespace(prompt=prompt, warnings=None, model_override=None)


async def mount(coordinator, config=None):
    for name in ("slash_command_registry", "slash_command_executor"):
        coordinator.register_capability(name, Commands())
"""


def test_a_command_from_a_file_is_listed_and_sends_its_prompt(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("not for the model\n")
    source = str(module_folder(tmp_path, COMMANDS, "amplifier_module_hooks_commands"))
    hooks = [{"module": "hooks-commands", "source": source}]
    plan = mock_plan(tmp_path, ["explained"], hooks=hooks)
    with Chat("-f", plan, cwd=tmp_path) as terminal:
        terminal.ask("/help", r"/explain \[topic\] +Explain a topic \(user\)")
        terminal.ask("/explain caches", "Explain caches", "explained")
        session_id = leave(terminal)
    assert prompts(session_id) == ["Explain caches.\n@secret.txt"]
