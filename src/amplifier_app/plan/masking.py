"""A plan without its secrets, for display and storage."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any, cast

from amplifier_app.base.redact import redactor
from amplifier_app.plan.tree.entries import with_agents
from amplifier_app.plan.tree.interpolation import names_in
from amplifier_app.plan.tree.nodes import (
    ListNode,
    MapNode,
    Node,
    Scalar,
    ScalarValue,
    map_scalars,
    with_items,
)
from amplifier_support.include_lines import escape_includes
from amplifier_support.redaction import Redactor
from amplifier_support.secret_shapes import SENSITIVE_KEYS, is_secret_name, names_variable

MASK = "[REDACTED]"

_MARK = re.compile(r"\[REDACTED:[a-z0-9-]+\]")
_SHORTEST_TOKEN = 14

_USERINFO = r"(?<=://)[^/@\s:]*:[^/@\s]*(?=@)"
# Without a password, the user name may be a token.
_TOKEN = r"(?:(?<=https://)|(?<=http://))[^/@\s:?#$]+(?=@)"
_QUERY = r"([?&]([^=&#\s]+)=)(?!\$)[^&#\s]+"


def masked_tree(tree: MapNode, *, written: bool = False) -> MapNode:
    """A plan with secrets masked; every value keeps its location.

    A value from a variable whose name suggests a secret becomes `${NAME}`; a literal value under a
    key whose name suggests a secret, or with the form of a token, becomes `[REDACTED]`. Every literal `$`, and the `@` of an
    include-like line of an instruction, is doubled, so the result can be read as a plan again.

    Args:
        tree: The plan.
        written: Whether variables in the tree are not expanded yet.
    """
    return _by_section(tree, lambda key, node: _masked(node, key, written))


def without_secrets(data: Any, known: Iterable[str]) -> Any:
    """The plain data of a masked plan, with the secrets inside longer texts masked as well.

    Args:
        data: The data.
        known: Values that are secret whatever they look like.
    """
    redact = redactor(known).text

    def masked(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: masked(inner) for key, inner in cast("dict[Any, Any]", value).items()}
        if isinstance(value, list):
            return [masked(inner) for inner in cast("list[Any]", value)]
        return _MARK.sub(MASK, redact(value)) if isinstance(value, str) else value

    return masked(data)


def open_tree(tree: MapNode, *, written: bool = False) -> MapNode:
    """A plan with nothing masked, and each literal `$` and `@` doubled.

    Args:
        tree: The plan.
        written: Whether variables in the tree are not expanded yet.
    """

    def opened(node: Scalar) -> Scalar:
        is_variable = written and not node.literal
        return node if is_variable else node._replace(value=_escaped(node.value))

    return _by_section(tree, lambda _, node: map_scalars(node, opened))


def _by_section(tree: MapNode, change: Callable[[str, Node], Node]) -> MapNode:
    # The name of an agent does not make its content secret.
    items = {key: change(key, node) for key, node in tree.items.items()}
    if isinstance(tree.items.get("agents"), MapNode):
        by_agent = with_agents(tree, lambda _, agent: _by_section(agent, change))
        items["agents"] = by_agent.items["agents"]
    namespaces = tree.items.get("namespaces")
    if isinstance(namespaces, MapNode):
        # Nor does the name of a namespace.
        named = {name: change("", node) for name, node in namespaces.items.items()}
        items["namespaces"] = with_items(namespaces, named)
    instruction = items.get("instruction")
    if isinstance(instruction, Scalar) and "@" in str(instruction.value):
        items["instruction"] = instruction._replace(value=escape_includes(str(instruction.value)))
    return with_items(tree, items)


def _masked(node: Node, key: str, written: bool) -> Node:
    escape = True
    if isinstance(node, Scalar):
        escape = node.literal if written else not node.unset
        node = _as_unfilled(node) if written else node
    if is_secret_key(key) and not names_variable(key, getattr(node, "value", None)):
        return Scalar(_masked_secret(node), node.at)
    if isinstance(node, MapNode):
        return with_items(node, {k: _masked(v, k, written) for k, v in node.items.items()})
    if isinstance(node, ListNode):
        return ListNode([_masked(item, "", written) for item in node.items], node.at)
    return node._replace(value=_masked_scalar(node, escape))


def is_secret_key(key: str) -> bool:
    """Return True if the value of this config key is a secret."""
    # The kernel's list; a module's config may add words around it (`github_token`).
    return key.lower() in SENSITIVE_KEYS or is_secret_name(key)


def _as_unfilled(node: Scalar) -> Scalar:
    """The string marked as `interpolate` would: with the secrets it is expanded from."""
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
    is_token = isinstance(node.value, str) and _is_token(node.value)
    if (node.secret or is_token) and node.expression is not None:
        return _references(node.expression)
    if is_token:
        return MASK
    if isinstance(node.value, str):
        shown = re.sub(_USERINFO, MASK, node.value)
        # In prose a URL is an example.
        if "://" in shown and len(shown.split()) == 1:
            shown = re.sub(_TOKEN, MASK, shown)
            shown = re.sub(_QUERY, _masked_query, shown)
        return _escaped(shown) if escape else shown
    return node.value


def _is_token(text: str) -> bool:
    """Return True if a value is one word with the form of a secret; texts with examples of them stay."""
    if len(text) < _SHORTEST_TOKEN or len(text.split()) != 1 or "://" in text or "$" in text:
        return False
    return re.search("[0-9]", text) is not None and _redactor().text(text) is not text


@functools.cache
def _redactor() -> Redactor:
    return Redactor()


def _masked_query(match: re.Match[str]) -> str:
    return f"{match[1]}{MASK}" if is_secret_key(match[2]) else match[0]


def _references(expression: str) -> str:
    """The variables alone: the text around them, or their defaults, may be secret too."""
    return "".join(f"${{{name}}}" for name in names_in(expression))


def _escaped(value: ScalarValue) -> ScalarValue:
    return value.replace("$", "$$") if isinstance(value, str) else value
