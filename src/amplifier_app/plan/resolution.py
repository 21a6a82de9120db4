"""Resolve a merged plan in an environment: overrides, conditions, variables, module sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from amplifier_app.base.errors import Location
from amplifier_app.plan import overrides
from amplifier_app.plan.conditions import Dropped, apply_conditions
from amplifier_app.plan.documents.plan_files import MergedPlan
from amplifier_app.plan.documents.scopes import Override
from amplifier_app.plan.schema.grammar import PLAN
from amplifier_app.plan.schema.structure import check_complete, normalise
from amplifier_app.plan.source_spec import (
    ArchiveSource,
    FolderSource,
    GitSource,
    SourceSyntaxError,
    without_password,
)
from amplifier_app.plan.source_syntax import parse_source
from amplifier_app.plan.tree.entries import ENTRY_SECTIONS, entries_of, entry_keys, module_entries
from amplifier_app.plan.tree.interpolation import interpolate
from amplifier_app.plan.tree.nodes import (
    NOWHERE,
    ListNode,
    MapNode,
    Node,
    Scalar,
    text_of,
    with_items,
)
from amplifier_app.plan.tree.paths import with_value
from amplifier_app.plan.tree.problems import PlanError, Problems, suggest

if TYPE_CHECKING:
    from amplifier_app.plan.requirements import PlanRequirement


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
    added: list[str] = []
    if _lacks_provider(merged, tree, chosen):
        # Imported on demand: few plans lack a provider.
        from amplifier_app.plan.default_provider import with_provider

        if not chosen.traffic.replaces_providers:
            tree, added = with_provider(merged, tree, chosen.provider, environ)
    tree = _with_fallbacks(tree, problems)
    tree = chosen.traffic.stand_ins(tree, overrides.mounted_as)
    try:
        tree, dropped = _with_providers(tree, chosen, environ)
    except PlanError as error:
        problems.extend(error.problems)
        rest = chosen._replace(provider=None, model=None)
        tree, dropped = _with_providers(tree, rest, environ)
    tree, notes = _with_agents(tree, environ)
    warnings = [*added, *_unknown_exclusions(tree)]
    keep_unset = keep_unset or lenient
    resolved = interpolate(tree, environ, problems, keep_unset=keep_unset)
    assert isinstance(resolved, MapNode)
    # Check every source; paths are relative to the file that contains them.
    resolved = with_sources(resolved, lambda one: _absolute(merged, one, problems), problems)
    resolved = _with_namespaces(merged, resolved, problems, warnings)
    requires = _requires(merged, resolved, problems)
    written = interpolate(
        MapNode(merged.sources, NOWHERE), environ, problems, keep_unset=keep_unset
    )
    sources = _source_overrides(merged, written, problems)
    if not lenient:
        problems.raise_if_any()
    unset = (*_unset_in(resolved), *_unset_in(written)) if keep_unset else ()
    return Resolution(
        resolved, tuple(dropped), sources, unset, tuple(notes), tuple(warnings), requires
    )


def _lacks_provider(merged: MergedPlan, tree: MapNode, chosen: overrides.Overrides) -> bool:
    """Return True if a provider is to be added to the plan."""
    entries = entries_of(tree, "providers")
    if not entries:
        return chosen.provider is not None or merged.bundle
    if chosen.provider is None or not chosen.adds_provider:
        return False
    return overrides.provider_key(entries, chosen.provider) is None


def _with_sets(tree: MapNode, chosen: overrides.Overrides, problems: Problems) -> MapNode:
    if not chosen.sets:
        return tree
    changed = overrides.apply_sets(tree, chosen.sets, problems)
    tree = normalise(changed, "--set", problems, PLAN)
    check_complete(tree, problems)
    return tree


def _with_providers(
    tree: MapNode, chosen: overrides.Overrides, environ: Mapping[str, str]
) -> tuple[MapNode, list[Dropped]]:
    providers = entries_of(tree, "providers")
    key = overrides.find_provider(providers, chosen.provider) if chosen.provider else None
    kept, dropped = apply_conditions(providers, environ, key)
    tree, kept = overrides.prefer(tree, kept, key)
    if chosen.model:
        kept = overrides.with_model(tree, kept, key, chosen.model)
    return _with_entries(tree, kept), dropped


def _with_fallbacks(tree: MapNode, problems: Problems) -> MapNode:
    """The plan with the mount names of providers in `fallbacks`."""
    session = tree.items.get("session")
    named = session.items.get("fallbacks") if isinstance(session, MapNode) else None
    if not isinstance(named, ListNode):
        return tree
    entries = entries_of(tree, "providers")
    names: list[Node] = []
    for node in named.items:
        text = text_of(node)
        if text is None or "${" in text:
            names.append(node)
            continue
        try:
            name = overrides.mount_name(entries, text)
        except overrides.PlanError as error:
            [problem] = error.problems
            problems.add(f"fallbacks: {problem.message}", node.at, problem.hint)
            continue
        names.append(Scalar(name, node.at))
    return with_value(tree, ("session", "fallbacks"), ListNode(names, named.at))


def _with_entries(tree: MapNode, kept: Sequence[Node]) -> MapNode:
    section = tree.items.get("providers")
    if section is None:
        return tree
    return with_items(tree, {**tree.items, "providers": ListNode(kept, section.at)})


def _with_agents(tree: MapNode, environ: Mapping[str, str]) -> tuple[MapNode, list[str]]:
    """The plan with the conditions of its agents applied, and notes on skipped providers."""
    agents = tree.items.get("agents")
    if not isinstance(agents, MapNode):
        return tree, []
    notes: list[str] = []
    changed: dict[str, Node] = {}
    for name, agent in agents.items.items():
        assert isinstance(agent, MapNode)
        kept, dropped = apply_conditions(entries_of(agent, "providers"), environ, None)
        changed[name] = _with_entries(agent, kept)
        notes += [f"agent {name}: {one.note}" for one in dropped]
    return with_items(tree, {**tree.items, "agents": with_items(agents, changed)}), notes


def _unknown_exclusions(tree: MapNode) -> Iterator[str]:
    """Warnings about modules that an agent excludes and the plan does not have.

    Agents are used in many plans, so this is valid, but could be a typo.
    """
    agents = tree.items.get("agents")
    present = sorted({key for section in ENTRY_SECTIONS for key in entry_keys(tree, section)})
    for name, agent in agents.items.items() if isinstance(agents, MapNode) else ():
        exclude = agent.items.get("exclude") if isinstance(agent, MapNode) else None
        for node in exclude.items if isinstance(exclude, ListNode) else ():
            text = text_of(node)
            if text is not None and text not in present:
                what = f"agent {name} excludes {text!r}, which the plan does not have"
                yield f"{node.at}: {what}; {suggest(text, present)}"


def with_sources(
    tree: MapNode, source_of: Callable[[Scalar], str | None], problems: Problems
) -> MapNode:
    """Replace the source of every module; invalid ones become problems.

    Args:
        tree: A plan.
        source_of: Returns the replacement of a source; None keeps it.
        problems: Collects the problems.
    """
    for one in module_entries(tree):
        source = one.node.items.get("source")
        if not isinstance(source, Scalar):
            continue
        try:
            text = source_of(source)
        except SourceSyntaxError as error:
            problems.add(error.message, source.at, error.hint)
            continue
        if text is not None and text != source.value:
            tree = with_value(tree, (*one.path, "source"), source._replace(value=text))
    return tree


def _with_namespaces(
    merged: MergedPlan, tree: MapNode, problems: Problems, warnings: list[str]
) -> MapNode:
    """The plan with the sources of its namespaces made absolute."""
    namespaces = tree.items.get("namespaces")
    if not isinstance(namespaces, MapNode):
        return tree
    found: dict[str, Node] = {}
    for name, sources in namespaces.items.items():
        assert isinstance(sources, ListNode)
        absolute: list[Node] = []
        for one in sources.items:
            assert isinstance(one, Scalar)
            try:
                text = _absolute(merged, one, problems)
                if text is not None:
                    _refuse_changing(text)
            except SourceSyntaxError as error:
                if one.literal:
                    # The folder of a bundle, which may have a name that no source can have.
                    warnings.append(f"files of @{name} cannot be read: {error.message}")
                else:
                    problems.add(error.message, one.at, error.hint)
                continue
            absolute.append(one if text is None else one._replace(value=text))
        found[name] = ListNode(absolute, sources.at)
    return with_items(tree, {**tree.items, "namespaces": with_items(namespaces, found)})


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
    entries = [one.node for one in module_entries(tree)]
    adding = [entry for entry in entries if "requires" in entry.items]
    if not adding and not merged.checkouts:
        return {}
    from amplifier_app.plan.requirements import package_of_bundle, requirements_of

    found = requirements_of(adding, problems)
    for entry in entries if merged.checkouts else ():
        source, module = entry.items.get("source"), text_of(entry.items.get("module"))
        folder = None if source is None else merged.folders.get(source.at.file)
        if source is None or folder is None or module is None:
            continue
        for checkout in merged.checkouts:
            if folder.is_relative_to(checkout.folder):
                package = package_of_bundle(checkout.source, checkout.folder, source.at)
                known = found.get(module, ())
                if package is not None and package.written not in {one.written for one in known}:
                    found[module] = (*known, package)
    return found


def _source_overrides(merged: MergedPlan, sources: Node, problems: Problems) -> dict[str, Override]:
    found: dict[str, Override] = {}
    for module, source in sources.items.items() if isinstance(sources, MapNode) else ():
        if not isinstance(source, Scalar):
            continue
        try:
            text = _absolute(merged, source, problems)
        except SourceSyntaxError as error:
            problems.add(error.message, source.at, error.hint)
            continue
        if text is not None:
            found[module] = Override(text, source.at)
    return found


def _absolute(merged: MergedPlan, source: Scalar, problems: Problems) -> str | None:
    """Resolve a source relative to the file that contains it; None if it is unknown.

    Raises:
        SourceSyntaxError: It is invalid.
    """
    if source.unset or problems.any_at(source.at):
        return None
    return merged.source(str(source.value), source.at.file)


def _unset_in(node: Node) -> Iterator[Unset]:
    if isinstance(node, Scalar):
        for name in node.unset:
            yield Unset(name, node.at)
        return
    for value in node.items.values() if isinstance(node, MapNode) else node.items:
        yield from _unset_in(value)
