"""One document by itself: which it is, and what it says before anything that it names is read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from amplifier_app.base.errors import Location
from amplifier_app.plan.nodes import MapNode, Node
from amplifier_app.plan.problems import Problems
from amplifier_app.plan.shapes import Shape
from amplifier_app.plan.yaml_reader import read_yaml

if TYPE_CHECKING:
    from amplifier_app.plan.namespaces import Namespaces
    from amplifier_app.plan.published import Lists

MARKDOWN = ".md"
SUFFIXES = (".yaml", ".yml", MARKDOWN)


class ContextFile(NamedTuple):
    """A file that belongs to an instruction.

    Attributes:
        name: What the document calls it.
        path: The file, absolute.
        text: What it holds, with what it includes in place.
        at: Where it is named.
    """

    name: str
    path: Path
    text: str
    at: Location


class Document(NamedTuple):
    """A document that was read.

    Attributes:
        file: The file as origins call it.
        path: The file, absolute.
        tree: What it holds, in normalised form; agents by name, includes in place.
        others: The files it took in, agents and includes, as origins call them.
        bundle: Whether it is a bundle.
        context: The files that belong to the instruction of whatever includes it.
    """

    file: str
    path: Path
    tree: MapNode
    others: dict[str, Path]
    bundle: bool = False
    context: tuple[ContextFile, ...] = ()


class Origin(NamedTuple):
    """The document that names something.

    Attributes:
        file: The file as origins call it.
        path: The file, absolute.
        published: Whether it is of the form in which profiles, bundles and agents are published:
            `namespace:path` names a file, and agents lie in `agents/` beside it or its folder.
        name: Its own name.
        bundle: Whether it is a bundle: what it names and is not there is reported, not refused.
    """

    file: str
    path: Path
    published: bool = False
    name: str | None = None
    bundle: bool = False


class Opened(NamedTuple):
    """A document by itself: nothing that it names has been read.

    Attributes:
        origin: Which it is.
        root: What it says, without what it lists.
        shape: What it may hold.
        lists: What it lists.
    """

    origin: Origin
    root: Node | None
    shape: Shape
    lists: Lists | None = None

    @property
    def file(self) -> str:
        return self.origin.file

    @property
    def path(self) -> Path:
        return self.origin.path


class DocumentReader(Protocol):
    """Reads the documents that belong together; see `amplifier_app.plan.reading.Reader`."""

    problems: Problems
    project: Path | None

    @property
    def namespaces(self) -> Namespaces: ...

    def read(self, file: str, path: Path, shape: Shape) -> Document: ...

    def open(self, file: str, path: Path, shape: Shape, data: bytes | None = None) -> Opened: ...


class Form(NamedTuple):
    """What form a document is of.

    Attributes:
        published: Whether it is of the form in which profiles, bundles and agents are published.
        bundle: Whether it is a bundle.
    """

    published: bool
    bundle: bool = False


def read_root(file: str, data: bytes, shape: Shape, problems: Problems) -> Node | None:
    """What a document says by itself: nothing that it names is read.

    Args:
        file: The document as problems call it; its ending tells its form.
        data: What it holds.
        shape: What kind of document it is.
        problems: Gets what is wrong.
    """
    return read_form(file, data, shape, problems)[0]


def read_form(file: str, data: bytes, shape: Shape, problems: Problems) -> tuple[Node | None, Form]:
    """`read_root`, and the form of the document."""
    markdown = file.endswith(MARKDOWN)
    if markdown:
        from amplifier_app.plan.markdown import read_markdown

        root = read_markdown(data, file, problems)
    else:
        root = read_yaml(data, file, problems)
    if not isinstance(root, MapNode):
        return root, Form(markdown)
    tables = [name for name in shape.tables if isinstance(root.items.get(name), MapNode)]
    if not markdown and not tables:
        return root, Form(False)
    from amplifier_app.plan.published import BUNDLE, without_tables

    return without_tables(root, shape.tables, problems), Form(True, BUNDLE in tables)
