"""Checks of a module's id and config before settings are changed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import import_module

from amplifier_app.base import installed
from amplifier_app.base.errors import UsageError
from amplifier_app.plan.masking import is_secret_key
from amplifier_app.plan.schema.module_schemas import config_schema
from amplifier_app.plan.schema.rules import ID
from amplifier_app.plan.tree.interpolation import names_in
from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node, text_of
from amplifier_app.plan.tree.problems import PlanError
from amplifier_support.did_you_mean import did_you_mean
from amplifier_support.secret_names import names_variable


def check_id(module: str) -> None:
    """Check the form of a module id.

    Raises:
        UsageError: It is not a valid id.
    """
    if not re.fullmatch(ID, module):
        hint = "Pass its location with --source." if "/" in module or ":" in module else None
        raise UsageError(
            f"{module!r} is not a module id (letters, digits, '-', '_', '.')", hint=hint
        )


def refuse_near_miss(module: str, known: Iterable[str]) -> None:
    """Refuse an unknown id that resembles a known one.

    Raises:
        UsageError: The id is probably misspelt.
    """
    names = set(known)
    near = did_you_mean(module, names) if module not in names else None
    if near is not None:
        raise UsageError(f"unknown module {module!r}; {near}")


def check_config(module: str, config: MapNode) -> None:
    """Validate the configuration of a bundled module against its schema.

    Raises:
        PlanError: The configuration does not match the schema.
        ModuleError: The module's schema is invalid.
    """
    own = installed.bundled_modules().get(module)
    if own is None or not config.items:
        # Third-party code is not imported to change settings.
        return
    from amplifier_app.plan.schema.config_check import config_problems

    schema = config_schema(import_module(own.entry_point.partition(":")[0]))
    if schema is not None:
        entry = MapNode({"config": _with_variables(config)}, config.at)
        found = config_problems(entry, module, schema, partial=True)
        if found:
            raise PlanError(found)


def _with_variables(node: Node) -> Node:
    """The configuration with texts that contain variables marked, as their value is unknown."""
    if isinstance(node, MapNode):
        items = {key: _with_variables(value) for key, value in node.items.items()}
        return MapNode(items, node.at, node.keys)
    if isinstance(node, ListNode):
        return ListNode([_with_variables(value) for value in node.items], node.at)
    text = text_of(node)
    return node._replace(unset=tuple(names_in(text))) if text is not None else node


def open_secrets(config: MapNode) -> str | None:
    """The warning about a secret in plain text; None if there is none."""
    names = [
        key
        for key, node in config.items.items()
        if is_secret_key(key)
        and (value := text_of(node)) is not None
        and "${" not in value
        and not names_variable(key, value)
    ]
    if not names:
        return None
    return (
        f"{names[0]} is stored in plain text; better set an environment variable and use "
        f"--config '{names[0]}=${{VARIABLE}}'"
    )
