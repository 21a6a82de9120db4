"""Overrides from the command line: `--provider`, `--model`, `--set path.to.key=value`."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence

from amplifier_app.base.errors import ConfigError, Location, UsageError
from amplifier_app.plan.traffic import NO_TRAFFIC, Traffic
from amplifier_app.plan.tree.entries import (
    PROVIDER_PREFIX,
    NoSuchPath,
    Path,
    entry_key,
    find,
    find_or_none,
    keep_entries,
    list_entries,
    mounted_as,
    parse_path,
    with_agents,
    with_value,
)
from amplifier_app.plan.tree.nodes import (
    NOWHERE,
    ListNode,
    MapNode,
    Node,
    Scalar,
    plain_data,
    read_text,
    to_node,
)
from amplifier_app.plan.tree.problems import PlanError, Problem, Problems, suggest
from amplifier_app.plan.tree.yaml_reader import plain_scalar, read_yaml
from amplifier_support import provider_order
from amplifier_support.named_tuple import NamedTuple

_DEFAULT_PROVIDER = ("session", "orchestrator", "config", "default_provider")


class Overrides(NamedTuple):
    """Overrides given on the command line.

    Attributes:
        provider: The provider to use first.
        model: The model of that provider.
        sets: Addresses and values, in order.
        traffic: What to record or replay.
        adds_provider: True if a provider that the plan lacks is added, as when a session is resumed.
        without: Modules to leave out, if the plan has them.
        keep_conditions: Whether providers keep their conditions instead of being dropped.
        reads_project: Whether instruction files of the working directory's project may be read; None if
            that depends on the user's trust in it.
    """

    provider: str | None = None
    model: str | None = None
    sets: tuple[tuple[Path, Node], ...] = ()
    traffic: Traffic = NO_TRAFFIC
    adds_provider: bool = False
    without: frozenset[str] = frozenset()
    keep_conditions: bool = False
    reads_project: bool | None = None


NONE = Overrides()


def parse_sets(sets: Sequence[str], *, option: str = "--set") -> list[tuple[Path, Node]]:
    """Parse `path.to.key=value` strings into addresses and nodes.

    Args:
        sets: The strings.
        option: The option they were given with, used as the location of problems.

    Raises:
        UsageError: One is not an assignment.
        PlanError: Some values are not valid YAML; with all problems.
    """
    problems = Problems()
    parsed = [
        assignment
        for text in sets
        if (assignment := _parse_set(text, option, problems)) is not None
    ]
    problems.raise_if_any()
    return parsed


def _parse_set(text: str, option: str, problems: Problems) -> tuple[Path, Node] | None:
    name, equals, value = text.partition("=")
    at = Location(f"{option} {name}")
    try:
        path = parse_path(name.strip())
    except ValueError:
        equals = ""
        path = ()
    if not equals:
        hint = f"Write {option} path.to.key=value."
        raise UsageError(f"{option} '{text}' is not an assignment", hint=hint)
    node = parse_value(value, at, problems)
    return None if node is None else (path, node)


def parse_value(text: str, at: Location, problems: Problems) -> Node | None:
    """The value of an option: plain text, or YAML if it starts like a list, a mapping or a quote.

    None if it is not valid, which is added to the problems.
    """
    if text[:1] not in ("[", "{", '"', "'"):
        return Scalar(plain_scalar(text) if text else "", at, literal=True)
    faults = Problems()
    node = read_yaml(text.encode(), at.file, faults)
    if faults or node is None:
        problems.add("the value is not valid YAML", at, "quote it, or use plain text")
        return None
    return to_node(plain_data(node), at, literal=True)


def apply_sets(tree: MapNode, sets: Sequence[tuple[Path, Node]], problems: Problems) -> MapNode:
    """Apply every assignment to the tree; unknown addresses are problems."""
    for path, value in sets:
        try:
            tree = with_value(tree, path, value)
        except NoSuchPath as error:
            problems.add(str(error), value.at, error.hint)
    return tree


_SERVED_SKILLS = ("tools", "tool-mcp", "config", "skills")


def without_modules(tree: MapNode, modules: Collection[str]) -> MapNode:
    """The plan without the entries of these modules, also in its agents.

    Without `tool-skills` it offers no skills of MCP servers either.
    """
    tree = keep_entries(tree, lambda entry: entry.text("module") not in modules)
    if "tool-skills" in modules:
        with contextlib.suppress(NoSuchPath):
            tree = with_value(tree, _SERVED_SKILLS, Scalar(False, NOWHERE))
    return with_agents(tree, lambda _, agent: without_modules(agent, modules))


def look_up(tree: MapNode, path: str | Sequence[str | int]) -> Node:
    """The node at an address given by the user.

    Raises:
        ConfigError: The address does not exist.
    """
    try:
        return find(tree, parse_path(path))
    except NoSuchPath as error:
        raise ConfigError(str(error), hint=error.hint) from None
    except ValueError as error:
        raise ConfigError(str(error)) from None


def named_provider(entries: Sequence[MapNode], name: str) -> MapNode | None:
    """The entry that the user refers to as `name`; None if there is none."""
    names = (name, PROVIDER_PREFIX + name)
    matches = [entry for candidate in names for entry in entries if entry_key(entry) == candidate]
    matches += [entry for entry in entries if entry.text("module") in names]
    return matches[0] if matches else None


def find_provider(entries: Sequence[MapNode], name: str) -> MapNode:
    """The entry that the user refers to as `name`.

    Raises:
        PlanError: The plan has no such provider.
    """
    if (entry := named_provider(entries, name)) is not None:
        return entry
    known = [key.removeprefix(PROVIDER_PREFIX) for entry in entries if (key := entry_key(entry))]
    hint = suggest(name, known) if known else "add it to the plan's 'providers'"
    if known and "did you mean" in hint:
        hint += f" Available: {', '.join(known)}"
    raise PlanError([Problem(f"the plan has no provider {name!r}", Location("--provider"), hint)])


def first_provider(tree: MapNode, entries: Sequence[MapNode]) -> MapNode | None:
    """The provider to use first; see `amplifier_support.provider_order`."""
    default = _default_provider(tree)
    return provider_order.first_provider(entries, default, name=mounted_as, priority=_priority)


def _prefer(
    tree: MapNode, entries: Sequence[MapNode], key: str | None
) -> tuple[MapNode, list[MapNode]]:
    """Change the plan and its provider entries so that the one called `key` is used first.

    The config of a single entry is not changed.
    """
    chosen = next((entry for entry in entries if entry_key(entry) == key), None)
    others = [entry for entry in entries if entry is not chosen]
    if chosen is None or not others:
        return tree, list(entries)
    at = Location("--provider")
    if _default_provider(tree) is not None:
        tree = with_value(tree, _DEFAULT_PROVIDER, Scalar(mounted_as(chosen), at, literal=True))
    lowest = Scalar(min(0, *(_priority(entry) - 1 for entry in others)), at)
    return tree, [
        with_value(entry, ("config", "priority"), lowest) if entry is chosen else entry
        for entry in entries
    ]


def asking(tree: MapNode, name: str | None, model: str | None) -> MapNode:
    """Change the plan so that a provider, by its user-facing name, and a model are used first.

    Raises:
        PlanError: The plan has no such provider.
    """
    entries = list_entries(tree, "providers")
    key = None if name is None else entry_key(find_provider(entries, name))
    tree, entries = _prefer(tree, entries, key)
    if model:
        entries = _with_model(tree, entries, key, model)
    section = tree.items.get("providers")
    return tree if section is None else tree.with_item("providers", ListNode(entries, section.at))


def without_default_of_others(tree: MapNode, entries: Sequence[MapNode]) -> MapNode:
    """The plan without the orchestrator's `default_provider`, if it is not one of `entries`."""
    default = _default_provider(tree)
    if default is None or default in map(mounted_as, entries):
        return tree
    at = find(tree, _DEFAULT_PROVIDER).at
    return with_value(tree, _DEFAULT_PROVIDER, Scalar(None, at))


def _default_provider(tree: MapNode) -> str | None:
    return read_text(find_or_none(tree, _DEFAULT_PROVIDER))


def _with_model(
    tree: MapNode, entries: Sequence[MapNode], key: str | None, model: str
) -> list[MapNode]:
    """The entries with `config.model` set in the one called `key`, or else in the one used first.

    Raises:
        PlanError: The plan has no provider.
    """
    first = first_provider(tree, entries)
    target = key or (entry_key(first) if first is not None else None)
    if target is None:
        message = "the plan has no provider to set the model of"
        hint = "set one up with: amplifier init"
        raise PlanError([Problem(message, Location("--model"), hint)])
    value = Scalar(model, Location("--model"), literal=True)
    return [
        with_value(entry, ("config", _model_key(entry)), value)
        if entry_key(entry) == target
        else entry
        for entry in entries
    ]


def _model_key(entry: MapNode) -> str:
    # The published providers call it `default_model`; keep that name where it is used.
    return "default_model" if "default_model" in entry.mapping("config").items else "model"


def _priority(entry: MapNode) -> float:
    config = entry.items.get("config")
    return provider_order.configured_priority(None if config is None else plain_data(config))
