"""Plugins: folders with skills, commands, agents, hooks and MCP servers in the formats of other programs.

plugin.json                   Agent Plugins 1.0.0: skills/ and mcp.json
.claude-plugin/plugin.json    Claude's, which may be missing: also commands/, agents/, hooks/ and .mcp.json
.claude-plugin/marketplace.json    Claude's list of plugins, in its own folder or elsewhere

A plugin becomes a document: its skills are folders of tool-skills, its servers servers of tool-mcp, its hooks hooks of
hooks-shell, and its agents agents of the plan. Nothing of it runs while it is read.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError, Location, ModuleError
from amplifier_app.plan.documents.document import (
    MARKDOWN,
    Document,
    DocumentReader,
    Listed,
    Origin,
    read_markdown,
)
from amplifier_app.plan.schema.grammar import PLUGIN_NAME, PLUGIN_PARTS
from amplifier_app.plan.schema.rules import NAME
from amplifier_app.plan.tree.entries import list_entries
from amplifier_app.plan.tree.nodes import (
    ListNode,
    MapNode,
    Node,
    literal,
    plain_data,
    read_text,
    to_node,
    with_items,
)
from amplifier_app.plan.tree.problems import Problems
from amplifier_app.plan.tree.yaml_reader import read_bytes
from amplifier_support.fields import to_mapping
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.project_folders import EVENTS, TOOLS
from amplifier_support.text import cut_text

if TYPE_CHECKING:
    from amplifier_app.plan.documents.bundles import Bundles

MANIFESTS = (".claude-plugin/plugin.json", "plugin.json")
_MARKETPLACE = ".claude-plugin/marketplace.json"
_PART_KEYS = frozenset({"skills", "commands", "agents", "hooks", "mcpServers"})
_GITHUB = re.compile(r"[\w.-]+/[\w.-]+")
_SSH = re.compile(r"(\w+@[\w.-]+):(?!/)(.+)")

_MAX_DOCUMENTS = 500
_SERVER = re.compile(r"[^A-Za-z0-9_-]")
_MAX_SERVER = 32
_MODULES = {
    "tool-bash": ("bash", "bash_output", "bash_kill"),
    "tool-filesystem": ("read_file", "write_file", "edit_file", "list_directory"),
    "tool-search": ("grep", "glob"),
    "tool-web": ("web_fetch",),
    "tool-task": ("task",),
    "tool-todo": ("todo",),
    "tool-skills": ("skill",),
}
"""The bundled modules with tools, which an agent that lists its tools gets only some of."""

_ROOTS = ("CLAUDE_PLUGIN_ROOT", "PLUGIN_ROOT")
_DATA = ("CLAUDE_PLUGIN_DATA", "PLUGIN_DATA")
_PROJECT = "CLAUDE_PROJECT_DIR"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^${}]*))?\}|\$")
_FRONT_MATTER = re.compile(r"---[ \t]*\r?\n(.*?)^---[ \t]*\r?$(.*)", re.DOTALL | re.MULTILINE)
_LINE = re.compile(r"^([A-Za-z][\w-]*):[ \t]+(.*)$", re.MULTILINE)
_ANY_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)[:}]")


class Plugin(NamedTuple):
    """A plugin as its files describe it.

    Attributes:
        name: Its name.
        version: Its version; empty if it has none.
        description: One line about it; may be empty.
        folder: Its folder, absolute.
        manifest: Its manifest, or its folder if it has none.
        skills: The folders with its skills, absolute.
        commands: Its commands, Markdown files, by name.
        agents: Its agents by name, each as a section of a plan.
        hooks: Its hooks in Claude's form: event → list of matchers.
        servers: Its MCP servers by name, as tool-mcp is configured.
        left_out: What it has that is not used, each with the reason.
        data: The folder in which its servers keep data, which may be missing; None if they keep none.
    """

    name: str
    version: str
    description: str
    folder: Path
    manifest: Path
    skills: tuple[Path, ...] = ()
    commands: Mapping[str, Path] = {}
    agents: Mapping[str, MapNode] = {}
    hooks: Mapping[str, Any] = {}
    servers: Mapping[str, Mapping[str, Any]] = {}
    left_out: tuple[str, ...] = ()
    data: Path | None = None

    def keep(self, parts: list[str]) -> Plugin:
        """The plugin with only some of its parts, of `PLUGIN_PARTS`."""
        empty: dict[str, Any] = {part: () if part == "skills" else {} for part in PLUGIN_PARTS}
        return self._replace(**{part: empty[part] for part in PLUGIN_PARTS if part not in parts})

    @property
    def variables(self) -> list[str]:
        """The environment variables that its servers are given."""
        text = json.dumps(list(self.servers.values()))
        return sorted({*_ANY_VARIABLE.findall(text)})

    def tree(self, at: Location) -> MapNode:
        """The plugin as the tree of a document."""
        tools: list[Node] = []
        items: dict[str, Node] = {}
        if self.skills:
            folders = [str(folder) for folder in self.skills]
            tools.append(self._entry("tool-skills", {"plugins": {self.name: folders}}, at))
        if self.servers:
            servers = {"servers": self.servers}
            tools.append(self._entry("tool-mcp", servers, at, literal=False))
        if tools:
            items["tools"] = ListNode(tools, at)
        if self.hooks:
            hooks = {"root": str(self.folder), "hooks": self.hooks}
            entry = self._entry("hooks-shell", {"plugins": {self.name: hooks}}, at)
            items["hooks"] = ListNode([entry], at)
        if self.agents:
            agents = {f"{self.name}:{name}": agent for name, agent in self.agents.items()}
            items["agents"] = MapNode(cast("dict[str, Node]", agents), at)
        return MapNode(items, at)

    def _entry(
        self, module: str, config: Mapping[str, Any], at: Location, *, literal: bool = True
    ) -> Node:
        entry = {"module": to_node(module, at), "config": to_node(config, at, literal=literal)}
        return MapNode(entry, at)


class MarketEntry(NamedTuple):
    """A plugin as a marketplace lists it.

    Attributes:
        fields: The fields of the entry: the fields of a manifest and a few more.
        source: Its source; a path that starts with `./` is relative to the marketplace's folder.
        problem: Why its source cannot be used.
    """

    fields: Mapping[str, Any]
    source: str
    problem: str | None = None

    @property
    def is_inside(self) -> bool:
        """True if the plugin is in the marketplace's own folder."""
        return self.source.startswith("./")

    @property
    def lists_all_parts(self) -> bool:
        """True if the plugin has no other parts than those that the entry lists."""
        return self.fields.get("strict") is False and not _PART_KEYS.isdisjoint(self.fields)


