"""What hooks-context-files mounts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amplifier_core.events import PROMPT_SUBMIT, TOOL_POST
from amplifier_modules.hooks_context_files.config import LOADED, MODULE_ID, ContextFilesConfig
from amplifier_modules.hooks_context_files.hook import ContextFilesHook


async def mount(coordinator: Any, settings: ContextFilesConfig) -> Callable[[], None]:
    """Answer `prompt:submit` and `tool:post` with files; settings as in `ContextFilesConfig`.

    Returns:
        A cleanup function that removes the hook.
    """
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
