"""`amplifier plugin add|list|show|update|remove`: the plugins of every profile."""

# Without `from __future__ import annotations`, whose strings Typer would compile at every start.
import difflib
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from amplifier_app.base.errors import ConfigError, UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.logins import LoginStore
from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.answers import YesOption, confirm
from amplifier_app.commands.group import eager_group
from amplifier_app.commands.settings import (
    ScopeOption,
    Target,
    changing,
    report,
    written_source,
)
from amplifier_app.commands.typer_options import argument, option
from amplifier_app.plan.documents.plugins import (
    Plugin,
    data_folder,
    read_marketplace,
    read_plugin,
)
from amplifier_app.plan.documents.scopes import read_settings
from amplifier_app.plan.schema.grammar import PLUGIN_NAME, PLUGIN_PARTS
from amplifier_app.plan.schema.rules import ID
from amplifier_app.plan.source_spec import (
    FolderSource,
    PackageSource,
    SourceSyntaxError,
    parse_source,
    without_password,
)
from amplifier_app.plan.tree import edit
from amplifier_app.plan.tree.nodes import plain_data
from amplifier_app.render.table import Column, Format, OutputOption, print_listing
from amplifier_app.sources.fetch.staging import content_hash
from amplifier_app.sources.loading import AS_ENVIRONMENT_SAYS, load_profile
from amplifier_app.trust import folder_if_trusted
from amplifier_support.fields import to_mapping
from amplifier_support.files import system_errors_as
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import did_you_mean

app = eager_group("Add, list, show, update and remove plugins.")

_SECTION = "plugins"
_SOURCES = "Expected a folder, or git+https://HOST/REPO@REF#subdirectory=FOLDER."
_LISTED = re.compile(rf"({PLUGIN_NAME})@(.+)")
"""A plugin's name in a marketplace, and the marketplace's source."""
_NameArgument = Annotated[str, argument("NAME", "The plugin.")]


class _Found(NamedTuple):
    """A plugin at its source.

    Attributes:
        plugin: The plugin.
        source: Its source at exactly this version.
        digest: The digest of a folder's content; None if the source is a version already.
        listed: Its name in the marketplace at the source; None if the source is the plugin's.
        tracks: The source to look for newer versions in; None if that is `source`.
    """

    plugin: Plugin
    source: str
    digest: str | None
    listed: str | None = None
    tracks: str | None = None


@app.command()
def add(
    source: Annotated[
        str,
        argument(
            "[NAME@]SOURCE",
            "Its folder, or git+https://HOST/REPO@REF#subdirectory=FOLDER. With NAME@, the folder or repository of a marketplace.",
        ),
    ],
    as_: Annotated[str | None, option("--as NAME", "Another name for it.")] = None,
    only: Annotated[
        list[str] | None,
        option(
            "--only PART", "A part to use: skills, commands, agents, hooks or servers; repeatable."
        ),
    ] = None,
    scope: ScopeOption = None,
    yes: YesOption = False,
) -> None:
    """Show what a plugin may do, and add it to every profile after a yes.

    \b
      amplifier plugin add git+https://example.com/me/review@v1.2.0
      amplifier plugin add ./review --only skills --only agents
      amplifier plugin add review@git+https://example.com/me/marketplace@main

    Exactly the version that was shown is used, until 'amplifier plugin update'. Without --scope,
    changes your own settings for this project, or outside a project your own settings.
    """
    for part in only or ():
        if part not in PLUGIN_PARTS:
            raise UsageError(f"--only: {part!r} is not one of {', '.join(PLUGIN_PARTS)}")
    source = _as_source(source)
    version = _find(source, Path.cwd(), as_, only=only)
    _print(_describe(version.plugin))
    if not confirm(f"Add {version.plugin.name}?", yes):
        to_stderr("amplifier: nothing was added")
        return
    with changing(scope, in_project="local") as where:
        names = [name for name, _ in _entries(where)]
        if version.plugin.name in names:
            hint = "Update it, remove it, or use --as to add another one with the same name."
            message = f"the {where.scope} settings already have a plugin {version.plugin.name!r}"
            raise ConfigError(message, hint=hint)
        entry = _entry(version, where) | ({"only": only} if only else {})
        edit.append_value(where.file, (_SECTION,), entry)
        report(where, f"added the plugin {version.plugin.name}")


