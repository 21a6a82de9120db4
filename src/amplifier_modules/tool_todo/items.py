"""The list itself: what an item is, and the file that keeps a list between sessions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from amplifier_support.atomic_write import write_atomically

Status = Literal["pending", "in_progress", "completed"]

FILE_NAME = "todo.json"


class Item(BaseModel):
    """One thing to do.

    Attributes:
        content: What is to be done, as an order: "Run the tests".
        status: How far it is.
        active_form: The same while it is being done: "Running the tests".
    """

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)

    content: str = Field(min_length=1, max_length=2000)
    status: Status = "pending"
    active_form: str | None = Field(
        default=None,
        max_length=2000,
        validation_alias=AliasChoices("active_form", "activeForm"),
        serialization_alias="activeForm",
    )

    def as_data(self) -> dict[str, Any]:
        """The item as plain data, in the spelling that models and other modules know."""
        return self.model_dump(by_alias=True, exclude_none=True)


_ITEMS = TypeAdapter(list[Item])


class InvalidItems(Exception):
    """What the model gave is no list of items; the message is for the model."""


def read_items(given: Any, most: int) -> list[Item]:
    """The items of a tool call.

    Raises:
        InvalidItems: Something is missing, misspelt or too much.
    """
    if not isinstance(given, list):
        raise InvalidItems("'todos' must be a list of items with 'content' and 'status'")
    if len(given) > most:
        raise InvalidItems(f"{len(given)} items are more than {most}; merge the small ones")
    try:
        return _ITEMS.validate_python(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        index, *path = first["loc"]
        where = f"todos[{index}]" + "".join(f".{step}" for step in path)
        raise InvalidItems(f"{where}: {first['msg'][:1].lower()}{first['msg'][1:]}") from error


def load(folder: Path) -> list[Item]:
    """The list that was kept in a session's folder; empty if there is none.

    Raises:
        OSError: It is there and cannot be read.
        ValueError: It is damaged.
    """
    try:
        data = (folder / FILE_NAME).read_bytes()
    except FileNotFoundError:
        return []
    return _ITEMS.validate_python(json.loads(data))


def save(folder: Path, items: Sequence[Item]) -> None:
    """Keep the list; the file is replaced whole.

    Raises:
        OSError: It cannot be written; what was kept before is still there.
    """
    data = json.dumps([item.as_data() for item in items], ensure_ascii=False)
    write_atomically(folder / FILE_NAME, data.encode(), durable=False)
