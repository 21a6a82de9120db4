"""The tool as models see it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

from amplifier_core.models import ToolResult
from amplifier_modules._shared.module.spans import event_ids
from amplifier_modules._shared.privacy.session_secrets import session_secrets
from amplifier_modules.tool_todo import items
from amplifier_modules.tool_todo.config import TodoConfig
from amplifier_modules.tool_todo.items import InvalidItems, Item
from amplifier_support.session_capabilities import SESSION_DIR

logger = logging.getLogger(__name__)

TODO_UPDATED = "todo:updated"
TODO_EVENTS = (TODO_UPDATED,)
"""Events this module emits in addition to the kernel's."""

_ACTIONS = ("create", "update", "list")


class TodoTool:
    """The list of one session (Tool Contract): a failure is a result, never an exception.

    The model always gives the whole list, so its view and the stored list cannot differ. The
    current list is also `coordinator.todo_state`, where published modules look for it.
    """

    name = "todo"
    description = (
        "Keep a to-do list for a task of several steps. 'create' and 'update' take "
        "the whole list and replace it; 'list' returns it. Mark an item in_progress "
        "before you start it and completed as soon as it is done; keep one in progress at a time."
    )
    input_schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {
            "action": {
                "type": "string",
                "enum": list(_ACTIONS),
                "description": "create or update: replace the list; list: return it",
            },
            "todos": {
                "type": "array",
                "description": "The complete list, for create and update",
                "items": {
                    "type": "object",
                    "properties": {
                        "content": {
                            "type": "string",
                            "description": "What to do, as an imperative: 'Run the tests'",
                        },
                        "status": {
                            "type": "string",
                            "enum": ["pending", "in_progress", "completed"],
                        },
                        "activeForm": {
                            "type": "string",
                            "description": "The same in progress: 'Running the tests'",
                        },
                    },
                    "required": ["content", "status"],
                    "additionalProperties": False,
                },
            },
        },
        "required": ["action"],
        "additionalProperties": False,
    }

    def __init__(self, coordinator: Any, config: TodoConfig) -> None:
        self._coordinator = coordinator
        self._config = config
        self._items = self._kept_before()
        self._publish()

    def get_schema(self) -> dict[str, Any]:
        """JSON schema of the input."""
        return self.input_schema

    def items(self) -> list[dict[str, Any]]:
        """The list as plain data: `content`, `status`, and `activeForm` if given."""
        return [item.as_data() for item in self._items]

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        """Run the tool; `error` of a failure has `message` and `type`."""
        given: Any = input
        if not isinstance(given, Mapping):
            return _failure(f"the input must be an object, not {type(given).__name__}")
        values = cast("Mapping[str, Any]", given)
        action = values.get("action")
        if action not in _ACTIONS:
            return _failure(f"'action' must be one of {', '.join(_ACTIONS)}, not {action!r}")
        if action == "list":
            return ToolResult(output=self._summary("listed"))
        try:
            new = items.read_items(values.get("todos"), self._config.max_items)
        except InvalidItems as error:
            return _failure(str(error))
        self._items = new
        note = self._keep()
        await self._coordinator.hooks.emit(TODO_UPDATED, {"todos": self.items(), **event_ids()})
        output = self._summary(f"{action}d")
        return ToolResult(output={**output, "note": note} if note else output)

    def _summary(self, status: str) -> dict[str, Any]:
        counts = {"pending": 0, "in_progress": 0, "completed": 0}
        for item in self._items:
            counts[item.status] += 1
        return {"status": status, "count": len(self._items), **counts, "todos": self.items()}

    # -- storage ------------------------------------------------------------------------

    @property
    def _folder(self) -> Path | None:
        folder = SESSION_DIR.of(self._coordinator) if self._config.save else None
        return Path(folder) if folder else None

    def _kept_before(self) -> list[Item]:
        """The list saved by the session before it was resumed."""
        folder = self._folder
        if folder is None:
            return []
        try:
            return items.load(folder)
        except (OSError, ValueError) as error:
            logger.warning(
                "cannot read the to-do list in %s (%s); starting with an empty one",
                folder / items.FILE_NAME,
                error,
            )
            return []

    def _keep(self) -> str | None:
        """Publish and save the list; returns a note for the model if it could not be saved."""
        self._publish()
        folder = self._folder
        if folder is None:
            return None
        try:
            items.save(folder, self._items, session_secrets(self._coordinator))
        except OSError as error:
            logger.warning("cannot save the to-do list in %s: %s", folder, error)
            return f"the list is kept for this session, but could not be saved: {error.strerror or error}"
        return None

    def _publish(self) -> None:
        self._coordinator.todo_state = self.items()


def _failure(message: str) -> ToolResult:
    return ToolResult(success=False, error={"message": message, "type": "InvalidInput"})
