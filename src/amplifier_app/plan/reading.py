"""One document as a checked tree: YAML or Markdown, its agents and includes read along."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from amplifier_app.errors import ConfigError
from amplifier_app.plan.nodes import MapNode, Node, Scalar, text_of, with_items
from amplifier_app.plan.problems import Problems
from amplifier_app.plan.shapes import PLAN, Shape
from amplifier_app.plan.structure import normalise
from amplifier_app.plan.yaml_reader import read_bytes, read_yaml

MARKDOWN = ".md"
SUFFIXES = (".yaml", ".yml", MARKDOWN)


class Document(NamedTuple):
    """A document that was read.

    Attributes:
        file: The file as origins call it.
        path: The file, absolute.
        tree: What it holds, in normalised form; agents by name, includes in place.
        others: The files it took in, agents and includes, as origins call them.
    """

    file: str
    path: Path
    tree: MapNode
    others: dict[str, Path]


class Origin(NamedTuple):
    """The document that names something.

    Attributes:
        file: The file as origins call it.
        path: The file, absolute.
        published: Whether it is of the form in which profiles, bundles and agents are published:
            `collection:path` names a file, and agents lie in `agents/` beside it or its folder.
        name: Its own name.
    """

    file: str
    path: Path
    published: bool = False
    name: str | None = None


class Reader:
    """Reads the documents that belong together, and collects what is wrong with all of them.

    Args:
        problems: Gets everything that is wrong, and knows the texts.
        project: The folder of a trusted project, whose agents can be named.
    """

    def __init__(self, problems: Problems, project: Path | None = None) -> None:
        self.problems = problems
        self.project = project

    def read(self, file: str, path: Path, shape: Shape) -> Document:
        """
        Raises:
            ConfigError: The file cannot be read; all else becomes a problem.
        """
        return self.parse(file, path, read_bytes(path, file, shape.what), shape)

    def parse(self, file: str, path: Path, data: bytes, shape: Shape) -> Document:
        """A document whose bytes are known.

        Raises:
            ConfigError: A file that it takes in cannot be read.
        """
        published = path.suffix == MARKDOWN
        shape = shape._replace(lenient=published)
        root = read_root(file, data, shape, self.problems)
        others: dict[str, Path] = {}
        if isinstance(root, MapNode):
            this = Origin(file, path, published, text_of(root.items.get("name")))
            if "agents" in root.items and "agents" in shape.keys:
                root = self._with_agents(root, this, others)
            root = self._with_includes(root, this, others)
        return Document(file, path, normalise(root, file, self.problems, shape), others)

    def _with_agents(self, root: MapNode, this: Origin, others: dict[str, Path]) -> MapNode:
        from amplifier_app.plan.agents import AgentList

        agents = AgentList(self, this)
        expanded = agents.expand(root.items["agents"])
        others |= agents.read
        return with_items(root, {**root.items, "agents": expanded})

    def _with_includes(self, root: MapNode, this: Origin, others: dict[str, Path]) -> MapNode:
        """The document with its own instruction and those of its inline agents filled in."""
        agents = root.items.get("agents")
        inline = agents.items if isinstance(agents, MapNode) else {}
        if not any(_instruction(node, this.file) for node in (root, *inline.values())):
            return root
        from amplifier_app.plan.includes import Includer

        includer = Includer(this, self.problems)

        def filled(node: Node) -> Node:
            text = _instruction(node, this.file)
            if text is None or not isinstance(node, MapNode):
                return node
            return with_items(node, {**node.items, "instruction": includer.fill(text)})

        if isinstance(agents, MapNode):
            own = with_items(agents, {name: filled(node) for name, node in inline.items()})
            root = with_items(root, {**root.items, "agents": own})
        changed = filled(root)
        others |= includer.read
        return changed if isinstance(changed, MapNode) else root


def read_root(file: str, data: bytes, shape: Shape, problems: Problems) -> Node | None:
    """What a document says by itself: nothing that it names is read.

    Args:
        file: The document as problems call it; its ending tells its form.
        data: What it holds.
        shape: What kind of document it is.
        problems: Gets what is wrong.
    """
    if not file.endswith(MARKDOWN):
        return read_yaml(data, file, problems)
    from amplifier_app.plan.markdown import read_markdown

    return read_markdown(data, file, shape.tables, problems)


def taken_in(path: Path, data: bytes, project: Path | None) -> list[Path]:
    """The files that a document takes in as text or as agents, however far down.

    What is wrong with it is no concern here.

    Args:
        path: The document, absolute.
        data: What it holds.
        project: The folder of a project, whose agents it can name.
    """
    try:
        document = Reader(Problems(), project).parse(path.name, path, data, PLAN)
    except ConfigError:
        # A file that cannot be read; who loads the document tells it.
        return []
    return list(document.others.values())


def _instruction(node: Node, file: str) -> Scalar | None:
    """The instruction of a document or an agent, if it stands in `file` and may include any."""
    found = node.items.get("instruction") if isinstance(node, MapNode) else None
    if not isinstance(found, Scalar) or found.at.file != file:
        return None
    return found if "@" in (text_of(found) or "") else None
