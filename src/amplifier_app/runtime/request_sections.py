"""The sections of a model request, in the order of the provider's cache: tools, then messages.

Each has the origin of its text: an instruction file, a hook, a tool, a skill, or a message of the
conversation. Texts are divided by what they contain, never by the plan: a resumed session may have another
one, and its request is compared with one of the earlier plan.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amplifier_app.base.errors import Location
from amplifier_app.base.redact import redact
from amplifier_app.plan.tree.entries import module_entries
from amplifier_app.plan.tree.nodes import MapNode, read_text
from amplifier_app.sessions.transcript import is_by_hook
from amplifier_core._foreign import find_module
from amplifier_support.fields import read_field, to_mapping
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import lazy_pattern

_ADDED = lazy_pattern(
    r'<(context-file) path="([^"\n]+)".*?</context-file>\n?'
    r'|<(system-reminder) source="([^"\n]+)".*?</system-reminder>\n?',
    re.DOTALL,
)
"""Text that hooks add: an instruction file, or what a hook names its own."""


class Piece(NamedTuple):
    """A text of a request with its origin.

    Attributes:
        kind: `file`, `hook`, `tool`, `skill` or `message`.
        name: Path of the file; name of the hook, tool or skill; kind of the message; otherwise empty.
        text: The text.
    """

    kind: str
    name: str
    text: str


class Section(NamedTuple):
    """A piece at its place in a request.

    Attributes:
        kind: See `Piece`.
        name: See `Piece`.
        number: The number of its message in the request, from 1; 0 for tools.
        size: Its UTF-8 bytes.
        digest: A hash of them.
        content: The bytes; None if only their hash was stored.
        by: The hook that wrote its message.
    """

    kind: str
    name: str
    number: int
    size: int
    digest: str
    content: bytes | None = None
    by: str = ""

    @classmethod
    def of(cls, piece: Piece, number: int, by: str = "") -> Section:
        """Return the section of a piece."""
        content = piece.text.encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(content, digest_size=8).hexdigest()
        return cls(piece.kind, piece.name, number, len(content), digest, content, by)


def split_text(kind: str, name: str, text: str) -> list[Piece]:
    """Return the pieces of a text; `kind` and `name` are for what has no origin of its own."""
    if "<context-file" not in text and "<system-r" not in text:
        return [Piece(kind, name, text)]
    at, pieces = 0, list[Piece]()
    for match in _ADDED.finditer(text):
        own = ("file", match[2]) if match[1] else ("hook", match[4])
        pieces += [Piece(kind, name, text[at : match.start()]), Piece(*own, match[0])]
        at = match.end()
    return [piece for piece in (*pieces, Piece(kind, name, text[at:])) if piece.text]


TOOL_FIELDS = ("name", "description", "parameters")


def split_tool(spec: Any, parts: Any) -> list[Piece]:
    """Return the pieces of a tool's definition: its own, and a line for each of its skills.

    Args:
        spec: The definition in the request.
        parts: `description_parts` of the mounted tool, if it has any.
    """
    fields = {key: read_field(spec, key) for key in TOOL_FIELDS}
    text = json.dumps(fields, ensure_ascii=False, default=str)
    name, pieces = str(fields["name"]), list[Piece]()
    for skill, line in to_mapping(parts).items():
        own = json.dumps(line, ensure_ascii=False)[1:-1]
        before, separator, text = text.partition(own)
        if not separator:
            text = before
            continue
        pieces += [Piece("tool", name, before), Piece("skill", str(skill), own)]
    return [*pieces, Piece("tool", name, text)]


def split_message(message: Any, changed_by: str | None = None) -> list[Piece]:
    """Return the pieces of a message.

    Args:
        message: A stored message of any form.
        changed_by: The hook that wrote the message, if the context did not.
    """
    fields: Mapping[str, Any] = message
    if type(message) is not dict:
        fields = {name: read_field(message, name) for name in _FIELDS}
    role = str(fields.get("role"))
    metadata = fields.get("metadata")
    if changed_by is not None or is_by_hook(fields):
        origin = "hook", changed_by or str(to_mapping(metadata).get("hook_name"))
    elif role in ("tool", "function"):
        # A model may call a tool by any name.
        origin = "message", redact(f"result of {fields.get('name') or 'a call'}")
    else:
        origin = "message", {"user": "prompt", "assistant": "answer"}.get(role, role)
    return split_text(*origin, f"{role}\n{_read_text(fields)}\n")


_FIELDS = ("role", "content", "name", "metadata", "tool_calls")


def _read_text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    blocks = content if isinstance(content, (list, tuple)) else ()
    parts = [content] if isinstance(content, str) else [_read_text_block(block) for block in blocks]
    calls = message.get("tool_calls")
    if calls and not any(read_field(block, "type") == "tool_call" for block in blocks):
        parts.append(json.dumps(calls, ensure_ascii=False, default=str))
    return "\n".join(parts)


def _read_text_block(block: Any) -> str:
    text = read_field(block, "text")
    if isinstance(text, str) and read_field(block, "type") == "text":
        return text
    dump = getattr(block, "model_dump", None)
    return json.dumps(dump() if callable(dump) else block, ensure_ascii=False, default=str)


# -- places ------------------------------------------------------------------------------


def find_tool_entry(plan: MapNode, tool: Any) -> MapNode | None:
    """Return the plan's entry of the module, of any kind, that a mounted tool comes from; None if it has
    none."""
    defined_in = getattr(tool, "defined_in", None)
    if defined_in is None and (code := find_module(tool)) is not None:
        defined_in = code.__name__
    package = f".{str(defined_in).replace('amplifier_module_', '')}."
    for entry in module_entries(plan):
        id = read_text(entry.node.items.get("module")) or ""
        if entry.agent is None and f".{id.replace('-', '_')}." in package:
            return entry.node
    return None


def find_module_place(plan: MapNode, kind: str, id: str | None) -> Location | None:
    """Return where the plan has a module."""
    for entry in module_entries(plan):
        if entry.kind == kind and read_text(entry.node.items.get("module")) == id:
            return entry.node.key_at("module")
    return None


def find_model_place(plan: MapNode, model: str | None) -> Location | None:
    """Return where the plan has a model."""
    for entry in module_entries(plan):
        config = entry.node.items.get("config")
        node = config.items.get("model") if isinstance(config, MapNode) else None
        if node is not None and entry.kind == "provider" and read_text(node) == model:
            return node.at
    return None


def find_instruction_place(plan: MapNode, text: str, offset: int) -> Location | None:
    """Return the line of the plan's instruction that a character of a system message comes from.

    Args:
        plan: The plan.
        text: The message, or its beginning if that is all that is as in the plan.
        offset: The position of the character.

    Returns:
        None if it does not come from there.
    """
    node = plan.items.get("instruction")
    instruction = read_text(node)
    if node is None or not instruction:
        return None
    start = max(text.find(instruction), 0)
    body = text[start:offset]
    if (not body and not text.startswith(instruction, start)) or not instruction.startswith(body):
        return None
    first = instruction.partition("\n")[0].strip()
    # A block begins below its key; a file that cannot be read leaves the place of the key.
    with contextlib.suppress(OSError, UnicodeDecodeError):
        written = Path(node.at.file).read_text(encoding="utf-8").splitlines()
        at = node.at.line or 1
        for number in range(at, min(at + 3, len(written)) + 1):
            if first and first in written[number - 1]:
                return Location(node.at.file, number + body.count("\n"))
    return node.at


def find_context_place(plan: MapNode) -> Location | None:
    """Return where the plan has its context manager."""
    session = plan.items.get("session")
    return session.key_at("context") if isinstance(session, MapNode) else None


def find_skill_place(path: str | None) -> Location | None:
    """Return the line of the description in the file of a skill."""
    if path is None:
        return None
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
            if line.startswith("description:"):
                return Location(path, number)
    return Location(path, 1)
