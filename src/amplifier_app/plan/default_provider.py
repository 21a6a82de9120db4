"""Add a provider to a plan that has none, or to that of a resumed session.

A bundle leaves the choice of a provider to the user. `--provider NAME` adds the provider of that name
from the settings, else from the default profile, else the module of that name. Without the option, a
bundle gets the providers of the settings, else those of the default profile whose credentials are
set. A plan with a provider of its own gets none of these, unless a session is resumed with it and with
`--provider NAME`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from amplifier_app.base import installed
from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.plan import overrides
from amplifier_app.plan.conditions import apply_conditions
from amplifier_app.plan.documents.plan_files import DEFAULT_PROFILE, MergedPlan, read_profile
from amplifier_app.plan.documents.scopes import read_settings
from amplifier_app.plan.source_spec import SourceSyntaxError
from amplifier_app.plan.tree.entries import entries_of, entry_key
from amplifier_app.plan.tree.merge import overlay_settings
from amplifier_app.plan.tree.nodes import (
    NOWHERE,
    ListNode,
    MapNode,
    Node,
    Scalar,
    text_of,
    with_items,
)
from amplifier_app.plan.tree.problems import PlanError, Problem, suggest

NO_PROVIDER = "no model provider is set up"
CHOSEN_MISSING = "the chosen provider {!r} is not available"
SET_UP = (
    "Set one up: amplifier init. Or pass --provider NAME, or --profile local for the offline demo "
    "model."
)
"""The error of a plan without an available provider, and the next step."""

_PREFIX = "provider-"
_OPTION = Location("--provider")


class _Offered(NamedTuple):
    """The providers that can be added to a plan.

    Attributes:
        settings: The providers of the settings.
        profile: The providers of the default profile, including those of the settings.
    """

    settings: Sequence[MapNode]
    profile: Sequence[MapNode]


def with_provider(
    merged: MergedPlan, tree: MapNode, name: str | None, environ: Mapping[str, str]
) -> tuple[MapNode, list[str]]:
    """Add providers to a plan that has none, or not the one called `name`.

    Args:
        merged: The plan as written.
        tree: The plan.
        name: The provider given on the command line.
        environ: The variables, for conditions.

    Returns:
        The plan, and for each added provider a sentence with the reason.

    Raises:
        PlanError: The provider is unknown.
        ConfigError: The settings cannot be read.
    """
    offered = _offered(merged)
    present = entries_of(tree, "providers")
    if name is not None:
        entry, why = _named(offered, name, has_others=bool(present))
        added = [(entry, why)]
    else:
        added = _providers_set_up(offered, environ)
    if not added:
        return tree, []
    section = ListNode([*present, *(entry for entry, _ in added)], _OPTION)
    lack = "does not have it" if present else "has no provider"
    notes = [f"added {entry_key(entry)}, as the plan {lack}: {why}" for entry, why in added]
    return with_items(tree, {**tree.items, "providers": section}), notes


def _named(offered: _Offered, name: str, *, has_others: bool) -> tuple[MapNode, str]:
    for entries in (offered.settings, offered.profile):
        key = overrides.provider_key(entries, name)
        if key is None:
            continue
        entry = next(entry for entry in entries if entry_key(entry) == key)
        return entry, f"--provider {name}, as configured in {_place(entry)}"
    known = installed.known_ids()
    for module in (name, f"{_PREFIX}{name}"):
        if module in known and module.startswith(_PREFIX):
            return MapNode({"module": Scalar(module, _OPTION)}, _OPTION), f"--provider {name}"
    providers = [one.removeprefix(_PREFIX) for one in known if one.startswith(_PREFIX)]
    message = f"the plan has no {'such ' if has_others else ''}provider, and {name!r} is unknown"
    raise PlanError([Problem(message, _OPTION, suggest(name, providers))])


def _providers_set_up(offered: _Offered, environ: Mapping[str, str]) -> list[tuple[MapNode, str]]:
    """The providers set up on this machine."""
    if offered.settings:
        return [(entry, f"configured in {_place(entry)}") for entry in offered.settings]
    with_key = [entry for entry in offered.profile if _variables(entry)]
    kept, _ = apply_conditions(with_key, environ, None)
    usable = {entry_key(entry) for entry in kept}
    return [
        (entry, f"{_set(entry, environ)} is set")
        for entry in with_key
        if entry_key(entry) in usable
    ]


def _set(entry: MapNode, environ: Mapping[str, str]) -> str:
    return next(name for name in _variables(entry) if environ.get(name))


def _variables(entry: MapNode) -> list[str]:
    """The variables, one of which enables a provider."""
    when = entry.items.get("when")
    node = when.items.get("env") if isinstance(when, MapNode) else None
    nodes: Sequence[Node] = node.items if isinstance(node, ListNode) else [node] if node else []
    return [text for one in nodes if (text := text_of(one))]


def _place(entry: MapNode) -> str:
    return str(entry.at._replace(column=None))


def _offered(merged: MergedPlan) -> _Offered:
    settings = read_settings(merged.project)
    tree = MapNode({}, NOWHERE)
    for one in settings.files:
        tree, _ = overlay_settings(tree, one.tree)
    own = entries_of(tree, "providers")
    name = text_of(settings.profile) or DEFAULT_PROFILE
    try:
        profile = read_profile(name, settings, fetch=merged.fetch)
    except ConfigError:
        # A broken default profile must not stop this plan.
        return _Offered(own, ())
    return _Offered(
        own, [_with_source(profile, entry) for entry in entries_of(profile.document, "providers")]
    )


def _with_source(profile: MergedPlan, entry: MapNode) -> MapNode:
    """An entry whose source no longer depends on the file it was written in."""
    source = entry.items.get("source")
    if not isinstance(source, Scalar) or not isinstance(source.value, str):
        return entry
    try:
        text = profile.source(source.value, source.at.file)
    except SourceSyntaxError:
        # Reported where the source is checked.
        return entry
    return with_items(entry, {**entry.items, "source": source._replace(value=text)})
