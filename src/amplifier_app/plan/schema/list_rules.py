"""The forms of lists in a plan whose entries are mappings: commands, rules for tool calls, providers."""

from __future__ import annotations

from typing import Any

from amplifier_app.plan.schema.rules import Check, Fields, Printing, Rule, Schema
from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node, text_of


class Entries(Rule):
    """A list whose entries are mappings.

    Args:
        description: What it is for.
        expected: What to write instead of a wrong value.
        entry: The rule of an entry.
    """

    def __init__(self, description: str, expected: str, entry: Fields, **more: Any) -> None:
        super().__init__(description, **more)
        self._expected = expected
        self._entry = entry

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        if not isinstance(node, ListNode):
            return check.wrong(node, where, self._expected)
        read = [
            self._read_one(one, f"{where}.{number}", check) for number, one in enumerate(node.items)
        ]
        return ListNode([one for one in read if one is not None], node.at)

    def _read_one(self, node: Node, where: str, check: Check) -> Node | None:
        raise NotImplementedError


class Commands(Entries):
    """A list of shell commands; read as a list of mappings with `run`."""

    def _read_one(self, node: Node, where: str, check: Check) -> Node | None:
        if text_of(node) is not None:
            node = MapNode({"run": node}, node.at)
        read = self._entry.read(node, where, check)
        if not isinstance(read, MapNode) or "run" in read.items:
            return read
        if isinstance(node, MapNode) and "run" not in node.items:
            check.problems.add(f"{where!r} has no command", node.at, "set 'run'")
        return None

    def schema(self, printing: Printing) -> Schema:
        entry = {**printing.use(self._entry), "required": ["run"]}
        return {
            "type": ["array"],
            "items": {"anyOf": [{"type": "string", "pattern": r"\S"}, entry]},
        }


class Rules(Entries):
    """A list of rules for tool calls, each with an `action`."""

    def __init__(self, description: str, entry: Fields, **more: Any) -> None:
        super().__init__(description, "a list of rules", entry, **more)

    def _read_one(self, node: Node, where: str, check: Check) -> Node | None:
        read = self._entry.read(node, where, check)
        if not isinstance(node, MapNode) or not isinstance(read, MapNode):
            return None
        if "action" not in node.items:
            check.problems.add(f"{where!r} has no action", node.at, "set 'action'")
        for key in ("tool", "path", "command"):
            patterns = read.items.get(key)
            for one in patterns.items if isinstance(patterns, ListNode) else ():
                self._check_pattern(key, one, where, check)
            if isinstance(patterns, ListNode) and not patterns.items:
                # It would match nothing, or everything.
                check.problems.add(f"'{where}.{key}' is empty", patterns.at, "set a pattern")
        return read

    def _check_pattern(self, key: str, node: Node, where: str, check: Check) -> None:
        text = text_of(node) or ""
        if not text.strip():
            check.problems.add(f"'{where}.{key}' is empty", node.at, "set a pattern")
        elif key == "path" and (".." in text.split("/") or "\0" in text):
            hint = "paths are compared with links and '..' resolved"
            check.problems.add(f"'{where}.path' must not contain '..' or NUL", node.at, hint)

    def schema(self, printing: Printing) -> Schema:
        return {"type": ["array"], "items": {**printing.use(self._entry), "required": ["action"]}}


class Preferences(Entries):
    """A list of providers, each with a model."""

    def _read_one(self, node: Node, where: str, check: Check) -> Node | None:
        return self._entry.read(node, where, check)

    def schema(self, printing: Printing) -> Schema:
        return {"type": ["array"], "items": {**printing.use(self._entry)}}
