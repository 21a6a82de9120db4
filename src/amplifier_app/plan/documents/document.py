"""Read one document on its own, before anything it refers to: YAML, or Markdown with YAML in front.

Profiles, bundles and agents are published as Markdown: YAML between two `---` lines, followed by the
instruction. Their name and description may be in a table (`bundle:`, `profile:`, `meta:`, `agent:`), and
sections of other programs are warnings, not errors. Bundles may be YAML or Markdown; the kind of a document
depends on its tables, not on its suffix.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from amplifier_app.base.errors import Location
from amplifier_app.plan.schema.rules import Shape
from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node, Scalar, with_items
from amplifier_app.plan.tree.problems import Problems
from amplifier_app.plan.tree.yaml_reader import decode, read_yaml
from amplifier_support.named_tuple import NamedTuple

if TYPE_CHECKING:
    from amplifier_app.plan.documents.namespaces import Namespaces

MARKDOWN = ".md"


BUNDLE = "bundle"
"""The table that makes a document a bundle."""

_METADATA = ("version", "author", "license", "tags", "keywords", "homepage", "repository")


class Listed(NamedTuple):
    """One string of a list and its location."""

    text: str
    at: Location


class Lists(NamedTuple):
    """The lists that only published documents have.

    Attributes:
        includes: The included bundles.
        context: The files to append to the instruction.
        namespace_root: The folder of its namespace, if not its own.
    """

    includes: tuple[Listed, ...] = ()
    context: tuple[Listed, ...] = ()
    namespace_root: Listed | None = None


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


# -- the published form ------------------------------------------------------------------


def without_tables(root: MapNode, tables: Sequence[str], problems: Problems) -> MapNode:
    """The document with the content of its tables moved to the top, and without metadata."""
    items: dict[str, Node] = {}
    keys = dict(root.keys)
    for key, node in root.items.items():
        if key not in tables:
            _add(items, keys, key, node, root.key_at(key), problems)
        elif isinstance(node, MapNode):
            for name, value in node.items.items():
                _add(items, keys, name, value, node.key_at(name), problems)
        else:
            hint = "expected a mapping with 'name' and 'description'"
            problems.add(f"{key!r} is not a mapping", root.key_at(key), hint)
    used = {key: node for key, node in items.items() if key not in _METADATA}
    return MapNode(used, root.at, keys)


def lists_in(root: MapNode, problems: Problems, *, includes: bool) -> tuple[MapNode, Lists]:
    """Split a document into the rest and its lists: `context.include` and `includes`.

    Args:
        root: The document.
        problems: Collects the problems of the lists.
        includes: Whether it may include bundles.
    """
    named: list[Listed] = []
    items = dict(root.items)
    if includes and (node := items.pop("includes", None)) is not None:
        named = _texts(node, "includes", problems)
    folder = items.get("namespace_root") if includes else None
    start = None
    if isinstance(folder, Scalar) and isinstance(folder.value, str):
        start = Listed(folder.value, folder.at)
        del items["namespace_root"]
    root, context = _without_context(with_items(root, items), problems)
    return root, Lists(tuple(named), context, start)


def _without_context(root: MapNode, problems: Problems) -> tuple[MapNode, tuple[Listed, ...]]:
    """A document or an agent without `context.include`, and the files listed there.

    All other keys of `context` configure the context manager.
    """
    context = root.items.get("context")
    if not isinstance(context, MapNode) or "include" not in context.items:
        return root, ()
    files = _texts(context.items["include"], "context.include", problems)
    rest = {key: value for key, value in context.items.items() if key != "include"}
    items = {**root.items, "context": with_items(context, rest)}
    if not rest:
        del items["context"]
    # Accept the `@` of an include line here too, where only files can be listed.
    return with_items(root, items), tuple(f._replace(text=f.text.lstrip("@")) for f in files)


def _texts(node: Node, where: str, problems: Problems) -> list[Listed]:
    texts: list[Listed] = []
    if isinstance(node, Scalar) and node.value is None:
        return texts
    for item in node.items if isinstance(node, ListNode) else [node]:
        value = item
        if isinstance(item, MapNode) and BUNDLE in item.items and where == "includes":
            value = item.items[BUNDLE]
            for key in item.items:
                if key != BUNDLE:
                    problems.note(f"{key!r} of an include is ignored", item.key_at(key))
        if isinstance(value, Scalar) and isinstance(value.value, str) and value.value.strip():
            texts.append(Listed(value.value.strip(), value.at))
        else:
            hint = "write '- bundle: ./FILE'" if where == "includes" else "write '- ./FILE'"
            problems.add(f"invalid entry in {where!r}", item.at, hint)
    return texts


def _add(
    items: dict[str, Node],
    keys: dict[str, Location],
    key: str,
    node: Node,
    at: Location,
    problems: Problems,
) -> None:
    if key in items:
        message = f"duplicate key {key!r}: first on line {keys[key].line}"
        problems.add(message, at, "keep one of them")
        return
    items[key] = node
    keys[key] = at
