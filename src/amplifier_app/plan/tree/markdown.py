"""Markdown documents: YAML between two `---` lines, followed by the instruction.

Profiles, bundles and agents are published in this form; see `amplifier_app.plan.documents.published`.
"""

from __future__ import annotations

import re

from amplifier_app.base.errors import Location
from amplifier_app.plan.tree.nodes import MapNode, Scalar, with_items
from amplifier_app.plan.tree.problems import Problems
from amplifier_app.plan.tree.yaml_reader import decode, read_yaml

SUFFIX = ".md"

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
    return with_items(root, {**root.items, "instruction": node})
