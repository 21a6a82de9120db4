"""hooks-context-files: give the model the instructions in AGENTS.md and similar files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from amplifier_modules._shared.module.declaration import ConfigDeclaration

if TYPE_CHECKING:
    from amplifier_modules.hooks_context_files.config import ContextFilesConfig

__amplifier_module_type__ = "hook"

_config = ConfigDeclaration(
    "hooks-context-files", "amplifier_modules.hooks_context_files.config:ContextFilesConfig"
)
config_schema = _config.schema


@_config.parsed
async def mount(coordinator: Any, settings: ContextFilesConfig) -> Callable[[], None]:
    """Answer `prompt:submit` and `tool:post` with files; settings as in `ContextFilesConfig`.

    Returns:
        A cleanup function that removes the hook.

    Raises:
        ValueError: The config is invalid.
    """
    from amplifier_core.events import PROMPT_SUBMIT, TOOL_POST
    from amplifier_modules.hooks_context_files.config import LOADED, MODULE_ID
    from amplifier_modules.hooks_context_files.hook import ContextFilesHook

    hook = ContextFilesHook(coordinator, settings)
    handlers = {PROMPT_SUBMIT: hook.on_prompt}
    if settings.project and settings.nested:
        handlers[TOOL_POST] = hook.on_tool
    unregister = [
        coordinator.hooks.register(event, handler, priority=settings.priority, name=MODULE_ID)
        for event, handler in handlers.items()
    ]
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: [LOADED])

    def stop() -> None:
        for each in unregister:
            each()

    return stop
