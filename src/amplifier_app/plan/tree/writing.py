"""Write a plan as readable YAML: long strings as blocks, optionally the origin of each value."""

from __future__ import annotations

import os
import re
from typing import Any

import yaml

from amplifier_app.base import paths
from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node, plain_data


def yaml_text(tree: Node, *, origins: bool = False) -> str:
    """The tree as YAML.

    Args:
        tree: The tree to write, with secrets masked.
        origins: Whether to add the file and line of each value as a comment.
    """
    representer = yaml.representer.SafeRepresenter(default_flow_style=False, sort_keys=False)
    written = representer.represent_data(plain_data(tree))
    _use_blocks(written)
    # Wide enough that nothing is folded: each comment is on the line where its value begins.
    text: str = yaml.serialize(
        written, Dumper=yaml.SafeDumper, allow_unicode=True, width=float("inf")
    )
    # YAML ends a document that is a single plain value.
    text = text.removesuffix("...\n")
    if not origins:
        return text
    lines = text.splitlines()
    _annotate(yaml.compose(text, Loader=yaml.SafeLoader), tree, lines)
    return "\n".join(lines) + "\n"


def collect_origins(tree: Node) -> Any:
    """The tree with each value replaced by where it was written, as `file:line`."""
    if isinstance(tree, MapNode) and tree.items:
        return {key: collect_origins(value) for key, value in tree.items.items()}
    if isinstance(tree, ListNode) and tree.items:
        return [collect_origins(value) for value in tree.items]
    return describe_place(tree)


def describe_place(node: Node) -> str:
    """Return the location of a value, as `file:line`."""
    return str(node.at._replace(column=None))


def show_place(node: Node) -> str:
    """Return the location of a value, for people: `default.yaml:9 (bundled)`, `plan.yaml:5
    (session)`.
    """
    place = describe_place(node)
    if place.startswith(f"{paths.bundled_profiles_dir()}{os.sep}"):
        return f"{os.path.basename(place)} (bundled)"
    if place.startswith(f"{paths.sessions_dir()}{os.sep}"):
        return f"{os.path.basename(place)} (session)"
    return place


def _use_blocks(written: Any) -> None:
    """Write strings of several lines as block scalars instead of quoted."""
    if isinstance(written, yaml.ScalarNode):
        if "\n" in written.value:
            written.style = "|"
        return
    for item in written.value:
        for part in item if isinstance(item, tuple) else (item,):
            _use_blocks(part)


def _annotate(written: Any, tree: Node, lines: list[str]) -> None:
    if isinstance(tree, MapNode) and tree.items:
        for (_, below), value in zip(written.value, tree.items.values(), strict=True):
            _annotate(below, value, lines)
    elif isinstance(tree, ListNode) and tree.items:
        for below, value in zip(written.value, tree.items, strict=True):
            _annotate(below, value, lines)
    else:
        # For a block scalar this is the line with its '|', where a comment is allowed.
        place = re.sub(r"[^ -~\w]", "?", show_place(tree))
        lines[written.start_mark.line] += f"  # {place}"
