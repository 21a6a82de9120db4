"""Tool parameters with more than one name.

Published tools with the same purpose name the same parameter differently, and a guard reads the name
its author knew. A tool declares alternative names as `input_aliases`, a mapping from alias to
parameter: hooks then see the value under every name, and the tool receives it under its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amplifier_support.fields import mapping_of


class AliasConflict(Exception):
    """One parameter was given different values under two names; the message is for the model."""


def input_aliases(tool: Any) -> Mapping[str, str]:
    """The aliases a tool declares, by alias."""
    return mapping_of(getattr(tool, "input_aliases", None))


def without_aliases(
    aliases: Mapping[str, str], given: dict[str, Any], shown: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The input with each parameter under its own name.

    Args:
        aliases: The tool's aliases.
        given: The input, with any of the names.
        shown: The input as hooks saw it, if `given` is their revision of it. A name whose value
            they changed takes precedence over one they left unchanged.

    Raises:
        AliasConflict: Two names of one parameter have different values, both changed.
    """
    if not aliases:
        return given
    values = {aliases.get(key, key): value for key, value in given.items()}
    changed: dict[str, str] = {}
    for key, value in given.items():
        if shown is not None and key in shown and shown[key] == value:
            continue
        name = aliases.get(key, key)
        first = changed.setdefault(name, key)
        if given[first] != value:
            raise AliasConflict(
                f"'{first}' and '{key}' are the same parameter, but their values differ; "
                f"give only '{name}'"
            )
        values[name] = value
    return values


def with_aliases(aliases: Mapping[str, str], given: dict[str, Any]) -> dict[str, Any]:
    """The input with each parameter under all of its names."""
    named = {alias: given[name] for alias, name in aliases.items() if name in given}
    return {**given, **named} if named else given
