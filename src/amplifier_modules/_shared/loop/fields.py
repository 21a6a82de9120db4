"""Reads a field of a typed model or a mapping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast


def read(thing: Any, name: str, default: Any = None) -> Any:
    """A field of a model or of a mapping."""
    if isinstance(thing, Mapping):
        return cast("Mapping[str, Any]", thing).get(name, default)
    return getattr(thing, name, default)
