"""Access to data that may have any form: mappings, models, or neither."""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from typing import Any, cast


def read_field(data: Any, name: str, default: Any = None) -> Any:
    """A field of a model or of a mapping with the same keys; `default` if it is missing."""
    if isinstance(data, (dict, Mapping)):  # dict first: the check of an abstract class is slow
        return cast("Mapping[str, Any]", data).get(name, default)
    return getattr(data, name, default)


def to_mapping(value: Any) -> Mapping[str, Any]:
    """`value` if it is a mapping, otherwise an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, (dict, Mapping)) else {}


def content_key(value: Any) -> bytes | None:
    """Equal bytes for equal plain data; None for anything else, also for data that contains itself."""
    try:
        return marshal.dumps(value, 2)
    except ValueError:
        return None
