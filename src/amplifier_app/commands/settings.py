"""Add, remove and override modules in settings files."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Generator, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

from amplifier_app.base import installed, paths
from amplifier_app.base.errors import ConfigError, Location, UsageError
from amplifier_app.base.locks import changing_settings
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.typer_options import option
from amplifier_app.plan.documents.scopes import SCOPES, USER, Settings, read_settings, settings_path
from amplifier_app.plan.masking import is_secret_key
from amplifier_app.plan.overrides import apply_sets, parse_sets
from amplifier_app.plan.schema.module_schemas import config_schema
from amplifier_app.plan.schema.rules import ID
from amplifier_app.plan.source_spec import (
    ArchiveSource,
    FolderSource,
    Source,
    SourceSyntaxError,
    parse_source,
)
from amplifier_app.plan.tree import edit
from amplifier_app.plan.tree.entries import ENTRY_SECTIONS, SECTION_OF, entry_key, list_entries
from amplifier_app.plan.tree.interpolation import names_in
from amplifier_app.plan.tree.nodes import NOWHERE, ListNode, MapNode, Node, plain_data, read_text
from amplifier_app.plan.tree.problems import PlanError, Problems, suggest
from amplifier_app.sources.loading import load_profile
from amplifier_app.sources.requirements.layout import find_layout
from amplifier_app.trust import ignored_by_environment, keeping_trust
from amplifier_core.module_sources import PARTS
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.secret_shapes import names_variable
from amplifier_support.text import did_you_mean


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
    from amplifier_app.plan.schema.config_check import config_problems

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


def warn_of_secret(config: MapNode, option: str) -> str | None:
    """Return the warning about a secret in plain text; None if no value is one.

    Args:
        config: The values.
        option: The option of the command line that gave them.
    """
    for key, node in config.items.items():
        value = read_text(node) if is_secret_key(key) else None
        if value is not None and "${" not in value and not names_variable(key, value):
            return (
                f"{key} is stored in plain text; better set an environment variable and use "
                f"{option} '{key}=${{VARIABLE}}'"
            )
    return None


class Target(NamedTuple):
    """The settings file to change.

    Attributes:
        scope: `"user"`, `"project"` or `"local"`.
        file: The file, which may not exist.
        project: The project folder of the working directory.
    """

    scope: str
    file: Path
    project: Path | None


class Changed(NamedTuple):
    """The result of a change.

    Attributes:
        file: The file that was changed.
        what: The change, as shown to the user.
        warning: A concern about it, if any.
    """

    file: Path
    what: str
    warning: str | None = None


def target(scope: str | None, *, in_project: str) -> Target:
    """The settings file of a scope.

    Args:
        scope: The scope; by default `in_project` inside a project, otherwise the user's own.
        in_project: The default scope inside a project.

    Raises:
        ConfigError: The scope belongs to a project, and there is none.
    """
    project = None if ignored_by_environment() else paths.project_dir()
    chosen = scope or (in_project if project is not None else USER)
    file = settings_path(chosen, project)
    if file is None:
        raise ConfigError(
            f"no project here for settings of scope {chosen!r}",
            hint="Create a .amplifier folder first, or use --scope user.",
        )
    return Target(chosen, file, project)


# -- where modules come from -------------------------------------------------------------


def override_source(module: str, source: str, where: Target) -> Changed:
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
    parsed = _parse(source)
    if not _offers(parsed, module):
        known = _known_modules(where.project)
        near = did_you_mean(module, known) if module not in known else None
        if near is not None:
            raise UsageError(f"unknown module {module!r}; {near}")
    text = _as_written(parsed, source, where)
    edit.set_value(where.file, ("sources", module), text)
    return Changed(where.file, f"{module} is now loaded from {text}")


def written_source(source: str, where: Target) -> str:
    """A source as `override_source` would write it.

    Raises:
        UsageError: The source is invalid.
    """
    return _as_written(_parse(source), source, where)


def remove_override(module: str, where: Target) -> Changed:
    """Remove the override of a module's source.

    Raises:
        UsageError: The settings have no such override.
        ConfigError: The settings cannot be read or written.
    """
    if edit.remove_value(where.file, ("sources", module)):
        return Changed(where.file, f"{module} is no longer overridden")
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


# -- modules of every plan ---------------------------------------------------------------


def add_module(
    module: str, kind: str, where: Target, *, source: str | None, config: MapNode
) -> Changed:
    """Add a module to every profile.

    Args:
        module: Its id.
        kind: `"tool"`, `"hook"` or `"provider"`.
        where: The settings to change.
        source: Where to load it from; a relative path starts at the working directory.
        config: Its configuration, as returned by `parse_config`.

    Raises:
        UsageError: The id or the source is invalid, or the module is unknown.
        SourceError: The folder does not contain the module.
        ConfigError: The module is already used, its configuration does not match its schema, or
            the settings cannot be read or written.
    """
    _check_id(module)
    entry: dict[str, Any] = {"module": module}
    if source is not None:
        parsed = _parse(source)
        _offers(parsed, module)
        entry["source"] = _as_written(parsed, source, where)
    if config.items:
        entry["config"] = plain_data(config)
    settings = read_settings(where.project)
    _check_new(module, entry, settings, where)
    if source is None:
        _check_config(module, config)
    excluded = _is_excluded(settings, where, module)
    if excluded:
        edit.remove_value(where.file, ("exclude", module))
    if not excluded or len(entry) > 1:
        edit.append_value(where.file, (SECTION_OF[kind],), entry)
    return Changed(
        where.file, f"added {module} to {SECTION_OF[kind]}", warn_of_secret(config, "--config")
    )


def remove_module(module: str, where: Target) -> Changed:
    """Remove a module from every profile: delete its entry in the settings, or else exclude it.

    Raises:
        UsageError: The module is not used.
        ConfigError: The settings cannot be read or written.
    """
    settings = read_settings(where.project)
    own = _entries(settings, where.file).get(module)
    if own is not None:
        edit.remove_value(where.file, (own[0], module))
        inherited = _modules(load_profile(project=where.project).merged.document).get(module)
        rest = f"it is still used by {inherited}; remove it again to exclude it"
        what = f"removed {module} from {own[0]}"
        return Changed(where.file, what if inherited is None else f"{what}; {rest}")
    for scope in SCOPES:
        other = _entries(settings, settings_path(scope, where.project)).get(module)
        if other is not None:
            raise UsageError(
                f"the {where.scope} settings do not contain {module}",
                hint=f"It is set at {other[1]}; use --scope {scope}.",
            )
    return _exclude(module, settings, where)


def _exclude(module: str, settings: Settings, where: Target) -> Changed:
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
    return Changed(where.file, f"excluded {module} of the profile {profile.name!r}")


def parse_config(texts: Sequence[str]) -> MapNode:
    """`key=value` texts of the command line as configuration with its origin.

    Raises:
        PlanError: A text does not have this form.
    """
    problems = Problems()
    tree = apply_sets(MapNode({}, NOWHERE), parse_sets(texts, option="--config"), problems)
    problems.raise_if_any()
    return tree


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


# -- checks --------------------------------------------------------------------------


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


# -- sources -----------------------------------------------------------------------------


def _parse(source: str) -> Source:
    try:
        return parse_source(source, Path.cwd())
    except SourceSyntaxError as error:
        raise UsageError(error.message, hint=error.hint) from None


def _offers(source: Source, module: str) -> bool:
    """Return True if a source on this machine declares itself as this module.

    Raises:
        SourceError: It contains no module, or several others.
    """
    return isinstance(source, FolderSource) and find_layout(source.path, module).module_id == module


def _as_written(source: Source, text: str, where: Target) -> str:
    """The source as settings name it: relative if it is inside the project."""
    if isinstance(source, FolderSource):
        path, rest = source.path, ""
    elif isinstance(source, ArchiveSource) and source.is_local:
        path, rest = Path(source.location), text[text.index("#") :] if "#" in text else ""
    else:
        return text
    if where.project is None or where.scope == USER:
        return f"{path}{rest}"
    if not path.resolve().is_relative_to(where.project.parent.resolve()):
        return f"{path}{rest}"
    relative = Path(os.path.relpath(path, where.file.parent)).as_posix()
    return f"{relative if relative.startswith('.') else f'./{relative}'}{rest}"


ScopeOption = Annotated[
    Literal["user", "project", "local"] | None,
    option("--scope", "Settings to change: your own, the project's, or your own for this project."),
]


@contextlib.contextmanager
def changing(scope: str | None, *, in_project: str) -> Generator[Target]:
    """The settings file to change; a trusted project stays trusted after the change.

    Other processes that change settings wait until the block ends.

    Args:
        scope: The scope option.
        in_project: The default scope inside a project.
    """
    where = target(scope, in_project=in_project)
    with changing_settings(), keeping_trust(where.project, where.file):
        yield where


def report(changed: Changed) -> None:
    """Report a change on stderr."""
    to_stderr(one_line(f"amplifier: {changed.what} ({changed.file})", 1000))
    if changed.warning:
        to_stderr(one_line(f"amplifier: {changed.warning}", 1000))
