"""`amplifier module add|remove|override`: modules of every profile."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from amplifier_app.base import installed
from amplifier_app.base.errors import ConfigError, Location, UsageError
from amplifier_app.commands.settings import (
    ScopeOption,
    Target,
    changing,
    parse_location,
    report,
    warn_of_secret,
    written_source,
)
from amplifier_app.commands.typer_options import argument, option
from amplifier_app.plan.documents.scopes import SCOPES, Settings, read_settings, settings_path
from amplifier_app.plan.overrides import apply_sets, parse_sets
from amplifier_app.plan.schema.config_check import config_problems
from amplifier_app.plan.schema.module_schemas import config_schema
from amplifier_app.plan.schema.rules import ID
from amplifier_app.plan.source_spec import FolderSource, Source
from amplifier_app.plan.tree import edit
from amplifier_app.plan.tree.entries import ENTRY_SECTIONS, SECTION_OF, entry_key, list_entries
from amplifier_app.plan.tree.interpolation import names_in
from amplifier_app.plan.tree.nodes import NOWHERE, ListNode, MapNode, Node, plain_data, read_text
from amplifier_app.plan.tree.problems import PlanError, Problems, suggest
from amplifier_app.sources.loading import load_profile
from amplifier_app.sources.requirements.layout import find_layout
from amplifier_core.module_sources import PARTS, find_kind
from amplifier_support.text import did_you_mean

Kind = Literal["tool", "hook", "provider"]
"""The kinds of which a plan can have any number of modules."""


def add(
    module: Annotated[str, argument("ID", "Id of the module.")],
    source: Annotated[str | None, option("-s, --source SOURCE", "Where to load it from.")] = None,
    kind: Annotated[
        Kind | None, option("-t, --type", "Module type. [default: guessed from the id]")
    ] = None,
    config: Annotated[
        list[str] | None, option("-c, --config KEY=VALUE", "Configuration; repeatable.")
    ] = None,
    scope: ScopeOption = None,
) -> None:
    """Add a module to every profile (through your settings).

    \b
      amplifier module add tool-web
      amplifier module add my-tool --source ./my-tool

    Without --scope, changes settings.yaml of the project, or outside a project your own settings.
    """
    section = SECTION_OF[kind or _kind(module)]
    values = _parse_config(config or [])
    with changing(scope, in_project="project") as where:
        _check_id(module)
        entry: dict[str, Any] = {"module": module}
        if source is not None:
            _offers(parse_location(source), module)
            entry["source"] = written_source(source, where)
        if values.items:
            entry["config"] = plain_data(values)
        settings = read_settings(where.project)
        _check_new(module, entry, settings, where)
        if source is None:
            _check_config(module, values)
        excluded = _is_excluded(settings, where, module)
        if excluded:
            edit.remove_value(where.file, ("exclude", module))
        if not excluded or len(entry) > 1:
            edit.append_value(where.file, (section,), entry)
        report(where, f"added {module} to {section}", warn_of_secret(values, "--config"))


def _kind(module: str) -> str:
    kind = find_kind(module)
    if kind not in get_args(Kind):
        raise UsageError(
            f"{module} looks like a module of type {kind!r}, of which a plan has only one",
            hint=f"Set it under 'session: {{{kind}: …}}', or pass --type.",
        )
    return kind


def remove(
    module: Annotated[str, argument("ID", "Id of the module.")],
    scope: ScopeOption = None,
) -> None:
    """Remove a module from every profile.

    \b
      amplifier module remove tool-web

    Deletes its entry in settings, or excludes it if a profile lists it. Without --scope, changes
    settings.yaml of the project, or outside a project your own settings.
    """
    with changing(scope, in_project="project") as where:
        _remove(module, where)


def _remove(module: str, where: Target) -> None:
    """Delete the entry of a module in the settings, or else exclude it.

    Raises:
        UsageError: The module is not used.
    """
    settings = read_settings(where.project)
    own = _entries(settings, where.file).get(module)
    if own is not None:
        edit.remove_value(where.file, (own[0], module))
        inherited = _modules(load_profile(project=where.project).merged.document).get(module)
        rest = f"; it is still used by {inherited}; remove it again to exclude it"
        report(where, f"removed {module} from {own[0]}{'' if inherited is None else rest}")
        return
    for scope in SCOPES:
        other = _entries(settings, settings_path(scope, where.project)).get(module)
        if other is not None:
            raise UsageError(
                f"the {where.scope} settings do not contain {module}",
                hint=f"It is set at {other[1]}; use --scope {scope}.",
            )
    _exclude(module, settings, where)


def _exclude(module: str, settings: Settings, where: Target) -> None:
    profile = load_profile(project=where.project)
    inherited = _modules(profile.merged.document)
    if module not in inherited:
        if _is_excluded(settings, where, module):
            raise ConfigError(f"{module} is already excluded", location=Location(str(where.file)))
        raise UsageError(
            f"module {module!r} is in neither the settings nor the profile {profile.name!r}",
            hint=suggest(module, sorted(inherited)),
        )
    if module in _parts(profile.merged.document):
        raise ConfigError(
            f"cannot exclude {module}: a plan needs an orchestrator and a context",
            hint="Set another one under 'session:' in the settings.",
        )
    edit.append_value(where.file, ("exclude",), module)
    report(where, f"excluded {module} of the profile {profile.name!r}")


def override(
    module: Annotated[str, argument("ID", "Id of the module.")],
    source: Annotated[str | None, argument("SOURCE", "Where to load it from.")] = None,
    scope: ScopeOption = None,
    remove: Annotated[bool, option("--remove", "Remove the override.")] = False,
) -> None:
    """Load a module from a different source in every plan (`sources:` in settings).

    \b
      amplifier module override tool-web ../my-fork
      amplifier module override tool-web --remove

    Without --scope, changes settings.local.yaml of the project, or outside a project your own
    settings.
    """
    if remove == (source is not None):
        raise UsageError("expected either a SOURCE or --remove")
    with changing(scope, in_project="local") as where:
        if source is None:
            _remove_override(module, where)
        else:
            override_source(module, source, where)


def override_source(module: str, source: str, where: Target) -> None:
    """Load a module from a different source in every plan.

    Args:
        module: Its id.
        source: The source; a relative path starts at the working directory.
        where: The settings to change.

    Raises:
        UsageError: The id or the source is invalid, or the id is probably misspelt.
        SourceError: The folder does not contain the module.
        ConfigError: The settings cannot be read or written.
    """
    _check_id(module)
    if not _offers(parse_location(source), module):
        known = _known_modules(where.project)
        near = did_you_mean(module, known) if module not in known else None
        if near is not None:
            raise UsageError(f"unknown module {module!r}; {near}")
    text = written_source(source, where)
    edit.set_value(where.file, ("sources", module), text)
    report(where, f"{module} is now loaded from {text}")


def _remove_override(module: str, where: Target) -> None:
    if edit.remove_value(where.file, ("sources", module)):
        report(where, f"{module} is no longer overridden")
        return
    settings = read_settings(where.project)
    elsewhere = settings.sources.get(module)
    if elsewhere is not None:
        raise UsageError(
            f"the {where.scope} settings do not override {module}",
            hint=f"The override is set in {elsewhere.at}.",
        )
    listed = sorted(settings.sources)
    hint = f"Overridden: {', '.join(listed)}" if listed else "There are no overrides."
    raise UsageError(f"no settings override {module}", hint=did_you_mean(module, listed) or hint)


# -- checks ------------------------------------------------------------------------------


def _check_id(module: str) -> None:
    """Check the form of a module id.

    Raises:
        UsageError: It is not a valid id.
    """
    if not re.fullmatch(ID, module):
        hint = "Pass its location with --source." if "/" in module or ":" in module else None
        raise UsageError(
            f"{module!r} is not a module id (letters, digits, '-', '_', '.')", hint=hint
        )


def _check_new(module: str, entry: dict[str, Any], settings: Settings, where: Target) -> None:
    present = _entries(settings, where.file).get(module)
    if present is not None:
        raise ConfigError(
            f"the {where.scope} settings already contain {module}, at {present[1]}",
            hint=f"Change it there, or remove it first: amplifier module remove {module}",
        )
    if "source" in entry or _is_excluded(settings, where, module):
        return
    inherited = _modules(load_profile(project=where.project).merged.document).get(module)
    if inherited is not None and "config" not in entry:
        raise ConfigError(
            f"{module} is already used by {inherited}",
            hint="Pass --config or --source to change it.",
        )
    known = {*_known_modules(where.project), *settings.sources}
    if module not in known:
        raise UsageError(
            f"unknown module {module!r}",
            hint=did_you_mean(module, known) or "Pass its location: --source SOURCE",
        )


def _check_config(module: str, config: MapNode) -> None:
    """Validate the configuration of a bundled module against its schema.

    Raises:
        PlanError: The configuration does not match the schema.
        ModuleError: The module's schema is invalid.
    """
    own = installed.bundled_modules().get(module)
    if own is None or not config.items:
        # Third-party code is not imported to change settings.
        return
    schema = config_schema(import_module(own.entry_point.partition(":")[0]))
    if schema is not None:
        entry = MapNode({"config": _with_variables(config)}, config.at)
        problems = config_problems(entry, module, schema, partial=True)
        if problems:
            raise PlanError(problems)


def _with_variables(node: Node) -> Node:
    """The configuration with texts that contain variables marked, as their value is unknown."""
    if isinstance(node, MapNode):
        items = {key: _with_variables(value) for key, value in node.items.items()}
        return MapNode(items, node.at, node.keys)
    if isinstance(node, ListNode):
        return ListNode([_with_variables(value) for value in node.items], node.at)
    text = read_text(node)
    return node._replace(unset=tuple(names_in(text))) if text is not None else node


def _parse_config(texts: Sequence[str]) -> MapNode:
    """`key=value` texts of the command line as configuration with its origin.

    Raises:
        PlanError: A text does not have this form.
    """
    problems = Problems()
    tree = apply_sets(MapNode({}, NOWHERE), parse_sets(texts, option="--config"), problems)
    problems.raise_if_any()
    return tree


def _offers(source: Source, module: str) -> bool:
    """Return True if a source on this machine declares itself as this module.

    Raises:
        SourceError: It contains no module, or several others.
    """
    return isinstance(source, FolderSource) and find_layout(source.path, module).module_id == module


# -- known modules -----------------------------------------------------------------------


def _known_modules(project: Path | None) -> set[str]:
    """Ids of the modules in the profile, settings and workspace, and of bundled and installed ones."""
    known = installed.known_ids()
    known |= set(_modules(load_profile(project=project).merged.document))
    workspace = project / "modules" if project is not None else None
    if workspace is not None and workspace.is_dir():
        known |= {folder.name for folder in workspace.iterdir() if folder.is_dir()}
    return known


def _entries(settings: Settings, path: Path | None) -> dict[str, tuple[str, Location]]:
    """The section and place of each entry of one settings file, by instance id or module id."""
    return {
        key: (section, entry.at)
        for file in settings.files
        if file.path == path
        for section, key, entry in _keyed_entries(file.tree)
    }


def _modules(document: MapNode) -> dict[str, Location]:
    listed = {key: entry.at for _, key, entry in _keyed_entries(document)}
    return {**_parts(document), **listed}


def _keyed_entries(document: MapNode) -> Iterator[tuple[str, str, MapNode]]:
    """The section, key and node of each entry."""
    for section in ENTRY_SECTIONS:
        for entry in list_entries(document, section):
            key = entry_key(entry)
            if key is not None:
                yield section, key, entry


def _parts(document: MapNode) -> dict[str, Location]:
    session = document.items.get("session")
    nodes = session.items if isinstance(session, MapNode) else {}
    parts = [node for part in PARTS if isinstance(node := nodes.get(part), MapNode)]
    return {read_text(node.items.get("module")) or "": node.at for node in parts}


def _is_excluded(settings: Settings, where: Target, module: str) -> bool:
    for file in settings.files:
        node = file.tree.items.get("exclude")
        if file.path == where.file and isinstance(node, ListNode):
            return module in map(read_text, node.items)
    return False
