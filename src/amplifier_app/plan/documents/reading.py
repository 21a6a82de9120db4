"""Read one document into a checked tree: YAML or Markdown, with its agents and includes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from amplifier_app.base.errors import ConfigError
from amplifier_app.plan.documents.document import (
    ContextFile,
    Document,
    Form,
    Opened,
    Origin,
    read_form,
)
from amplifier_app.plan.schema.grammar import PLAN
from amplifier_app.plan.schema.structure import Shape, normalise
from amplifier_app.plan.tree.nodes import MapNode, Node, Scalar, text_of, with_items
from amplifier_app.plan.tree.problems import Problems
from amplifier_app.plan.tree.yaml_reader import read_bytes

if TYPE_CHECKING:
    from amplifier_app.plan.documents.namespaces import Checkout, Namespaces
    from amplifier_app.plan.documents.published import Lists


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
            from amplifier_app.plan.documents.published import lists_in

            root, lists = lists_in(root, self.problems, includes="extends" in shape.keys)
        name = text_of(root.items.get("name")) if isinstance(root, MapNode) else None
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
                root = self._with_agents(root, this, others)
            root, context = self._with_includes(root, this, opened.lists, others)
            if context and "agents" not in shape.keys:
                # For an agent they are part of its own instruction.
                from amplifier_app.plan.documents.includes import with_context

                root, context = with_context(root, context), ()
        tree = normalise(root, this.file, self.problems, shape)
        return Document(this.file, this.path, tree, others, shape.bundle, context)

    def _with_agents(self, root: MapNode, this: Origin, others: dict[str, Path]) -> MapNode:
        from amplifier_app.plan.documents.agents import AgentList

        agents = AgentList(self, this)
        expanded = agents.expand(root.items["agents"])
        others |= agents.read
        return with_items(root, {**root.items, "agents": expanded})

    def _with_includes(
        self, root: MapNode, this: Origin, lists: Lists | None, others: dict[str, Path]
    ) -> tuple[MapNode, tuple[ContextFile, ...]]:
        """The document with the includes of its instruction and its inline agents expanded, and the
        files that it lists for the instruction."""
        agents = root.items.get("agents")
        inline = agents.items if isinstance(agents, MapNode) else {}
        listed = lists.context if lists is not None else ()
        if not listed and not any(_instruction(one, this.file) for one in (root, *inline.values())):
            return root, ()
        from amplifier_app.plan.documents.includes import Includer

        includer = Includer(this, self)

        def expand_includes(node: Node) -> Node:
            text = _instruction(node, this.file)
            if text is None or not isinstance(node, MapNode):
                return node
            return with_items(node, {**node.items, "instruction": includer.fill(text)})

        if isinstance(agents, MapNode):
            own = with_items(agents, {name: expand_includes(node) for name, node in inline.items()})
            root = with_items(root, {**root.items, "agents": own})
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
    found: list[Path] = []
    try:
        opened = reader.open(path.name, path, PLAN, data)
        if opened.origin.bundle or (opened.lists and opened.lists.includes):
            from amplifier_app.plan.documents.bundles import Bundles

            # Only local bundles: nothing is fetched before the project is trusted.
            included = Bundles(reader, {}, None).included(opened)
            found = [one.path for one in included]
            for one in included:
                found += reader.finish(one).others.values()
        found += reader.finish(opened).others.values()
    except ConfigError:
        # An unreadable file is reported when the document is loaded.
        return found
    return found


def _instruction(node: Node, file: str) -> Scalar | None:
    """The instruction of a document or an agent, if it is in `file` and may contain includes."""
    found = node.items.get("instruction") if isinstance(node, MapNode) else None
    if not isinstance(found, Scalar) or found.at.file != file:
        return None
    return found if "@" in (text_of(found) or "") else None
