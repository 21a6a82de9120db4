"""Every module that a plan can come to use, with its source as it is written.

That is more than what is mounted here and now: agents bring modules of their own, and a provider
that a condition leaves out on this machine is mounted on another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from amplifier_app.base import keys
from amplifier_app.base.errors import Location
from amplifier_app.plan.interpolation import interpolate
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.nodes import ListNode, MapNode, Node, Scalar, text_of
from amplifier_app.plan.problems import Problems
from amplifier_app.plan.shapes import ENTRY_SECTIONS, PARTS
from amplifier_app.plan.source_spec import (
    ArchiveSource,
    FolderSource,
    SourceSyntaxError,
    without_password,
)
from amplifier_app.plan.source_syntax import parse_source

if TYPE_CHECKING:
    from amplifier_app.plan.requirements import PlanRequirement


class SourcedModule(NamedTuple):
    """A module of a plan.

    Attributes:
        module: Its id.
        source: Its source with paths absolute; None if the plan names none.
        written: The source as it is written, without passwords: a path as the file names it.
        at: Where the source stands, else the module.
        left_out: Whether a condition leaves it out on this machine.
    """

    module: str
    source: str | None
    written: str | None
    at: Location
    left_out: bool


def sourced_modules(plan: ResolvedPlan) -> list[SourcedModule]:
    """The modules of a plan, those of its agents, and those that conditions leave out.

    Raises:
        PlanError: The source of a module that is left out is wrong; or a source names a variable
            that is not set.
    """
    tree = plan.tree
    problems = Problems()
    agents = tree.items.get("agents")
    nodes = [(node, False) for node in (*_modules(tree), *_inside(agents, _modules))]
    there = {node.at for node, _ in nodes}
    nodes += [(node, True) for node in _left_out(plan, there, problems)]
    for node, _ in nodes:
        source = node.items.get("source")
        if isinstance(source, Scalar):
            for name in source.unset:
                hint = "set it, or give a default"
                problems.add(f"the variable {name} is not set", source.at, hint)
    problems.raise_if_any()
    texts = _texts(plan)
    return list(dict.fromkeys(_sourced(node, texts, left_out=out) for node, out in nodes))


def requires_of(plan: ResolvedPlan) -> dict[str, tuple[PlanRequirement, ...]]:
    """What entries add to the requirements of their modules, those left out included.

    Raises:
        PlanError: What an entry that is left out requires is wrong.
    """
    from amplifier_app.plan.requirements import requirements_of

    problems = Problems(plan.merged.texts)
    tree, found = plan.tree, dict(plan.requires)
    nodes = (*_modules(tree), *_inside(tree.items.get("agents"), _modules))
    left_out = _left_out(plan, {node.at for node in nodes}, problems)
    for module, requires in requirements_of(left_out, problems).items():
        found[module] = tuple(
            {one.written: one for one in (*found.get(module, ()), *requires)}.values()
        )
    problems.raise_if_any()
    return found


def written_override(plan: ResolvedPlan, module: str) -> str | None:
    """The source that settings name for a module, as `SourcedModule.written`."""
    override = plan.sources.get(module)
    raw = plan.merged.sources.get(module)
    if override is None:
        return None
    return _portable(override.source, text_of(raw), secret=False)


def written_value(source: str) -> str:
    """A source text that stands in no file, as `SourcedModule.written`."""
    return _portable(source, source, secret=False)


def _modules(document: MapNode) -> Iterator[MapNode]:
    session = document.items.get("session")
    if isinstance(session, MapNode):
        for part in PARTS:
            node = session.items.get(part)
            if isinstance(node, MapNode) and "module" in node.items:
                yield node
    for section in ENTRY_SECTIONS:
        yield from _entries(document, section)


def _providers(document: MapNode) -> Iterator[MapNode]:
    return _entries(document, "providers")


def _entries(document: MapNode, section: str) -> Iterator[MapNode]:
    entries = document.items.get(section)
    for entry in entries.items if isinstance(entries, ListNode) else ():
        if isinstance(entry, MapNode):
            yield entry


def _inside(agents: Node | None, of: Callable[[MapNode], Iterator[MapNode]]) -> Iterator[MapNode]:
    for agent in agents.items.values() if isinstance(agents, MapNode) else ():
        if isinstance(agent, MapNode):
            yield from of(agent)


def _left_out(plan: ResolvedPlan, there: set[Location], problems: Problems) -> Iterator[MapNode]:
    """The providers that conditions leave out, with their sources resolved like those of others."""
    environ = keys.environment() if plan.environ is None else plan.environ
    document = plan.merged.document
    agents = document.items.get("agents")
    for entry in (*_providers(document), *_inside(agents, _providers)):
        if entry.at in there:
            continue
        source = entry.items.get("source")
        items = {"module": entry.items["module"]}
        requires = entry.items.get("requires")
        if requires is not None:
            items["requires"] = interpolate(requires, environ, problems)
        filled = interpolate(source, environ, problems) if isinstance(source, Scalar) else None
        if isinstance(source, Scalar) and not problems.any_at(source.at):
            try:
                text = plan.merged.source(text_of(filled) or "", source.at.file)
                items["source"] = source._replace(value=text)
            except SourceSyntaxError as error:
                problems.add(error.message, source.at, error.hint)
        yield MapNode(items, entry.at)


def _sourced(node: MapNode, texts: dict[Location, str], *, left_out: bool) -> SourcedModule:
    module = text_of(node.items["module"]) or ""
    source = node.items.get("source")
    if not isinstance(source, Scalar) or not isinstance(source.value, str):
        return SourcedModule(module, None, None, node.at, left_out)
    written = _portable(source.value, texts.get(source.at), source.secret)
    return SourcedModule(module, source.value, written, source.at, left_out)


def _texts(plan: ResolvedPlan) -> dict[Location, str]:
    """Place → text of every source as it stands in the files and in `--set`."""
    found: dict[Location, str] = {}

    def collect(node: Node) -> None:
        if isinstance(node, ListNode):
            for item in node.items:
                collect(item)
        elif isinstance(node, MapNode):
            for item in node.items.values():
                collect(item)
        elif isinstance(node.value, str):
            found[node.at] = node.value

    collect(plan.merged.document)
    for _, value in plan.chosen.sets:
        collect(value)
    return found


def _portable(source: str, raw: str | None, secret: bool) -> str:
    """What may stand in a file that others read: no password, and no folder of this machine
    that the plan does not name itself."""
    if raw is None:
        return without_password(source)
    parsed = parse_source(source, Path("/"))
    is_path = isinstance(parsed, FolderSource) or (
        isinstance(parsed, ArchiveSource) and parsed.is_local
    )
    return without_password(raw if is_path or secret else source)
