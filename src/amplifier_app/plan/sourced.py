"""Every module that a plan can come to use, with its source as it is written.

That is more than what is mounted here and now: agents bring modules of their own, and a provider
that a condition leaves out on this machine is mounted on another.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from amplifier_app import keys
from amplifier_app.errors import Location
from amplifier_app.plan.interpolation import interpolate
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.nodes import ListNode, MapNode, Node, Scalar, text_of
from amplifier_app.plan.problems import Problems
from amplifier_app.plan.structure import ENTRY_SECTIONS, PARTS
from amplifier_app.sources.spec import (
    FolderSource,
    SourceSyntaxError,
    parse_source,
    without_password,
)


class SourcedModule(NamedTuple):
    """A module of a plan.

    Attributes:
        module: Its id.
        source: Its source with paths absolute; None if the plan names none.
        written: The source as it is written, without passwords: a folder as the file names it.
        at: Where the source stands, else the module.
        mounted: Whether a session of the plan mounts it here and now.
    """

    module: str
    source: str | None
    written: str | None
    at: Location
    mounted: bool


def sourced_modules(plan: ResolvedPlan) -> list[SourcedModule]:
    """The modules of a plan, those of its agents, and those that conditions leave out.

    Raises:
        PlanError: The source of a module that is left out is wrong or names unset variables.
    """
    tree = plan.tree
    texts = _texts(plan)
    found = [_sourced(node, texts, mounted=True) for node in _modules(tree)]
    agents = tree.items.get("agents")
    if agents is not None:
        found += [_sourced(node, texts, mounted=False) for node in _inside(agents)]
    found += [_sourced(node, texts, mounted=False) for node in _left_out(plan)]
    return list(dict.fromkeys(found))


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


def _modules(tree: MapNode) -> Iterator[MapNode]:
    session = tree.items.get("session")
    if isinstance(session, MapNode):
        for part in PARTS:
            node = session.items.get(part)
            if isinstance(node, MapNode) and "module" in node.items:
                yield node
    for section in ENTRY_SECTIONS:
        entries = tree.items.get(section)
        for entry in entries.items if isinstance(entries, ListNode) else ():
            if isinstance(entry, MapNode):
                yield entry


def _inside(agents: Node) -> Iterator[MapNode]:
    values = agents.items.values() if isinstance(agents, MapNode) else ()
    for agent in agents.items if isinstance(agents, ListNode) else values:
        if isinstance(agent, MapNode):
            yield from _modules(agent)


def _left_out(plan: ResolvedPlan) -> Iterator[MapNode]:
    """The entries that conditions leave out, with their sources resolved like those of others."""
    dropped = {entry.at for entry in plan.dropped}
    environ = keys.environment() if plan.environ is None else plan.environ
    problems = Problems()
    for entry in _modules(plan.merged.document):
        if entry.at not in dropped:
            continue
        source = entry.items.get("source")
        items = {"module": entry.items["module"]}
        if isinstance(source, Scalar):
            filled = interpolate(source, environ, problems)
            folder = plan.merged.folders.get(source.at.file) or Path.cwd()
            try:
                text = parse_source(text_of(filled) or "", folder).text
                items["source"] = source._replace(value=text)
            except SourceSyntaxError as error:
                problems.add(error.message, source.at, error.hint)
        yield MapNode(items, entry.at)
    problems.raise_if_any()


def _sourced(node: MapNode, texts: dict[Location, str], *, mounted: bool) -> SourcedModule:
    module = text_of(node.items["module"]) or ""
    source = node.items.get("source")
    if not isinstance(source, Scalar) or not isinstance(source.value, str):
        return SourcedModule(module, None, None, node.at, mounted)
    written = _portable(source.value, texts.get(source.at), source.secret)
    return SourcedModule(module, source.value, written, source.at, mounted)


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
    folder = isinstance(parse_source(source, Path("/")), FolderSource)
    return without_password(raw if folder or secret else source)
