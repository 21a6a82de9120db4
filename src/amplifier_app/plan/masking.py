"""A plan as it may be shown and stored: structure and values, no secrets."""

from __future__ import annotations

import re
from typing import Any

from amplifier_app.plan.interpolation import is_secret_name, names_in
from amplifier_app.plan.nodes import (
    ListNode,
    MapNode,
    Node,
    Scalar,
    ScalarValue,
    plain_data,
    with_items,
)

MASK = "[REDACTED]"

_USERINFO = r"(?<=://)[^/@\s:]*:[^/@\s]*(?=@)"


def masked_data(node: Node) -> Any:
    """`masked_tree` as plain data."""
    return plain_data(masked_tree(node))


def masked_tree(node: Node, key: str = "", *, written: bool = False) -> Node:
    """The tree with secrets masked; every value keeps its place.

    A value that came from a variable with a secret's name is shown as the `${NAME}` it
    came from, one that stands in the plan itself under a key with a secret's name as
    `[REDACTED]`. A `$` that is meant as such is doubled, so what this gives can be read
    as a plan again.

    Args:
        node: The tree.
        key: The key it stands under.
        written: Whether the tree is as the files say it, no variable filled in yet.
    """
    escape = True
    if isinstance(node, Scalar):
        escape = node.literal if written else not node.unset
        node = _as_unfilled(node) if written else node
    if is_secret_key(key):
        return Scalar(_masked_secret(node), node.at)
    if isinstance(node, MapNode):
        items = {k: masked_tree(v, k, written=written) for k, v in node.items.items()}
        return with_items(node, items)
    if isinstance(node, ListNode):
        return ListNode([masked_tree(one, written=written) for one in node.items], node.at)
    return node._replace(value=_masked_scalar(node, escape))


def open_data(node: Node) -> Any:
    """The tree as plain data with nothing masked, a `$` that is meant as such doubled."""
    if isinstance(node, MapNode):
        return {name: open_data(value) for name, value in node.items.items()}
    if isinstance(node, ListNode):
        return [open_data(value) for value in node.items]
    return _escaped(node.value)


def is_secret_key(key: str) -> bool:
    """Whether what a config holds under this key is a secret."""
    # The kernel's own list; a module's config may add words around it (`github_token`).
    from amplifier_core.utils.truncate import SENSITIVE_KEYS

    return key.lower() in SENSITIVE_KEYS or is_secret_name(key)


def _as_unfilled(node: Scalar) -> Scalar:
    """The text as `interpolate` marks one: which secrets it is filled from."""
    if node.literal or not isinstance(node.value, str):
        return node
    names = tuple(names_in(node.value))
    secret = any(is_secret_name(name) for name in names)
    return node._replace(expression=node.value if names else None, secret=secret)


def _masked_secret(node: Node) -> ScalarValue:
    if isinstance(node, Scalar) and node.expression is not None:
        return _references(node.expression)
    if isinstance(node, Scalar) and (node.value is None or isinstance(node.value, bool)):
        return node.value
    return MASK


def _masked_scalar(node: Scalar, escape: bool) -> ScalarValue:
    if node.secret and node.expression is not None:
        return _references(node.expression)
    if isinstance(node.value, str):
        shown = re.sub(_USERINFO, "***", node.value)
        return _escaped(shown) if escape else shown
    return node.value


def _references(expression: str) -> str:
    """The variables alone: what stands around them, or as their default, may be secret too."""
    return "".join(f"${{{name}}}" for name in names_in(expression))


def _escaped(value: ScalarValue) -> ScalarValue:
    return value.replace("$", "$$") if isinstance(value, str) else value
