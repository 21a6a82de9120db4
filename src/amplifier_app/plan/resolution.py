"""Resolve a merged plan in an environment: overrides, conditions, variables, providers, module sources.

A bundle leaves the choice of a provider to the user. `--provider NAME` adds the provider of that name
from the settings, else from the default profile, else the module of that name. Without the option, a
bundle gets the providers of the settings, else those of the default profile whose credentials are
set. A plan with a provider of its own gets none of these, unless a session is resumed with it and with
`--provider NAME`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from amplifier_app.base import installed, paths
from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.base.keys import Environment
from amplifier_app.plan import overrides
from amplifier_app.plan.documents.plan_files import DEFAULT_PROFILE, MergedPlan, read_profile
from amplifier_app.plan.documents.scopes import Override, read_settings
from amplifier_app.plan.masking import is_secret_key
from amplifier_app.plan.schema.grammar import PLAN
from amplifier_app.plan.schema.rules import check_complete, normalise
from amplifier_app.plan.source_spec import (
    ArchiveSource,
    FolderSource,
    GitSource,
    SourceSyntaxError,
    parse_source,
    without_password,
)
from amplifier_app.plan.tree.entries import (
    ENTRY_SECTIONS,
    PROVIDER_PREFIX,
    entry_key,
    entry_keys,
    list_entries,
    module_entries,
    mounted_as,
    with_agents,
    with_value,
)
from amplifier_app.plan.tree.interpolation import interpolate
from amplifier_app.plan.tree.merge import overlay_settings
from amplifier_app.plan.tree.nodes import (
    NOWHERE,
    ListNode,
    MapNode,
    Node,
    Scalar,
    read_text,
    scalars,
    with_items,
)
from amplifier_app.plan.tree.problems import PlanError, Problem, Problems, suggest
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import without_login

if TYPE_CHECKING:
    from amplifier_app.plan.requirements import PlanRequirement


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
        explains = self.is_fallback or not needed
        return f"{self.key} skipped: {self.reason if explains else f'set {needed}{always}'}"


def apply_conditions(
    entries: Sequence[MapNode], environ: Mapping[str, str] | None, chosen: str | None
) -> tuple[list[MapNode], list[Dropped]]:
    """The entries whose conditions hold, without their `when`.

    Args:
        entries: Normalised provider entries.
        environ: The environment; an empty variable counts as unset. None keeps all entries as they are.
        chosen: The key of an entry to keep regardless of its condition.
    """
    if environ is None:
        return list(entries), []
    dropped: dict[str, Dropped] = {}
    fallbacks: dict[str, MapNode] = {}
    for entry in entries:
        key = entry_key(entry) or ""
        if key == chosen:
            continue
        names = _variables(entry)
        if names and not any(environ.get(name) for name in names):
            reason = unset(names)
            unused = environ.unused if isinstance(environ, Environment) else {}
            if _is_fallback(entry):
                option = f"--provider {key.removeprefix('provider-')}"
                reason = f"it is used only with {option}, or if {' or '.join(names)} is set"
            elif reasons := [unused[name] for name in names if name in unused]:
                reason, names = reasons[0], ()
            dropped[key] = _dropped_entry(entry, reason, names)
        elif _is_fallback(entry):
            fallbacks[key] = entry
    for key, entry in fallbacks.items():
        others = [k for e in entries if (k := entry_key(e)) and k not in dropped and k != key]
        if others:
            dropped[key] = _dropped_entry(entry, f"{others[0]} is available")
    kept = [
        with_items(entry, {key: value for key, value in entry.items.items() if key != "when"})
        for entry in entries
        if entry_key(entry) not in dropped
    ]
    return kept, list(dropped.values())


def _dropped_entry(entry: MapNode, reason: str, variables: tuple[str, ...] = ()) -> Dropped:
    module = entry.text("module") or ""
    return Dropped(
        key=entry_key(entry) or module,
        reason=reason,
        at=entry.at,
        variables=variables,
        module=module,
        source=entry.text("source"),
        is_fallback=_is_fallback(entry),
        is_configured=bool({"api_key", "base_url"} & entry.mapping("config").items.keys()),
    )


def _variables(entry: MapNode) -> tuple[str, ...]:
    """The variables, one of which enables a provider."""
    return tuple(text for node in entry.mapping("when").listed("env") if (text := read_text(node)))


def _is_fallback(entry: MapNode) -> bool:
    node = entry.mapping("when").items.get("no_other")
    return isinstance(node, Scalar) and node.value is True


def unset(names: tuple[str, ...]) -> str:
    """The clause that none of these environment variables is set."""
    return f"{names[0]} is not set" if len(names) == 1 else f"none of {', '.join(names)} is set"


class Unset(NamedTuple):
    """An unset variable of a plan.

    Attributes:
        name: Its name.
        at: Where it is used.
    """

    name: str
    at: Location


class Resolution(NamedTuple):
    """A resolved plan.

    Attributes:
        tree: The plan with all variables expanded.
        dropped: The providers whose conditions are not met.
        sources: The sources that settings set for modules.
        unset: Unset variables, if these are not problems.
        notes: Sentences about skipped providers of agents, for the user.
        warnings: Sentences about possible typos in agents.
        requires: Module id → requirements added by its entries.
    """

    tree: MapNode
    dropped: tuple[Dropped, ...]
    sources: Mapping[str, Override]
    unset: tuple[Unset, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    requires: Mapping[str, tuple[PlanRequirement, ...]]


def resolve(
    merged: MergedPlan,
    chosen: overrides.Overrides,
    environ: Mapping[str, str],
    *,
    keep_unset: bool = False,
    lenient: bool = False,
) -> Resolution:
    """Apply overrides, conditions and variables to a plan, and make its sources absolute.

    Args:
        merged: The plan as written.
        chosen: The overrides of the command line.
        environ: The variables.
        keep_unset: See `ResolvedPlan`.
        lenient: See `ResolvedPlan`.

    Raises:
        PlanError: Problems of the documents, overrides of missing entries, unset variables,
            invalid sources; all at once.
    """
    problems = Problems(merged.texts, merged.problems)
    tree = _with_sets(merged.document, chosen, problems)
    if chosen.without:
        tree = overrides.without_modules(tree, chosen.without)
    added: list[str] = []
    if _lacks_provider(merged, tree, chosen) and not chosen.traffic.replaces_providers:
        tree, added = _with_provider(merged, tree, chosen.provider, environ)
    tree = _with_fallbacks(tree, problems)
    tree = chosen.traffic.stand_ins(tree)
    conditions = None if chosen.keep_conditions else environ
    try:
        tree, dropped = _with_providers(tree, chosen, conditions)
    except PlanError as error:
        problems.extend(error.problems)
        rest = chosen._replace(provider=None, model=None)
        tree, dropped = _with_providers(tree, rest, conditions)
    notes: list[str] = []
    tree = with_agents(tree, lambda name, agent: _with_conditions(name, agent, conditions, notes))
    warnings = [*added, *_unknown_exclusions(tree)]
    keep_unset = keep_unset or lenient
    resolved = interpolate(tree, environ, problems, keep_unset=keep_unset)
    assert isinstance(resolved, MapNode)
    # Check every source; paths are relative to the file that contains them.
    resolved = with_sources(resolved, lambda source: _absolute(merged, source, problems), problems)
    resolved = _with_namespaces(merged, resolved, problems, warnings)
    requires = _requires(merged, resolved, problems)
    written = interpolate(
        MapNode(merged.sources, NOWHERE), environ, problems, keep_unset=keep_unset
    )
    sources = _source_overrides(merged, written, problems)
    _check_addresses(merged, resolved, problems)
    if not lenient:
        problems.raise_if_any()
    unset = [
        Unset(name, scalar.at)
        for tree in ((resolved, written) if keep_unset else ())
        for scalar in scalars(tree)
        for name in scalar.unset
    ]
    return Resolution(
        resolved, tuple(dropped), sources, tuple(unset), tuple(notes), tuple(warnings), requires
    )


def _lacks_provider(merged: MergedPlan, tree: MapNode, chosen: overrides.Overrides) -> bool:
    """Return True if a provider is to be added to the plan."""
    entries = list_entries(tree, "providers")
    if not entries:
        return chosen.provider is not None or merged.bundle
    if chosen.provider is None or not chosen.adds_provider:
        return False
    return overrides.named_provider(entries, chosen.provider) is None


def _with_sets(tree: MapNode, chosen: overrides.Overrides, problems: Problems) -> MapNode:
    if not chosen.sets:
        return tree
    changed = overrides.apply_sets(tree, chosen.sets, problems)
    tree = normalise(changed, "--set", problems, PLAN)
    check_complete(tree, problems)
    return tree


def _with_providers(
    tree: MapNode, chosen: overrides.Overrides, environ: Mapping[str, str] | None
) -> tuple[MapNode, list[Dropped]]:
    providers = list_entries(tree, "providers")
    named = overrides.find_provider(providers, chosen.provider) if chosen.provider else None
    key = None if named is None else entry_key(named)
    kept, dropped = apply_conditions(providers, environ, key)
    tree = _with_entries(tree, kept)
    return overrides.asking(tree, chosen.provider or None, chosen.model), dropped


def _with_fallbacks(tree: MapNode, problems: Problems) -> MapNode:
    """The plan with the mount names of providers in `fallbacks`."""
    named = tree.mapping("session").items.get("fallbacks")
    if not isinstance(named, ListNode):
        return tree
    entries = list_entries(tree, "providers")
    names: list[Node] = []
    for node in named.items:
        text = read_text(node)
        if text is None or "${" in text:
            names.append(node)
            continue
        try:
            name = mounted_as(overrides.find_provider(entries, text))
        except overrides.PlanError as error:
            [problem] = error.problems
            problems.add(f"fallbacks: {problem.message}", node.at, problem.hint)
            continue
        names.append(Scalar(name, node.at))
    return with_value(tree, ("session", "fallbacks"), ListNode(names, named.at))


def _with_entries(tree: MapNode, kept: Sequence[Node]) -> MapNode:
    section = tree.items.get("providers")
    return tree if section is None else tree.with_item("providers", ListNode(kept, section.at))


def _with_conditions(
    name: str, agent: MapNode, environ: Mapping[str, str] | None, notes: list[str]
) -> MapNode:
    """An agent with the conditions of its providers applied; adds notes on those that are skipped."""
    kept, dropped = apply_conditions(list_entries(agent, "providers"), environ, None)
    notes += [f"agent {name}: {entry.note}" for entry in dropped]
    return _with_entries(agent, kept)


def _unknown_exclusions(tree: MapNode) -> Iterator[str]:
    """Warnings about modules that an agent excludes and the plan does not have.

    Agents are used in many plans, so this is valid, but could be a typo.
    """
    agents = tree.mapping("agents")
    present = sorted({key for section in ENTRY_SECTIONS for key in entry_keys(tree, section)})
    for name in agents.items:
        for node in agents.mapping(name).listed("exclude"):
            text = read_text(node)
            if text is not None and text not in present:
                what = f"agent {name} excludes {text!r}, which the plan does not have"
                yield f"{node.at}: {what}; {suggest(text, present)}"


def with_sources(
    tree: MapNode, find_source: Callable[[Scalar], str | None], problems: Problems
) -> MapNode:
    """Replace the source of every module; invalid ones become problems.

    Args:
        tree: A plan.
        find_source: Returns the replacement of a source; None keeps it.
        problems: Collects the problems.
    """
    for entry in module_entries(tree):
        source = entry.node.items.get("source")
        if not isinstance(source, Scalar):
            continue
        try:
            text = find_source(source)
        except SourceSyntaxError as error:
            problems.add(error.message, source.at, error.hint)
            continue
        if text is not None and text != source.value:
            tree = with_value(tree, (*entry.path, "source"), source._replace(value=text))
    return tree


def _with_namespaces(
    merged: MergedPlan, tree: MapNode, problems: Problems, warnings: list[str]
) -> MapNode:
    """The plan with the sources of its namespaces made absolute."""
    namespaces = tree.items.get("namespaces")
    if not isinstance(namespaces, MapNode):
        return tree
    resolved: dict[str, Node] = {}
    for name, sources in namespaces.items.items():
        assert isinstance(sources, ListNode)
        absolute: list[Node] = []
        for item in sources.items:
            assert isinstance(item, Scalar)
            try:
                text = _absolute(merged, item, problems)
                if text is not None:
                    _refuse_changing(text)
            except SourceSyntaxError as error:
                if item.literal:
                    # The folder of a bundle, which may have a name that no source can have.
                    warnings.append(f"files of @{name} cannot be read: {error.message}")
                else:
                    problems.add(error.message, item.at, error.hint)
                continue
            absolute.append(item if text is None else item._replace(value=text))
        resolved[name] = ListNode(absolute, sources.at)
    return tree.with_item("namespaces", with_items(namespaces, resolved))


def _refuse_changing(text: str) -> None:
    """
    Raises:
        SourceSyntaxError: The source, which no lock has, can change.
    """
    source = parse_source(text, Path.cwd())
    if isinstance(source, FolderSource) or (isinstance(source, GitSource) and source.is_commit):
        return
    if isinstance(source, ArchiveSource) and source.sha256:
        return
    hint = "write './FOLDER', 'git+https://HOST/REPO@COMMIT' or 'https://…/ARCHIVE#sha256=HASH'"
    raise SourceSyntaxError(
        f"{without_password(text)!r} is not a folder or a fixed version of one", hint=hint
    )


def _requires(
    merged: MergedPlan, tree: MapNode, problems: Problems
) -> dict[str, tuple[PlanRequirement, ...]]:
    """The checked requirements that entries, and the bundles that list them, add to their modules."""
    entries = [module_entry.node for module_entry in module_entries(tree)]
    adding = [entry for entry in entries if "requires" in entry.items]
    if not adding and not merged.checkouts:
        return {}
    from amplifier_app.plan.requirements import package_of_bundle, parse_requirements

    requirements = parse_requirements(adding, problems)
    for entry in entries if merged.checkouts else ():
        source, module = entry.items.get("source"), entry.text("module")
        folder = None if source is None else merged.folders.get(source.at.file)
        if source is None or folder is None or module is None:
            continue
        for checkout in merged.checkouts:
            if folder.is_relative_to(checkout.folder):
                package = package_of_bundle(checkout.source, checkout.folder, source.at)
                known = requirements.get(module, ())
                if package is not None and package.written not in {
                    requirement.written for requirement in known
                }:
                    requirements[module] = (*known, package)
    return requirements


def _source_overrides(merged: MergedPlan, sources: Node, problems: Problems) -> dict[str, Override]:
    source_overrides: dict[str, Override] = {}
    for module, source in sources.items.items() if isinstance(sources, MapNode) else ():
        if not isinstance(source, Scalar):
            continue
        try:
            text = _absolute(merged, source, problems)
        except SourceSyntaxError as error:
            problems.add(error.message, source.at, error.hint)
            continue
        if text is not None:
            source_overrides[module] = Override(text, source.at)
    return source_overrides


def _check_addresses(merged: MergedPlan, tree: MapNode, problems: Problems) -> None:
    """Report each module for which the project sets an address, and the user a key that would be sent there."""
    for entry in module_entries(tree):
        for config in _mappings(entry.node.mapping("config")):
            for setting in ("base_url", "url"):
                address = config.items.get(setting)
                if not isinstance(address, Scalar) or not _is_in_project(merged, address):
                    continue
                for name, key in _keys(config):
                    if _is_in_project(merged, key):
                        continue
                    problems.add(
                        f"the project's {setting} ({without_login(str(address.value))}) would be sent the {name} of "
                        f"{entry_key(entry.node)} that is set at {key.at}",
                        address.at,
                        f"Set both in your settings, or remove {setting} from the project.",
                    )


def _mappings(node: Node) -> Iterator[MapNode]:
    """Yield a mapping and those in it, at any depth."""
    if isinstance(node, MapNode):
        yield node
    below = () if isinstance(node, Scalar) else node.items
    for item in below.values() if isinstance(below, Mapping) else below:
        yield from _mappings(item)


def _keys(config: MapNode) -> Iterator[tuple[str, Scalar]]:
    """Yield each key in a mapping with its name, at any depth: its `headers` may have some."""
    for mapping in _mappings(config):
        for name, key in mapping.items.items():
            # A key of this command line is meant for the plan as it is.
            is_key = isinstance(key, Scalar) and key.value and not key.at.file.startswith("--")
            if isinstance(key, Scalar) and is_key and is_secret_key(name):
                yield name, key


def _is_in_project(merged: MergedPlan, node: Node) -> bool:
    """Return True if a value is set in a document of the project."""
    folder = merged.folders.get(node.at.file)
    if merged.project is None or folder is None or folder.is_relative_to(paths.config_dir()):
        return False
    return folder.is_relative_to(merged.project.parent)


def _absolute(merged: MergedPlan, source: Scalar, problems: Problems) -> str | None:
    """Resolve a source relative to the file that contains it; None if it is unknown.

    Raises:
        SourceSyntaxError: It is invalid.
    """
    if source.unset or problems.any_at(source.at):
        return None
    return merged.source(str(source.value), source.at.file)


NO_PROVIDER = "no model provider is set up"
CHOSEN_MISSING = "the chosen provider {!r} is not available"
SET_UP = (
    "Set one up: amplifier init. Or pass --provider NAME, or --profile local for the offline demo "
    "model."
)
"""The error of a plan without an available provider, and the next step."""

_OPTION = Location("--provider")


class _Offered(NamedTuple):
    """The providers that can be added to a plan.

    Attributes:
        settings: The providers of the settings.
        profile: The providers of the default profile, including those of the settings.
    """

    settings: Sequence[MapNode]
    profile: Sequence[MapNode]


def _with_provider(
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
    present = list_entries(tree, "providers")
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
    return tree.with_item("providers", section), notes


def _named(offered: _Offered, name: str, *, has_others: bool) -> tuple[MapNode, str]:
    for entries in (offered.settings, offered.profile):
        entry = overrides.named_provider(entries, name)
        if entry is not None:
            return entry, f"--provider {name}, as configured in {_place(entry)}"
    known = installed.known_ids()
    for module in (name, f"{PROVIDER_PREFIX}{name}"):
        if module in known and module.startswith(PROVIDER_PREFIX):
            return MapNode({"module": Scalar(module, _OPTION)}, _OPTION), f"--provider {name}"
    providers = [
        module_id.removeprefix(PROVIDER_PREFIX)
        for module_id in known
        if module_id.startswith(PROVIDER_PREFIX)
    ]
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
        (entry, f"{next(filter(environ.get, _variables(entry)))} is set")
        for entry in with_key
        if entry_key(entry) in usable
    ]


def _place(entry: MapNode) -> str:
    return str(entry.at._replace(column=None))


def _offered(merged: MergedPlan) -> _Offered:
    settings = read_settings(merged.project)
    tree = MapNode({}, NOWHERE)
    for file in settings.files:
        tree, _ = overlay_settings(tree, file.tree)
    own = list_entries(tree, "providers")
    name = read_text(settings.profile) or DEFAULT_PROFILE
    try:
        profile = read_profile(name, settings, fetch=merged.fetch)
    except ConfigError:
        # A broken default profile must not stop this plan.
        return _Offered(own, ())
    return _Offered(
        own, [_with_source(profile, entry) for entry in list_entries(profile.document, "providers")]
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
    return entry.with_item("source", source._replace(value=text))
