"""The page of capabilities lists each one, with all code that registers or reads it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import amplifier_core

SRC = Path(amplifier_core.__file__).parent.parent
PAGE = Path(amplifier_core.__file__).parent / "contracts" / "capabilities.md"

_SHARED = {
    *("session.budget", "secrets.variables", "redaction.event"),
    *("approval.remembered", "approval.mode", "backup.session"),
}
COMPUTED: dict[str, tuple[set[str], set[str]]] = {
    "amplifier_app/runtime/delegation.py": (_SHARED, _SHARED),
    "amplifier_app/chat/slash/undo.py": (set(), {"backup.undo", "backup.list"}),
    "amplifier_modules/provider_local/provider.py": (set(), {"cache.dir", "offline"}),
    "amplifier_modules/tool_task/tool.py": (set(), {"session.spawn", "session.resume"}),
}
"""Capabilities that files register and read under computed names."""

Uses = dict[str, tuple[set[str], set[str]]]


def unit(file: Path) -> str:
    """Owner of a file, as named on the page."""
    package, *rest = file.relative_to(SRC).parts
    if package != "amplifier_modules":
        return package.removeprefix("amplifier_").replace("core", "kernel")
    if rest[0] == "_shared":
        return {"loop": "loops", "context": "contexts"}.get(rest[1], "modules")
    return rest[0].replace("_", "-")


def constants(file: Path, *, follow: bool = True) -> dict[str, str]:
    """String constants of a file and of the files it imports them from."""
    found: dict[str, str] = {}
    tree = ast.parse(file.read_text())
    # Modules import in functions what only mounting needs.
    for node in ast.walk(tree) if follow else tree.body:
        if isinstance(node, ast.ImportFrom):
            origin = imported_file(file, node) if follow else None
            if origin is not None:
                own = constants(origin, follow=False)
                found |= {a.asname or a.name: own[a.name] for a in node.names if a.name in own}
        elif (
            node in tree.body
            and isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
        ):
            text = text_of(node.value, found)
            if text is not None:
                found[node.targets[0].id] = text
    return found


def imported_file(file: Path, node: ast.ImportFrom) -> Path | None:
    base = file.parents[node.level - 1] if node.level else SRC
    path = base.joinpath(*(node.module or "").split("."))
    if not path.is_relative_to(SRC) or path == SRC:
        return None
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


def text_of(node: ast.expr, known: dict[str, str]) -> str | None:
    """The literal parts of a string, with ``*`` for computed parts."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.JoinedStr):
        parts = (p.value if isinstance(p, ast.FormattedValue) else p for p in node.values)
        return "".join(text_of(part, known) or "*" for part in parts)
    return None


def calls(file: Path) -> Iterator[tuple[str, ast.expr]]:
    """Calls that register or read a capability, as method and name."""
    tree = ast.parse(file.read_text())
    aliases = {
        target.id: node.value.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else ""
            name = aliases.get(called.id, "") if isinstance(called, ast.Name) else name
            if name in ("register_capability", "get_capability"):
                yield name, node.args[0]


def in_code() -> Uses:
    uses: Uses = defaultdict(lambda: (set(), set()))
    for file in SRC.rglob("*.py"):
        if "_capability" not in file.read_text():
            continue
        known = constants(file)
        for method, argument in calls(file):
            reads, name = method == "get_capability", text_of(argument, known)
            if name is not None:
                uses[name][reads].add(unit(file))
            else:
                assert str(file.relative_to(SRC)) in COMPUTED, f"{file}: add its names to COMPUTED"
    for path, computed in COMPUTED.items():
        for reads, names in enumerate(computed):
            for name in names:
                uses[name][reads].add(unit(SRC / path))
    return dict(uses)


def on_the_page() -> Uses:
    rows = re.findall(r"^\| `([^`]+)` \|.*\|([^|]*)\|([^|]*)\|$", PAGE.read_text(), re.MULTILINE)
    return {name: (listed(registers), listed(reads)) for name, registers, reads in rows}


def listed(cell: str) -> set[str]:
    return {one.strip() for one in cell.split(",") if one.strip() not in ("", "-")}


def test_the_page_lists_who_registers_and_reads_each_capability() -> None:
    code, page = in_code(), on_the_page()
    assert sorted(page) == sorted(code)
    assert {name: page[name] for name in sorted(page)} == {n: code[n] for n in sorted(code)}
