"""Record the model traffic of a plan, or replace its providers by a recording or a script.

A recorder is mounted after the providers and is not part of the saved plan. A recording
(`provider-replay`) or a script (`provider-mock`) replaces each provider under its mount name, so that
fallbacks, priorities and agents work as before. Conditions and keys of the replaced providers are not
read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from amplifier_app.base.errors import Location
from amplifier_app.plan.tree.entries import list_entries, mounted_as, with_agents
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

    def stand_ins(self, tree: MapNode) -> MapNode:
        """The plan with stand-ins for its own providers and for the providers of its agents."""
        if self.script is not None:
            return _with_script(tree, self.script)
        if self.replay is None:
            return tree
        at = Location("--replay")
        recorded = _recorded_providers(self.replay)
        entries = list_entries(tree, "providers")
        named = {mounted_as(entry) for entry in entries}
        kept = [
            self._replay(entry, mounted_as(entry))
            for entry in entries
            if mounted_as(entry) in recorded
        ]
        kept += [self._replay(MapNode({}, at), name) for name in recorded if name not in named]
        providers: Node = ListNode(kept, at)
        if not recorded:  # the module reports the problem with the file
            only = {"module": MODULE, "config": {"replay": self.replay}}
            providers = to_node([only], at, literal=True)
        tree = tree.with_item("providers", providers)
        return with_agents(tree, lambda _, agent: self._of_agent(agent, recorded))

    def _of_agent(self, agent: MapNode, recorded: Sequence[str]) -> MapNode:
        if not isinstance(agent.items.get("providers"), ListNode):
            return agent
        entries = [e for e in list_entries(agent, "providers") if mounted_as(e) in recorded]
        if not entries:  # it was not used in the recording; it gets the plan's providers
            return with_items(agent, {k: v for k, v in agent.items.items() if k != "providers"})
        stand_ins = [self._replay(entry, mounted_as(entry)) for entry in entries]
        return agent.with_item("providers", ListNode(stand_ins, agent.at))

    def _replay(self, entry: MapNode, name: str) -> MapNode:
        match = {} if self.match == "all" else {"match": self.match}
        config = {"replay": self.replay, "provider": name, **match}
        return _stand_in(entry, name, MODULE, to_node(config, entry.at, literal=True))


NO_TRAFFIC = Traffic()


def _with_script(tree: MapNode, script: Script) -> MapNode:
    own = list_entries(tree, "providers") or [MapNode({}, script.replies.at)]

    def scripted(plan: MapNode, entries: Sequence[MapNode], replies: ListNode) -> MapNode:
        config = MapNode({"replies": replies}, replies.at)
        stand_ins = [
            _stand_in(entry, mounted_as(entry) or "mock", SCRIPT_MODULE, config)
            for entry in entries
        ]
        return plan.with_item("providers", ListNode(stand_ins, replies.at))

    def scripted_agent(name: str, agent: MapNode) -> MapNode:
        replies = script.agents.get(name) or _no_script(name, agent.at)
        return scripted(agent, list_entries(agent, "providers") or own, replies)

    return with_agents(scripted(tree, own, script.replies), scripted_agent)


def _no_script(agent: str, at: Location) -> ListNode:
    message = f"there is no script for the agent '{agent}'"
    error = {"type": "InvalidRequestError", "message": message}
    return ListNode([to_node({"error": error}, at, literal=True)], at)


def _stand_in(entry: MapNode, name: str, module: str, config: Node) -> MapNode:
    """A provider with the name of another one, and the settings of it that are kept."""
    assert isinstance(config, MapNode)
    held = entry.mapping("config").items
    kept = {key: held[key] for key in _KEPT if key in held}
    items = {
        "module": Scalar(module, entry.at, literal=True),
        "config": with_items(config, {**config.items, **kept}),
        "instance_id": Scalar(name, entry.at, literal=True),
    }
    return MapNode(items, entry.at)


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