def read_marketplace(folder: Path, shown: str) -> dict[str, MarketEntry]:
    """Read the plugins of a marketplace, by name.

    Args:
        folder: Its folder, absolute.
        shown: The name of the folder in messages.

    Raises:
        ConfigError: It has no valid `.claude-plugin/marketplace.json`.
    """
    data = _read_json(folder / _MARKETPLACE, f"{shown}/{_MARKETPLACE}")
    listed: Any = data.get("plugins")
    root: Any = to_mapping(data.get("metadata")).get("pluginRoot")
    entries = map(to_mapping, listed if isinstance(listed, list) else ())
    return {
        entry["name"]: _market_entry(entry, root if isinstance(root, str) else "")
        for entry in entries
        if isinstance(entry.get("name"), str) and re.fullmatch(PLUGIN_NAME, entry["name"])
    }


def _market_entry(fields: Mapping[str, Any], root: str) -> MarketEntry:
    source: Any = fields.get("source")
    if isinstance(source, str):
        return MarketEntry(fields, f"./{posixpath.normpath(posixpath.join(root, source))}")
    values = {key: value for key, value in to_mapping(source).items() if isinstance(value, str)}
    kind = values.get("source")
    url = values.get("repo" if kind == "github" else "url", "")
    if kind == "archive" and url.startswith("https://"):
        digest = f"#sha256={values['sha256']}" if "sha256" in values else ""
        return MarketEntry(fields, f"{url}{digest}")
    if kind not in ("github", "url", "git-subdir") or not url:
        return MarketEntry(
            fields, "", f"its source {cut_text(json.dumps(source), 200)} is not supported"
        )
    if _GITHUB.fullmatch(url):
        url = f"https://github.com/{url}.git"
    url = _SSH.sub(r"ssh://\1/\2", url)
    ref = values.get("sha") or values.get("ref")
    path = values.get("path")
    exact = f"{url}{f'@{ref}' if ref else ''}{f'#subdirectory={path}' if path else ''}"
    return MarketEntry(fields, f"git+{exact}")


