"""Merge two normalised documents: the child over its base, later wins.

Mappings merge deeply; lists of modules merge entry by entry, matched by instance id or module id;
rules of `approvals` come before those below; everything else is replaced. Configuration belongs to its
module: an entry that names another module inherits nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from amplifier_app.base.errors import Location
from amplifier_app.plan.tree.entries import ENTRY_SECTIONS, entry_key, entry_keys, keep_entries
from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node, read_text, with_items
from amplifier_app.plan.tree.problems import Problems, suggest
from amplifier_core.module_sources import PARTS
from amplifier_support.named_tuple import NamedTuple

_OWN_KEYS = ("name", "description", "extends", "exclude")
_JOINED = ("approvals", "plugins")
"""Lists that are joined, the entries of the child first."""
_SETTINGS_ONLY = ("profile", "sources", "display")


def merge_documents(base: MapNode, child: MapNode, problems: Problems) -> MapNode:
    """Merge `child` over `base`.

    `name` and `description` are not inherited. `exclude` of the child removes entries of the base
    before anything is added; excluding something that does not exist is a problem.
    """
    inherited, missed = _without_excluded(base, child)
    items = {key: value for key, value in inherited.items.items() if key not in _OWN_KEYS}
    for missing in missed:
        message = f"{missing.name!r} is not inherited, so it cannot be excluded"
        problems.add(message, missing.at, suggest(missing.name, missing.known))
    return _stack(with_items(inherited, items), child)


def without_replaced_agents(base: MapNode, child: MapNode) -> MapNode:
    """`base` without the agents that a bundle on top of it redefines: a bundle replaces them whole."""
    agents, own = base.items.get("agents"), child.items.get("agents")
    if not isinstance(agents, MapNode) or not isinstance(own, MapNode):
        return base
    kept = {name: agent for name, agent in agents.items.items() if name not in own.items}
    return base.with_item("agents", with_items(agents, kept))


def excluded_in(documents: Iterable[MapNode]) -> frozenset[str]:
    """The names that documents, the lowest first, exclude and do not add again."""
    gone: set[str] = set()
    for document in documents:
        gone |= {text for node in document.listed("exclude") if (text := read_text(node))}
        gone -= {key for section in ENTRY_SECTIONS for key in entry_keys(document, section)}
    return frozenset(gone)


def overlay_settings(
    base: MapNode, settings: MapNode, excluded: Collection[str] = ()
) -> tuple[MapNode, list[str]]:
    """Apply settings to a plan; returns a warning for each `exclude` without effect.

    The plan keeps its `name` and `description`. Settings apply to many plans, so excluding a module
    that this one does not have is valid, but could be a typo.

    Args:
        base: The plan.
        settings: The settings.
        excluded: Modules the plan excludes: settings for these do not add them again.
    """
    below, missed = _without_excluded(base, settings)
    notes = [
        f"{missing.at} excludes {missing.name!r}, which the plan does not have; "
        f"{suggest(missing.name, missing.known)}"
        for missing in missed
    ]
    items = {key: node for key, node in settings.items.items() if key not in _SETTINGS_ONLY}
    overlay = keep_entries(
        with_items(settings, items), lambda entry: entry_key(entry) not in excluded
    )
    return _stack(below, overlay)._replace(at=base.at), notes


def overlay_agent(plan: MapNode, agent: MapNode) -> MapNode:
    """The plan of an agent: the agent merged over the plan that calls it.

    If the agent lists `providers` or `tools`, it gets only those. An entry of the same name in the
    plan is the base for source and config.
    """
    below, _ = _without_excluded(plan, agent)
    merged = _stack(below, agent)
    for section in ("providers", "tools"):
        named = agent.items.get(section)
        if isinstance(named, ListNode):
            by_key = {entry_key(entry): entry for entry in merged.listed(section)}
            kept = [by_key[key] for key in entry_keys(agent, section)]
            merged = merged.with_item(section, ListNode(kept, named.at))
    return merged._replace(at=plan.at)


def _stack(base: MapNode, child: MapNode) -> MapNode:
    items = {key: node for key, node in child.items.items() if key not in ("extends", "exclude")}
    return _merge_items(base, with_items(child, items), _merge_section)


def _merge_items(
    base: MapNode, child: MapNode, merge: Callable[[str, Node, Node], Node]
) -> MapNode:
    """Both mappings in one; `merge` decides about the keys that both have."""
    items = dict(base.items)
    for key, value in child.items.items():
        items[key] = merge(key, items[key], value) if key in items else value
    return MapNode(items, child.at, {**base.keys, **child.keys})


def merge_nodes(base: Node, child: Node) -> Node:
    """Merge mappings key by key; everything else is replaced by the child."""
    if not isinstance(base, MapNode) or not isinstance(child, MapNode):
        return child
    return _merge_items(base, child, lambda _, below, value: merge_nodes(below, value))


def _merge_section(key: str, base: Node, child: Node) -> Node:
    if isinstance(base, ListNode) and isinstance(child, ListNode):
        if key in ENTRY_SECTIONS:
            return _merge_entries(base, child)
        if key in _JOINED:
            # The first rule for a call decides.
            return ListNode([*child.items, *base.items], child.at)
    if isinstance(base, MapNode) and isinstance(child, MapNode):
        if key == "session":
            return _merge_items(base, child, _merge_part)
        if key == "agents":
            return _merge_items(base, child, lambda _, below, agent: _merge_agent(below, agent))
    return merge_nodes(base, child)


def _merge_part(key: str, base: Node, child: Node) -> Node:
    return _merge_module(base, child) if key in PARTS else merge_nodes(base, child)


def _merge_agent(base: Node, child: Node) -> Node:
    if not isinstance(base, MapNode) or not isinstance(child, MapNode):
        return child
    merged = _stack(base, child)
    # Exclusions of an agent apply later, to the plan it runs in.
    exclude = child.items.get("exclude")
    return merged if exclude is None else merged.with_item("exclude", exclude)


def _merge_module(base: Node, child: Node) -> Node:
    if not isinstance(base, MapNode) or not isinstance(child, MapNode):
        return child
    module = child.text("module")
    if module is not None and module != base.text("module"):
        return child
    merged = merge_nodes(base, child)
    if "when" in child.items and isinstance(merged, MapNode):
        # Conditions are replaced whole: merging two would make a third.
        merged = merged.with_item("when", child.items["when"])
    return merged


def _merge_entries(base: ListNode, child: ListNode) -> ListNode:
    merged: dict[str, Node] = {}
    for entry in base.items:
        merged[entry_key(entry) or str(len(merged))] = entry
    for entry in child.items:
        key = entry_key(entry) or str(len(merged))
        merged[key] = _merge_module(merged[key], entry) if key in merged else entry
    return ListNode(list(merged.values()), child.at)


class _Missed(NamedTuple):
    """A name to exclude that does not exist; `known` are the names that do."""

    name: str
    at: Location
    known: list[str]


def _without_excluded(base: MapNode, child: MapNode) -> tuple[MapNode, list[_Missed]]:
    exclude = child.items.get("exclude")
    if not isinstance(exclude, ListNode):
        return base, []
    excluded = {text: node.at for node in exclude.items if (text := read_text(node))}
    present = {key for section in ENTRY_SECTIONS for key in entry_keys(base, section)}
    agents = base.items.get("agents")
    if isinstance(agents, MapNode):
        present |= agents.items.keys()
    known = sorted(present)
    missed = [_Missed(name, at, known) for name, at in excluded.items() if name not in present]
    kept = keep_entries(base, lambda entry: entry_key(entry) not in excluded)
    if isinstance(agents, MapNode):
        left = {name: agent for name, agent in agents.items.items() if name not in excluded}
        kept = kept.with_item("agents", with_items(agents, left))
    return kept, missed
