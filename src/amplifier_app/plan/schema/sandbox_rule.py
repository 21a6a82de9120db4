"""The form of a sandbox policy in a plan: `session.sandbox`."""

from __future__ import annotations

from amplifier_app.plan.schema.rules import Check, Printing, Rule, Schema
from amplifier_app.plan.tree.nodes import MapNode, Node, plain_data
from amplifier_app.plan.tree.problems import suggest
from amplifier_support.sandbox.policy import KEYS, SCHEMA, PolicyError, parse_policy


class SandboxRule(Rule):
    """A policy by name or as a mapping; what is written stays, for reports."""

    def read_value(self, node: Node, where: str, check: Check) -> Node | None:
        try:
            parse_policy(plain_data(node))
        except PolicyError as error:
            at, hint = node.at, f"expected {error.expected}"
            if isinstance(node, MapNode) and error.key in node.items:
                at = node.key_at(error.key)
                hint = (suggest(error.key, KEYS) if error.key not in KEYS else None) or hint
            check.problems.add(f"{where!r}: {error.problem}", at, hint)
            return None
        return node

    def schema(self, printing: Printing) -> Schema:
        return dict(SCHEMA)
