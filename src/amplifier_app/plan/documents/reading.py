"""Read one document into a checked tree: YAML or Markdown, with its agents and includes.

The agents of a document have several forms, which become one mapping by name:

    agents: [reviewer, ./agents/*.md, {name: tester, description: …}]   a list
    agents: {reviewer: {description: …}, tester: ./tester.md}           by name
    agents: {dirs: [./agents], include: [reviewer], inline: {…}}        as published
    agents: {reviewer: {include: kit:agents/reviewer, tools: […]}}      as published
    agents: all | none                                                  as published
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.plan.documents.document import (
    ContextFile,
    Document,
    Form,
    Lists,
    Opened,
    Origin,
    lists_in,
    read_form,
)
from amplifier_app.plan.documents.profile_paths import SUFFIXES, agent_files, agent_folders
from amplifier_app.plan.schema.grammar import AGENT_FILE, PLAN
from amplifier_app.plan.schema.rules import AGENT_LISTS, Shape, normalise
from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node, Scalar, read_text, with_items
from amplifier_app.plan.tree.problems import Problems, suggest
from amplifier_app.plan.tree.yaml_reader import read_bytes

if TYPE_CHECKING:
    from amplifier_app.plan.documents.namespaces import Checkout, Namespaces


class Reader:
    """Reads the documents of one plan, and collects their problems.

    Args:
        problems: Collects the problems and the texts.
        project: The folder of a trusted project, whose agents can be used by name.
    """

    def __init__(self, problems: Problems, project: Path | None = None) -> None:
        self.problems = problems
        self.project = project
        self._namespaces: Namespaces | None = None

    @property
    def namespaces(self) -> Namespaces:
        """The namespaces of these documents."""
        # Imported on demand: only published documents use namespaces.
        from amplifier_app.plan.documents.namespaces import Namespaces

        if self._namespaces is None:
            self._namespaces = Namespaces()
        return self._namespaces

    @property
    def checkouts(self) -> tuple[Checkout, ...]:
        """The folders that were fetched for these documents."""
        return self._namespaces.checkouts if self._namespaces is not None else ()

    @property
    def namespace_sources(self) -> dict[str, list[str]]:
        """The sources of the namespaces of these documents."""
        return self._namespaces.sources if self._namespaces is not None else {}

    def read(self, file: str, path: Path, shape: Shape) -> Document:
        """
        Raises:
            ConfigError: The file cannot be read; anything else becomes a problem.
        """
        return self.finish(self.open(file, path, shape))

    def open(self, file: str, path: Path, shape: Shape, data: bytes | None = None) -> Opened:
        """Read a document, but nothing that it refers to.

        Args:
            file: The name of the file in problems.
            path: The file, absolute.
            shape: The sections it may have.
            data: Its bytes, if they were read before.

        Raises:
            ConfigError: The file cannot be read; anything else becomes a problem.
        """
        if data is None:
            data = read_bytes(path, file, shape.what)
        root, form = read_form(file, data, shape, self.problems)
        if shape.bundle:
            # Whatever a bundle includes is a bundle, even without a table.
            form = Form(True, True)
        if not form.published:
            return Opened(Origin(file, path), root, shape)
        shape = shape._replace(lenient=True, bundle=form.bundle)
        lists = None
        if isinstance(root, MapNode):
            root, lists = lists_in(root, self.problems, includes="extends" in shape.keys)
        name = root.text("name") if isinstance(root, MapNode) else None
        return Opened(Origin(file, path, True, name, form.bundle), root, shape, lists)

    def finish(self, opened: Opened) -> Document:
        """Complete a document with its agents and the includes of its instructions.

        Raises:
            ConfigError: A file that it refers to cannot be read.
        """
        this, root, shape = opened.origin, opened.root, opened.shape
        others: dict[str, Path] = {}
        context: tuple[ContextFile, ...] = ()
        if isinstance(root, MapNode):
            if "agents" in root.items and "agents" in shape.keys:
                agents = AgentList(self, this)
                root = root.with_item("agents", agents.expand(root.items["agents"]))
                others |= agents.read
            root, context = self._with_includes(root, this, opened.lists, others)
            if context and "agents" not in shape.keys:
                # For an agent they are part of its own instruction.
                from amplifier_app.plan.documents.includes import with_context

                root, context = with_context(root, context), ()
        tree = normalise(root, this.file, self.problems, shape)
        return Document(this.file, this.path, tree, others, shape.bundle, context)

    def _with_includes(
        self, root: MapNode, this: Origin, lists: Lists | None, others: dict[str, Path]
    ) -> tuple[MapNode, tuple[ContextFile, ...]]:
        """The document with the includes of its instruction and its inline agents expanded, and the
        files that it lists for the instruction."""
        agents = root.items.get("agents")
        inline = agents.items if isinstance(agents, MapNode) else {}
        listed = lists.context if lists is not None else ()
        if not listed and not any(
            _instruction(candidate, this.file) for candidate in (root, *inline.values())
        ):
            return root, ()
        from amplifier_app.plan.documents.includes import Includer

        includer = Includer(this, self)

        def expand_includes(node: Node) -> Node:
            text = _instruction(node, this.file)
            if text is None or not isinstance(node, MapNode):
                return node
            return node.with_item("instruction", includer.fill(text))

        if isinstance(agents, MapNode):
            own = with_items(agents, {name: expand_includes(node) for name, node in inline.items()})
            root = root.with_item("agents", own)
        changed = expand_includes(root)
        context = tuple(includer.context(listed))
        others |= includer.read
        return (changed if isinstance(changed, MapNode) else root), context


def files_read_by(path: Path, data: bytes, project: Path | None) -> list[Path]:
    """The files that a document reads, directly or indirectly, as text or as agents.

    Problems of the document are ignored.

    Args:
        path: The document, absolute.
        data: Its content.
        project: The folder of a project, whose agents it can use by name.
    """
    reader = Reader(Problems(), project)
    paths: list[Path] = []
    try:
        opened = reader.open(path.name, path, PLAN, data)
        if opened.origin.bundle or (opened.lists and opened.lists.includes):
            from amplifier_app.plan.documents.bundles import Bundles

            # Only local bundles: nothing is fetched before the project is trusted.
            included = Bundles(reader, {}, None).included(opened)
            paths = [document.path for document in included]
            for document in included:
                paths += reader.finish(document).others.values()
        paths += reader.finish(opened).others.values()
    except ConfigError:
        # An unreadable file is reported when the document is loaded.
        return paths
    return paths


def _instruction(node: Node, file: str) -> Scalar | None:
    """The instruction of a document or an agent, if it is in `file` and may contain includes."""
    instruction = node.items.get("instruction") if isinstance(node, MapNode) else None
    if not isinstance(instruction, Scalar) or instruction.at.file != file:
        return None
    return instruction if "@" in (read_text(instruction) or "") else None


_PUBLISHED = (*AGENT_LISTS, "inline")
_FORMS = ("{}", "{}.md", "agents/{}.md")
_MAGIC = re.compile(r"[*?\[]")


class AgentList:
    """The agents of one document.

    Args:
        reader: Reads the files of agents.
        document: The document.

    Attributes:
        read: Every file that was read, by its name in origins.
    """

    def __init__(self, reader: Reader, document: Origin) -> None:
        self.read: dict[str, Path] = {}
        self._reader = reader
        self._problems = reader.problems
        self._document = document
        self._published = document.published
        self._items: dict[str, Node] = {}
        self._keys: dict[str, Location] = {}

    def expand(self, node: Node) -> Node:
        """The agents by name; anything else than agents is returned unchanged."""
        if read_text(node) == "all":
            for path in agent_files(self._folders()).values():
                self._add_file(Origin(str(path), path), node.at)
        elif isinstance(node, ListNode):
            for item in node.items:
                self._add_item(item)
        elif isinstance(node, MapNode) and _is_published(node):
            self._add_published(node)
        elif isinstance(node, MapNode):
            self._add_named(node)
        elif read_text(node) != "none":
            return node
        return MapNode(self._items, node.at, self._keys)

    # -- forms -------------------------------------------------------------------------

    def _add_item(self, item: Node) -> None:
        if isinstance(item, MapNode):
            name = item.text("name")
            if name is None and self._document.bundle and "module" in item.items:
                message = "a module under 'agents' is ignored"
                self._problems.note(message, item.at)
                return
            if name is None:
                self._problems.add("the agent has no name", item.at, "add 'name: NAME'")
                return
            rest = {key: node for key, node in item.items.items() if key != "name"}
            self._add(name, self._inline(with_items(item, rest)), item.at)
        elif (text := read_text(item)) is not None:
            for file in self._locate(text, item.at):
                self._add_file(file, item.at, namespace=self._namespace(text))
        else:
            hint = "expected a name, a file or a mapping with 'name'"
            self._problems.add("not an agent", item.at, hint)

    def _add_named(self, node: MapNode) -> None:
        for name, agent in node.items.items():
            target, over = read_text(agent), None
            if target is None and self._published and isinstance(agent, MapNode):
                # A file, of which the other keys here replace parts.
                target, over = agent.text("include"), agent
            if target is None:
                self._add(name, self._inline(agent), node.key_at(name))
                continue
            for file in self._locate(target, agent.at):
                self._add_file(file, node.key_at(name), name, over=over)

    def _add_published(self, node: MapNode) -> None:
        own = {key: value for key, value in node.items.items() if key not in _PUBLISHED}
        for key, value in own.items():
            if self._published and isinstance(value, MapNode):
                # An agent next to the lists.
                self._add(key, self._inline(value), node.key_at(key))
            else:
                hint = suggest(key, _PUBLISHED)
                self._problems.add(f"unknown key {key!r} in 'agents'", node.key_at(key), hint)
        folders = list(self._dirs(node.items.get("dirs")))
        named = [node.items[key] for key in ("include", "active") if key in node.items]
        for texts in named:
            for text in self._texts(texts):
                for file in self._locate(str(text.value), text.at, folders):
                    self._add_file(file, text.at, namespace=self._namespace(str(text.value)))
        if not named:
            for path in agent_files(folders).values():
                self._add_file(Origin(self._shown(path), path), node.key_at("dirs"))
        inline = node.items.get("inline")
        if isinstance(inline, MapNode):
            self._add_named(inline)
        elif inline is not None:
            hint = "expected a mapping 'NAME: AGENT'"
            self._problems.add("'agents.inline' is not a mapping", inline.at, hint)

    def _inline(self, agent: Node) -> Node:
        """An agent defined in the document, with published keys translated."""
        if not self._published or not isinstance(agent, MapNode):
            return agent
        items = {key: node for key, node in agent.items.items() if key not in ("name", "system")}
        system = agent.items.get("system")
        if isinstance(system, MapNode) and "instruction" in system.items:
            items.setdefault("instruction", system.items["instruction"])
        return with_items(agent, items)

    def _dirs(self, node: Node | None) -> Iterator[Path]:
        for text in self._texts(node) if node is not None else ():
            folder = self._absolute(str(text.value))
            if folder.is_dir() and self._may_read(folder):
                yield folder
            elif self._published:
                self._problems.note(f"the agents folder {text.value!r} does not exist", text.at)
            else:
                self._problems.add(f"the folder {text.value!r} does not exist", text.at)

    def _texts(self, node: Node) -> Iterator[Scalar]:
        for item in node.items if isinstance(node, ListNode) else [node]:
            if isinstance(item, Scalar) and isinstance(item.value, str):
                yield item
            else:
                self._problems.add("expected a string", item.at)

    # -- finding -----------------------------------------------------------------------

    def _folders(self) -> list[Path]:
        parent = self._document.path.parent
        nearby = [parent / "agents", parent.parent / "agents"] if self._published else []
        nearby = [folder for folder in nearby if self._may_read(folder)]
        return [*nearby, *agent_folders(self._reader.project)]

    def _locate(self, text: str, at: Location, folders: list[Path] | None = None) -> list[Origin]:
        """The files that a reference resolves to; a problem if there are none."""
        tried: list[Path] = []
        named = text
        if self._published and ":" in text:
            files = self._reader.namespaces.find(
                self._document.path, text, _FORMS, self._document.name
            )
            if files.path is not None and files.path.suffix in SUFFIXES:
                return [Origin(self._shown(files.path), files.path)]
            tried += files.tried
            text = text.rpartition(":")[2].rpartition("/")[2].removesuffix(".md")
        if _MAGIC.search(text):
            if _MAGIC.search(text.rpartition("/")[0]):
                hint = "only the last part of the path may contain wildcards, as in './agents/*.md'"
                self._problems.add(f"the pattern {text!r} is not supported", at, hint)
                return []
            files = list(self._matching(text))
            if not files:
                self._problems.add(f"no agent file matches {text!r}", at)
            return files
        if "/" in text or text.startswith("~") or text.endswith(SUFFIXES):
            path = self._absolute(text)
            if not self._may_read(path):
                self._missing(f"the agent file {text!r} is outside the fetched files", at, None)
                return []
            if path.suffix in SUFFIXES and path.is_file():
                return [Origin(self._shown(path), path)]
            problem = "does not exist" if not path.exists() else "is not a .md or .yaml file"
            self._missing(f"the agent file {text!r} {problem}", at, None)
            return []
        places = [*(folders or ()), *self._folders()]
        known = agent_files(places)
        if text in known:
            return [Origin(self._shown(known[text]), known[text])]
        hint = suggest(text, sorted(known)) if known else "to name a file, write './agents/NAME.md'"
        if self._published:
            looked = [*tried, *(place / f"{text}.md" for place in places)]
            shown = dict.fromkeys(map(self._shown, looked))
            hint = f"searched {', '.join(shown)}"
        self._missing(f"unknown agent {named!r}", at, hint)
        return []

    def _missing(self, message: str, at: Location, hint: str | None) -> None:
        """Report a missing agent; in a bundle this is only a warning."""
        if self._document.bundle:
            self._problems.note(f"{message}; {hint}" if hint else message, at)
        else:
            self._problems.add(message, at, hint)

    def _may_read(self, path: Path) -> bool:
        return self._reader.namespaces.may_read(self._document.path, path)

    def _matching(self, pattern: str) -> Iterator[Origin]:
        """The files of one folder that match a pattern, hidden files excluded."""
        folder, _, name = pattern.rpartition("/")
        parent = self._absolute(folder or ".")
        is_there = parent.is_dir() and self._may_read(parent)
        for path in sorted(parent.iterdir()) if is_there else ():
            fits = fnmatch.fnmatchcase(path.name, name) and not path.name.startswith(".")
            if fits and path.suffix in SUFFIXES and path.is_file():
                yield Origin(self._shown(path), path)

    def _absolute(self, text: str) -> Path:
        joined = self._document.path.parent / os.path.expanduser(text)
        return Path(os.path.normpath(joined))

    def _shown(self, path: Path) -> str:
        """The name of a file in origins: relative if the document's name is relative."""
        return self._reader.namespaces.shown(path, self._document.file, self._document.path)

    # -- collecting --------------------------------------------------------------------

    def _add_file(
        self,
        origin: Origin,
        at: Location,
        name: str | None = None,
        namespace: str = "",
        over: MapNode | None = None,
    ) -> None:
        document = self._reader.read(origin.file, origin.path, AGENT_FILE)
        self.read |= {origin.file: origin.path, **document.others}
        items = dict(document.tree.items)
        own = read_text(items.pop("name", None))
        replaced = self._inline(over) if over is not None else None
        if isinstance(replaced, MapNode):
            items |= {key: node for key, node in replaced.items.items() if key != "include"}
        full_name = name or f"{namespace}{own or origin.path.stem}"
        self._add(full_name, with_items(document.tree, items), at)

    def _namespace(self, text: str) -> str:
        """The prefix of an agent's name: a bundle's instructions use the name as listed."""
        namespace, colon, _ = text.rpartition(":")
        return f"{namespace}:" if colon and self._document.bundle else ""

    def _add(self, name: str, agent: Node, at: Location) -> None:
        first = self._items.get(name)
        if first is None:
            self._items[name] = agent
            self._keys[name] = at
        else:
            message = f"duplicate agent {name!r}: first defined at {first.at}"
            self._problems.add(message, at, "rename one of them")


def _is_published(node: MapNode) -> bool:
    """Return True if the keys are lists of agents rather than agents."""
    lists = any(isinstance(node.items.get(key), (ListNode, Scalar)) for key in AGENT_LISTS)
    return lists or list(node.items) == ["inline"]