def _read_json(path: Path, shown: str) -> dict[str, Any]:
    """
    Raises:
        ConfigError: The file is not a JSON object that can be read.
    """
    try:
        data = json.loads(read_bytes(path, shown, "the file").decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{shown} is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{shown}: expected a JSON object")
    return cast("dict[str, Any]", data)


def read_plugin(
    folder: Path, shown: str, name: str | None = None, listed: str | None = None
) -> Plugin:
    """Read a plugin.

    Args:
        folder: The absolute path of its folder, or of the folder of its marketplace.
        shown: The name of the folder in messages.
        name: The name to use instead of its own.
        listed: Its name in the marketplace in the folder.

    Raises:
        ConfigError: It is not a plugin, or its manifest is invalid.
    """
    if listed is None:
        return _Reading(folder, shown).plugin(name)
    entry = read_marketplace(folder, shown).get(listed)
    place = Path(os.path.realpath(folder / entry.source)) if entry and entry.is_inside else None
    if entry is None or place is None or not place.is_relative_to(os.path.realpath(folder)):
        raise ConfigError(f"the marketplace {shown} has no plugin {listed!r} in its own folder")
    return _Reading(place, f"{shown}/{entry.source[2:]}", entry).plugin(name or listed)


class _Reading:
    """The files of one plugin; what cannot be used is left out, with the reason."""

    def __init__(self, folder: Path, shown: str, entry: MarketEntry | None = None) -> None:
        self._folder = Path(os.path.realpath(folder))
        self._shown = shown
        self._entry = entry
        self._left_out: list[str] = []
        self._keeps_data = False

    def plugin(self, alias: str | None) -> Plugin:
        path = next((self._folder / name for name in MANIFESTS if self._has(name)), None)
        manifest = self._json(path) if path is not None else {}
        if self._entry is not None:
            # An entry that lists all parts takes the place of a manifest; others add to it.
            own = {} if self._entry.lists_all_parts else manifest
            manifest = {**self._entry.fields, **own}
        if path is None and not self._has_parts() and _PART_KEYS.isdisjoint(manifest):
            raise ConfigError(f"{self._shown} is not a plugin", hint=self._hint())
        name = alias or manifest.get("name") or self._folder.name
        if not isinstance(name, str) or not re.fullmatch(PLUGIN_NAME, name):
            raise ConfigError(
                f"{self._shown}: {name!r} is not a plugin's name: expected up to 64 lower-case letters, "
                "digits, '-' and '.'",
                hint="Set another one with 'as: NAME'.",
            )
        return Plugin(
            name,
            str(manifest.get("version") or ""),
            " ".join(str(manifest.get("description") or "").split()),
            self._folder,
            path or self._folder,
            tuple(self._folders("skills", manifest)),
            dict(self._commands(manifest)),
            dict(self._agents(manifest)),
            self._hooks(manifest),
            dict(self._servers(manifest, name)),
            tuple(self._left_out),
            data_folder(name) if self._keeps_data else None,
        )

    def _has(self, name: str) -> bool:
        return (self._folder / name).is_file()

    def _has_parts(self) -> bool:
        names = ("skills", "commands", "agents")
        return any((self._folder / name).is_dir() for name in names) or self._has(
            "hooks/hooks.json"
        )

    def _hint(self) -> str:
        try:
            names = read_marketplace(self._folder, self._shown)
        except ConfigError:
            return f"Expected a folder with {' or '.join(MANIFESTS)}."
        return f"It is a marketplace; add a plugin of it: NAME@{self._shown}: {', '.join(names)}"

    # -- files -------------------------------------------------------------------------

    def _json(self, path: Path) -> dict[str, Any]:
        return _read_json(path, f"{self._shown}/{path.relative_to(self._folder).as_posix()}")

    def _usual(self, place: str) -> tuple[str, ...]:
        """The place of a part that no manifest has to name, unless the marketplace lists all parts."""
        return () if self._entry is not None and self._entry.lists_all_parts else (place,)

    def _inside(self, text: str) -> Path | None:
        """A path of the plugin; None, with the reason noted, if it leads out of it."""
        path = Path(os.path.realpath(self._folder / text))
        if path.is_relative_to(self._folder):
            return path
        self._left_out.append(f"{text}: it is outside the plugin")
        return None

    def _paths(self, part: str, manifest: Mapping[str, Any]) -> Iterator[Path]:
        """The places of a part: its folder, and those that the manifest adds."""
        value: Any = manifest.get(part)
        more: list[Any] = value if isinstance(value, list) else [value]
        named = (item for item in more if isinstance(item, str))
        for text in dict.fromkeys((*self._usual(part), *named)):
            path = self._inside(text)
            if path is not None and path.exists():
                yield path
            elif path is not None and text != part:
                self._left_out.append(f"{text}: it does not exist")

    def _folders(self, part: str, manifest: Mapping[str, Any]) -> Iterator[Path]:
        yield from (path for path in self._paths(part, manifest) if path.is_dir())

    def _documents(self, part: str, manifest: Mapping[str, Any]) -> Iterator[Path]:
        for path in self._paths(part, manifest):
            candidates = path.rglob(f"*{MARKDOWN}") if path.is_dir() else iter([path])
            files = sorted(islice(candidates, _MAX_DOCUMENTS))
            for file in files:
                relative = file.relative_to(self._folder).as_posix()
                if self._inside(relative) is not None and file.is_file():
                    yield file

    # -- parts -------------------------------------------------------------------------

    def _commands(self, manifest: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
        for file in self._documents("commands", manifest):
            yield file.stem, file

    def _agents(self, manifest: Mapping[str, Any]) -> Iterator[tuple[str, MapNode]]:
        for file in self._documents("agents", manifest):
            shown = f"{self._shown}/{file.relative_to(self._folder).as_posix()}"
            root = self._agent_file(file, shown)
            if root is None:
                continue
            reason = "the models of its agents: they use the plan's"
            if root.text("model") not in (None, "inherit"):
                self._left_out += [reason] if reason not in self._left_out else []
            name = root.text("name") or file.stem
            if re.fullmatch(NAME, name):
                yield name, _agent(root)
            else:
                self._left_out.append(f"the agent {name}: it has no valid name")

    def _agent_file(self, file: Path, shown: str) -> MapNode | None:
        problems = Problems()
        try:
            data = read_bytes(file, shown, "the agent")
        except ConfigError as error:
            self._left_out.append(f"the agent {file.stem}: {error.message}")
            return None
        root = read_markdown(data, shown, problems)
        if root is None or problems:
            root = _read_lines(data, shown)
        if root is None:
            self._left_out.append(f"the agent {file.stem}: {problems.found[0].message}")
        return root

    def _hooks(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        hooks: dict[str, Any] = {}
        value: Any = manifest.get("hooks")
        for data in self._data("hooks/hooks.json", value):
            for event, matchers in to_mapping(data.get("hooks", data)).items():
                if event not in EVENTS:
                    self._left_out.append(f"the hooks on {event}: there is no such event here")
                elif isinstance(matchers, list):
                    hooks[event] = [*hooks.get(event, ()), *cast("list[Any]", matchers)]
        return hooks

    def _servers(
        self, manifest: Mapping[str, Any], plugin: str
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        value: Any = manifest.get("mcpServers")
        for data in (*self._data("mcp.json", None), *self._data(".mcp.json", value)):
            for name, entry in to_mapping(data.get("mcpServers", data)).items():
                config, reason = self._server(plugin, to_mapping(entry))
                if config is None:
                    self._left_out.append(f"the MCP server {name}: {reason}")
                else:
                    full = name if name == plugin else f"{plugin}-{name}"
                    yield _SERVER.sub("-", full)[:_MAX_SERVER], config

    def _data(self, file: str, value: Any) -> Iterator[dict[str, Any]]:
        """The JSON of a part: in its file, in others that the manifest names, or in the manifest itself."""
        more: list[Any] = value if isinstance(value, list) else [value]
        if isinstance(value, dict):
            yield cast("dict[str, Any]", value)
        named = (item for item in more if isinstance(item, str))
        for text in dict.fromkeys((*self._usual(file), *named)):
            path = self._inside(text)
            if path is None or not path.is_file():
                continue
            try:
                yield self._json(path)
            except ConfigError as error:
                self._left_out.append(error.message)

    def _server(
        self, plugin: str, entry: Mapping[str, Any]
    ) -> tuple[dict[str, Any] | None, str | None]:
        """The configuration of a server, or the reason why it cannot be used."""
        url: Any = entry.get("url")
        if isinstance(url, str):
            if entry.get("type") == "sse":
                return None, "the transport 'sse' is not supported"
            address = urlsplit(url)
            if address.scheme != "https" and address.hostname not in ("localhost", "127.0.0.1"):
                return None, f"{url!r} is not an https URL"
            return self._filled(plugin, {"url": url, "headers": entry.get("headers") or {}}), None
        if not isinstance(entry.get("command"), str) or not entry["command"]:
            return None, "it has neither a command nor a URL"
        config = {key: entry[key] for key in ("command", "args", "env", "cwd") if key in entry}
        arguments: Any = entry.get("args", [])
        texts: list[Any] = [*to_mapping(entry.get("env")).values()]
        texts += cast("list[Any]", arguments) if isinstance(arguments, list) else [None]
        if not all(isinstance(text, str) for text in (*texts, entry.get("cwd", ""))):
            return None, "'args', 'env' and 'cwd' must be texts"
        if any(name in json.dumps(config) for name in _DATA):
            self._keeps_data = True
            config["sandbox"] = {"write": [".", str(data_folder(plugin))]}
        filled = self._filled(plugin, config)
        if not self._may_run_in(filled.get("cwd", ".").replace("$$", "$"), plugin):
            return None, f"its 'cwd' is outside the plugin: {config['cwd']}"
        return filled, None

    def _may_run_in(self, folder: str, plugin: str) -> bool:
        """Return True for folders of the plugin, of its data and of the working directory."""
        if not os.path.isabs(folder):
            return ".." not in Path(os.path.normpath(folder)).parts and "${" not in folder
        path, data = Path(os.path.realpath(folder)), os.path.realpath(data_folder(plugin))
        return path.is_relative_to(self._folder) or path.is_relative_to(data)

    def _filled(self, plugin: str, value: Any) -> Any:
        if isinstance(value, str):
            return fill_in(value, self._folder, plugin)
        if isinstance(value, dict):
            items = cast("dict[str, Any]", value)
            return {key: self._filled(plugin, item) for key, item in items.items()}
        if isinstance(value, list):
            return [self._filled(plugin, item) for item in cast("list[Any]", value)]
        return value


def data_folder(plugin: str) -> Path:
    """The folder that a plugin may keep its own data in."""
    return paths.state_dir() / "plugins" / plugin


def fill_in(text: str, folder: Path, plugin: str) -> str:
    """A text of a plugin with the places of its folders filled in, as a plan would write it.

    Other variables stay variables of the environment; they are empty if they are not set.
    """

    def value(match: re.Match[str]) -> str:
        name, default = match.groups()
        if name is None:
            return "$$"
        if name == _PROJECT:
            return "."
        if name in (*_ROOTS, *_DATA):
            return str(folder if name in _ROOTS else data_folder(plugin)).replace("$", "$$")
        return f"${{{name}:-{default or ''}}}"

    return _VARIABLE.sub(value, text)


def _read_lines(data: bytes, shown: str) -> MapNode | None:
    """An agent whose front matter is lines `key: text` that are not YAML, as many published ones have."""
    match = _FRONT_MATTER.match(data.decode("utf-8", "replace"))
    if match is None:
        return None
    fields = {key: text.strip() for key, text in _LINE.findall(match[1])}
    root = to_node({**fields, "instruction": match[2].strip()}, Location(shown, 1), literal=True)
    return root if isinstance(root, MapNode) else None


def _agent(root: MapNode) -> MapNode:
    """An agent of a plugin as a section of a plan: without the tools that it does not list."""
    # Keep `$` in its texts literal.
    kept = ("description", "instruction")
    items = {key: literal(root.items[key]) for key in kept if key in root.items}
    names = _tool_names(root.items.get("tools"))
    if names is None:
        return with_items(root, items)
    at = root.key_at("tools")
    if "Bash" in names:
        names += ["BashOutput", "KillShell"]
    listed = {tool for tool, name in TOOLS.items() if name in names}
    modules = [module for module, tools in _MODULES.items() if listed.isdisjoint(tools)]
    items["exclude"] = to_node(modules, at)
    others = [tool for tools in _MODULES.values() for tool in tools if tool not in listed]
    if not any(name.startswith("mcp__") for name in names):
        others.append("mcp_*")
    reason = "the definition of this agent does not list the tool"
    items["approvals"] = to_node([{"action": "deny", "tool": others, "reason": reason}], at)
    return with_items(root, items)


def _tool_names(node: Node | None) -> list[str] | None:
    """The tools of an agent; None for all."""
    value: Any = plain_data(node) if node is not None else None
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list):
        return None
    names = [re.split(r"\(", str(name))[0].strip() for name in cast("list[Any]", value)]
    return None if "*" in names else names


class Plugins:
    """The plugins of one plan.

    Args:
        reader: Collects the problems, and knows the fetched folders.
        bundles: Finds sources.
        check: Compares the content of a folder with a digest; raises ModuleError if it differs.

    Attributes:
        by_name: The plugins that were read.
    """

    def __init__(
        self, reader: DocumentReader, bundles: Bundles, check: Callable[[Path, str], None]
    ) -> None:
        self._reader = reader
        self._bundles = bundles
        self._check = check
        self.by_name: dict[str, Plugin] = {}

    def documents(self, document: Document, plan: Path) -> list[Document]:
        """The documents of the plugins that a document names, the highest precedence first.

        Args:
            document: The document.
            plan: The plan being loaded, for its lock.
        """
        documents: list[Document] = []
        for entry in list_entries(document.tree, "plugins"):
            plugin = self._read(entry, document, plan)
            if plugin is not None:
                shown = self._reader.namespaces.shown(plugin.manifest, document.file, document.path)
                documents.append(Document(shown, plugin.manifest, plugin.tree(Location(shown)), {}))
        return documents

    def _read(self, entry: MapNode, document: Document, plan: Path) -> Plugin | None:
        source = entry.items["source"]
        named = Listed(read_text(source) or "", source.at)
        folder = self._bundles.locate(named, Origin(document.file, document.path), plan)
        if folder is None:
            return None
        try:
            if (digest := entry.text("digest")) is not None:
                self._check(folder, digest)
            plugin = read_plugin(folder, named.text, entry.text("as"), entry.text("plugin"))
        except (ConfigError, ModuleError) as error:
            self._reader.problems.add(error.message, source.at, error.hint)
            return None
        if "only" in entry.items:
            plugin = plugin.keep(
                [text for node in entry.listed("only") if (text := read_text(node))]
            )
        known = self.by_name.setdefault(plugin.name, plugin)
        if known.folder != plugin.folder:
            message = (
                f"two plugins are named {plugin.name!r}: in {known.folder} and in {plugin.folder}"
            )
            self._reader.problems.add(message, source.at, "rename one of them with 'as: NAME'")
            return None
        return plugin
