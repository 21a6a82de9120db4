"""Record the model traffic of a plan, or replace its providers by a recording or a script.

A recorder is mounted after the providers and is not part of the saved plan. A recording
(`provider-replay`) or a script (`provider-mock`) replaces each provider under its mount name, so that
fallbacks, priorities and agents work as before. Conditions and keys of the replaced providers are not
read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from amplifier_app.base.errors import Location
from amplifier_app.plan.tree.entries import list_entries
from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node, Scalar, to_node, with_items
from amplifier_support.files import open_to_read
from amplifier_support.journal import readable_records
from amplifier_support.named_tuple import NamedTuple

MODULE = "provider-replay"
SCRIPT_MODULE = "provider-mock"
_KEPT = ("model", "default_model", "priority")
"""Settings of a provider that its replacement keeps."""


class Script(NamedTuple):
    """Replies of models, as `provider-mock` reads them.

    Attributes:
        replies: Those of the plan's providers; each plays them from the start.
        agents: Those of its agents, by name; each delegation plays them from the start.
    """

    replies: ListNode
    agents: Mapping[str, ListNode]


class Traffic(NamedTuple):
    """The file that model traffic is recorded to or comes from; at most one is set.

    Attributes:
        record: The file to record it to, absolute.
        replay: The file to replay it from, absolute.
        script: The replies of the models.
        match: Which parts of requests must be as recorded; see `provider-replay`.
    """

    record: str | None = None
    replay: str | None = None
    script: Script | None = None
    match: str = "all"

    @property
    def replaces_providers(self) -> bool:
        """True if no provider of the plan is used."""
        return self.replay is not None or self.script is not None

    def entries(self) -> list[dict[str, Any]]:
        """The entries to mount after the plan's providers."""
        return [{"module": MODULE, "config": {"record": self.record}}] if self.record else []

    def stand_ins(self, tree: MapNode, mount_name: Callable[[MapNode], str]) -> MapNode:
        """The plan with stand-ins for its providers and those of its agents.

        Args:
            tree: The plan.
            mount_name: Returns the mount name of an entry's provider.
        """
        if self.script is not None:
            return _with_script(tree, self.script, mount_name)
        if self.replay is None:
            return tree
        at = Location("--replay")
        recorded = _recorded_providers(self.replay)
        entries = list_entries(tree, "providers")
        kept = [self._stand_in(e, mount_name(e)) for e in entries if mount_name(e) in recorded]
        named = {mount_name(entry) for entry in entries}
        kept += [self._stand_in(MapNode({}, at), name) for name in recorded if name not in named]
        if not recorded:  # the module reports the problem with the file
            kept = [_entry(at, MODULE, config={"replay": self.replay})]
        items: dict[str, Node] = {**tree.items, "providers": ListNode(kept, at)}
        agents = items.get("agents")
        if isinstance(agents, MapNode):
            changed = {
                name: self._of_agent(agent, recorded, mount_name)
                for name, agent in agents.items.items()
            }
            items["agents"] = with_items(agents, changed)
        return with_items(tree, items)

    def _of_agent(
        self, agent: Node, recorded: Sequence[str], mount_name: Callable[[MapNode], str]
    ) -> Node:
        if not isinstance(agent, MapNode) or not isinstance(agent.items.get("providers"), ListNode):
            return agent
        entries = [e for e in list_entries(agent, "providers") if mount_name(e) in recorded]
        if not entries:  # it was not used in the recording; it gets the plan's providers
            return with_items(agent, {k: v for k, v in agent.items.items() if k != "providers"})
        stand_ins = ListNode([self._stand_in(e, mount_name(e)) for e in entries], agent.at)
        return with_items(agent, {**agent.items, "providers": stand_ins})

    def _stand_in(self, entry: MapNode, name: str) -> MapNode:
        match = {} if self.match == "all" else {"match": self.match}
        config = {"replay": self.replay, "provider": name, **match}
        return _replace_entry(entry, name, _entry(entry.at, MODULE, config=config))


NO_TRAFFIC = Traffic()


def _with_script(tree: MapNode, script: Script, mount_name: Callable[[MapNode], str]) -> MapNode:
    own = list_entries(tree, "providers") or [MapNode({}, script.replies.at)]

    def with_script(entries: Sequence[MapNode], replies: ListNode) -> ListNode:
        scripted = [
            _scripted_entry(entry, mount_name(entry) or "mock", replies) for entry in entries
        ]
        return ListNode(scripted, replies.at)

    items: dict[str, Node] = {**tree.items, "providers": with_script(own, script.replies)}
    agents = items.get("agents")
    if isinstance(agents, MapNode):
        changed = {
            name: with_items(
                agent,
                {
                    **agent.items,
                    "providers": with_script(
                        list_entries(agent, "providers") or own,
                        script.agents.get(name) or _no_script(name, agents.at),
                    ),
                },
            )
            for name, agent in agents.items.items()
            if isinstance(agent, MapNode)
        }
        items["agents"] = with_items(agents, changed)
    return with_items(tree, items)


def _scripted_entry(entry: MapNode, name: str, replies: ListNode) -> MapNode:
    stand_in = _entry(entry.at, SCRIPT_MODULE, config={})
    config = MapNode({"replies": replies}, replies.at)
    return _replace_entry(entry, name, with_items(stand_in, {**stand_in.items, "config": config}))


def _no_script(agent: str, at: Location) -> ListNode:
    message = f"there is no script for the agent '{agent}'"
    error = {"type": "InvalidRequestError", "message": message}
    return ListNode([to_node({"error": error}, at, literal=True)], at)


def _replace_entry(entry: MapNode, name: str, stand_in: MapNode) -> MapNode:
    """The entry `made` with the name of another one, and the settings of it that are kept."""
    config = entry.items.get("config")
    held = config.items if isinstance(config, MapNode) else {}
    kept = {key: held[key] for key in _KEPT if key in held}
    below = stand_in.items["config"]
    assert isinstance(below, MapNode)
    items = {
        **stand_in.items,
        "instance_id": Scalar(name, entry.at, literal=True),
        "config": with_items(below, {**below.items, **kept}),
    }
    return with_items(stand_in, items)


def _entry(at: Location, module: str, *, config: dict[str, Any]) -> MapNode:
    stand_in = to_node({"module": module, "config": config}, at, literal=True)
    assert isinstance(stand_in, MapNode)
    return stand_in


def _recorded_providers(file: str) -> list[str]:
    """Names of the providers in a recording, in its order; none if it cannot be read."""
    try:
        lines = read_recording(file).split(b"\n")
    except OSError:
        return []
    # Parsing the requests would take long.
    records = readable_records(b"\n".join(line for line in lines if b'"provider"' in line[:40]))
    names = [record.get("name") for record in records if record.get("type") == "provider"]
    return list(dict.fromkeys(str(name) for name in names if name))


def read_recording(file: str | Path) -> bytes:
    """The content of a recording. Raises OSError."""
    with open(open_to_read(file), "rb") as recording:
        return recording.read()
