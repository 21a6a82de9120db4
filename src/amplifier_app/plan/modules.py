"""The modules of a plan: those that it mounts, and every one that it may use, with its source.

More modules may be used than are mounted on this machine: agents have modules of their own, and a
provider that is skipped here may be mounted on another machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from amplifier_app.base import keys
from amplifier_app.base.errors import Location
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.requirements import PlanRequirement, parse_requirements
from amplifier_app.plan.source_spec import (
    ArchiveSource,
    FolderSource,
    SourceSyntaxError,
    parse_source,
    without_password,
)
from amplifier_app.plan.tree.entries import ModuleEntry, entry_key, module_entries
from amplifier_app.plan.tree.interpolation import interpolate
from amplifier_app.plan.tree.nodes import MapNode, Node, Scalar, read_text, scalars
from amplifier_app.plan.tree.problems import Problems
from amplifier_support.named_tuple import NamedTuple


class PlannedModule(NamedTuple):
    """One module of a plan.

    Attributes:
        kind: `"orchestrator"`, `"context"`, `"provider"`, `"tool"` or `"hook"`.
        key: Its instance id, else its module id.
        module: Its module id.
        source: The source the plan sets for it.
        entry: Its entry in the plan.
        agent: The agent it belongs to; None for the plan's own modules.
    """

    kind: str
    key: str
    module: str
    source: str | None
    entry: MapNode
    agent: str | None = None

    @property
    def at(self) -> Location:
        """The place where the plan names it."""
        return self.entry.key_at("module")


def planned_modules(plan: ResolvedPlan) -> list[PlannedModule]:
    """The modules in mount order, without those of agents."""
    modules = [_planned(entry) for entry in module_entries(plan.tree) if entry.agent is None]
    # A part of the session may be left without one by its problems.
    return [module for module in modules if module.module]


def agent_modules(plan: ResolvedPlan) -> list[PlannedModule]:
    """The modules of a plan's agents: additional ones, or modules of the plan with other settings.

    If an agent only changes a module of the plan, the plan's source applies.
    """
    sources = {(module.kind, module.key): module.source for module in planned_modules(plan)}
    modules = [_planned(entry) for entry in module_entries(plan.tree) if entry.agent is not None]
    return [
        planned._replace(source=planned.source or sources.get((planned.kind, planned.key)))
        for planned in modules
        if planned.module
    ]


def _planned(entry: ModuleEntry) -> PlannedModule:
    return PlannedModule(
        kind=entry.kind,
        key=entry_key(entry.node) or "",
        module=entry.node.text("module") or "",
        source=entry.node.text("source"),
        entry=entry.node,
        agent=entry.agent,
    )


def unset_variables(node: Node) -> Iterator[str]:
    """The unset variables in a part of a plan; see `Scalar.unset`."""
    return (name for scalar in scalars(node) for name in scalar.unset)


class SourcedModule(NamedTuple):
    """A module of a plan.

    Attributes:
        module: Its id.
        source: Its source with absolute paths; None if the plan sets none.
        written: The source as written, without passwords; paths stay relative.
        at: Where the source is set, else the module.
        left_out: Whether a condition skips it on this machine.
    """

    module: str
    source: str | None
    written: str | None
    at: Location
    left_out: bool


def sourced_modules(plan: ResolvedPlan) -> list[SourcedModule]:
    """The modules of a plan and its agents, including those whose conditions are not met.

    Raises:
        PlanError: The source of a skipped module is invalid, or a source contains an unset
            variable.
    """
    tree = plan.tree
    problems = Problems()
    nodes = [(node, False) for node in _modules(tree)]
    mounted = {node.at for node, _ in nodes}
    nodes += [(node, True) for node in _left_out(plan, mounted, problems)]
    for node, _ in nodes:
        source = node.items.get("source")
        if isinstance(source, Scalar):
            for name in source.unset:
                hint = f"export {name}, or give a default: ${{{name}:-value}}"
                problems.add(f"{name} is not set", source.at, hint)
    problems.raise_if_any()
    texts = _texts(plan)
    return list(dict.fromkeys(_sourced(node, texts, left_out=out) for node, out in nodes))


def read_requires(plan: ResolvedPlan) -> dict[str, tuple[PlanRequirement, ...]]:
    """The requirements that entries add to their modules, skipped entries included.

    Raises:
        PlanError: A requirement of a skipped entry is invalid.
    """
    problems = Problems(plan.merged.texts)
    tree, requirements = plan.tree, dict(plan.requires)
    left_out = _left_out(plan, {node.at for node in _modules(tree)}, problems)
    for module, requires in parse_requirements(left_out, problems).items():
        requirements[module] = tuple(
            {
                requirement.written: requirement
                for requirement in (*requirements.get(module, ()), *requires)
            }.values()
        )
    problems.raise_if_any()
    return requirements


def written_override(plan: ResolvedPlan, module: str) -> str | None:
    """The source that settings set for a module, in the form of `SourcedModule.written`."""
    override = plan.sources.get(module)
    raw = plan.merged.sources.get(module)
    return None if override is None else _portable(override.source, read_text(raw), secret=False)


def written_value(source: str) -> str:
    """A source that is not from a file, in the form of `SourcedModule.written`."""
    return _portable(source, source, secret=False)


def _modules(tree: MapNode) -> list[MapNode]:
    return [entry.node for entry in module_entries(tree) if "module" in entry.node.items]


def _left_out(plan: ResolvedPlan, mounted: set[Location], problems: Problems) -> Iterator[MapNode]:
    """The providers whose conditions are not met, with their sources resolved."""
    environ = keys.environment() if plan.environ is None else plan.environ
    for module_entry in module_entries(plan.merged.document):
        entry = module_entry.node
        if module_entry.kind != "provider" or entry.at in mounted:
            continue
        source = entry.items.get("source")
        items = {"module": entry.items["module"]}
        requires = entry.items.get("requires")
        if requires is not None:
            items["requires"] = interpolate(requires, environ, problems)
        filled = interpolate(source, environ, problems) if isinstance(source, Scalar) else None
        if isinstance(source, Scalar) and not problems.any_at(source.at):
            try:
                text = plan.merged.source(read_text(filled) or "", source.at.file)
                items["source"] = source._replace(value=text)
            except SourceSyntaxError as error:
                problems.add(error.message, source.at, error.hint)
        yield MapNode(items, entry.at)


def _sourced(node: MapNode, texts: dict[Location, str], *, left_out: bool) -> SourcedModule:
    module = node.text("module") or ""
    source = node.items.get("source")
    if not isinstance(source, Scalar) or not isinstance(source.value, str):
        return SourcedModule(module, None, None, node.at, left_out)
    written = _portable(source.value, texts.get(source.at), source.secret)
    return SourcedModule(module, source.value, written, source.at, left_out)


def _texts(plan: ResolvedPlan) -> dict[Location, str]:
    """Location → text of every string as written in the files and in `--set`."""
    return {
        scalar.at: scalar.value
        for node in (plan.merged.document, *(value for _, value in plan.chosen.sets))
        for scalar in scalars(node)
        if isinstance(scalar.value, str)
    }


def _portable(source: str, raw: str | None, secret: bool) -> str:
    """The form of a source for shared files: no password, and no absolute path that the plan does not
    contain itself."""
    if raw is None:
        return without_password(source)
    parsed = parse_source(source, Path("/"))
    is_path = isinstance(parsed, FolderSource) or (
        isinstance(parsed, ArchiveSource) and parsed.is_local
    )
    return without_password(raw if is_path or secret else source)