@app.command("list")
def list_plugins(
    marketplace: Annotated[
        str | None, argument("MARKETPLACE", "The source of a marketplace.")
    ] = None,
    output: OutputOption = "text",
) -> None:
    """List the plugins of the default profile and your settings, or of a marketplace.

    Runs nothing of them.
    """
    if marketplace is not None:
        _list_marketplace(_as_source(marketplace), output)
        return
    plugins = _plugins_in_use()
    facts = [_facts(plugin) for plugin in plugins.values()]
    rows = [
        (name, plugin.version, ", ".join(_parts(plugin)), one_line(plugin.description, 200))
        for name, plugin in plugins.items()
    ]
    columns = (
        Column("PLUGIN"),
        Column("VERSION", drop=2),
        Column("PARTS", "end", least=12),
        Column("DESCRIPTION", "wrap", least=20, drop=1),
    )
    print_listing(output, facts, columns, rows, "No plugins. Add one: amplifier plugin add SOURCE")


def _list_marketplace(source: str, output: Format) -> None:
    folder, _ = _open(source, Path.cwd())
    entries = read_marketplace(folder, without_password(source))
    texts = {name: str(entry.fields.get("description") or "") for name, entry in entries.items()}
    facts = [
        {"name": name, "description": texts[name], "source": entry.source, "problem": entry.problem}
        for name, entry in entries.items()
    ]
    rows = [(name, one_line(text, 200)) for name, text in texts.items()]
    columns = (Column("PLUGIN"), Column("DESCRIPTION", "wrap", least=30))
    print_listing(output, facts, columns, rows, "The marketplace lists no plugins.")


@app.command()
def show(
    name: Annotated[str, argument("NAME|[NAME@]SOURCE", "The plugin.")],
    output: OutputOption = "text",
) -> None:
    """Show what a plugin may do: one that was added, or one at a source. Runs nothing of it."""
    plugins, source = _plugins_in_use(), _as_source(name)
    if name not in plugins and re.fullmatch(ID, source):
        hint = did_you_mean(name, plugins) or f"In use: {', '.join(plugins) or 'none'}. {_SOURCES}"
        raise UsageError(f"there is no plugin {name!r}, and no folder of that name", hint=hint)
    plugin = plugins.get(name) or _find(source, Path.cwd()).plugin
    if output == "json":
        print(json_text(_facts(plugin)))
    else:
        print(for_terminal("\n".join(_describe(plugin))))


@app.command()
def update(
    name: Annotated[str | None, argument("NAME", "The plugin. [default: all]")] = None,
    scope: ScopeOption = None,
    yes: YesOption = False,
) -> None:
    """Look for newer versions, show what would change, and use them after a yes.

    Without --scope, updates the plugins in your own settings for this project, or outside a project in
    your own settings.
    """
    with changing(scope, in_project="local") as where:
        entries = _entries(where)
        _check_known(name, entries, where)
        for position, (known, entry) in enumerate(entries):
            if name in (None, known):
                _update(where, position, entry, yes)


def _update(where: Target, position: int, entry: dict[str, Any], yes: bool) -> None:
    if "tracks" in entry:
        place, name = where.file.parent, entry.get("as")
        version = _find(entry["tracks"], place, name, only=entry.get("only"))
    else:
        version = _find_entry(entry, where)
    name = version.plugin.name
    new = _entry(version, where) | {key: entry[key] for key in ("only",) if key in entry}
    if new == entry:
        to_stderr(f"amplifier: {name} is up to date")
        return
    _print(_changes(_former(entry, where), _describe(version.plugin)))
    if confirm(f"Update {name}?", yes):
        edit.set_value(where.file, (_SECTION, str(position)), new)
        report(where, f"updated the plugin {name}")


def _former(entry: dict[str, Any], where: Target) -> list[str]:
    """Return the description of the version in use; empty if that version is unavailable."""
    return [] if entry.get("digest") else _describe(_find_entry(entry, where).plugin)


