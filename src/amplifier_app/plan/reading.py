"""One document as a checked tree: YAML or Markdown, with its agents and what instructions include."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from amplifier_app.base.errors import ConfigError
from amplifier_app.plan.document import ContextFile, Document, Form, Opened, Origin, read_form
from amplifier_app.plan.nodes import MapNode, Node, Scalar, text_of, with_items
from amplifier_app.plan.problems import Problems
from amplifier_app.plan.shapes import PLAN, Shape
from amplifier_app.plan.structure import normalise
from amplifier_app.plan.yaml_reader import read_bytes

if TYPE_CHECKING:
    from amplifier_app.plan.namespaces import Checkout, Namespaces
    from amplifier_app.plan.published import Lists


class Reader:
    """Reads the documents that belong together, and collects what is wrong with all of them.

    Args:
        problems: Gets everything that is wrong, and knows the texts.
        project: The folder of a trusted project, whose agents can be named.
    """

    def __init__(self, problems: Problems, project: Path | None = None) -> None:
        self.problems = problems
        self.project = project
        self._namespaces: Namespaces | None = None

    @property
    def namespaces(self) -> Namespaces:
        """The namespaces of these documents."""
        # Only published documents name anything by them.
        from amplifier_app.plan.namespaces import Namespaces

        if self._namespaces is None:
            self._namespaces = Namespaces()
        return self._namespaces

    @property
    def checkouts(self) -> tuple[Checkout, ...]:
        """The folders that were fetched for these documents."""
        return self._namespaces.checkouts if self._namespaces is not None else ()

    def read(self, file: str, path: Path, shape: Shape) -> Document:
        """
        Raises:
            ConfigError: The file cannot be read; all else becomes a problem.
        """
        return self.finish(self.open(file, path, shape))

    def open(self, file: str, path: Path, shape: Shape, data: bytes | None = None) -> Opened:
        """A document by itself.

        Args:
            file: The file as problems call it.
            path: The file, absolute.
            shape: What it may hold.
            data: Its bytes, if they are known.

        Raises:
            ConfigError: The file cannot be read; all else becomes a problem.
        """
        if data is None:
            data = read_bytes(path, file, shape.what)
        root, form = read_form(file, data, shape, self.problems)
        if shape.bundle:
            # What a bundle includes is one, whether or not it says so.
            form = Form(True, True)
        if not form.published:
            return Opened(Origin(file, path), root, shape)
        shape = shape._replace(lenient=True, bundle=form.bundle)
        lists = None
        if isinstance(root, MapNode):
            from amplifier_app.plan.published import lists_in

            root, lists = lists_in(root, self.problems, includes="extends" in shape.keys)
        name = text_of(root.items.get("name")) if isinstance(root, MapNode) else None
        return Opened(Origin(file, path, True, name, form.bundle), root, shape, lists)

    def finish(self, opened: Opened) -> Document:
        """A document with its agents and what its instructions include.

        Raises:
            ConfigError: A file that it takes in cannot be read.
        """
        this, root, shape = opened.origin, opened.root, opened.shape
        others: dict[str, Path] = {}
        context: tuple[ContextFile, ...] = ()
        if isinstance(root, MapNode):
            if "agents" in root.items and "agents" in shape.keys:
                root = self._with_agents(root, this, others)
            root, context = self._with_includes(root, this, opened.lists, others)
            if context and "agents" not in shape.keys:
                # Of an agent they are part of its own instruction.
                from amplifier_app.plan.includes import with_context

                root, context = with_context(root, context), ()
        tree = normalise(root, this.file, self.problems, shape)
        return Document(this.file, this.path, tree, others, shape.bundle, context)

    def _with_agents(self, root: MapNode, this: Origin, others: dict[str, Path]) -> MapNode:
        from amplifier_app.plan.agents import AgentList

        agents = AgentList(self, this)
        expanded = agents.expand(root.items["agents"])
        others |= agents.read
        return with_items(root, {**root.items, "agents": expanded})

    def _with_includes(
        self, root: MapNode, this: Origin, lists: Lists | None, others: dict[str, Path]
    ) -> tuple[MapNode, tuple[ContextFile, ...]]:
        """The document with its own instruction and those of its inline agents filled in, and the
        files that it lists for the instruction."""
        agents = root.items.get("agents")
        inline = agents.items if isinstance(agents, MapNode) else {}
        listed = lists.context if lists is not None else ()
        if not listed and not any(_instruction(one, this.file) for one in (root, *inline.values())):
            return root, ()
        from amplifier_app.plan.includes import Includer

        includer = Includer(this, self)

        def filled(node: Node) -> Node:
            text = _instruction(node, this.file)
            if text is None or not isinstance(node, MapNode):
                return node
            return with_items(node, {**node.items, "instruction": includer.fill(text)})

        if isinstance(agents, MapNode):
            own = with_items(agents, {name: filled(node) for name, node in inline.items()})
            root = with_items(root, {**root.items, "agents": own})
        changed = filled(root)
        context = tuple(includer.context(listed))
        others |= includer.read
        return (changed if isinstance(changed, MapNode) else root), context


def taken_in(path: Path, data: bytes, project: Path | None) -> list[Path]:
    """The files that a document takes in as text or as agents, however far down.

    What is wrong with it is no concern here.

    Args:
        path: The document, absolute.
        data: What it holds.
        project: The folder of a project, whose agents it can name.
    """
    reader = Reader(Problems(), project)
    found: list[Path] = []
    try:
        opened = reader.open(path.name, path, PLAN, data)
        if opened.origin.bundle or (opened.lists and opened.lists.includes):
            from amplifier_app.plan.bundles import Bundles

            # Only what is on this machine: nothing is fetched before it is trusted.
            included = Bundles(reader, {}, None).included(opened)
            found = [one.path for one in included]
            for one in included:
                found += reader.finish(one).others.values()
        found += reader.finish(opened).others.values()
    except ConfigError:
        # A file that cannot be read; whoever loads the document reports it.
        return found
    return found


def _instruction(node: Node, file: str) -> Scalar | None:
    """The instruction of a document or an agent, if it stands in `file` and may include any."""
    found = node.items.get("instruction") if isinstance(node, MapNode) else None
    if not isinstance(found, Scalar) or found.at.file != file:
        return None
    return found if "@" in (text_of(found) or "") else None
