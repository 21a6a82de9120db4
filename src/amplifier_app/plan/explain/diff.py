"""The differences between two plans as written, independent of the environment."""

from __future__ import annotations

from typing import Literal

from amplifier_app.plan.documents.plan_files import MergedPlan
from amplifier_app.plan.explain.history import leaves
from amplifier_app.plan.masking import masked_tree
from amplifier_app.plan.tree.entries import ENTRY_SECTIONS, entry_keys
from amplifier_app.plan.tree.nodes import ListNode, Node, Scalar, plain_data
from amplifier_app.plan.tree.paths import Path, find
from amplifier_support.named_tuple import NamedTuple


class Change(NamedTuple):
    """One address at which two plans differ; secrets are masked.

    Attributes:
        path: The address. The address of a section means that the order of its entries differs.
        old: The value in the first plan, if any.
        new: The value in the second plan, if any.
    """

    path: Path
    old: Node | None
    new: Node | None

    @property
    def kind(self) -> Literal["added", "removed", "changed"]:
        if self.old is None:
            return "added"
        return "removed" if self.new is None else "changed"


def differences(old: MergedPlan, new: MergedPlan) -> list[Change]:
    """The differences in the order of the first plan, then additions of the second one.

    Variables are compared as written, list entries by key.
    """
    before, after = dict(leaves(old.document)), dict(leaves(new.document))
    shown_old = masked_tree(old.document, written=True)
    shown_new = masked_tree(new.document, written=True)
    changes: list[Change] = []
    for path in dict.fromkeys((*before, *after)):
        mine, theirs = before.get(path), after.get(path)
        if mine is not None and theirs is not None and plain_data(mine) == plain_data(theirs):
            continue
        changes.append(
            Change(
                path,
                None if mine is None else _shown(shown_old, path),
                None if theirs is None else _shown(shown_new, path),
            )
        )
    return [*changes, *_order_changes(old, new)]


def _shown(masked: Node, path: Path) -> Node:
    """The value at an address of a masked tree; a masked parent hides it."""
    for depth in range(len(path) + 1):
        node = find(masked, path[:depth])
        if isinstance(node, Scalar):
            return node
    return find(masked, path)


def _order_changes(old: MergedPlan, new: MergedPlan) -> list[Change]:
    changes: list[Change] = []
    for section in ENTRY_SECTIONS:
        before, after = entry_keys(old.document, section), entry_keys(new.document, section)
        common = set(before) & set(after)
        mine = [key for key in before if key in common]
        theirs = [key for key in after if key in common]
        if mine != theirs:
            pair = [
                ListNode([Scalar(key, tree.at) for key in keys], tree.items[section].at)
                for keys, tree in ((mine, old.document), (theirs, new.document))
            ]
            changes.append(Change((section,), *pair))
    return changes
