"""Settings of tool-todo."""

from __future__ import annotations

from pydantic import Field

from amplifier_modules._shared.module.config import ModuleConfig

MODULE_ID = "tool-todo"


class TodoConfig(ModuleConfig):
    """Settings of tool-todo.

    Attributes:
        max_items: Maximum number of items.
        save: Keep the list in the session's folder, for resumed sessions.
    """

    max_items: int = Field(default=100, ge=1)
    save: bool = True
