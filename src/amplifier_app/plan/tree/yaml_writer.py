"""JSON types → YAML that every reader takes for the same, without PyYAML: its import costs a start more
than everything else about the plan.
"""

from __future__ import annotations

import re
from typing import Any, cast

_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
"""Plain scalars that are no strings, in lower case."""

_MAX_KEY = 1000
"""Characters of a key on the line of its value; YAML requires fewer than 1,024."""


def write_yaml(data: Any) -> str:
    """Return the data in block style, with strings of several lines as block scalars where YAML has no
    doubt about them."""
    return "\n".join(_write(data)) + "\n"


def _write(data: Any) -> list[str]:
    """The lines of a value; those after the first are to be indented below what holds it."""
    lines: list[str] = []
    if data and isinstance(data, list):
        for item in cast("list[Any]", data):
            first, *rest = _write(item)
            lines += [f"- {first}", *_indent(rest)]
    elif data and isinstance(data, dict):
        for key, value in cast("dict[Any, Any]", data).items():
            name, below = _string(str(key)), _write(value)
            if len(name) > _MAX_KEY:
                lines.append(f"? {name}")
                name = ""
            if value and isinstance(value, (dict, list)):
                lines += [f"{name}:", *(below if isinstance(value, list) else _indent(below))]
            else:
                lines += [f"{name}: {below[0]}", *_indent(below[1:])]
    elif isinstance(data, str):
        return _block(data) or [_string(data)]
    else:
        return [_scalar(data)]
    return lines


def _indent(lines: list[str]) -> list[str]:
    return [f"  {line}" if line else "" for line in lines]


def _block(text: str) -> list[str]:
    """A text of several lines as a block scalar; empty if it would not be the same text."""
    lines = text.removesuffix("\n").split("\n")
    is_clear = "\n" in text and not text[0].isspace() and lines[-1].strip()
    if is_clear and all(line.replace("\t", "").isprintable() for line in lines):
        return ["|" if text.endswith("\n") else "|-", *lines]
    return []


def _string(text: str) -> str:
    if not text.isprintable():
        escaped = (c if c.isprintable() and c not in '"\\' else _escape(c) for c in text)
        return f'"{"".join(escaped)}"'
    is_plain = re.match(r"\.{0,2}/|[^\W\d]|\$", text) and text.lower() not in _WORDS
    if is_plain and not re.search(r":(?= |$)| #| $", text):
        return text
    return "'{}'".format(text.replace("'", "''"))


def _escape(character: str) -> str:
    short = {"\n": "\\n", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
    return short.get(character, f"\\U{ord(character):08x}")


def _scalar(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (dict, list)):
        return "{}" if isinstance(value, dict) else "[]"
    # Without a point, YAML 1.1 takes 1e20 for a string.
    text = repr(value)
    text = text if "." in text else text.replace("e", ".0e")
    return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(text, text)
