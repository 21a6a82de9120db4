"""Change one value of a YAML file and keep everything else: comments, order, quotes, line endings.

A file that cannot be parsed is never touched. The new text is parsed before it is written, and must
contain the change and everything that was there before. The write is atomic, and one process at a time
changes files.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from amplifier_app.base.atomic_write import write_whole
from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.base.locks import changing_settings
from amplifier_app.plan.tree import edit_text
from amplifier_app.plan.tree.nodes import Node, plain_data
from amplifier_app.plan.tree.problems import Problems
from amplifier_app.plan.tree.yaml_reader import read_bytes, read_yaml

_MARK = "\ufeff"


def set_value(file: Path, keys: Sequence[str], value: Any) -> bool:
    """Put a value at an address: `("tools", "tool-bash", "config", "timeout")`.

    Missing mappings are created, and so is the file. A list entry is found by its instance id, its
    module id or its position.

    Args:
        file: The file; links are followed. A new file in the user's config folder gets mode 0600.
        keys: The address.
        value: Plain data: str, int, float, bool, None, lists and dicts of these.

    Returns:
        Whether anything changed.

    Raises:
        PlanError: The file is not valid YAML.
        ConfigError: The address does not exist, or the file cannot be read, edited or written.
    """
    return set_values(file, [(keys, value)])


def set_values(file: Path, values: Sequence[tuple[Sequence[str], Any]]) -> bool:
    """Set several values; if one fails, none is written.

    Args:
        file: See `set_value`.
        values: Addresses and values, in order.

    Returns:
        Whether anything changed.

    Raises:
        PlanError: See `set_value`.
        ConfigError: See `set_value`.
    """

    def edit(text: str, name: str) -> str:
        for keys, value in values:
            text = edit_text.with_set(text, name, keys, value)
        return text

    def apply(data: Any) -> None:
        for keys, value in values:
            _set(data, keys, value)

    return _change(file, values[0][0] if values else (), edit, apply)


def append_value(file: Path, keys: Sequence[str], value: Any) -> bool:
    """Append a value to the list at an address; a missing list is created.

    Raises:
        PlanError: See `set_value`.
        ConfigError: See `set_value`; also if the value at the address is not a list.
    """
    return _change(
        file,
        keys,
        lambda text, name: edit_text.with_appended(text, name, keys, value),
        lambda data: _append(data, keys, value),
    )


@changing_settings()
def remove_value(file: Path, keys: Sequence[str]) -> bool:
    """Remove the value at an address, and the collections that this would leave empty.

    Returns:
        Whether the address existed.

    Raises:
        PlanError: See `set_value`.
        ConfigError: See `set_value`.
    """
    emptied = _outermost_emptied(_data(_read(file), file), keys)
    if emptied is None:
        return False
    return _change(
        file,
        emptied,
        lambda text, name: edit_text.with_removed(text, name, emptied),
        lambda data: _remove(data, emptied),
    )


@changing_settings()
def _change(
    file: Path,
    keys: Sequence[str],
    edit: Callable[[str, str], str],
    apply: Callable[[Any], None],
) -> bool:
    text = _read(file)
    before = _data(text, file)
    mark = _MARK if text.startswith(_MARK) else ""
    address = ".".join(keys)
    by_hand = "change the file by hand"
    try:
        changed = mark + edit(text.removeprefix(_MARK), str(file))
    except edit_text.NotEditable as error:
        message = f"cannot change {address!r}: {error.reason}"
        raise ConfigError(message, location=error.at, hint=by_hand) from None
    wanted = copy.deepcopy(before)
    apply(wanted)
    if _same(before, wanted):
        return False
    problems = Problems()
    root = read_yaml(changed.encode(), str(file), problems)
    if problems or not _same(_plain(root), wanted):
        message = f"cannot change {address!r} without changing something else"
        raise ConfigError(message, location=Location(str(file)), hint=by_hand)
    write_whole(file, changed)
    return True


# -- data --------------------------------------------------------------------------------


def _data(text: str, file: Path) -> dict[str, Any]:
    problems = Problems()
    root = read_yaml(text.encode(), str(file), problems)
    data = _plain(root)
    if root is not None and not isinstance(data, dict):
        problems.add("the file is not a mapping", root.at)
    problems.raise_if_any()
    return data


def _plain(root: Node | None) -> Any:
    data = plain_data(root) if root is not None else None
    return {} if data is None else data


def _same(one: Any, other: Any) -> bool:
    """Whether the data are equal; 1, 1.0 and true are not."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _place(data: Any, key: str) -> Any:
    """The index of `key` in `data`; None if it is missing."""
    if isinstance(data, dict):
        return key if key in data else None
    if not isinstance(data, list):
        return None
    names = [
        (entry.get("instance_id"), entry.get("module"))
        if isinstance(entry, dict)
        else (None, entry)
        for entry in data
    ]
    return edit_text.entry_index(names, key)


def _set(data: Any, keys: Sequence[str], value: Any) -> None:
    key, *rest = keys
    place = _place(data, key)
    if rest:
        below = None if place is None else data[place]
        if isinstance(data, list) and isinstance(below, str):
            below = {"module": below}
        below = {} if below is None else below
        _set(below, rest, value)
        value = below
    index: Any = key if place is None else place
    data[index] = value


def _append(data: Any, keys: Sequence[str], value: Any) -> None:
    existing: Any = data
    for key in keys:
        place = _place(existing, key)
        existing = None if place is None else existing[place]
    _set(data, keys, [*(existing or ()), value])


def _remove(data: Any, keys: Sequence[str]) -> None:
    for key in keys[:-1]:
        data = data[_place(data, key)]
    del data[_place(data, keys[-1])]


def _outermost_emptied(data: Any, keys: Sequence[str]) -> Sequence[str] | None:
    """The address of the outermost value that contains nothing else than the value at `keys`."""
    outermost = 0
    for depth, key in enumerate(keys):
        place = _place(data, key)
        if place is None:
            return None
        outermost = outermost if len(data) == 1 else depth
        data = data[place]
    return keys[: outermost + 1]


# -- files -------------------------------------------------------------------------------


def _read(file: Path) -> str:
    if not os.path.lexists(file):
        return ""
    data = read_bytes(file, str(file), "the file")
    problems = Problems()
    read_yaml(data, str(file), problems)
    problems.raise_if_any()
    return data.decode()
