"""The list: its items, and the file that keeps it between sessions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from amplifier_support.atomic_write import write_atomically
from amplifier_support.private_files import read_regular
from amplifier_support.redaction import Redactor

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


def read_items(given: Any, max_items: int) -> list[Item]:
    """Validate the items of a tool call.

    Raises:
        InvalidItems: A key is missing or unknown, or there are too many items.
    """
    if not isinstance(given, list):
        raise InvalidItems("'todos' must be a list of items with 'content' and 'status'")
    if len(given) > max_items:
        raise InvalidItems(
            f"{len(given)} items are too many, the limit is {max_items}; merge small ones"
        )
    try:
        return _ITEMS.validate_python(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        index, *path = first["loc"]
        where = f"todos[{index}]" + "".join(f".{step}" for step in path)
        raise InvalidItems(f"{where}: {first['msg'][:1].lower()}{first['msg'][1:]}") from error


def load(folder: Path) -> list[Item]:
    """The list saved in a session's folder; empty if there is none.

    Raises:
        OSError: It cannot be read.
        ValueError: It is damaged.
    """
    try:
        data = read_regular(folder / FILE_NAME)
    except FileNotFoundError:
        return []
    try:
        return _ITEMS.validate_python(json.loads(data))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def save(folder: Path, items: Sequence[Item], secrets: Iterable[str] = ()) -> None:
    """Save the list atomically, with these values and all that looks like a secret redacted.

    Raises:
        OSError: It cannot be written; the file saved before is unchanged.
    """
    without_secrets = Redactor(secrets).value([item.as_data() for item in items])
    data = json.dumps(without_secrets, ensure_ascii=False)
    write_atomically(folder / FILE_NAME, data.encode(), durable=False)
