"""The structure of a plan: its keys, their values, and one normalised form.

`normalise` checks everything, so that all problems of a file are reported at once, and returns the
form that the rest of the package uses: `session.orchestrator` and `session.context` are mappings
`{module, source, config}`, and every entry of `providers`, `tools` and `hooks` is a mapping with
`module`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from amplifier_app.base.errors import Location
from amplifier_app.plan.entries import entry_key
from amplifier_app.plan.nodes import ListNode, MapNode, Node, Scalar, text_of, with_items
from amplifier_app.plan.problems import Problems, suggest
from amplifier_app.plan.shapes import AGENT, DISPLAY, PARTS, PLAN, Shape
from amplifier_support.did_you_mean import did_you_mean

_ENTRY_KEYS = ("module", "source", "requires", "config", "instance_id")
_PROVIDER_KEYS = (*_ENTRY_KEYS, "when")
_PART_KEYS = ("module", "source", "requires", "config")
_SESSION_KEYS = (
    *PARTS,
    "orchestrator_source",
    "context_source",
    "budget",
    "fallbacks",
    "injection_budget_per_turn",
    "injection_size_limit",
    "mount_timeout",
    "metadata",
    "raw",
    "debug",
)
_PUBLISHED = ("ui", "task", "logging", "includes", "spawn", "model_role", "provider_preferences")
_BUDGET_KEYS = ("max_turns", "max_tool_calls", "max_tokens", "max_cost", "max_seconds")
_FRACTIONS = ("max_cost", "max_seconds")
_WHEN_KEYS = ("env", "no_other")
_ID = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_AGENT = rf"(?:{_ID}:)?{_ID}"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"


def normalise(root: Node | None, file: str, problems: Problems, shape: Shape = PLAN) -> MapNode:
    """Check and normalise one document.

    Args:
        root: The document, or None for an empty file.
        file: The file, for a problem without a location.
        problems: Collects the problems.
        shape: The sections it may have.

    Returns:
        The document without `x-…` keys; only valid if nothing was added to `problems`.
    """
    if not isinstance(root, MapNode):
        _report_no_mapping(root, file, problems, shape)
        return MapNode({}, Location(file, 1, 1))
    return _Normaliser(problems, shape).document(root)


def _report_no_mapping(root: Node | None, file: str, problems: Problems, shape: Shape) -> None:
    empty = root is None or _is_null(root)
    if empty and shape.start is None:
        return
    if root is None and problems:
        # It could not be parsed, which has been reported.
        return
    found = "is empty" if root is None or empty else f"is {_kind(root)}, not a mapping"
    at = root.at if root is not None else Location(file, 1, 1)
    problems.add(f"{shape.what} {found}", at, shape.start)


def _kind(node: Node) -> str:
    if isinstance(node, MapNode):
        return "a mapping"
    if isinstance(node, ListNode):
        return "a list"
    if isinstance(node.value, bool):
        return "a boolean"
    if isinstance(node.value, str):
        return "a string"
    return "empty" if node.value is None else "a number"


class _Normaliser:
    def __init__(self, problems: Problems, shape: Shape) -> None:
        self._problems = problems
        self._shape = shape
        self._checks: dict[str, Callable[[Node, str], Node]] = {
            "name": self._text,
            "description": self._text,
            "extends": self._text,
            "exclude": self._texts,
            "instruction": self._text,
            "session": self._session,
            "orchestrator": self._part,
            "context": self._part,
            "fallbacks": self._texts,
            "providers": self._entries,
            "tools": self._entries,
            "hooks": self._entries,
            "agents": self._agents,
            "profile": self._text,
            "sources": self._sources,
            "display": self._display,
        }

    def document(self, root: MapNode) -> MapNode:
        items: dict[str, Node] = {}
        for key, value in root.items.items():
            if key in self._shape.keys:
                if not _is_null(value):
                    items[key] = self._checks[key](value, key)
            elif key in self._shape.elsewhere and (key != "agents" or not self._shape.lenient):
                message = f"{key!r} is not allowed in {self._shape.what}"
                self._problems.add(message, root.key_at(key), self._shape.elsewhere[key])
            elif not key.startswith("x-"):
                self._foreign(key, root, self._shape.keys, self._shape.what)
        return with_items(root, self._join_parts(items))

    def _join_parts(self, items: dict[str, Node]) -> dict[str, Node]:
        """Move the top-level `orchestrator:`, `context:` and `fallbacks:` into the session."""
        fallbacks = items.pop("fallbacks", None)
        if fallbacks is not None:
            session = items.get("session")
            if not isinstance(session, MapNode):
                session = MapNode({}, fallbacks.at)
            if "fallbacks" in session.items:
                at = session.key_at("fallbacks")
                message = "'fallbacks' is also set under 'session'"
                self._problems.add(
                    message, fallbacks.at, f"keep one: the other is on line {at.line}"
                )
            joined = {**session.items, "fallbacks": fallbacks}
            items["session"] = with_items(session, joined)
        for part in PARTS:
            outer = items.pop(part, None)
            if not isinstance(outer, MapNode):
                continue
            session = items.get("session")
            if not isinstance(session, MapNode):
                session = MapNode({}, outer.at)
            inner = session.items.get(part)
            joined = outer
            if isinstance(inner, MapNode):
                self._no_conflict(part, inner, outer)
                joined = MapNode(
                    {**outer.items, **inner.items}, inner.at, {**outer.keys, **inner.keys}
                )
            items["session"] = with_items(session, {**session.items, part: joined})
        return items

    def _no_conflict(self, part: str, inner: MapNode, outer: MapNode) -> None:
        for key in sorted(inner.items.keys() & outer.items.keys()):
            self._problems.add(
                f"{key!r} of the {part} is also set under 'session'",
                outer.key_at(key),
                f"keep one: the other is on line {inner.key_at(key).line}",
            )

    # -- session ---------------------------------------------------------------------

    def _session(self, node: Node, where: str) -> Node:
        if not isinstance(node, MapNode):
            return self._wrong(node, where, "a mapping with 'orchestrator' and 'context'")
        items: dict[str, Node] = {}
        for key, value in node.items.items():
            if key not in _SESSION_KEYS:
                self._foreign(key, node, _SESSION_KEYS, "'session'")
            elif key in PARTS and not _is_null(value):
                items[key] = self._part(value, f"session.{key}")
            elif key.endswith("_source"):
                if not _is_null(value):
                    self._text(value, f"session.{key}")
            elif key == "budget":
                items[key] = self._budget(value)
            elif key == "fallbacks":
                items[key] = value if _is_null(value) else self._texts(value, "session.fallbacks")
            elif key == "mount_timeout":
                self._amount(value, f"session.{key}", whole=False)
                items[key] = value
            elif key.startswith("injection_"):
                items[key] = self._limit(value, f"session.{key}")
            elif key not in PARTS:
                items[key] = value
        for part in PARTS:
            source = node.items.get(f"{part}_source")
            if source is not None and not _is_null(source):
                items[part] = self._with_source(items.get(part), source, part)
        return with_items(node, items)

    def _with_source(self, part: Node | None, source: Node, name: str) -> Node:
        if not isinstance(part, MapNode):
            return MapNode({"source": source}, source.at)
        if "source" in part.items:
            at = part.key_at("source")
            self._problems.add(f"the {name} has two sources", source.at, f"see line {at.line}")
        return with_items(part, {**part.items, "source": source})

    def _part(self, node: Node, where: str) -> Node:
        if isinstance(node, Scalar) and isinstance(node.value, str):
            self._id(node, where)
            return MapNode({"module": node}, node.at)
        if not isinstance(node, MapNode):
            return self._wrong(node, where, "a module id or a mapping with 'module'")
        return self._module(node, where, _PART_KEYS)

    def _budget(self, node: Node) -> Node:
        if _is_null(node):
            # Removes an inherited budget.
            return node
        if not isinstance(node, MapNode):
            return self._wrong(node, "session.budget", "a mapping such as '{max_cost: 5}'")
        for key, value in node.items.items():
            if key in _BUDGET_KEYS:
                self._amount(value, f"session.budget.{key}", whole=key not in _FRACTIONS)
            else:
                self._unknown(key, node, _BUDGET_KEYS, "'session.budget'")
        return node

    def _amount(self, node: Node, where: str, *, whole: bool) -> None:
        value = node.value if isinstance(node, Scalar) else False
        if value is None or (isinstance(value, str) and "${" in value):
            return
        kinds = int if whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or value <= 0:
            self._wrong(node, where, f"a {'whole ' if whole else ''}number greater than 0")

    def _limit(self, node: Node, where: str) -> Node:
        if isinstance(node, Scalar):
            value = node.value
            if value is None or (isinstance(value, str) and "${" in value):
                return node
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                return node
        return self._wrong(node, where, "a whole number, 0 or greater")

    # -- lists of modules ------------------------------------------------------------

    def _entries(self, node: Node, section: str) -> Node:
        if not isinstance(node, ListNode):
            return self._wrong(node, section, "a list of modules, each starting with '- module:'")
        entries: list[Node] = []
        seen: dict[str, Location] = {}
        for index, item in enumerate(node.items):
            entry = self._entry(item, section, f"{section}[{index}]")
            key = entry_key(entry)
            if key is not None and key in seen:
                self._problems.add(
                    f"duplicate entry {key!r} in {section}: first on line {seen[key].line}",
                    entry.at,
                    "merge the two, or give one of them an 'instance_id'",
                )
            elif key is not None:
                seen[key] = entry.at
            entries.append(entry)
        return ListNode(entries, node.at)

    def _entry(self, node: Node, section: str, where: str) -> Node:
        if isinstance(node, Scalar) and isinstance(node.value, str):
            self._id(node, where)
            return MapNode({"module": node}, node.at)
        if not isinstance(node, MapNode):
            return self._wrong(node, where, "a mapping that starts with 'module:'")
        allowed = _PROVIDER_KEYS if section == "providers" else _ENTRY_KEYS
        entry = self._module(node, where, allowed)
        if "module" not in node.items and not _has_near(node.items, "module"):
            self._problems.add(f"{where} has no 'module'", node.at, "add 'module: ID'")
        return entry

    def _module(self, node: MapNode, where: str, allowed: tuple[str, ...]) -> MapNode:
        items: dict[str, Node] = {}
        for key, value in node.items.items():
            if key == "id" and self._shape.bundle and "instance_id" not in node.items:
                # The name of the key in bundles.
                key = "instance_id"
            if key not in allowed:
                self._foreign(key, node, allowed, where, strict=not self._shape.bundle)
            elif key in ("module", "instance_id"):
                self._id(value, f"{where}.{key}")
                items[key] = value
            elif key == "when" and _is_null(value):
                # Removes an inherited condition.
                items[key] = value
            elif _is_null(value):
                continue
            elif key == "source":
                items[key] = self._text(value, f"{where}.source")
            elif key == "requires":
                items[key] = self._texts(value, f"{where}.requires")
            elif key == "config":
                items[key] = self._mapping(value, f"{where}.config")
            else:
                items[key] = self._when(value, f"{where}.when")
        return with_items(node, items)

    def _when(self, node: Node, where: str) -> Node:
        if not isinstance(node, MapNode) or not node.items:
            return self._wrong(node, where, "'{env: VARIABLE}' or '{no_other: true}'")
        for key, value in node.items.items():
            if key not in _WHEN_KEYS:
                self._unknown(key, node, _WHEN_KEYS, where)
            elif key == "env":
                names = self._texts(value, f"{where}.env")
                for name in names.items:
                    text = text_of(name)
                    if text is not None and not re.fullmatch(_VARIABLE, text):
                        self._problems.add(
                            f"{text!r} is not a variable name", name.at, "write the name alone"
                        )
            elif not isinstance(value, Scalar) or not isinstance(value.value, bool):
                self._wrong(value, f"{where}.no_other", "true or false")
        return node

    def _sources(self, node: Node, where: str) -> Node:
        if not isinstance(node, MapNode):
            return self._wrong(node, where, "a mapping 'MODULE: SOURCE'")
        for module, source in node.items.items():
            self._id(Scalar(module, node.key_at(module)), where)
            if not _is_null(source):
                self._text(source, f"{where}.{module}")
        return node

    def _display(self, node: Node, where: str) -> Node:
        if not isinstance(node, MapNode):
            return self._wrong(node, where, f"a mapping of {', '.join(DISPLAY)}")
        for key, value in node.items.items():
            if key not in DISPLAY:
                self._unknown(key, node, tuple(DISPLAY), where)
            elif text_of(value) not in DISPLAY[key]:
                self._wrong(value, f"{where}.{key}", f"one of {', '.join(DISPLAY[key])}")
        return node

    def _agents(self, node: Node, where: str) -> Node:
        if not isinstance(node, MapNode):
            return self._wrong(
                node, where, "a list of agents and files, or a mapping 'NAME: AGENT'"
            )
        items: dict[str, Node] = {}
        for name, agent in node.items.items():
            if not re.fullmatch(_AGENT, name):
                message = f"{name!r} is not an agent name (letters, digits, '-', '_', '.')"
                self._problems.add(message, node.key_at(name))
            elif isinstance(agent, MapNode):
                shape = AGENT._replace(what=f"agent {name!r}", lenient=self._shape.lenient)
                items[name] = _Normaliser(self._problems, shape).document(agent)
            elif _is_null(agent):
                items[name] = MapNode({}, agent.at)
            else:
                self._wrong(agent, f"agents.{name}", "a mapping with 'description'")
        return with_items(node, items)

    # -- single values ---------------------------------------------------------------

    def _id(self, node: Node, where: str) -> None:
        text = text_of(node)
        if text is None:
            self._wrong(node, where, "a module id")
        elif not re.fullmatch(_ID, text):
            hint = "for a path or URL, use 'source:'" if "/" in text or ":" in text else None
            self._problems.add(
                f"{text!r} is not a module id (letters, digits, '-', '_', '.')", node.at, hint
            )

    def _text(self, node: Node, where: str) -> Node:
        text = text_of(node)
        if text is not None and text.strip():
            return node
        if text is not None:
            self._problems.add(f"{where!r} is empty", node.at, "set a value or remove it")
            return node
        hint = "a string (in quotes)" if isinstance(node, Scalar) else "a string"
        return self._wrong(node, where, hint)

    def _texts(self, node: Node, where: str) -> ListNode:
        items = list(node.items) if isinstance(node, ListNode) else [node]
        for item in items:
            if text_of(item) is None:
                self._wrong(item, where, "a string or a list of strings")
        return ListNode(items, node.at)

    def _mapping(self, node: Node, where: str) -> Node:
        return node if isinstance(node, MapNode) else self._wrong(node, where, "a mapping")

    def _wrong(self, node: Node, where: str, expected: str) -> Node:
        self._problems.add(f"{where!r} is {_kind(node)}", node.at, f"expected {expected}")
        return node

    def _foreign(
        self, key: str, node: MapNode, known: tuple[str, ...], where: str, *, strict: bool = False
    ) -> None:
        """Report a key that is misspelt, or belongs to another program."""
        near = did_you_mean(key, known)
        if strict:
            self._unknown(key, node, known, where)
        elif self._shape.lenient and (key in _PUBLISHED or not near):
            self._problems.note(f"{key!r} in {where} is ignored", node.key_at(key))
        elif self._shape.bundle:
            self._problems.note(f"{key!r} in {where} is ignored; {near}", node.key_at(key))
        else:
            self._unknown(key, node, known, where)

    def _unknown(self, key: str, node: MapNode, known: Iterable[str], where: str) -> None:
        names = list(known)
        self._problems.add(f"unknown key {key!r} in {where}", node.key_at(key), suggest(key, names))


def _is_null(node: Node) -> bool:
    return isinstance(node, Scalar) and node.value is None


def _has_near(keys: Iterable[str], name: str) -> bool:
    return any(did_you_mean(key, [name]) for key in keys)


def check_complete(document: MapNode, problems: Problems, *, bundle: bool = False) -> None:
    """Check that a merged plan has an orchestrator and a context.

    Args:
        document: The merged plan.
        problems: Collects the problems.
        bundle: Whether it is a bundle, which may be meant for inclusion only.
    """
    session = document.items.get("session")
    nodes = session.items if isinstance(session, MapNode) else {}
    missing = [
        part
        for part in PARTS
        if not isinstance(node := nodes.get(part), MapNode) or "module" not in node.items
    ]
    if bundle and missing:
        hint = "nor do the bundles it includes; add a 'session', or include it in a bundle that has one"
        problems.add(f"the bundle has no {' and no '.join(missing)}", document.at, hint)
        return
    for part in missing:
        node = nodes.get(part)
        problems.add(
            f"the plan has no {part}",
            node.at if node is not None else document.at,
            f"add 'session: {{{part}: MODULE}}', or 'extends: default'",
        )
