"""hooks-context-files: gives the model what AGENTS.md and the like say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__amplifier_module_type__ = "hook"


def config_schema() -> dict[str, Any]:
    """What `mount` takes as config, as JSON Schema."""
    from amplifier_modules._shared.module.config_schema import config_schema_of
    from amplifier_modules.hooks_context_files.config import ContextFilesConfig

    return config_schema_of(ContextFilesConfig)


async def mount(coordinator: Any, config: Mapping[str, Any] | None = None) -> Callable[[], None]:
    """Answer `prompt:submit` and `tool:post` with files; settings as in `ContextFilesConfig`.

    Returns:
        A function that stops doing so.

    Raises:
        ValueError: The config is not valid.
    """
    from amplifier_core.events import PROMPT_SUBMIT, TOOL_POST
    from amplifier_modules._shared.module.config import parse_config
    from amplifier_modules.hooks_context_files.config import (
        LOADED,
        MODULE_ID,
        ContextFilesConfig,
    )
    from amplifier_modules.hooks_context_files.hook import ContextFilesHook

    settings = parse_config(ContextFilesConfig, config, MODULE_ID)
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