@app.command()
def remove(name: _NameArgument, scope: ScopeOption = None, yes: YesOption = False) -> None:
    """Remove a plugin from your settings, and delete the data it has kept and its logins, after a yes.

    Without --scope, changes your own settings for this project, or outside a project your own settings.
    """
    with changing(scope, in_project="local") as where:
        entries = _entries(where)
        _check_known(name, entries, where)
        if not confirm(f"Remove {name}, its data and its logins?", yes):
            to_stderr("amplifier: nothing was removed")
            return
        position = [known for known, _ in entries].index(name)
        servers = _servers_to_forget(entries[position][1], where)
        edit.remove_value(where.file, (_SECTION, str(position)))
        report(where, f"removed the plugin {name}")
    for login in (login for server in servers for login in LoginStore().forget(server)):
        to_stderr(f"amplifier: deleted the login for {login.server} at {login.issuer}")
    folder = data_folder(name)
    if folder.is_dir():
        with system_errors_as(ConfigError, f"cannot delete {folder}"):
            shutil.rmtree(folder)
        to_stderr(f"amplifier: deleted its data in {folder}")


def _servers_to_forget(entry: dict[str, Any], where: Target) -> list[str]:
    """The names of a plugin's servers, of which there may be logins."""
    if not LoginStore().facts():
        return []
    return [*_find_entry({**entry, "only": None}, where).plugin.servers]


def _plugins_in_use() -> Mapping[str, Plugin]:
    """The plugins of the default profile and the settings, by name."""
    return load_profile(project=folder_if_trusted()).merged.plugins


# -- settings ----------------------------------------------------------------------------


def _entries(where: Target) -> list[tuple[str, dict[str, Any]]]:
    """The entries of one settings file, each with the name of its plugin."""
    entries: list[dict[str, Any]] = []
    for file in read_settings(where.project).files:
        if file.path == where.file and _SECTION in file.tree.items:
            entries = plain_data(file.tree.items[_SECTION])
    return [(_name(entry, where), entry) for entry in entries]


def _name(entry: dict[str, Any], where: Target) -> str:
    return entry.get("as") or _find_entry(entry, where).plugin.name


def _find_entry(entry: dict[str, Any], where: Target) -> _Found:
    """Find the version of a plugin that is in use."""
    keys = ("as", "plugin", "only")
    return _find(entry["source"], where.file.parent, *map(entry.get, keys))


def _check_known(
    name: str | None, entries: Sequence[tuple[str, dict[str, Any]]], where: Target
) -> None:
    names = [known for known, _ in entries]
    if name is not None and name not in names:
        hint = did_you_mean(name, names) or f"Plugins there: {', '.join(names) or 'none'}"
        raise UsageError(f"the {where.scope} settings have no plugin {name!r}", hint=hint)


def _entry(version: _Found, where: Target) -> dict[str, Any]:
    """The entry for exactly the version that was found."""
    entry = {"as": version.plugin.name, "source": version.source}
    if version.digest is not None:
        entry |= {"source": written_source(version.source, where), "digest": version.digest}
    if version.listed is not None:
        entry["plugin"] = version.listed
    if version.tracks is None:
        return entry
    if match := _LISTED.fullmatch(version.tracks):
        return entry | {"tracks": f"{match[1]}@{written_source(match[2], where)}"}
    return entry | {"tracks": version.tracks}


def _find(
    source: str,
    folder: Path,
    name: str | None = None,
    listed: str | None = None,
    only: list[str] | None = None,
) -> _Found:
    """Fetch and read a plugin, or only some parts of it; nothing of it runs.

    Args:
        source: Its source, or NAME@ and the source of a marketplace.
        folder: The folder that a relative path starts at.
        name: The name to use instead of its own.
        listed: Its name in the marketplace at the source.
        only: The parts to read; all by default.

    Raises:
        UsageError: The source is invalid.
        SourceError: It is unavailable.
        ConfigError: It contains no plugin, or the marketplace does not list it.
    """
    if match := _LISTED.fullmatch(source):
        return _find_listed(match[1], match[2], folder, name, only)
    path, find_source = _open(source, folder)
    shown = without_password(source)
    plugin = read_plugin(path, shown, name, listed)
    plugin = plugin.keep(only) if only else plugin
    if find_source is None:
        return _Found(plugin, str(path), content_hash(path, whole=True), listed)
    exact = find_source(path)
    return _Found(plugin, exact, None, listed, None if exact == source else shown)


