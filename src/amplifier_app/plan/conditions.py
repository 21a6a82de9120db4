"""Select provider entries: `when: {env: NAME | [NAMES]}` and `when: {no_other: true}`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from amplifier_app.base.errors import Location
from amplifier_app.plan.tree.entries import entry_key
from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node, Scalar, text_of, with_items


class Dropped(NamedTuple):
    """An entry that is not mounted.

    Attributes:
        key: Its instance id or module id.
        reason: Why, as a clause: "OPENAI_API_KEY is not set".
        at: Where it is written.
        variables: The environment variables, one of which would enable it.
        module: Its module id.
        source: Its source as written, if it has one.
        is_fallback: Whether it is mounted only without other providers.
        is_configured: Whether the plan gives it a key or an address of its own.
    """

    key: str
    reason: str
    at: Location
    variables: tuple[str, ...] = ()
    module: str = ""
    source: str | None = None
    is_fallback: bool = False
    is_configured: bool = False

    @property
    def note(self) -> str:
        """That it is skipped, and why or what would enable it."""
        needed = " or ".join(self.variables)
        # The condition may come from the plan that this one extends.
        always = "; or add 'when: null' to its entry" if self.is_configured else ""
        return f"{self.key} skipped: {f'set {needed}{always}' if needed else self.reason}"


def apply_conditions(
    entries: Sequence[Node], environ: Mapping[str, str], chosen: str | None
) -> tuple[list[MapNode], list[Dropped]]:
    """The entries whose conditions hold, without their `when`.

    Args:
        entries: Normalised provider entries.
        environ: The environment; an empty variable counts as unset.
        chosen: The key of an entry to keep regardless of its condition.
    """
    dropped: dict[str, Dropped] = {}
    fallbacks: list[str] = []
    mappings = [entry for entry in entries if isinstance(entry, MapNode)]
    for entry in mappings:
        key = entry_key(entry) or ""
        when = entry.items.get("when")
        if not isinstance(when, MapNode) or key == chosen:
            continue
        names = _names(when)
        if names and not any(environ.get(name) for name in names):
            dropped[key] = _dropped_entry(entry, unset(names), names)
        elif _is_true(when.items.get("no_other")):
            fallbacks.append(key)
    for key in fallbacks:
        others = [k for e in mappings if (k := entry_key(e)) and k not in dropped and k != key]
        if others:
            entry = next(e for e in mappings if entry_key(e) == key)
            dropped[key] = _dropped_entry(entry, f"{others[0]} is available")
    kept = [_bare(entry) for entry in mappings if entry_key(entry) not in dropped]
    return kept, list(dropped.values())


def _dropped_entry(entry: MapNode, reason: str, variables: tuple[str, ...] = ()) -> Dropped:
    module = text_of(entry.items.get("module")) or ""
    source = text_of(entry.items.get("source"))
    when = entry.items.get("when")
    fallback = isinstance(when, MapNode) and _is_true(when.items.get("no_other"))
    config = entry.items.get("config")
    own = isinstance(config, MapNode) and bool({"api_key", "base_url"} & config.items.keys())
    return Dropped(
        entry_key(entry) or module, reason, entry.at, variables, module, source, fallback, own
    )


def _names(when: MapNode) -> tuple[str, ...]:
    node = when.items.get("env")
    nodes = node.items if isinstance(node, ListNode) else [node]
    return tuple(text for item in nodes if (text := text_of(item)))


def unset(names: tuple[str, ...]) -> str:
    """The clause that none of these environment variables is set."""
    if len(names) == 1:
        return f"{names[0]} is not set"
    return f"none of {', '.join(names)} is set"


def _is_true(node: Node | None) -> bool:
    return isinstance(node, Scalar) and node.value is True


def _bare(entry: MapNode) -> MapNode:
    return with_items(entry, {key: value for key, value in entry.items.items() if key != "when"})
