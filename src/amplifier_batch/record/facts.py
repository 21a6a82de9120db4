"""batch.json: the plan, the input and the options of a batch, with their digests."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from amplifier_app.base.errors import ConfigError, SessionError
from amplifier_support.readable_files import open_to_read

SCHEMA_VERSION = 1

_TEXT = (str, NoneType)
_CHANGEABLE: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("workers", "waiting"), (int, NoneType)),
    **dict.fromkeys(("max_cost", "stop_after", "engine", "address"), _TEXT),
    "deadline": (int, float, NoneType),
}
"""The fields of batch.json that commands change, with their types."""

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "rows": int,
    "repeat": (int, NoneType),
    "request": (dict, NoneType),
    "economy": (bool, NoneType),
    **dict.fromkeys(("working_dir", "input", "prompt", "workdir", "shard"), _TEXT),
    **dict.fromkeys(("plan_digest", "lock_digest", "input_digest"), _TEXT),
    **_CHANGEABLE,
}
"""The fields of batch.json that readers need, with their types."""

_PATHS = ("working_dir", "input")


def read_facts(path: Path) -> dict[str, Any]:
    """The facts in the folder of a batch.

    Raises:
        ConfigError: There is no batch.
        SessionError: They are damaged or cannot be read.
    """
    file = path / "batch.json"
    try:
        facts = read_json(file)
    except (FileNotFoundError, NotADirectoryError):
        shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        hint = f"Start one: amplifier batch run PLAN INPUT -o {shlex.quote(str(shown))}"
        if path.is_file():
            hint = "Pass the folder that was given to: amplifier batch run -o FOLDER"
        raise ConfigError(f"there is no batch in {shown}", hint=hint, is_usage=True) from None
    except OSError as error:
        raise SessionError(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, RecursionError):
        raise SessionError(f"{file} is damaged: it is not JSON") from None
    version = facts.get("schema_version") if isinstance(facts, dict) else None
    if version != SCHEMA_VERSION:
        raise SessionError(f"{file} is not of a batch that this version can read")
    for name, types in _TYPES.items():
        value = facts.get(name)
        if not isinstance(value, types) or (name in _PATHS and value and "\0" in value):
            raise SessionError(f"{file} is damaged: {name!r} is missing or has the wrong type")
    return facts


def fixed_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that stay the same for the whole batch."""
    return {name: value for name, value in facts.items() if name not in _CHANGEABLE}


def version_of(file: Path) -> tuple[int, int] | None:
    """A value that changes when a file is replaced."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def with_files(facts: Mapping[str, Any], changed: Callable[[str], str]) -> dict[str, Any]:
    """The facts with other paths of the files that can be saved in the folder."""
    found = dict(facts)
    if isinstance(source := facts.get("input"), str):
        found["input"] = changed(source)
    request = facts.get("request")
    if isinstance(request, dict) and isinstance(schema := request.get("schema"), str):
        found["request"] = {**request, "schema": changed(schema)}
    return found


def relative_to(folder: Path, file: str) -> str:
    """The name of a file that is in a folder; the path of any other."""
    return Path(file).name if Path(file).parent == folder else file


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises OSError, ValueError or RecursionError."""
    with open(open_to_read(path), "rb") as file:
        return json.load(file)
