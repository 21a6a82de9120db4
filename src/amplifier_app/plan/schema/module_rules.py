"""The forms of a plan's modules: one module, and a list of them."""

from __future__ import annotations

from collections.abc import Mapping

from amplifier_app.base.errors import Location
from amplifier_app.plan.schema.rules import ID, Check, Fields, Printing, Rule, Schema
from amplifier_app.plan.tree.entries import entry_key
from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node, Scalar
from amplifier_support.did_you_mean import did_you_mean


class Module(Fields):
    """A module: a mapping of its keys, or its id alone; read as a mapping.

    Args:
        kind: Its kind.
        description: What it is for.
        keys: The rule of each key.
        required: Whether `module` is required.
    """

    def __init__(
        self, kind: str, description: str, keys: Mapping[str, Rule], *, required: bool
    ) -> None:
        if required:
            expected, name = "a mapping that starts with 'module:'", f"{kind}_entry"
        else:
            expected, name = "a module id or a mapping with 'module'", kind
        empty = "refused" if required else "dropped"
        super().__init__(description, expected, keys, empty=empty, name=name)
        self._kind = kind
        self._required = required

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        if isinstance(node, Scalar) and isinstance(node.value, str):
            module = self.keys["module"].read(node, where, check)
            return MapNode({"module": module}, node.at) if module is not None else None
        return super().read_value(node, where, check)

    def read_items(self, node: MapNode, where: str, check: Check, *, open: bool) -> MapNode:
        if check.bundle and "id" in node.items and "instance_id" not in node.items:
            # The name of the key in bundles.
            node = _renamed(node, "id", "instance_id")
        entry = super().read_items(node, where, check, open=check.bundle)
        if self._required and "module" not in node.items:
            misspelt = any(did_you_mean(key, ["module"]) for key in node.items)
            if check.bundle or not misspelt:
                check.problems.add(f"{where} has no 'module'", node.at, "add 'module: ID'")
        return entry

    def schema(self, printing: Printing) -> Schema:
        # One rule for both forms, since most keywords apply to one type only: with alternatives, an
        # editor could report only that none of them matches.
        schema = {**super().schema(printing), "type": ["string", "object"], "pattern": ID}
        if self._required:
            schema["required"] = ["module"]
        return printing.with_modules(self._kind, schema)


class Modules(Rule):
    """A list of modules.

    Args:
        section: Its section.
        description: What they are for.
        entry: The rule of each module.
    """

    def __init__(self, section: str, description: str, entry: Module) -> None:
        super().__init__(description, name=section)
        self._entry = entry

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        if not isinstance(node, ListNode):
            return check.wrong(node, where, "a list of modules, each starting with '- module:'")
        entries: list[Node] = []
        seen: dict[str, Location] = {}
        for index, item in enumerate(node.items):
            entry = self._entry.read(item, f"{where}[{index}]", check)
            key = entry_key(entry) if entry is not None else None
            if not isinstance(entry, MapNode) or key is None or "module" not in entry.items:
                continue
            if key in seen:
                check.problems.add(
                    f"duplicate entry {key!r} in {where}: first on line {seen[key].line}",
                    entry.at,
                    "merge the two, or give one of them an 'instance_id'",
                )
                continue
            seen[key] = entry.at
            entries.append(entry)
        return ListNode(entries, node.at)

    def schema(self, printing: Printing) -> Schema:
        return {"type": ["array"], "items": printing.use(self._entry)}


def _renamed(node: MapNode, old: str, new: str) -> MapNode:
    items = {new if key == old else key: value for key, value in node.items.items()}
    return MapNode(items, node.at, {**node.keys, new: node.key_at(old)})
