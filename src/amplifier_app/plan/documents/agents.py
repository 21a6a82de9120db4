"""The agents of a document, in any of the supported forms, as one mapping by name.

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
from typing import NamedTuple

from amplifier_app.base.errors import Location
from amplifier_app.plan.documents.document import DocumentReader, Origin
from amplifier_app.plan.documents.profile_paths import SUFFIXES, agent_files, agent_folders
from amplifier_app.plan.schema.grammar import AGENT_FILE
from amplifier_app.plan.schema.structure import AGENT_LISTS
from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node, Scalar, text_of, with_items
from amplifier_app.plan.tree.problems import suggest

_PUBLISHED = (*AGENT_LISTS, "inline")
_FORMS = ("{}", "{}.md", "agents/{}.md")
_MAGIC = re.compile(r"[*?\[]")


class _File(NamedTuple):
    """An agent's file; `file` is its name in origins."""

    file: str
    path: Path


class AgentList:
    """The agents of one document.

    Args:
        reader: Reads the files of agents.
        document: The document.

    Attributes:
        read: Every file that was read, by its name in origins.
    """

    def __init__(self, reader: DocumentReader, document: Origin) -> None:
        self.read: dict[str, Path] = {}
        self._reader = reader
        self._problems = reader.problems
        self._document = document
        self._published = document.published
        self._items: dict[str, Node] = {}
        self._keys: dict[str, Location] = {}

    def expand(self, node: Node) -> Node:
        """The agents by name; anything else than agents is returned unchanged."""
        if text_of(node) == "all":
            for path in agent_files(self._folders()).values():
                self._add_file(_File(str(path), path), node.at)
        elif isinstance(node, ListNode):
            for item in node.items:
                self._add_item(item)
        elif isinstance(node, MapNode) and _is_published(node):
            self._add_published(node)
        elif isinstance(node, MapNode):
            self._add_named(node)
        elif text_of(node) != "none":
            return node
        return MapNode(self._items, node.at, self._keys)

    # -- forms -------------------------------------------------------------------------

    def _add_item(self, item: Node) -> None:
        if isinstance(item, MapNode):
            name = text_of(item.items.get("name"))
            if name is None and self._document.bundle and "module" in item.items:
                message = "a module under 'agents' is ignored"
                self._problems.note(message, item.at)
                return
            if name is None:
                self._problems.add("the agent has no name", item.at, "add 'name: NAME'")
                return
            rest = {key: node for key, node in item.items.items() if key != "name"}
            self._add(name, self._inline(with_items(item, rest)), item.at)
        elif (text := text_of(item)) is not None:
            for found in self._locate(text, item.at):
                self._add_file(found, item.at, namespace=self._namespace(text))
        else:
            hint = "expected a name, a file or a mapping with 'name'"
            self._problems.add("not an agent", item.at, hint)

    def _add_named(self, node: MapNode) -> None:
        for name, agent in node.items.items():
            target, over = text_of(agent), None
            if target is None and self._published and isinstance(agent, MapNode):
                # A file, of which the other keys here replace parts.
                target, over = text_of(agent.items.get("include")), agent
            if target is None:
                self._add(name, self._inline(agent), node.key_at(name))
                continue
            for found in self._locate(target, agent.at):
                self._add_file(found, node.key_at(name), name, over=over)

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
                for found in self._locate(str(text.value), text.at, folders):
                    self._add_file(found, text.at, namespace=self._namespace(str(text.value)))
        if not named:
            for path in agent_files(folders).values():
                self._add_file(_File(self._shown(path), path), node.key_at("dirs"))
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

    def _locate(self, text: str, at: Location, folders: list[Path] | None = None) -> list[_File]:
        """The files that a reference resolves to; a problem if there are none."""
        tried: list[Path] = []
        named = text
        if self._published and ":" in text:
            found = self._reader.namespaces.find(
                self._document.path, text, _FORMS, self._document.name
            )
            if found.path is not None and found.path.suffix in SUFFIXES:
                return [_File(self._shown(found.path), found.path)]
            tried += found.tried
            text = text.rpartition(":")[2].rpartition("/")[2].removesuffix(".md")
        if _MAGIC.search(text):
            if _MAGIC.search(text.rpartition("/")[0]):
                hint = "only the last part of the path may contain wildcards, as in './agents/*.md'"
                self._problems.add(f"the pattern {text!r} is not supported", at, hint)
                return []
            found = list(self._matching(text))
            if not found:
                self._problems.add(f"no agent file matches {text!r}", at)
            return found
        if "/" in text or text.startswith("~") or text.endswith(SUFFIXES):
            path = self._absolute(text)
            if not self._may_read(path):
                self._missing(f"the agent file {text!r} is outside the fetched files", at, None)
                return []
            if path.suffix in SUFFIXES and path.is_file():
                return [_File(self._shown(path), path)]
            problem = "does not exist" if not path.exists() else "is not a .md or .yaml file"
            self._missing(f"the agent file {text!r} {problem}", at, None)
            return []
        places = [*(folders or ()), *self._folders()]
        known = agent_files(places)
        if text in known:
            return [_File(self._shown(known[text]), known[text])]
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

    def _matching(self, pattern: str) -> Iterator[_File]:
        """The files of one folder that match a pattern, hidden files excluded."""
        folder, _, name = pattern.rpartition("/")
        parent = self._absolute(folder or ".")
        is_there = parent.is_dir() and self._may_read(parent)
        for path in sorted(parent.iterdir()) if is_there else ():
            fits = fnmatch.fnmatchcase(path.name, name) and not path.name.startswith(".")
            if fits and path.suffix in SUFFIXES and path.is_file():
                yield _File(self._shown(path), path)

    def _absolute(self, text: str) -> Path:
        joined = self._document.path.parent / os.path.expanduser(text)
        return Path(os.path.normpath(joined))

    def _shown(self, path: Path) -> str:
        """The name of a file in origins: relative if the document's name is relative."""
        return self._reader.namespaces.shown(path, self._document.file, self._document.path)

    # -- collecting --------------------------------------------------------------------

    def _add_file(
        self,
        found: _File,
        at: Location,
        name: str | None = None,
        namespace: str = "",
        over: MapNode | None = None,
    ) -> None:
        document = self._reader.read(found.file, found.path, AGENT_FILE)
        self.read |= {found.file: found.path, **document.others}
        items = dict(document.tree.items)
        own = text_of(items.pop("name", None))
        replaced = self._inline(over) if over is not None else None
        if isinstance(replaced, MapNode):
            items |= {key: node for key, node in replaced.items.items() if key != "include"}
        full_name = name or f"{namespace}{own or found.path.stem}"
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
    """Whether the keys are lists of agents rather than agents."""
    lists = any(isinstance(node.items.get(key), (ListNode, Scalar)) for key in AGENT_LISTS)
    return lists or list(node.items) == ["inline"]
