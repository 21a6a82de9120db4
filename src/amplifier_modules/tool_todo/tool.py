"""The tool as models see it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from amplifier_core.models import ToolResult
from amplifier_modules._shared.module.config import ModuleConfig
from amplifier_modules._shared.module.spans import event_ids
from amplifier_modules._shared.module.tools import object_schema, parameter
from amplifier_modules._shared.privacy import session_redactor
from amplifier_support.files import read_regular, write_atomically
from amplifier_support.session_capabilities import SESSION_DIR, TODO_ITEMS

logger = logging.getLogger(__name__)


MODULE_ID = "tool-todo"


class TodoConfig(ModuleConfig):
    """Settings of tool-todo.

    Attributes:
        max_items: Maximum number of items.
        save: Keep the list in the session's folder, for resumed sessions.
    """

    max_items: int = Field(default=100, ge=1)
    save: bool = True


Status = Literal["pending", "in_progress", "completed"]

FILE_NAME = "todo.json"


class Item(BaseModel):
    """One item of the list.

    Attributes:
        content: What to do, as an imperative: "Run the tests".
        status: Its progress.
        active_form: The same in progress: "Running the tests".
    """

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True, defer_build=True)

    content: str = Field(min_length=1, max_length=2000)
    status: Status = "pending"
    active_form: str | None = Field(
        default=None,
        max_length=2000,
        validation_alias=AliasChoices("active_form", "activeForm"),
        serialization_alias="activeForm",
    )

    def as_data(self) -> dict[str, Any]:
        """The item as plain data, with the keys that models and other modules know."""
        return self.model_dump(by_alias=True, exclude_none=True)


# Built on first use, which in most sessions never happens.
_ITEMS = TypeAdapter(list[Item], config=ConfigDict(defer_build=True))


class InvalidItems(Exception):
    """The input is not a list of items; the message is for the model."""


def read_items(items: Any, max_items: int) -> list[Item]:
    """Validate the items of a tool call.

    Raises:
        InvalidItems: A key is missing or unknown, or there are too many items.
    """
    if not isinstance(items, list):
        raise InvalidItems("'todos' must be a list of items with 'content' and 'status'")
    if len(items) > max_items:
        raise InvalidItems(
            f"{len(items)} items are too many, the limit is {max_items}; merge small ones"
        )
    try:
        return _ITEMS.validate_python(items)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        index, *path = first["loc"]
        where = f"todos[{index}]" + "".join(f".{step}" for step in path)
        raise InvalidItems(f"{where}: {first['msg'][:1].lower()}{first['msg'][1:]}") from error


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
    input_schema: ClassVar[dict[str, Any]] = object_schema(
        "action",
        action=parameter(
            "string", "create or update: replace the list; list: return it", enum=list(_ACTIONS)
        ),
        todos={
            "type": "array",
            "description": "The complete list, for create and update",
            "items": object_schema(
                "content",
                "status",
                content=parameter("string", "What to do, as an imperative: 'Run the tests'"),
                status={"type": "string", "enum": ["pending", "in_progress", "completed"]},
                activeForm=parameter("string", "The same in progress: 'Running the tests'"),
            ),
        },
    )

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
        arguments: Any = input
        if not isinstance(arguments, Mapping):
            return _failure(f"the input must be an object, not {type(arguments).__name__}")
        values = cast("Mapping[str, Any]", arguments)
        action = values.get("action")
        if action not in _ACTIONS:
            return _failure(f"'action' must be one of {', '.join(_ACTIONS)}, not {action!r}")
        if action == "list":
            return ToolResult(output=self._summary("listed"))
        try:
            new = read_items(values.get("todos"), self._config.max_items)
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
        file = folder / FILE_NAME
        try:
            return _ITEMS.validate_python(json.loads(read_regular(file)))
        except FileNotFoundError:
            return []
        except (OSError, ValueError, RecursionError) as error:
            why = "nested too deeply" if isinstance(error, RecursionError) else error
            text = "cannot read the to-do list in %s (%s); starting with an empty one"
            logger.warning(text, file, why)
            return []

    def _keep(self) -> str | None:
        """Publish and save the list, redacted; returns a note for the model if it could not be saved."""
        self._publish()
        folder = self._folder
        if folder is None:
            return None
        without_secrets = session_redactor(self._coordinator).value(self.items())
        data = json.dumps(without_secrets, ensure_ascii=False)
        try:
            write_atomically(folder / FILE_NAME, data.encode(), durable=False)
        except OSError as error:
            logger.warning("cannot save the to-do list in %s: %s", folder, error)
            return f"the list is kept for this session, but could not be saved: {error.strerror or error}"
        return None

    def _publish(self) -> None:
        self._coordinator.todo_state = self.items()


def _failure(message: str) -> ToolResult:
    return ToolResult(success=False, error={"message": message, "type": "InvalidInput"})


async def mount(coordinator: Any, settings: TodoConfig) -> None:
    """Mount `todo`. Settings as in `TodoConfig`."""
    tool = TodoTool(coordinator, settings)
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(TODO_EVENTS))
    TODO_ITEMS.register(coordinator, tool.items)
    await coordinator.mount("tools", tool, name=tool.name)