def _find_listed(
    listed: str, marketplace: str, folder: Path, name: str | None, only: list[str] | None
) -> _Found:
    """Find a plugin by its name in a marketplace."""
    path, find_source = _open(marketplace, folder)
    shown = without_password(marketplace)
    entries = read_marketplace(path, shown)
    entry = entries.get(listed)
    if entry is None:
        hint = did_you_mean(listed, entries) or f"List them: amplifier plugin list {shown}"
        raise ConfigError(f"the marketplace {shown} has no plugin {listed!r}", hint=hint)
    if entry.problem is not None:
        raise ConfigError(f"the plugin {listed!r} of {shown} cannot be used: {entry.problem}")
    tracks = f"{listed}@{path if find_source is None else shown}"
    if entry.is_inside:
        return _find(marketplace, folder, name, listed, only)._replace(tracks=tracks)
    return _find(entry.source, folder, name or listed, only=only)._replace(tracks=tracks)


def _open(source: str, folder: Path) -> tuple[Path, Callable[[Path], str] | None]:
    """Fetch a source.

    Returns:
        Its folder and, unless it is a folder of this machine, a function that returns the source of a
        folder in it at exactly this version.
    """
    try:
        parsed = parse_source(source, folder)
    except SourceSyntaxError as error:
        raise UsageError(error.message, hint=error.hint) from None
    if isinstance(parsed, PackageSource):
        raise UsageError(f"there is no folder {source!r}", hint=_SOURCES)
    if isinstance(parsed, FolderSource):
        if not parsed.path.is_dir():
            raise UsageError(f"there is no folder {source!r}", hint=_SOURCES)
        return parsed.path, None
    fetched = AS_ENVIRONMENT_SAYS.open(None).fetch(source, folder / "plan")
    return fetched.path, fetched.checkout.find_source


def _as_source(text: str) -> str:
    """A source of the command line, where a folder may be written without './'."""
    match = _LISTED.fullmatch(text)
    if match is not None and not Path(text).is_dir():
        return f"{match[1]}@{_as_source(match[2])}"
    is_folder = not text.startswith((".", "/", "~")) and Path(text).is_dir()
    return f"./{text}" if is_folder else text


# -- descriptions ------------------------------------------------------------------------


def _print(lines: Sequence[str]) -> None:
    to_stderr(for_terminal("\n".join(lines)))


def _changes(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """The lines that an update changes; all of them if the version in use is not known."""
    if not old:
        return list(new)
    lines = [
        line for line in difflib.ndiff(old, new) if line.startswith(("+", "-")) and line.strip()
    ]
    return [new[0], *lines] if lines else [new[0], "  its texts change, not what it may do"]


def _describe(plugin: Plugin) -> list[str]:
    """The lines that say what a plugin may do."""
    title = f"{plugin.name} {plugin.version}".strip()
    lines = [f"{title}: {plugin.description}" if plugin.description else title]
    facts = _facts(plugin)
    parts = (*PLUGIN_PARTS, "variables")
    lines += [f"  {part:10} {', '.join(facts[part])}" for part in parts if facts[part]]
    lines += [f"  not used   {reason}" for reason in plugin.left_out]
    return lines


def _facts(plugin: Plugin) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "version": plugin.version,
        "description": plugin.description,
        "folder": str(plugin.folder),
        "skills": sorted(
            path.parent.name
            for folder in plugin.skills
            for path in (*folder.glob("SKILL.md"), *folder.glob("*/SKILL.md"))
        ),
        "commands": [f"/{name}" for name in plugin.commands],
        "agents": [f"{plugin.name}:{name}" for name in plugin.agents],
        "hooks": list(_hooks(plugin)),
        "servers": list(_servers(plugin)),
        "variables": plugin.variables,
        "left_out": list(plugin.left_out),
    }


def _hooks(plugin: Plugin) -> Iterator[str]:
    for event, matchers in plugin.hooks.items():
        for matcher in map(to_mapping, matchers):
            hooks = matcher.get("hooks")
            tools = f"({matcher['matcher']})" if matcher.get("matcher") else ""
            for hook in map(to_mapping, hooks if isinstance(hooks, list) else ()):
                yield f"{event}{tools} runs {one_line(str(hook.get('command')), 100)}"


def _servers(plugin: Plugin) -> Iterator[str]:
    for name, config in plugin.servers.items():
        words = [config.get("command"), *config.get("args", ())]
        does = f"asks {config['url']}" if "url" in config else f"runs {' '.join(map(str, words))}"
        yield f"{name} {one_line(does.replace(f'{plugin.folder}/', ''), 100)}"


def _parts(plugin: Plugin) -> Iterator[str]:
    facts = _facts(plugin)
    for part in PLUGIN_PARTS:
        if facts[part]:
            yield f"{len(facts[part])} {part if len(facts[part]) > 1 else part[:-1]}"
