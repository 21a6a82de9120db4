"""What cannot be right about a module that a person names, told before settings are changed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from amplifier_app.base import installed
from amplifier_app.base.errors import UsageError
from amplifier_app.plan.interpolation import names_in
from amplifier_app.plan.masking import is_secret_key
from amplifier_app.plan.nodes import ListNode, MapNode, Node, text_of
from amplifier_app.plan.problems import PlanError
from amplifier_support.did_you_mean import did_you_mean

_ID = r"[A-Za-z0-9][A-Za-z0-9._-]*"


def check_id(module: str) -> None:
    """
    Raises:
        UsageError: It is not the id of a module.
    """
    if not re.fullmatch(_ID, module):
        hint = "To say where it is, use '--source'." if "/" in module or ":" in module else None
        raise UsageError(
            f"{module!r} is not a module id (letters, digits, '-', '_', '.')", hint=hint
        )


def refuse_near_miss(module: str, known: Iterable[str]) -> None:
    """
    Raises:
        UsageError: The id is none that is known, but like one.
    """
    names = set(known)
    near = did_you_mean(module, names) if module not in names else None
    if near is not None:
        raise UsageError(f"nothing here uses a module {module!r}; {near}")


def check_config(module: str, config: MapNode) -> None:
    """Hold the configuration of a module that ships with the program against its schema.

    Raises:
        PlanError: It is not what the schema says.
        ModuleError: The module gives no valid schema.
    """
    own = installed.bundled().get(module)
    if own is None or not config.items:
        # Code of others is not imported to change settings.
        return
    from importlib import import_module

    from amplifier_app.plan.config_check import config_problems
    from amplifier_app.plan.module_schemas import config_schema

    schema = config_schema(import_module(own.entry_point.partition(":")[0]))
    if schema is not None:
        entry = MapNode({"config": _with_variables(config)}, config.at)
        found = config_problems(entry, module, schema, partial=True)
        if found:
            raise PlanError(found)


def _with_variables(node: Node) -> Node:
    """The configuration with every text that names a variable marked: it may become anything."""
    if isinstance(node, MapNode):
        items = {key: _with_variables(value) for key, value in node.items.items()}
        return MapNode(items, node.at, node.keys)
    if isinstance(node, ListNode):
        return ListNode([_with_variables(value) for value in node.items], node.at)
    text = text_of(node)
    return node._replace(unset=tuple(names_in(text))) if text is not None else node


def open_secrets(config: MapNode) -> str | None:
    """What to say of a secret that would stand in the settings as it is; None if none would."""
    names = [
        key
        for key, node in config.items.items()
        if is_secret_key(key) and (value := text_of(node)) is not None and "${" not in value
    ]
    if not names:
        return None
    return (
        f"{names[0]} stands there in plain text; better set a variable and write "
        f"--config '{names[0]}=${{VARIABLE}}'"
    )
