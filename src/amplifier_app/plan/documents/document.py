"""Read one document on its own, before anything it refers to: YAML, or Markdown with YAML in front.

Profiles, bundles and agents are published as Markdown: YAML between two `---` lines, followed by the
instruction; see `amplifier_app.plan.documents.published`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from amplifier_app.base.errors import Location
from amplifier_app.plan.schema.rules import Shape
from amplifier_app.plan.tree.nodes import MapNode, Node, Scalar
from amplifier_app.plan.tree.problems import Problems
from amplifier_app.plan.tree.yaml_reader import decode, read_yaml
from amplifier_support.named_tuple import NamedTuple

if TYPE_CHECKING:
    from amplifier_app.plan.documents.namespaces import Namespaces
    from amplifier_app.plan.documents.published import Lists

MARKDOWN = ".md"


class ContextFile(NamedTuple):
    """A file that belongs to an instruction.

    Attributes:
        name: Its name in the document.
        path: The file, absolute.
        text: Its content, with includes expanded.
        at: Where it is named.
    """

    name: str
    path: Path
    text: str
    at: Location


class Document(NamedTuple):
    """A document that was read.

    Attributes:
        file: The name of the file in origins.
        path: The file, absolute.
        tree: Its content, normalised; agents by name, includes expanded.
        others: The agents and includes it uses, by their names in origins.
        bundle: Whether it is a bundle.
        context: Files to append to the instruction of the plan that includes it.
    """

    file: str
    path: Path
    tree: MapNode
    others: dict[str, Path]
    bundle: bool = False
    context: tuple[ContextFile, ...] = ()


class Origin(NamedTuple):
    """A document, or a file that one names.

    Attributes:
        file: The name of the file in origins.
        path: The file, absolute.
        published: Whether it has the published form of profiles, bundles and agents:
            `namespace:path` names a file, and agents are in `agents/` next to it or its folder.
        name: Its own name.
        bundle: Whether it is a bundle: files missing from it are warnings, not errors.
    """

    file: str
    path: Path
    published: bool = False
    name: str | None = None
    bundle: bool = False


class Opened(NamedTuple):
    """A document that was read, but nothing that it refers to.

    Attributes:
        origin: Which document it is.
        root: Its content without `lists`.
        shape: The sections it may have.
        lists: The files and bundles it lists.
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
    """Reads the documents of one plan; see `amplifier_app.plan.documents.reading.Reader`."""

    problems: Problems
    project: Path | None

    @property
    def namespaces(self) -> Namespaces: ...

    def read(self, file: str, path: Path, shape: Shape) -> Document: ...

    def open(self, file: str, path: Path, shape: Shape, data: bytes | None = None) -> Opened: ...


class Form(NamedTuple):
    """The form of a document.

    Attributes:
        published: Whether it has the published form of profiles, bundles and agents.
        bundle: Whether it is a bundle.
    """

    published: bool
    bundle: bool = False


def read_root(file: str, data: bytes, shape: Shape, problems: Problems) -> Node | None:
    """The content of a document; see `read_form`."""
    return read_form(file, data, shape, problems)[0]


def read_form(file: str, data: bytes, shape: Shape, problems: Problems) -> tuple[Node | None, Form]:
    """The content and the form of a document; nothing that it refers to is read.

    Args:
        file: The name of the document in problems; its suffix decides how it is parsed.
        data: Its content.
        shape: The kind of document.
        problems: Collects the problems.
    """
    markdown = file.endswith(MARKDOWN)
    root = (read_markdown if markdown else read_yaml)(data, file, problems)
    if not isinstance(root, MapNode):
        return root, Form(markdown)
    tables = [name for name in shape.tables if isinstance(root.items.get(name), MapNode)]
    if not markdown and not tables:
        return root, Form(False)
    from amplifier_app.plan.documents.published import BUNDLE, without_tables

    return without_tables(root, shape.tables, problems), Form(True, BUNDLE in tables)


_MARK = r"---[ \t]*"


def read_markdown(data: bytes, file: str, problems: Problems) -> MapNode | None:
    """Read a Markdown document as the tree of its front matter, with the body as `instruction`.

    Args:
        data: The bytes of the file.
        file: Its name in problems and origins.
        problems: Collects the problems.

    Returns:
        None if it cannot be read.
    """
    text = decode(data, file, problems)
    if text is None:
        return None
    problems.add_text(file, text)
    lines = re.split(r"\r\n|\n|\r", text)
    if not re.fullmatch(_MARK, lines[0]):
        hint = "begin the file with '---', YAML keys, and another '---'"
        problems.add("the file has no front matter", Location(file, 1, 1), hint)
        return None
    end = next((i for i, line in enumerate(lines) if i and re.fullmatch(_MARK, line)), None)
    if end is None:
        hint = "end it with a line '---'"
        problems.add("the front matter is not closed", Location(file, 1, 1), hint)
        return None
    # An empty line replaces the first mark, so that lines keep their numbers.
    front = "\n".join(["", *lines[1:end], ""])
    reported = len(problems)
    root = read_yaml(front.encode(), file, problems)
    problems.add_text(file, text)
    if root is None and len(problems) > reported:
        return None
    if root is None or (isinstance(root, Scalar) and root.value is None):
        root = MapNode({}, Location(file, 1, 1))
    if not isinstance(root, MapNode):
        problems.add("the front matter is not a mapping", root.at, "write 'key: value' lines")
        return None
    return _with_body(root, lines, end + 1, problems)


def _with_body(root: MapNode, lines: list[str], start: int, problems: Problems) -> MapNode:
    while start < len(lines) and not lines[start].strip():
        start += 1
    body = "\n".join(lines[start:]).rstrip()
    if not body:
        return root
    if "instruction" in root.items:
        message = "the instruction is set twice: here and by the text below the front matter"
        problems.add(message, root.key_at("instruction"), "keep one of them")
    # Prose may contain literal `${…}`.
    node = Scalar(body, Location(root.at.file, start + 1, 1), plain=False, literal=True)
    return root.with_item("instruction", node)
