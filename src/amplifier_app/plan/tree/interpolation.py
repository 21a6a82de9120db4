"""Expand `${VAR}`, `${VAR:-default}` and `${VAR:default}` in the strings of a plan; `$$` is `$`.

The default is used if the variable is unset or empty, and may contain variables itself. An unquoted
value that consists of one `${VAR:-default}` gets the type of its default, so `${DEBUG:-false}` is a
boolean; every other expanded value is a string.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from amplifier_app.base.errors import Location
from amplifier_app.base.keys import Environment
from amplifier_app.plan.tree.nodes import (
    MAX_EXPANDED,
    MAX_NESTED_VARIABLES,
    VARIABLE_COST,
    Node,
    Scalar,
    ScalarValue,
    map_scalars,
)
from amplifier_app.plan.tree.problems import Problems
from amplifier_app.plan.tree.yaml_reader import plain_scalar
from amplifier_support.secret_shapes import is_secret_name

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_TOO_DEEP = -1
_BRACE = re.compile(r"\$\{|\}")


def interpolate(
    node: Node, environ: Mapping[str, str], problems: Problems, *, keep_unset: bool = False
) -> Node:
    """The tree with every variable expanded.

    Args:
        node: The tree.
        environ: The variables.
        problems: Collects the problems.
        keep_unset: Keep and mark strings with unset variables instead of reporting a problem.
    """
    return map_scalars(node, lambda scalar: _fill_scalar(scalar, environ, problems, keep_unset))


def _fill_scalar(
    node: Scalar, environ: Mapping[str, str], problems: Problems, keep_unset: bool
) -> Scalar:
    if node.literal or not isinstance(node.value, str) or "$" not in node.value:
        return node
    filler = _Filler(environ, problems, node.at, keep_unset)
    value: ScalarValue = filler.fill(node.value)
    if not filler.names:
        return Scalar(value, node.at, plain=False)
    if node.plain and filler.whole_default is not None:
        value = _convert(str(value), filler.whole_default)
    stored = environ.secret if isinstance(environ, Environment) else ()
    secret = any(name in stored or is_secret_name(name) for name in filler.names)
    if filler.unset:
        unset = tuple(dict.fromkeys(filler.unset))
        return node._replace(expression=node.value, secret=secret, unset=unset)
    return Scalar(value, node.at, plain=False, expression=node.value, secret=secret)


def _convert(value: str, default: str) -> ScalarValue:
    typed_default = plain_scalar(default)
    if isinstance(typed_default, str) or typed_default is None:
        return value
    typed = plain_scalar(value)
    same = isinstance(typed, bool) == isinstance(typed_default, bool)
    return typed if same and isinstance(typed, (int, float)) else value


class _Filler:
    """Expands one string, and records which variables it contains."""

    def __init__(
        self, environ: Mapping[str, str], problems: Problems, at: Location, keep_unset: bool
    ) -> None:
        self.environ = environ
        self.problems = problems
        self.at = at
        self.keep_unset = keep_unset
        self.names: list[str] = []
        self.unset: list[str] = []
        self.whole_default: str | None = None

    def fill(self, text: str) -> str:
        parts: list[str] = []
        position = 0
        while (dollar := text.find("$", position)) >= 0:
            parts.append(text[position:dollar])
            following = text[dollar + 1 : dollar + 2]
            if following == "{":
                end = _closing_brace(text, dollar)
                if end is None:
                    self.problems.add("'${' is not closed", self.at, "add '}', or write '$${'")
                    return text
                if end == _TOO_DEEP:
                    message = f"variables are nested more than {MAX_NESTED_VARIABLES} levels deep"
                    self.problems.add(message, self.at)
                    return text
                body = text[dollar + 2 : end]
                whole = dollar == 0 and end == len(text) - 1
                parts.append(self._variable(body, whole=whole))
                cost = len(body) + len(parts[-1]) + VARIABLE_COST
                if not self.problems.budget.spend("expanded", cost):
                    most = MAX_EXPANDED // 1024
                    self.problems.add(f"variables expand to more than {most} KiB", self.at)
                    return ""
                position = end + 1
            else:
                parts.append("$")
                position = dollar + (2 if following == "$" else 1)
        parts.append(text[position:])
        return "".join(parts)

    def _variable(self, body: str, *, whole: bool) -> str:
        match = re.match(_NAME, body)
        if match is None:
            self.problems.add(
                f"'${{{body}}}' does not start with a variable name",
                self.at,
                "for a dollar sign, write '$$'",
            )
            return ""
        name, rest = match.group(), body[match.end() :]
        self.names.append(name)
        if rest and (rest[0] != ":" or rest[1:2] in ("?", "+", "=")):
            self.problems.add(
                f"'${{{body}}}' is not supported",
                self.at,
                f"write '${{{name}}}' or '${{{name}:-default}}'",
            )
            return ""
        default = (rest[2:] if rest.startswith(":-") else rest[1:]) if rest else None
        if whole:
            self.whole_default = default
        value = self.environ.get(name)
        if value and not _is_utf8(value):
            self.problems.add(f"the value of {name} is not UTF-8", self.at, "export it again")
            return ""
        if default is not None:
            return value if value else self.fill(default)
        if value is None and self.keep_unset:
            self.unset.append(name)
        elif value is None:
            self.problems.add(
                f"{name} is not set",
                self.at,
                f"export {name}, or give a default: ${{{name}:-value}}",
            )
        return value or ""


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # bytes that Python keeps as lone surrogates
        return False
    return True


def _closing_brace(text: str, dollar: int) -> int | None:
    """The position of the brace that closes a variable; None or `_TOO_DEEP` if there is none."""
    depth = 0
    for brace in _BRACE.finditer(text, dollar):
        depth += 1 if brace[0] == "${" else -1
        if depth > MAX_NESTED_VARIABLES:
            return _TOO_DEEP
        if depth == 0:
            return brace.start()
    return None


def names_in(text: str) -> list[str]:
    """The variables in a string, in order, including those in defaults."""
    return re.findall(r"(?<!\$)\$\{([A-Za-z_][A-Za-z0-9_]*)", text)
