"""The stored trees of the bundled profiles: `python -m tests.meta.profile_trees` writes them."""

import json
from typing import Any

from amplifier_app.base.paths import bundled_profiles_dir
from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node
from amplifier_app.plan.tree.problems import Problems
from amplifier_app.plan.tree.yaml_reader import STORED, read_yaml

FILE = bundled_profiles_dir() / STORED


def parse(text: str, file: str) -> tuple[Node, int]:
    """Return the tree of a YAML text, and the number of its values."""
    problems = Problems()
    root = read_yaml(text.encode(), file, problems)
    assert root is not None
    assert not problems.found
    values = 0
    while problems.budget.spend("values", 1):
        values += 1
    return root, values


def store(node: Node) -> list[Any]:
    """Return the form of a node in the file."""
    place = [node.at.line, node.at.column]
    if isinstance(node, ListNode):
        return [*place, [store(item) for item in node.items]]
    if isinstance(node, MapNode):
        keys = {key: (at.line, at.column) for key, at in node.keys.items()}
        return [*place, {key: [store(item), *keys[key]] for key, item in node.items.items()}]
    return [*place, node.value, node.plain]


def trees() -> str:
    """Return the content of the file."""
    stored: dict[str, Any] = {}
    _, left_after_one = parse("a", "one.yaml")
    for path in sorted(bundled_profiles_dir().glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        # Under another name, or else the stored tree would be read.
        root, left = parse(text, path.name)
        values = left_after_one + 1 - left
        stored[path.name] = {"text": text, "values": values, "tree": store(root)}
    return json.dumps(stored, indent=None, separators=(",", ":")) + "\n"


if __name__ == "__main__":
    FILE.write_text(trees(), encoding="utf-8")
