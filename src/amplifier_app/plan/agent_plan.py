"""The plan of a sub-agent: one of the plan's agents merged over the plan that calls it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

from amplifier_app.base.errors import ConfigError
from amplifier_app.plan import overrides
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.tree.entries import entry_key, keep_entries, list_entries
from amplifier_app.plan.tree.merge import overlay_agent
from amplifier_app.plan.tree.nodes import MapNode, with_items
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import did_you_mean

SELF = "self"
"""Name of the agent that is the plan itself, unless the plan defines an agent of this name."""


_FOR_THE_CHOICE = ("provider_preferences", "model_role")
"""Keys of an agent that choose among the plan's providers when a task begins."""


class Narrowing(NamedTuple):
    """Limits the modules of one section that a sub-agent gets.

    Attributes:
        only: Keep only these, by instance id or module id; None for no limit.
        without: Remove these.
    """

    only: frozenset[str] | None = None
    without: frozenset[str] = frozenset()

    @classmethod
    def of(cls, value: Any, section: str) -> Narrowing:
        """Read the published form, `{inherit_tools: […]}` or `{exclude_tools: […]}`."""
        if not isinstance(value, Mapping):
            return cls()
        lists = cast("Mapping[str, Any]", value)
        only, without = lists.get(f"inherit_{section}"), lists.get(f"exclude_{section}")
        return cls(None if only is None else _names(only), _names(without))

    def keeps(self, entry: MapNode) -> bool:
        """Return True for an entry of the section to keep."""
        names = {entry_key(entry), entry.text("module")}
        if self.only is not None and not names & self.only:
            return False
        return not names & self.without


def _names(value: Any) -> frozenset[str]:
    if not isinstance(value, (list, tuple, set, frozenset)):
        return frozenset()
    return frozenset(str(name) for name in cast("Collection[Any]", value))


ALL = Narrowing()


def agent_plan(
    plan: ResolvedPlan, name: str, *, tools: Narrowing = ALL, hooks: Narrowing = ALL
) -> ResolvedPlan:
    """The plan of a sub-agent.

    Built from the plan's documents alone, so it contains no module that was not checked when the
    plan was loaded.

    Args:
        plan: The plan of the calling session.
        name: The agent.
        tools: Limits its tools.
        hooks: Limits its hooks.

    Raises:
        ConfigError: The plan has no such agent.
    """
    tree = plan.tree
    known = tree.mapping("agents").items
    agent = known.get(full_agent_name(name, known))
    if isinstance(agent, MapNode):
        items = {key: node for key, node in agent.items.items() if key not in _FOR_THE_CHOICE}
        tree = overlay_agent(tree, with_items(agent, items))
        tree = overrides.without_default_of_others(tree, list_entries(tree, "providers"))
    elif name != SELF:
        raise _unknown(name, sorted(known))
    for section, narrowing in (("tools", tools), ("hooks", hooks)):
        tree = keep_entries(tree, narrowing.keeps, [section])
    return plan.with_tree(tree)


def full_agent_name(name: str, known: Collection[str]) -> str:
    """The full name of an agent; the namespace may be omitted where the name is unique."""
    same = [agent for agent in known if agent.rpartition(":")[2] == name.rpartition(":")[2]]
    is_short = name not in known and name != SELF
    return same[0] if is_short and len(same) == 1 else name


def _unknown(name: str, known: list[str]) -> ConfigError:
    if not known:
        return ConfigError(
            f"unknown agent {name!r}: the plan has no agents",
            hint="Add agents to the plan under 'agents:'.",
        )
    return ConfigError(
        f"unknown agent {name!r}; the plan has: {', '.join(known)}",
        hint=did_you_mean(name, known),
    )
